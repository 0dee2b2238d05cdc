package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/appliance/test/judge"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/store/object"
)

// wireWorlds are served by each box of Test836 in the lane of all seeds; the environment variables SEED and COUNT have it serve others.
const wireWorlds = 14

// worldBoxes are the boxes of Test836: their flags, and what these mean.
var worldBoxes = map[string]struct {
	flags flags
	mean  func(*oracle.Box)
}{
	"plain": {flags{"egress-from": {"10.180.0.0/16", "fd00:10:180::/64"}}, func(b *oracle.Box) {
		b.Pools, b.EgressFrom, b.SourceSets = prefixes("198.51.100.0/28", "2001:db8:198::/124"), oracle.EgressFrom, oracle.SourceSets[0]
	}},
	"no pool": {flags{"load-balancer-pool": nil, "external-ip-range": {"198.51.100.96/27,2001:db8:198::/64"}, "nodeport-addresses": {"192.0.2.0/24,fd00:10::/32"}, "source-ranges-apply": {"all"}},
		func(b *oracle.Box) {
			b.ExternalIPRanges, b.NodePortAddresses = prefixes("198.51.100.96/27", "2001:db8:198::/64"), prefixes("192.0.2.0/24", "fd00:10::/32")
			b.SourceRangesApplyAll = true
		}},
	"small pool": {flags{"load-balancer-pool": {"198.51.100.4/32", "2001:db8:198::4/127"}, "nodeless-endpoints": {"remote"}, "zone": {"zone-a"}}, func(b *oracle.Box) {
		b.Pools, b.NodelessRemote, b.Zone = prefixes("198.51.100.4/32", "2001:db8:198::4/127"), true, "zone-a"
	}},
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// Test836_worlds_on_the_wire has boxes serve random worlds one after the other. The condition Ready of each Service, as
// clients of the API read it, the verdict of svcctl status and svcctl wait agree with an independent reading of the
// semantics, and so does what clients get who connect to each address and port.
func Test836_worlds_on_the_wire(t *testing.T) {
	for name, variant := range worldBoxes {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			described := oracle.StandardBox()
			described.InternalSources = prefixes("10.0.0.0/8", "fd00:10::/32")
			variant.mean(&described)
			flags, dir := maps.Clone(variant.flags), t.TempDir()
			for name, content := range described.SourceSets {
				path := filepath.Join(dir, name)
				if err := os.WriteFile(path, []byte(strings.Trim(strings.ReplaceAll(fmt.Sprint(content), " ", "\n"), "[]")), 0o600); err != nil {
					t.Fatal(err)
				}
				flags["source-set"] = append(flags["source-set"], name+"="+path)
			}
			l := &worldLab{box: newBox(t, flags), described: described, met: map[string]int{}}
			l.prepare()
			l.svcctl.Manifests.Write("world.yaml", "")
			l.svcctl.Start()
			first, count := environment("SEED", 1), environment("COUNT", seeds(wireWorlds))
			for seed := first; seed < first+count && !t.Failed(); seed++ {
				l.serve(seed)
			}
			t.Log(l.met)
			if !t.Failed() && count >= wireWorlds && (l.met["Ready"] < 5 || len(described.EgressFrom) > 0 && l.met["left with an address of a Service"] < 10 || l.met["delivered"] < 40 || l.met["refused"] < 10 ||
				l.met["measured shares"] < 5 || l.met["measured shares, some refused"] < 2) {
				t.Error("the worlds have become too tame")
			}
		})
	}
}

// seeds is how many seeds of a random test run: all of them in the lane SEEDED of the Makefile, a quarter of them otherwise.
func seeds(all uint64) uint64 {
	if os.Getenv("SVCCTL_SEEDS") == "all" {
		return all
	}
	return (all + 3) / 4
}

