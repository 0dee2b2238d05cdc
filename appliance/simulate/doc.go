// Package simulate runs the whole of one box from one seed: the store on a disk, the watcher on files, the controllers, the loop,
// and a kernel, in virtual time (testing/synctest). It is for tests alone.
//
// A seed makes a Script: lines of text, each an event, such as a file that is written, a request of a client, a fault of the disk
// or the kernel, a foreign change, a jump of the clock, a kill. A run follows the Script alone. After each round the faults end, 100
// virtual seconds pass, and the invariants are judged (see judge.go): packets against package oracle, what clients were answered and
// files have against the store, values that are unique and stay, a rest without work, a status that is true.
//
//	make sim                     new seeds until stopped; FOR=10m bounds it
//	make sim SEED=4711           that run again, with its script, shrunk
//	make sim SCRIPT=fail.txt     a script, without its seed
//
// The kernel is nft/nfttest/fake, the disk store/engine.Memory: both with faults before, after and in the middle of a commit.
// Not simulated: the relay, announcing, DNS, sockets, pages of the data file.
package simulate
