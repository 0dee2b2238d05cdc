// Package prober probes the endpoints of Services at the intervals of their Checks, and keeps the
// verdicts.
//
// One loop knows when each Target is due (a heap, ticks of 20 ms) and sleeps while none is. Targets
// that several Services want alike are asked once. Intervals begin at a place that the Target's
// hash says, and vary by 5 %. Of TCP connections the loop and one more goroutine mind all; only
// what talks after that has a goroutine, and ends by its deadline.
//
// Invariants:
//
//   - Without Targets nothing wakes, and nothing is open.
//   - Bounded: 50,000 Targets, 4,096 probes under way, one for each Target, and 5,000 units of work a
//     second (a TCP connection is 1, HTTP 2, TLS 10). Above that, intervals stretch for all alike.
//   - A check of TCP opens half a connection: SYN, SYN-ACK, RST. The server's program sees nothing.
//     All TCP connections end with a reset, so nothing is left of them on either side.
//   - In the steady state a Target is asked from one source port. It has one entry in conntrack
//     however often it is asked, and at most two more while its state is in doubt.
//   - What fails for a reason of this host counts for nothing: no descriptors, no memory, no right,
//     or it stood still while the probe was under way.
//   - No byte that a server sent is in a Result, a log line or Stats. Answers are read to 16 KiB of
//     headers and 4 KiB of body, and nothing is asked but the Target: no redirect, no proxy.
//
// The package must not decide what a Service wants or what follows from a verdict (package
// health does), must not know the loop, and must not change a setting of the host.
//
//	p := prober.New(prober.Options{SourcePorts: prober.DefaultPorts})
//	p.Set("default/web", []prober.Request{{Target: target, Start: health.Up}})
//	go p.Run(ctx, func() { wake() })
//	for _, service := range p.Flipped() { ... }
package prober
