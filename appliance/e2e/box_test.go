package e2e

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// box is the standard network with an appliance on GW1.
type box struct {
	*netlab.Standard
	svcctl *netlab.Appliance

	t     *testing.T
	flags flags
}

// flags are flags of svcctl serve by name. A flag with several values is repeated; one
// with none is left out.
type flags map[string][]string

func standardFlags() flags {
	return flags{
		"node-name":                {"gw1"},
		"service-cluster-ip-range": {"172.30.0.0/16,fd00:172:30::/112"},
		"cluster-cidr":             {"10.0.0.0/8,fd00:10::/32"},
		"load-balancer-pool":       {"198.51.100.0/28", "2001:db8:198::/124"},
		// Tests remove their only file; the brake has tests of its own.
		"allow-mass-removal": {"true"},
	}
}

// setAside sets the external IPs of the tests aside for Services, which have all of their ports
// then.
func setAside(other flags) flags {
	f := flags{"external-ip-range": {"198.51.100.96/28", "2001:db8:198::90/124"}}
	maps.Copy(f, other)
	return f
}

func (f flags) args() []string {
	var args []string
	for _, name := range slices.Sorted(maps.Keys(f)) {
		for _, value := range f[name] {
			args = append(args, "--"+name+"="+value)
		}
	}
	return args
}

// newBox makes the network and prepares the appliance, with the standard flags where
// other says nothing. The test runs in parallel with others from here on.
func newBox(t *testing.T, other flags) *box {
	t.Helper()
	t.Parallel()
	f := standardFlags()
	maps.Copy(f, other)
	s := netlab.NewStandard(t)
	return &box{Standard: s, svcctl: s.GW1.Appliance(binary, f.args()...), t: t, flags: f}
}

// each runs a part of the test for both families, at the same time.
func (b *box) each(t *testing.T, part func(t *testing.T, b *box, f family)) {
	t.Helper()
	parts := make(map[string]func(t *testing.T, b *box))
	for _, f := range families {
		parts[f.String()] = func(t *testing.T, b *box) { part(t, b, f) }
	}
	b.atOnce(t, parts)
}

// atOnce runs parts of the test at the same time, as subtests by name. t.Parallel is not used for
// them: a test that waits for parallel subtests gives its turn to the next test, and the networks
// of all tests would be there together, with more descriptors than the process may have.
func (b *box) atOnce(t *testing.T, parts map[string]func(t *testing.T, b *box)) {
	t.Helper()
	var all sync.WaitGroup
	for name, part := range parts {
		all.Go(func() {
			t.Run(name, func(t *testing.T) { part(t, b.in(t)) })
		})
	}
	all.Wait()
}

// in is the box for a subtest.
func (b *box) in(t *testing.T) *box {
	return &box{Standard: b.For(t), svcctl: b.svcctl.For(t), t: t, flags: b.flags}
}

// write writes a manifest file with the documents of both families.
func (b *box) write(name string, documents func(f family) []string) {
	b.t.Helper()
	b.svcctl.Manifests.Write(name, both(documents))
}

func both(documents func(f family) []string) string {
	var all []string
	for _, f := range families {
		all = append(all, documents(f)...)
	}
	return strings.Join(all, "---\n")
}

// syncTimeout is how long a changed file may take to be in force: 1 s after it was
// accepted, which it is when it was quiet for 0.1 s, and what a busy machine adds.
const syncTimeout = time.Minute

// change changes something in the manifests and waits until that was accepted and is
// in the kernel.
func (b *box) change(do func()) {
	b.t.Helper()
	before := b.status().Revision.Accepted
	do()
	eventually(b.t, syncTimeout, func() error {
		if s := b.status(); s.Revision.Accepted == before || !s.Synced {
			return fmt.Errorf("revision %d was accepted, %d is programmed, synced: %t; revision %d was accepted before the change",
				s.Revision.Accepted, s.Revision.Programmed, s.Synced, before)
		}
		return nil
	})
	b.synced() // what was accepted may have been an Event; what is in the files by now is waited for here
}

// synced waits until all that was accepted, and what is in the files by now, is in the kernel. It is svcctl wait without its process.
func (b *box) synced() {
	b.t.Helper()
	if _, err := b.svcctl.Get("/svcctl/v1/wait?for=synced&timeout=" + syncTimeout.String()); err != nil {
		b.t.Fatal(err)
	}
}

