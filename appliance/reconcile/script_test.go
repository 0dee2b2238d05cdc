package reconcile

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/apiserver"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/appliance/test/judge"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/appliance/test/script"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/nft/nfttest/fake"
	"svcctl.io/svcctl/nft/nfttest/stateful"
	"svcctl.io/svcctl/nft/sim"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
)

var updateScripts = flag.Bool("update", false, "rewrite the expected sections of scripts")

// TestScripts runs the scripts of mode memory: a loop on a fake kernel, whose ruleset the
// simulator evaluates. The wire mode is in package script.
func TestScripts(t *testing.T) {
	script.Run(t, filepath.Join("..", "test", "script", "testdata"), script.Mode{
		Name: "memory", New: newScriptBox, Update: *updateScripts,
		Commands: map[string]script.Command{
			"advance": advanceClock,
			"fail":    injectFault,
			"refuse":  refuseEndpoint,
		},
	})
}

// scriptBox is a script.Box of a rig: the commands of the script step the loop.
type scriptBox struct {
	*rig
	network oracle.Box
	hosts   map[bool]*stateful.Host // whether they are for IPv4
	random  *rand.Rand
	socket  string
	stopAPI func()
	commits int // that Transactions has told
	forgot  int // of the kernel's Forgotten, what hosts know
}

func newScriptBox(t testing.TB, dir string, flags script.Flags) script.Box {
	b := &scriptBox{
		hosts:  map[bool]*stateful.Host{true: {}, false: {}},
		random: rand.New(rand.NewPCG(1, 2)),
		socket: filepath.Join(dir, "sock"),
		network: oracle.Box{
			Gateways: script.Gateways[:],
			Primary:  []netip.Addr{script.Interfaces[1].Prefixes[0].Addr(), script.Interfaces[1].Prefixes[1].Addr()},
		},
	}
	for _, i := range script.Interfaces {
		b.network.Interfaces = append(b.network.Interfaces, oracle.Interface{Name: i.Name, Addresses: slices.Clone(i.Prefixes)})
	}
	b.rig = &rig{t: t, kernel: fake.New(), engine: faulty.NewMemory(), files: map[string]*manifest.File{}}
	b.clock = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b.configure = func(cfg *config.Config) {
		cfg.API.Socket = b.socket
		for name, values := range flags {
			if err := setFlag(cfg, name, values); err != nil {
				t.Fatalf("flag --%s: %v", name, err)
			}
		}
	}
	t.Cleanup(func() {
		b.Stop()
		if t.Failed() {
			t.Logf("log of the loop:\n%s", b.logged.String())
		}
	})
	return b
}

// setFlag sets the field of a flag that packets and objects depend on.
func setFlag(cfg *config.Config, name string, values []string) (err error) {
	var list []string
	for _, value := range values {
		list = append(list, strings.Split(value, ",")...)
	}
	first := strings.Join(values, ",")
	switch name {
	case "node-name":
		cfg.NodeName = first
	case "zone":
		cfg.Zone = first
	case "service-cluster-ip-range":
		cfg.Addresses.ClusterIPRanges, err = config.ParsePrefixes(list)
	case "service-node-port-range":
		cfg.Addresses.NodePortRange, err = config.ParsePortRange(first)
	case "cluster-cidr":
		cfg.Addresses.ClusterCIDRs, err = config.ParsePrefixes(list)
	case "load-balancer-pool":
		cfg.Addresses.LoadBalancerPools, err = config.ParseAddrRanges(list)
	case "load-balancer-internal-pool":
		cfg.Addresses.InternalPools, err = config.ParseAddrRanges(list)
	case "load-balancer-internal-from":
		cfg.Addresses.InternalFrom, err = config.ParseInternalFrom(list)
	case "cluster-ip-clients":
		cfg.Addresses.ClusterIPClients = config.ClusterIPClients(first)
	case "external-ip-range":
		cfg.Addresses.ExternalIPRanges, err = config.ParseExternalIPRanges(list)
	case "nodeport-addresses":
		cfg.Addresses.NodePortAddresses, err = config.ParseNodePortAddresses(list)
	case "masquerade-all":
		cfg.Services.MasqueradeAll, err = strconv.ParseBool(first)
	case "vip-ping":
		cfg.Services.VIPPing = config.VIPPing(first)
	case "snat":
		cfg.Services.SNAT = config.SNATMode(first)
	case "nodeless-endpoints":
		cfg.Services.NodelessEndpoints = config.NodelessEndpoints(first)
	case "balance":
		cfg.Services.Balance = first
	case "source-ranges-apply":
		cfg.Services.SourceRangesApply = config.SourceRangesApply(first)
	case "service-names":
		cfg.Services.Names = config.ServiceNames(first)
	case "node-port-space":
		cfg.Addresses.NodePortSpace = config.NodePortSpace(first)
	case "legacy-ip":
		cfg.Services.LegacyIP = config.LegacyIP(first)
	case "allow-mass-removal":
		if first != "true" { // few Services are removed here, and never the last file
			return errors.New("mass removal is for mode wire")
		}
	default:
		return errors.New("mode memory does not have it")
	}
	return err
}

