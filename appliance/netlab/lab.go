package netlab

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// RequirePrivileged is the environment variable that, when "1", turns the skips of
// privileged tests into failures.
const RequirePrivileged = "SVCCTL_REQUIRE_PRIVILEGED"

// Parallel sets how many tests of a package run at once, where the command line does not: much of their time is waiting,
// for other programs and for time-outs. It is for TestMain.
func Parallel(n int) {
	flag.Parse()
	const name = "test.parallel"
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if !given {
		_ = flag.Set(name, strconv.Itoa(n)) // to a number
	}
}

// Eventually calls check until it returns nil. It fails the test with the last error when that takes longer than within.
// It pauses between two calls, as most of them start a program: for a fifth of the time so far, 10 ms at least and 500 ms at most.
func Eventually(t testing.TB, within time.Duration, check func() error) {
	t.Helper()
	began := time.Now()
	for {
		asked := time.Now()
		err := check()
		if err == nil {
			return
		}
		waited, took := time.Since(began), time.Since(asked)
		if waited > within {
			t.Fatalf("not within %s: %v", within, err)
		}
		time.Sleep(max(10*time.Millisecond, min(max(waited/5, 4*took), 500*time.Millisecond)))
	}
}

// Lab is a network of Hosts. It ends with the test it was made for.
type Lab struct {
	t      testing.TB
	fabric *Host // holds the bridges of the segments
	ports  int   // of the bridges, all together
	hosts  []*Host
}

// New returns an empty Lab. It skips the test when this process may not make network
// namespaces (or fails it, see RequirePrivileged), and fails it when a program the
// labs use is not installed.
func New(t testing.TB) *Lab {
	t.Helper()
	l := &Lab{t: t}
	t.Cleanup(l.close)
	l.fabric = l.firstHost()
	for program, pkg := range map[string]string{"nft": "nftables", "conntrack": "conntrack"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("packet tests need the program %s: install the package %s (%v)", program, pkg, err)
		}
	}
	l.fabric.setSysctls(fabricSysctls...)
	return l
}

// firstHost makes the first host, and skips or fails the test if this process may not make
// namespaces.
func (l *Lab) firstHost() *Host {
	l.t.Helper()
	if testing.Short() {
		l.t.Skip("SKIPPED: tests with -short make no networks")
	}
	h, err := newHost("fabric")
	if errors.Is(err, os.ErrPermission) {
		const advice = "packet tests need root (CAP_SYS_ADMIN and CAP_NET_ADMIN) to make network namespaces: run `sudo make test`"
		if os.Getenv(RequirePrivileged) == "1" {
			l.t.Fatalf("%s; %s=1 forbids to skip: %v", advice, RequirePrivileged, err)
		}
		l.t.Skipf("SKIPPED, NOTHING WAS TESTED: %s: %v", advice, err)
	}
	if err != nil {
		l.t.Fatalf("make the first host: %v", err)
	}
	l.add(h)
	return h
}

// Host returns a new machine with nothing but a loopback interface that is up.
func (l *Lab) Host(name string) *Host {
	l.t.Helper()
	h, err := newHost(name)
	if err != nil {
		l.t.Fatalf("make host %s: %v", name, err)
	}
	l.add(h)
	return h
}

// add takes a new Host into the lab's care and makes it ready.
func (l *Lab) add(h *Host) {
	l.t.Helper()
	h.t = l.t
	l.hosts = append(l.hosts, h)
	h.setSysctls(hostSysctls...)
	if err := h.linkUp("lo"); err != nil {
		l.t.Fatal(err)
	}
}

// Router returns a Host that forwards, answers every refusal at once (the kernel limits
// the rate of ICMP errors to each destination, RFC 1812 section 4.3.2.8, which would
// make refusals look like silence) and takes asymmetric paths.
func (l *Lab) Router(name string) *Host {
	l.t.Helper()
	h := l.Host(name)
	h.setSysctls(routerSysctls...)
	return h
}

// sysctl is a kernel setting.
type sysctl struct {
	key, value  string
	mayBeAbsent bool
}

var (
	// Addresses of IPv6 are usable at once, without duplicate address detection.
	hostSysctls = []sysctl{
		{key: "net.ipv6.conf.all.accept_dad", value: "0"},
		{key: "net.ipv6.conf.default.accept_dad", value: "0"},
		{key: "net.ipv6.conf.default.accept_ra", value: "0"},
		{key: "net.ipv6.conf.default.router_solicitations", value: "0"},
		{key: "net.ipv4.conf.all.rp_filter", value: "0"},
		{key: "net.ipv4.conf.default.rp_filter", value: "0"},
		{key: "net.ipv4.icmp_ratelimit", value: "0"},
		{key: "net.ipv6.icmp.ratelimit", value: "0"},
	}
	// Older kernels have a limit of ICMP messages for the whole machine, which is not ours to set.
	routerSysctls = []sysctl{
		{key: "net.ipv4.ip_forward", value: "1"},
		{key: "net.ipv6.conf.all.forwarding", value: "1"},
		{key: "net.ipv6.conf.default.forwarding", value: "1"},
		{key: "net.ipv4.icmp_msgs_per_sec", value: "1000000", mayBeAbsent: true},
		{key: "net.ipv4.icmp_msgs_burst", value: "1000000", mayBeAbsent: true},
	}
	// Bridged frames are none of the IP hooks' business. Absent without br_netfilter.
	fabricSysctls = []sysctl{
		{key: "net.bridge.bridge-nf-call-iptables", value: "0", mayBeAbsent: true},
		{key: "net.bridge.bridge-nf-call-ip6tables", value: "0", mayBeAbsent: true},
	}
)

func (l *Lab) close() {
	for _, h := range l.hosts {
		h.close()
	}
	l.hosts = nil
}