// rewrite is write and waits until that was accepted and is in the kernel.
func (b *box) rewrite(name string, documents func(f family) []string) {
	b.t.Helper()
	b.change(func() { b.write(name, documents) })
}

// status has the fields of the API's status that the tests read.
type status struct {
	Ready    bool
	Synced   bool
	Reason   string
	Revision struct{ Accepted, Programmed uint64 }
	Problems []problem
}

type problem struct {
	Object, File, Field, Reason, Message, Severity string
	Line                                           int
}

func (p problem) String() string {
	return fmt.Sprintf("%s %s:%d %s: %s: %s (%s)", p.Severity, p.File, p.Line, p.Object, p.Field, p.Message, p.Reason)
}

func (b *box) status() status {
	b.t.Helper()
	var s status
	if err := b.svcctl.Read("/svcctl/v1/status", &s); err != nil {
		b.t.Fatal(err)
	}
	return s
}

// hasProblem waits until the status lists a problem of an object whose line, with
// field, message and reason, contains every one of the texts.
func (b *box) hasProblem(t *testing.T, object string, texts ...string) {
	t.Helper()
	eventually(t, syncTimeout, func() error {
		problems := b.status().Problems
		for _, p := range problems {
			line := p.String()
			if p.Object == object && !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
				return nil
			}
		}
		return fmt.Errorf("no problem of %q with %q in:\n%s", object, texts, list(problems))
	})
}

// noProblem asserts that an object has no problem.
func (b *box) noProblem(t *testing.T, object string) {
	t.Helper()
	for _, p := range b.status().Problems {
		if p.Object == object {
			t.Errorf("unexpected problem: %s", p)
		}
	}
}

func list(problems []problem) string {
	var lines []string
	for _, p := range problems {
		lines = append(lines, "  "+p.String())
	}
	return strings.Join(lines, "\n")
}

var eventually = netlab.Eventually

// family is the address family that a part of a test is about.
type family struct{ v6 bool }

var (
	ipv4     = family{false}
	ipv6     = family{true}
	families = []family{ipv4, ipv6}
)

func (f family) pick(v4, v6 string) string {
	if f.v6 {
		return v6
	}
	return v4
}

// String is the name as Kubernetes writes it.
func (f family) String() string { return f.pick("IPv4", "IPv6") }

// vip is a cluster IP, lb a load balancer IP and external an external IP.
func (f family) vip(n int) string { return fmt.Sprintf(f.pick("172.30.0.%d", "fd00:172:30::%d"), n) }
func (f family) lb(n int) string  { return fmt.Sprintf(f.pick("198.51.100.%d", "2001:db8:198::%d"), n) }
func (f family) external(n int) string {
	return fmt.Sprintf(f.pick("198.51.100.%d", "2001:db8:198::%d"), n)
}

// boxAddr is the primary address of the box, altAddr another one.
func (f family) boxAddr() string { return f.pick(netlab.BoxAddr4, netlab.BoxAddr6) }
func (f family) altAddr() string { return f.pick(netlab.BoxAltAddr4, netlab.BoxAltAddr6) }

// of is the address of a host in this family.
func (f family) of(h *netlab.Host) netip.Addr {
	if f.v6 {
		return h.Addr6()
	}
	return h.Addr4()
}

// client is the n-th address that EXT may ask from, up to 125.
func (f family) client(n int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(f.pick("203.0.113.%d", "2001:db8:203::%d"), n+1))
}

// at is an address and port.
func (f family) at(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}

// on is a port of several hosts.
func (f family) on(port uint16, hosts ...*netlab.Host) []netip.AddrPort {
	var all []netip.AddrPort
	for _, h := range hosts {
		all = append(all, netip.AddrPortFrom(f.of(h), port))
	}
	return all
}

// number is a port that a Service of this family asks for where both families would ask
// for the same: the next one of IPv6.
func (f family) number(port uint16) uint16 {
	if f.v6 {
		port++
	}
	return port
}

// port is number as text.
func (f family) port(port int) string { return fmt.Sprint(f.number(uint16(port))) }