func environment(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// worldLab serves worlds on a box.
type worldLab struct {
	*box
	described oracle.Box
	programs  []oracle.Program
	hosts     map[netip.Addr]*netlab.Host // clients by address
	met       map[string]int
}

// prepare has the other endpoints of worlds answer, and programs of the box listen.
func (l *worldLab) prepare() {
	for _, network := range []string{"tcp", "udp"} {
		for _, host := range []*netlab.Host{l.RTR, l.EXT, l.BLK} {
			host.Serve(network, 5353)
		}
		l.IN.Serve(network, 80, 5353, 8080)
		l.GW1.Serve(network, 80, 5353, 8080, 30004)
		for _, port := range []uint16{80, 5353, 8080, 30004} {
			l.programs = append(l.programs, oracle.Program{Protocol: oracle.Protocol(strings.ToUpper(network)), At: netip.AddrPortFrom(netip.IPv6Unspecified(), port)})
		}
	}
	l.RTR.Route("10.0.0.0/8", netlab.BoxAddr4)
	l.RTR.Route("fd00:10::/32", netlab.BoxAddr6)
	l.hosts = map[netip.Addr]*netlab.Host{}
	for host, addrs := range map[*netlab.Host][]string{
		l.IN: {"10.0.0.2", "fd00:10::2"}, l.EXT: {"203.0.113.2", "2001:db8:203::2"}, l.BLK: {"203.0.113.130", "2001:db8:203:0:8000::2"},
		l.L1: {"10.180.0.1", "fd00:10:180::1"}, l.L2: {"10.180.0.2", "fd00:10:180::2"}, l.Near: {"10.180.0.77", "fd00:10:180::77"}, l.R1: {"10.181.1.1", "fd00:10:181::1"},
	} {
		for _, addr := range addrs {
			l.hosts[netip.MustParseAddr(addr)] = host
		}
	}
}

// serve has the box serve a world, and compares.
func (l *worldLab) serve(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	world := oracle.GenerateOn(l.described, r)
	world.Complicate(r)
	if len(l.described.EgressFrom) > 0 {
		world.Egress(r)
	}
	world.AddGateways(r)
	world.Box, world.Programs, world.Down = l.described, l.programs, nil
	rename(world, fmt.Sprintf("w%d-", seed), len(l.described.SourceSets) > 0)
	l.svcctl.Manifests.Write("world.yaml", world.Manifest())
	if _, err := l.svcctl.Get("/svcctl/v1/wait?for=synced&timeout=" + syncTimeout.String()); err != nil {
		l.t.Fatalf("seed %d: %v\n%s", seed, err, world)
	}
	served := *world
	served.Services, served.Slices = l.services(), slices.Clone(world.Slices)
	for _, gw := range world.Gateways {
		served.Slices = append(served.Slices, served.GatewaySlices(gw)...)
	}
	ready := map[string]bool{}
	var packets []oracle.Packet
	for _, service := range served.Services {
		key := object.RefOf(service).Key()
		var lacks []oracle.Lack
		for _, a := range served.Attempts(service) {
			lacks = append(lacks, a.Lacks...)
			if a.Packet.To.IsValid() && l.sendable(&served, a.Packet) {
				packets = append(packets, a.Packet)
			}
		}
		i := slices.IndexFunc(service.Status.Conditions, func(c object.Condition) bool { return c.Type == "Ready" })
		if i < 0 {
			l.t.Fatalf("seed %d: %s has no condition Ready", seed, key)
		}
		c := service.Status.Conditions[i]
		ready[key] = c.Status == object.ConditionTrue
		if ready[key] != (len(lacks) == 0) || !ready[key] && !served.Explains(service, c.Reason) {
			l.t.Errorf("seed %d: %s is Ready=%s, %s: %s\nbut the oracle: %v\n%s", seed, key, c.Status, c.Reason, c.Message, lacks, &served)
		}
		if ready[key] {
			l.met["Ready"]++
		}
		l.met[c.Reason]++
	}
	l.compareVerbs(seed, ready)
	l.compareGateways(seed, &served, r)
	r.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
	wrong := make([]string, min(len(packets), mostPackets))
	var all sync.WaitGroup
	var mu sync.Mutex
	var left []string // what was wrong about packets of hosts that are no clients of Services
	for i := range wrong {
		may := served.Decide(packets[i])
		l.met[string(may[0].Kind)]++
		all.Go(func() {
			if what := l.connect(packets[i], may); what != "" {
				wrong[i] = fmt.Sprintf("%v: %s\nbut the oracle: %v", packets[i], what, may)
			}
		})
	}
	for range 2 * mostPackets {
		p := served.OutgoingPacket(r)
		if p.Protocol == oracle.Ping || !l.sendable(&served, p) || served.Decide(p)[0].Kind != oracle.Untouched || slices.Contains(served.Box.Gateways, served.Leaves(p)) {
			continue
		}
		if served.Leaves(p) != p.From.Addr() {
			l.met["left with an address of a Service"]++
		}
		all.Go(func() {
			reply, err := l.hosts[p.From.Addr()].Ask(strings.ToLower(string(p.Protocol)), p.To, netlab.From(p.From.Addr()), patiently)
			if want := served.Leaves(p); err != nil || reply.Client.Addr() != want {
				mu.Lock()
				left = append(left, fmt.Sprintf("%v: it leaves as %v (%v)\nbut the oracle: %v", p, reply.Client, err, want))
				mu.Unlock()
			}
		})
	}
	all.Wait()
	wrong = append(wrong, left...)
	if i := slices.IndexFunc(wrong, func(what string) bool { return what != "" }); i >= 0 {
		l.t.Errorf("seed %d: %s\n%s", seed, wrong[i], &served)
	}
}

// mostPackets bounds the connections to the Services of a world.
const mostPackets = 60

// compareVerbs compares the verdict of the status, and what wait returns, to the conditions.
func (l *worldLab) compareVerbs(seed uint64, ready map[string]bool) {
	out, _, _ := l.svcctl.Svcctl("status", "-o", "json")
	var s struct {
		Verdict struct {
			Services, Fails, Stale, Idle, Warning, Answers int
			Settling                                       []string
		}
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		l.t.Fatalf("seed %d: %v: %s", seed, err, out)
	}
	answers := 0
	for _, is := range ready {
		if is {
			answers++
		}
	}
	v := s.Verdict
	if v.Answers+v.Warning+v.Stale != answers || v.Fails+v.Idle+len(v.Settling) != v.Services-answers {
		l.t.Errorf("seed %d: %d of %d Services are Ready, the status has %+v", seed, answers, len(ready), v)
	}
	if keys := slices.Sorted(maps.Keys(ready)); len(keys) > 0 { // one of them: each is a process
		key := keys[0]
		namespace, name, _ := strings.Cut(key, "/")
		timeout := map[bool]string{true: syncTimeout.String(), false: "1ms"}[ready[key]]
		if _, errOut, code := l.svcctl.Svcctl("wait", "svc/"+name, "-n", namespace, "--for=ready", "--timeout", timeout); (code == 0) != ready[key] || code > 1 {
			l.t.Errorf("seed %d: %s: Ready %v, wait exits with %d: %s", seed, key, ready[key], code, errOut)
		}
	}
}

// compareGateways compares the conditions of Gateways, listeners and routes, and the shares of backends, to what the oracle reads
// in the specification.
func (l *worldLab) compareGateways(seed uint64, world *oracle.World, r *rand.Rand) {
	eventually(l.t, syncTimeout, func() error { // Programmed follows what is programmed
		met, all := map[string]int{}, map[object.Ref]object.Object{}
		read(l, gatewayAPI+"/v1/gateways", func(o *object.Gateway) { all[object.RefOf(o)] = o })
		read(l, gatewayAPI+"/v1/tcproutes", func(o *object.TCPRoute) { all[object.RefOf(o)] = o })
		read(l, gatewayAPI+"/v1/udproutes", func(o *object.UDPRoute) { all[object.RefOf(o)] = o })
		get := func(ref object.Ref) object.Object { return all[ref] }
		if _, text := judge.Conditions(world, func(*object.Gateway) bool { return true }, get, func(condition string) { met[condition]++ }); text != "" {
			return fmt.Errorf("seed %d: %s\n%s", seed, text, world)
		}
		for condition, n := range met {
			l.met[condition] += n
		}
		return nil
	})
	var packets []oracle.Packet
	for _, gw := range world.Gateways {
		for _, a := range world.Attempts(world.Serving(gw)) {
			if p := a.Packet; p.To.IsValid() && p.Interface != "" && l.sendable(world, p) && world.Chances(p) != nil {
				packets = append(packets, p)
			}
		}
	}
	r.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
	const questions = 300
	for _, p := range packets[:min(len(packets), 3)] {
		chances := world.Chances(p)
		got := l.hosts[p.From.Addr()].AskMany(questions, strings.ToLower(string(p.Protocol)), p.To, netlab.From(p.From.Addr()), patiently)
		got.At[netip.AddrPort{}] = got.Failures[netlab.Refused] + got.Failures[netlab.Reset] + got.Failures[netlab.Unreachable]
		for at, n := range got.At {
			if chances[at] == 0 && n > 0 {
				l.t.Errorf("seed %d: %v: %d of %d connections got to %v: %s\nbut the oracle: %v\n%s", seed, p, n, questions, at, got, chances, world)
			}
		}
		for at, chance := range chances {
			want, variance := questions*chance, questions*chance*(1-chance)
			// Bernstein's inequality: chance is farther off in less than one case of 10⁹, also where few are wanted. The
			// slots of a table add at most 1/4096.
			const rare = 21.5
			most := rare/3 + math.Sqrt(rare*rare/9+2*rare*variance) + questions/4096.0
			if n := float64(got.At[at]); math.Abs(n-want) > most {
				l.t.Errorf("seed %d: %v: %.0f of %d connections got to %v, want %.1f, at most %.1f off: %s\nbut the oracle: %v\n%s", seed, p, n, questions, at, want, most, got, chances, world)
			}
		}
		if l.met["measured shares"]++; chances[netip.AddrPort{}] > 0 && len(chances) > 1 {
			l.met["measured shares, some refused"]++
		}
	}
}

const gatewayAPI = "/apis/gateway.networking.k8s.io"

// read reads all objects below a path of the API. In a list objects are without their kind.
func read[O any, P interface {
	*O
	object.Object
}](l *worldLab, path string, each func(P)) {
	var all struct {
		object.TypeMeta
		Items []P
	}
	if err := l.svcctl.Read(path, &all); err != nil {
		l.t.Fatal(err)
	}
	for _, o := range all.Items {
		*o.GetTypeMeta() = object.TypeMeta{Kind: strings.TrimSuffix(all.Kind, "List"), APIVersion: all.APIVersion}
		each(o)
	}
}

// sendable reports whether a connection comes by the box, and its answer comes back by it.
func (l *worldLab) sendable(world *oracle.World, p oracle.Packet) bool {
	if p.Protocol == oracle.SCTP || p.Interface != "" && l.hosts[p.From.Addr()] == nil || slices.Contains(world.Box.Gateways, p.To.Addr()) {
		return false
	}
	for _, i := range world.Box.Interfaces {
		for _, prefix := range i.Addresses {
			if i.Name == p.Interface && prefix.Addr() != p.To.Addr() && prefix.Contains(p.To.Addr()) {
				return false // a neighbor of the client
			}
		}
	}
	return true
}

// connect makes a connection. It returns what came of it where that is not one of the outcomes that may.
func (l *worldLab) connect(p oracle.Packet, may []oracle.Outcome) string {
	wait := syncTimeout
	if may[0].Kind == oracle.Dropped || may[0].Kind == oracle.Untouched {
		wait = 200 * time.Millisecond // a wrong answer would be there in one
	}
	from := l.hosts[p.From.Addr()]
	if p.Interface == "" {
		from = l.GW1
	}
	reply, err := from.Ask(strings.ToLower(string(p.Protocol)), p.To, netlab.From(p.From.Addr()), netlab.Within(wait))
	var failure *netlab.Failure
	errors.As(err, &failure)
	if slices.ContainsFunc(may, func(o oracle.Outcome) bool {
		switch o.Kind {
		case oracle.Delivered:
			return err == nil && reply.At == o.To
		case oracle.Refused:
			return failure != nil && (failure.Refusal == netlab.Refused || p.Protocol == oracle.UDP && failure.PortUnreachable())
		case oracle.Dropped:
			return failure != nil && (failure.Refusal == netlab.Timeout || p.Interface == "")
		}
		return true
	}) {
		return ""
	}
	if err != nil {
		return err.Error()
	}
	return "an answer: " + reply.String()
}

// services reads all Services over the API.
func (l *worldLab) services() (all []*object.Service) {
	read(l, "/api/v1/services", func(s *object.Service) { all = append(all, s) })
	return slices.DeleteFunc(all, func(s *object.Service) bool { return s.Metadata.Labels["component"] == "apiserver" })
}

// rename makes the objects of a world others than those of the one before.
func rename(w *oracle.World, prefix string, withSets bool) {
	for _, o := range w.Services {
		o.Metadata.Name = prefix + o.Metadata.Name
		for _, key := range []string{"svcctl.io/health-check", "svcctl.io/health-check-min-healthy", "svcctl.io/port-ranges"} {
			delete(o.Metadata.Annotations, key)
		}
		for key := range o.Metadata.Annotations {
			// The boxes have no source sets: a Service that names one is not Ready.
			if !withSets && (strings.HasSuffix(key, "/source-sets") || strings.HasSuffix(key, "security-groups")) && !strings.HasSuffix(o.Metadata.Name, "2") {
				delete(o.Metadata.Annotations, key)
			}
		}
	}
	for _, o := range w.Slices {
		o.Metadata.Name = prefix + o.Metadata.Name
		if name := o.Metadata.Labels[object.LabelServiceName]; name != "" {
			o.Metadata.Labels[object.LabelServiceName] = prefix + name
		}
	}
	for _, o := range w.Endpoints {
		o.Metadata.Name = prefix + o.Metadata.Name
	}
	for _, o := range w.Gateways {
		o.Metadata.Name = prefix + o.Metadata.Name
	}
	for _, o := range w.Routes {
		o.GetMeta().Name = prefix + o.GetMeta().Name
		spec := oracle.RouteSpec(o)
		for i := range spec.ParentRefs {
			spec.ParentRefs[i].Name = prefix + spec.ParentRefs[i].Name
		}
		for i := range spec.Rules[0].BackendRefs {
			spec.Rules[0].BackendRefs[i].Name = prefix + spec.Rules[0].BackendRefs[i].Name
		}
	}
}