// Write implements script.Box.
func (b *scriptBox) Write(name, content string) {
	if b.stopAPI == nil {
		b.files[name] = manifest.Decode(name, []byte(content), manifest.DefaultLimits())
		return
	}
	b.write(name, content)
}

// Remove implements script.Box.
func (b *scriptBox) Remove(name string) {
	if delete(b.files, name); b.stopAPI != nil {
		b.write(name, "")
	}
}

// Start implements script.Box.
func (b *scriptBox) Start() {
	b.t.Helper()
	// A directory that has a file is not taken for one that was emptied by accident.
	b.files["empty.yaml"] = manifest.Decode("empty.yaml", []byte("# no objects\n"), manifest.DefaultLimits())
	b.start()
	b.serveAPI()
	b.look()
	b.write("", "")
	if err := b.Sync(); err != nil {
		b.t.Fatalf("start: %v", err)
	}
}

// noChecks has no checked endpoints.
type noChecks struct{}

func (noChecks) State(string, string) []wire.EndpointHealth { return nil }

// serveAPI serves the API of the loop on the socket until Stop.
func (b *scriptBox) serveAPI() {
	log := slog.New(slog.DiscardHandler)
	server, err := apiserver.Open(&b.cfg, b.store, b.board, apiserver.Views{Grants: b.grants, Checked: noChecks{}.State}, b.metrics, log)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- task.Run(ctx, log, server.Tasks(log)...) }()
	b.stopAPI = func() {
		cancel()
		if err := errors.Join(<-ended, server.Close()); err != nil {
			b.t.Errorf("stop the API: %v", err)
		}
	}
}

// Stop implements script.Box: the tables stay, and what was committed to the store.
func (b *scriptBox) Stop() {
	if b.stopAPI != nil {
		b.stopAPI()
		b.stopAPI = nil
	}
}

// Kill implements script.Box.
func (b *scriptBox) Kill() { b.Stop() }

// Sync implements script.Box: it steps the loop, at the times at which the loop would try
// again by itself.
func (b *scriptBox) Sync() error {
	for range 10 {
		b.step()
		if b.board.Status().Synced {
			return nil
		}
		select {
		case <-b.store.Changed(): // by the step, which is followed by another one at once
			continue
		default:
		}
		if wait, needed := b.until(); needed {
			b.clock = b.clock.Add(wait)
		}
	}
	return errors.New(b.board.Status().Reason)
}

// Again implements script.Box.
func (b *scriptBox) Again(attempt int) bool {
	b.step()
	return attempt < 10
}

// Socket implements script.Box.
func (b *scriptBox) Socket() string { return b.socket }

