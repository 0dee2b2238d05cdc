// Package prober probes the endpoints of Services at the intervals of their Checks, and keeps the
// verdicts.
//
// One loop has the times at which Targets are due (a heap, ticks of 20 ms) and sleeps while none is. A
// Target of several Services is probed once. The hash of a Target decides where its interval begins;
// intervals vary by 5 %. The loop and one more goroutine open all TCP connections; only a probe that
// sends data after that has a goroutine, which ends by its deadline.
//
// Invariants:
//
//   - Without Targets the loop sleeps, and no socket is open.
//   - Bounded: 50,000 Targets, 4,096 probes under way, one for each Target, and 5,000 units of work a
//     second (a TCP connection is 1, HTTP 2, TLS 10). Above that, intervals stretch for all alike.
//   - A check of TCP opens half a connection: SYN, SYN-ACK, RST. The server's program sees nothing.
//     All TCP connections end with a reset, so nothing is left of them on either side.
//   - In the steady state a Target is asked from one source port. It has one entry in conntrack
//     however often it is asked, and at most two more while its state is in doubt.
//   - A failure of this host does not count: no descriptors, no memory, no permission, or a pause of
//     the host while the probe was under way.
//   - No byte that a server sent is in a Result, a log line or Stats. Answers are read to 16 KiB of
//     headers and 4 KiB of body, and only the Target is contacted: no redirect, no proxy.
//
// The package must not interpret the settings of a Service or a verdict (package health does), must
// not import the loop, and must not change a setting of the host.
//
//	p := prober.New(prober.Options{SourcePorts: prober.DefaultPorts})
//	p.Set("default/web", []prober.Request{{Target: target, Start: health.Up}})
//	go p.Run(ctx, func() { wake() })
//	for _, service := range p.Flipped() { ... }
package prober
