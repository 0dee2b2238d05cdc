package script_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/appliance/test/script"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

var update = flag.Bool("update", false, "rewrite the expected sections of scripts")

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	netlab.Parallel(8)
	if os.Geteuid() != 0 || testing.Short() {
		return m.Run() // wire scripts skip, or fail when they must not
	}
	dir, err := os.MkdirTemp("", "svcctl-script-")
	if err == nil {
		defer os.RemoveAll(dir)
		binary, err = netlab.Build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// TestWire runs the scripts of mode wire: svcctl in a network namespace of its own.
func TestWire(t *testing.T) {
	script.Run(t, "testdata", script.Mode{
		Name: "wire", New: newWire, Update: *update,
		Commands: map[string]script.Command{
			"svcctl":    svcctl,
			"shows":     shows,
			"conntrack": conntrack,
			"dial":      dial,
			"echo":      echo,
			"dns":       dns,
			"http":      httpGet,
			"on":        on,
			"serve":     serve,
			"mangle":    mangle,
		},
	})
}

// TestNetworksAgree: the scripts' picture of the network is what netlab makes.
func TestNetworksAgree(t *testing.T) {
	w := newWire(t, t.TempDir(), nil).(*wire)
	for _, h := range script.Hosts {
		made := w.host(h.Name)
		if got := [2]netip.Addr{made.Addr4(), made.Addr6()}; got != h.Addresses {
			t.Errorf("host %s has the addresses %v, scripts say %v", h.Name, got, h.Addresses)
		}
		for network, ports := range script.Ports {
			for _, port := range ports {
				if !h.Serves(network, port) && network != "tcp" {
					continue // silence would have to be waited for
				}
				_, err := w.GW1.Ask(network, netip.AddrPortFrom(made.Addr4(), port), patient)
				if got := err == nil; got != h.Serves(network, port) {
					t.Errorf("host %s answers %s/%d: %t (%v), scripts say %t", h.Name, network, port, got, err, !got)
				}
			}
		}
	}
}

// wire is a script.Box of the program and real packets.
type wire struct {
	*netlab.Standard
	t       testing.TB
	svcctl  *netlab.Appliance
	kernel  *kernel.Conn
	monitor *netlab.Monitor
	open    map[string]*netlab.Conn
	began   time.Time // of the command that is tried again
}

// patient waits for answers that must come: a busy machine may take its time.
var patient = netlab.Within(time.Minute)

func newWire(t testing.TB, _ string, flags script.Flags) script.Box {
	s := netlab.NewStandard(t)
	k, err := kernel.Open(kernel.Options{NetNS: s.GW1.Namespace()})
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{
		Standard: s, t: t, svcctl: s.GW1.Appliance(binary, flags.Args()...), kernel: k,
		monitor: s.GW1.Monitor(), open: map[string]*netlab.Conn{},
	}
	t.Cleanup(func() {
		for _, c := range w.open {
			c.Close()
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *wire) host(name string) *netlab.Host {
	for _, h := range []*netlab.Host{w.GW1, w.IN, w.EXT, w.BLK, w.Near, w.L1, w.L2, w.R1, w.R2} {
		if h.Name == name {
			return h
		}
	}
	w.t.Fatalf("no host is called %q", name)
	return nil
}

func (w *wire) Write(name, content string) { w.svcctl.Manifests.Write(name, content) }
func (w *wire) Remove(name string)         { w.svcctl.Manifests.Remove(name) }
func (w *wire) Stop()                      { w.svcctl.Stop() }
func (w *wire) Kill()                      { w.svcctl.Kill() }
func (w *wire) Socket() string             { return w.svcctl.Socket }
func (w *wire) Flush()                     { w.GW1.Nft("flush", "ruleset") }

// Start implements script.Box. The status is published after the log says that everything is
// programmed.
func (w *wire) Start() {
	w.svcctl.Start()
	if err := w.Sync(); err != nil {
		w.t.Fatal(err)
	}
}

// Sync implements script.Box.
func (w *wire) Sync() error {
	_, err := w.svcctl.Get("/svcctl/v1/wait?for=synced&timeout=1m")
	return err
}

// Again implements script.Box.
func (w *wire) Again(attempt int) bool {
	if attempt == 1 {
		w.began = time.Now()
	}
	time.Sleep(min(time.Duration(attempt)*20*time.Millisecond, 500*time.Millisecond)) // real time: a pause between tries, which may start programs
	return time.Since(w.began) < time.Minute
}

// Ruleset implements script.Box.
func (w *wire) Ruleset() (nft.Ruleset, error) {
	ruleset, _, err := w.kernel.Read()
	return ruleset, err
}

// Transactions implements script.Box.
func (w *wire) Transactions() (n int) {
	for _, transaction := range w.monitor.Transactions() {
		ours := func(c netlab.Change) bool { return c.Table == "ip svcctl" || c.Table == "ip6 svcctl" }
		if transaction.Process == "svcctl" && slices.ContainsFunc(slices.Collect(maps.Keys(transaction.Changes)), ours) {
			n++
		}
	}
	w.monitor.Forget()
	return n
}

// Empty implements script.Box.
func (w *wire) Empty(family nft.Family, set string) {
	kind := "map"
	if ruleset, err := w.Ruleset(); err == nil && ruleset[family] != nil && ruleset[family].Sets[set] != nil && ruleset[family].Sets[set].Data == nil {
		kind = "set"
	}
	w.GW1.Nft("flush", kind, family.String(), nft.TableName, set)
}

// Address implements script.Box.
func (w *wire) Address(add bool, ifname, prefix string) {
	if add {
		w.GW1.AddAddr(ifname, prefix)
	} else {
		w.GW1.RemoveAddr(ifname, prefix)
	}
}

// Outcomes implements script.Box: enough connections that an outcome which has an equal
// share is missed with a chance of less than 1 in 10¹².
func (w *wire) Outcomes(q script.Question, expected int) []script.Outcome {
	if q.Network == "ping" {
		return []script.Outcome{outcome(q, netlab.Reply{}, w.host(q.From).Ping(q.To.Addr(), within(q)))}
	}
	first := w.Ask(q, 1)
	if first[0].Server == "" && expected == 1 || q.Port != 0 { // more refusals, or the same flow, show nothing new
		return first
	}
	n := 30 * max(1, expected)
	if expected == 1 {
		n = 20
	}
	return append(first, w.Ask(q, max(n, q.Clients))...)
}

// Ask implements script.Box.
func (w *wire) Ask(q script.Question, n int) []script.Outcome {
	outcomes := make([]script.Outcome, n)
	netlab.AskEach(n, func(i int) (netlab.Reply, error) {
		reply, err := w.ask(q, i)
		outcomes[i] = outcome(q, reply, err)
		return reply, err
	})
	return outcomes
}

// ask asks once. Datagrams may get lost, as when two flows are masqueraded to one port at the
// same time and the kernel drops the second, so clients of them try again.
func (w *wire) ask(q script.Question, i int) (reply netlab.Reply, err error) {
	tries := 3
	if q.Network == "tcp" || q.Silent {
		tries = 1
	}
	for range tries {
		if reply, err = w.host(q.From).Ask(q.Network, q.To, options(q, i)...); netlab.RefusalOf(err) != netlab.Timeout {
			break
		}
	}
	return reply, err
}

func options(q script.Question, i int) []netlab.Option {
	options := []netlab.Option{within(q)}
	if addr := q.SourceOf(i); addr.IsValid() && addr != q.SourceOf(0) || q.Clients > 0 || q.Source.IsValid() {
		options = append(options, netlab.From(addr))
	}
	if q.Port != 0 {
		options = append(options, netlab.FromPort(q.Port))
	}
	return options
}

// within is how long an answer is waited for. Of a command that is tried again a try is short at first: what the kernel sends to an
// endpoint that is silent stays there, so only a later client gets the answer of another one.
func within(q script.Question) netlab.Option {
	switch {
	case q.Silent:
		return netlab.Within(2 * time.Second) // real time: silence
	case 0 < q.Try && q.Try < 5:
		return netlab.Within(2 * time.Second << q.Try) // real time: each try has twice the time of the one before, up to a minute
	case q.Network != "tcp":
		return netlab.Within(7 * time.Second) // real time: one of three tries
	}
	return patient
}

// outcome is an answer, or why there is none, in the words of scripts.
func outcome(q script.Question, reply netlab.Reply, err error) script.Outcome {
	var f *netlab.Failure
	switch {
	case err == nil && q.Network == "ping":
		return script.Outcome{Word: script.EchoReply}
	case err == nil:
		return script.Answered(q, reply.At, reply.Client.Addr())
	case !errors.As(err, &f):
		return script.Outcome{Word: err.Error()}
	case f.Refusal == netlab.Refused:
		return script.Outcome{Word: script.Refused}
	case f.Refusal == netlab.Timeout:
		return script.Outcome{Word: script.Timeout}
	case f.PortUnreachable():
		return script.Outcome{Word: script.PortUnreachable}
	case f.Refusal == netlab.Unreachable && (f.From.Is4() && f.Type == 3 && f.Code == 1 || f.From.Is6() && f.Type == 1 && f.Code == 3):
		return script.Outcome{Word: script.HostUnreachable}
	}
	return script.Outcome{Word: f.Error()}
}
