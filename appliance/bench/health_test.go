package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/appliance/prober"
)

// checksVar makes this test program a process that asks endpoints, and nothing else.
const checksVar = "SVCCTL_BENCH_CHECKS"

// checks are the endpoints that the process checks, from 10.200.0.0 up, and the Check.
type checks struct {
	Endpoints int
	Check     health.Check
}

// checksCost has the CPU time, memory and results of that process so far.
type checksCost struct {
	At       time.Time
	CPU      time.Duration
	RSS      int // KiB
	Checks   uint64
	Up, Down int
}

// serveChecks asks until the standard input ends, and says once a second what that cost.
func serveChecks(text string) error {
	var c checks
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	p := prober.New(prober.Options{Log: slog.New(slog.DiscardHandler), SourcePorts: prober.DefaultPorts})
	for i := range c.Endpoints {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}), 8080)
		p.Set("default/s"+strconv.Itoa(i), []prober.Request{{Target: health.Target{Addr: addr, Check: c.Check}, Start: health.Up}})
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	go func() {
		for ; ctx.Err() == nil; time.Sleep(time.Second) {
			_ = json.NewEncoder(os.Stdout).Encode(costOf(p.Stats(), c.Check.Kind))
		}
	}()
	p.Run(ctx, func() {})
	return nil
}

// processCPU is the CPU time of this process so far.
func processCPU() time.Duration {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used) // of this process it does not fail
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func costOf(s prober.Stats, kind health.Kind) (c checksCost) {
	c.At, c.CPU = time.Now(), processCPU()
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if value, is := strings.CutPrefix(line, "VmRSS:"); is {
			c.RSS, _ = strconv.Atoi(strings.Fields(value)[0])
		}
	}
	for _, n := range s.Checks[kind] {
		c.Checks += n
	}
	c.Up, c.Down = s.Targets[health.Up], s.Targets[health.Down]
	return c
}

// BenchmarkHealth measures what checks cost: the CPU time of the process that asks, with its part of the
// kernel's, as a share of a core, and its memory.
func BenchmarkHealth(b *testing.B) {
	const section = "Health checks"
	check := func(kind health.Kind, interval time.Duration) health.Check {
		return health.Check{Kind: kind, Interval: interval, Timeout: 2 * time.Second, Rise: 2, Fall: 3}
	}
	for _, c := range []struct {
		name string
		checks
		silent bool
	}{
		{"10,000 endpoints by TCP at 5 s", checks{10_000, check(health.TCP, 5*time.Second)}, false},
		{"10,000 endpoints by HTTP at 5 s", checks{10_000, check(health.HTTP, 5*time.Second)}, false},
		{"50,000 endpoints by TCP at 25 s", checks{50_000, check(health.TCP, 25*time.Second)}, false},
		{"10,000 silent endpoints by TCP at 5 s", checks{10_000, check(health.TCP, 5*time.Second)}, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			box, server := checkedNetwork(b)
			if c.silent {
				server.LoadNft("table inet mute { chain in { type filter hook input priority 0; tcp dport 8080 drop; }; }")
			}
			before, after := measureChecks(b, box, c.checks)
			wall := float64(after.At.Sub(before.At))
			made := after.Checks - before.Checks
			if c.silent && after.Down != c.Endpoints || !c.silent && after.Up != c.Endpoints {
				b.Errorf("%d are up and %d down", after.Up, after.Down)
			}
			results.add(section, c.name, fmt.Sprintf("%.1f %% of a core, %d MiB", 100*float64(after.CPU-before.CPU)/wall, after.RSS/1024),
				fmt.Sprintf("%s each, %.0f a second; %d entries of conntrack", ms((after.CPU-before.CPU)/time.Duration(max(made, 1))), float64(made)/wall*float64(time.Second), entries(box)))
		})
	}
}

// checkedFor gives the time to measure checks for: some rounds.
func checkedFor(c health.Check) time.Duration { return max(20*time.Second, c.Interval) }

// checkedNetwork is a box that tracks its connections, and a server with the endpoints.
func checkedNetwork(b *testing.B) (box, server *netlab.Host) {
	b.Helper()
	lab := netlab.New(b)
	box, server = lab.Host("box"), lab.Host("server")
	lab.Segment("lan").Attach(box, "lan0", "10.9.0.1/24").Attach(server, "eth0", "10.9.0.2/24")
	server.Own("10.200.0.0/16")
	box.Route("10.200.0.0/16", "10.9.0.2")
	box.LoadNft("table inet track { chain out { type filter hook output priority 0; ct state new accept; }; }")
	var l net.Listener
	if err := server.Do(func() (err error) { l, err = net.Listen("tcp4", "0.0.0.0:8080"); return err }); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := c.Read(make([]byte, 1024)); err == nil {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok")
				}
			}()
		}
	}()
	return box, server
}

func entries(box *netlab.Host) int {
	n, _ := strconv.Atoi(strings.TrimSpace(box.Conntrack("-C")))
	return n
}

// measureChecks runs the process on the box, and reads what it has used when every endpoint was
// asked, and some time later.
func measureChecks(b *testing.B, box *netlab.Host, c checks) (before, after checksCost) {
	b.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		b.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), checksVar+"="+string(text))
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := box.Do(cmd.Start); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = input.Close()
		_, _ = io.Copy(io.Discard, output)
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	}()
	lines := bufio.NewScanner(output)
	next := func() (now checksCost) {
		if !lines.Scan() {
			b.Fatalf("the process that asks has ended: %v", lines.Err())
		}
		if err := json.Unmarshal(lines.Bytes(), &now); err != nil {
			b.Fatal(err)
		}
		return now
	}
	settled := func(now checksCost) bool {
		return now.Checks >= uint64(c.Endpoints) && (now.Up == c.Endpoints || now.Down == c.Endpoints)
	}
	for end := time.Now().Add(patience); !settled(before) && time.Now().Before(end); {
		before = next()
	}
	for end := time.Now().Add(checkedFor(c.Check)); time.Now().Before(end); {
		after = next()
	}
	return before, after
}
