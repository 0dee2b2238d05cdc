// Package bench measures the running program: how long a change takes from the file to
// the kernel, what a start and the memory of a large box cost, and what a packet pays. It
// prints one table; `make bench` runs it, docs/performance.md keeps the last one.
//
// It holds benchmarks alone, is no part of the product and asserts no time: what counts
// are ratios of things that were measured in turns, in one run on one machine, each as a
// median. It needs root, and works in network namespaces of its own.
//
// It must not be compared between machines, and not run beside other load where it
// matters.
//
//	go test -run '^$' -bench NewConnection -benchtime 1x ./appliance/bench
package bench
