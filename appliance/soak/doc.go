// Package soak tries the appliance under load: packets never stop while the program is
// updated, stopped, killed, started, and has its rules flushed by others.
//
// It holds tests alone. They are quick with the numbers they have by default; `make soak`
// gives them the numbers that are promised in docs/reliability.md, which take the better
// part of an hour. Each number is an environment variable, see counts.
//
// As in package e2e, a test knows the program by its command line, its log, its data
// directory and the packets; it must not import the packages the program is made of.
//
//	func TestP02_killedUnderLoad(t *testing.T) {
//		b := newBench(t)
//		load := b.start(t)
//		for range killed.value(t) {
//			b.svcctl.Kill()
//			b.svcctl.Start()
//		}
//		load.stop(t)
//	}
package soak