// Ruleset implements script.Box.
func (b *scriptBox) Ruleset() (nft.Ruleset, error) {
	ruleset, _, err := b.kernel.Read()
	return ruleset, err
}

// Transactions implements script.Box.
func (b *scriptBox) Transactions() int {
	n := b.kernel.Commits() - b.commits
	b.commits += n
	return n
}

// Flush implements script.Box.
func (b *scriptBox) Flush() {
	b.hosts = map[bool]*stateful.Host{true: {}, false: {}}
	b.meddleWith(func(rs nft.Ruleset) { clear(rs) })
}

// Empty implements script.Box.
func (b *scriptBox) Empty(family nft.Family, set string) {
	b.meddleWith(func(rs nft.Ruleset) { clear(rs[family].Sets[set].Elements) })
}

func (b *scriptBox) meddleWith(change func(nft.Ruleset)) {
	b.kernel.Tamper(change)
	b.onForeignChange(kernel.Change{Ours: true, PID: 4711, Comm: "nft"})
}

// Address implements script.Box.
func (b *scriptBox) Address(add bool, ifname, prefix string) {
	p := netip.MustParsePrefix(prefix)
	i := slices.IndexFunc(b.network.Interfaces, func(i oracle.Interface) bool { return i.Name == ifname })
	if i < 0 {
		b.t.Fatalf("the box has no interface %s", ifname)
	}
	if of := &b.network.Interfaces[i]; add {
		of.Addresses = append(of.Addresses, p)
	} else {
		of.Addresses = slices.DeleteFunc(of.Addresses, func(a netip.Prefix) bool { return a == p })
	}
	b.look()
}

// look passes the addresses of the box to the loop.
func (b *scriptBox) look() {
	facts := judge.Facts(&b.network)
	b.observed.facts, b.observed.moved = &facts, true
}

// Outcomes implements script.Box: of one client, everything that the ruleset may choose.
func (b *scriptBox) Outcomes(q script.Question, _ int) []script.Outcome {
	if q.Clients > 1 {
		return b.Ask(q, q.Clients)
	}
	host := b.host(q)
	packet := b.packet(q, 0)
	b.send(host, packet) // so that affinity is remembered
	var outcomes []script.Outcome
	for _, r := range host.Outcomes(packet) {
		outcomes = append(outcomes, b.outcome(q, r))
	}
	return outcomes
}

// Ask implements script.Box.
func (b *scriptBox) Ask(q script.Question, n int) []script.Outcome {
	host := b.host(q)
	var outcomes []script.Outcome
	for i := range n {
		outcomes = append(outcomes, b.outcome(q, b.send(host, b.packet(q, i))))
	}
	return outcomes
}

// send sends the first packet of a connection, and the answer of the endpoint that gets it.
func (b *scriptBox) send(host *stateful.Host, packet sim.Packet) sim.Result {
	r := host.Send(packet, b.clock, b.random)
	if r.Kind == sim.Delivered {
		host.Answer(packet, r)
	}
	return r
}

// host evaluates packets by what the kernel has now.
func (b *scriptBox) host(q script.Question) *stateful.Host {
	ruleset, _, err := b.kernel.Read()
	if err != nil {
		b.t.Fatal(err)
	}
	is4 := q.To.Addr().Is4()
	host, now := b.hosts[is4], judge.Host(&b.network, ruleset, is4)
	host.Ruleset, host.Network = now.Ruleset, now.Network
	for _, f := range b.kernel.Forgotten()[b.forgot:] {
		b.hosts[f.Family == nft.IPv4].Forget(f)
		b.forgot++
	}
	return host
}

// packet is the first packet of the i-th connection of a question.
func (b *scriptBox) packet(q script.Question, i int) sim.Packet {
	p := oracle.Packet{Interface: q.Interface(), Protocol: oracle.Protocol(strings.ToUpper(q.Network)), To: q.To}
	if q.Network == "ping" {
		p.Protocol = oracle.Ping
	}
	source, port := q.SourceOf(i), q.Port
	if !source.IsValid() {
		source = b.network.Primary[map[bool]int{true: 0, false: 1}[q.To.Addr().Is4()]]
	}
	if port == 0 {
		port = uint16(40000 + i)
	}
	p.From = netip.AddrPortFrom(source, port)
	return judge.Packet(&b.network, p)
}

