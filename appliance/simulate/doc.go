// Package simulate runs the whole of one box from one seed: the store on a disk, the watcher on files, the controllers, the loop,
// and a kernel, in virtual time (testing/synctest); or the stores and engines of a fleet of three on a model of etcd. It is for tests
// alone.
//
// A seed makes a Script: lines of text, each an event, such as a file that is written, a request of a client, a fault of the disk
// or the kernel, a foreign change, a jump of the clock, a kill. A run follows the Script alone. After each round the faults end, 100
// virtual seconds pass, and the invariants are judged (see judge.go): packets against package oracle, what clients were answered and
// files have against the store, values that are unique and stay, a rest without work, a status that is true.
//
//	make sim                     new seeds until stopped; FOR=10m bounds it
//	make sim SEED=4711           that run again, with its script, shrunk
//	make sim SCRIPT=fail.txt     a script, without its seed
//	make sim FLEET=1             fleets alone; without it each fourth seed is one
//
// The kernel is nft/nfttest/fake, with faults before and after a commit. The disk is a real data file, with faults before, in the
// middle and after a commit: in the middle each page is left as before or as after (see disk.go). Requests of clients lose their
// answer, break off, or are junk; a client follows a watch over restarts. etcd is a model (see etcd.go).
// Not simulated: the relay, announcing, DNS, sockets; in fleets the loop and files.
package simulate