// outcome returns the outcome that the client of a question would see.
func (b *scriptBox) outcome(q script.Question, r sim.Result) script.Outcome {
	refused := script.Outcome{Word: script.PortUnreachable}
	if q.Network == "tcp" {
		refused.Word = script.Refused
	}
	host, known := script.HostOf(r.Dst.Addr())
	switch {
	case r.Kind == sim.Dropped:
		return script.Outcome{Word: script.Timeout}
	case r.Kind == sim.Rejected && r.RejectWith == nft.RejectHostUnreachable:
		return script.Outcome{Word: script.HostUnreachable}
	case r.Kind == sim.Rejected && r.RejectWith == nft.RejectTCPReset:
		return script.Outcome{Word: script.Refused}
	case r.Kind == sim.Rejected:
		return script.Outcome{Word: script.PortUnreachable}
	case q.Network == "ping" && (known || b.isLocal(r.Dst.Addr())):
		return script.Outcome{Word: script.EchoReply}
	case known && host.Serves(q.Network, r.Dst.Port()):
		return script.Answered(q, r.Dst, r.Src)
	case known, b.isLocal(r.Dst.Addr()): // without a listener there
		return refused
	}
	return script.Outcome{Word: "forwarded to " + r.Dst.String()}
}

func (b *scriptBox) isLocal(addr netip.Addr) bool {
	return slices.ContainsFunc(b.network.Interfaces, func(i oracle.Interface) bool {
		return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == addr })
	})
}

// advanceClock: advance DURATION
func advanceClock(s *script.Session, args []string) error {
	d, err := time.ParseDuration(strings.Join(args, " "))
	if err == nil {
		b := s.Box().(*scriptBox)
		b.clock = b.clock.Add(d)
	}
	return err
}

// injectFault: fail commits N refused|unknown|stale|other, fail writes, fail none
func injectFault(s *script.Session, args []string) error {
	b := s.Box().(*scriptBox)
	switch {
	case len(args) == 1 && args[0] == "none":
		b.kernel.Inject(nil)
		b.engine.Inject(nil)
	case len(args) == 1 && args[0] == "writes":
		b.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Refuse })
	case len(args) == 3 && args[0] == "commits":
		left, err := strconv.Atoi(args[1])
		fault := map[string]error{
			"refused": &kernel.OpError{Text: "add element"}, "unknown": kernel.ErrOutcomeUnknown,
			"stale": kernel.ErrStale, "other": errors.New("no buffer space"),
		}[args[2]]
		if err != nil || fault == nil {
			return errors.New("usage: fail commits N refused|unknown|stale|other")
		}
		b.kernel.Inject(func(*nft.Batch) error {
			if left == 0 {
				return nil
			}
			left--
			return fault
		})
	default:
		return errors.New("usage: fail commits N WHY, fail writes or fail none")
	}
	return nil
}

// refuseEndpoint: refuse ADDRESS has the kernel refuse every element that leads to it.
func refuseEndpoint(s *script.Session, args []string) error {
	addr, err := netip.ParseAddr(strings.Join(args, " "))
	if err != nil {
		return err
	}
	s.Box().(*scriptBox).kernel.Inject(func(batch *nft.Batch) error {
		for i, op := range batch.Ops {
			add, is := op.(nft.AddElements)
			if is && slices.ContainsFunc(add.Elements, func(e nft.Element) bool { return strings.HasPrefix(e.Data, string(addr.AsSlice())) }) {
				return &kernel.OpError{Op: i, Text: fmt.Sprint("add element for ", addr), Errno: syscall.EINVAL}
			}
		}
		return nil
	})
	return nil
}
