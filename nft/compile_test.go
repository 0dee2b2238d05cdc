package nft

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func addrPorts(s ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, x := range s {
		out = append(out, netip.MustParseAddrPort(x))
	}
	return out
}

func clusterIP(addr string, port uint16) Frontend {
	return Frontend{Addr: netip.MustParseAddr(addr), Port: port, SNAT: SNATOutside}
}

func testBox() Box {
	return Box{
		NodePortAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		ServiceRanges:     []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		InternalSources:   []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		Interfaces:        []Interface{{Index: 2, Name: "int0", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.180.0.0/16")}}},
		MasqueradeOnLink:  true,
	}
}

func webPort(backends ...string) ServicePort {
	return ServicePort{
		ID: "default/web", Family: IPv4, Protocol: TCP,
		Frontends: []Frontend{clusterIP("10.96.0.10", 80)},
		Pools:     [NumPools][]netip.AddrPort{PoolCluster: addrPorts(backends...)},
	}
}

func text(t testing.TB, rs Ruleset) string {
	t.Helper()
	var b strings.Builder
	if err := rs.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func elementOps(b Batch) int {
	n := 0
	for _, op := range b.Ops {
		switch op := op.(type) {
		case AddElements:
			n += len(op.Elements)
		case DeleteElements:
			n += len(op.Elements)
		default:
			n += 1000 // anything else is no element operation
		}
	}
	return n
}

func TestReplacingAnEndpointTouchesItsSlotOnly(t *testing.T) {
	c := NewCompiler()
	c.Load(State{Box: testBox(), Services: map[string][]ServicePort{
		"default/web": {webPort("10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80")},
	}})
	tr := c.Update(nil, map[string][]ServicePort{"default/web": {webPort("10.1.0.1:80", "10.1.0.9:80", "10.1.0.3:80")}})
	// The slot and the hairpin pair, each deleted and added.
	if n := elementOps(tr.Apply); n != 4 || !tr.Cleanup.Empty() {
		t.Errorf("replacing one endpoint: %d element operations, cleanup %v; want 4 and none\n%+v", n, tr.Cleanup, tr.Apply)
	}
	if tr := c.Update(nil, map[string][]ServicePort{"default/web": {webPort("10.1.0.3:80", "10.1.0.9:80", "10.1.0.1:80")}}); !tr.Empty() {
		t.Errorf("the same endpoints in another order are a change: %+v", tr)
	}
}

func TestAssignSlots(t *testing.T) {
	a := addrPorts("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1", "10.0.0.5:1")
	for _, c := range []struct {
		name             string
		prev, want, then []netip.AddrPort
	}{
		{"from nothing in order", nil, a[:3], a[:3]},
		{"newcomer last", a[:2], []netip.AddrPort{a[2], a[0], a[1]}, a[:3]},
		{"the last one fills the hole", a[:4], []netip.AddrPort{a[0], a[2], a[3]}, []netip.AddrPort{a[0], a[3], a[2]}},
		{"a newcomer takes the place of who left", a[:3], []netip.AddrPort{a[0], a[2], a[4]}, []netip.AddrPort{a[0], a[4], a[2]}},
		{"to nothing", a[:3], nil, []netip.AddrPort{}},
	} {
		if got := assignSlots(c.prev, c.want); !slices.Equal(got, c.then) {
			t.Errorf("%s: assignSlots(%v, %v) = %v, want %v", c.name, c.prev, c.want, got, c.then)
		}
	}
}

// randomState is a small world in which things collide often.
func randomState(r *rand.Rand) State {
	s := State{Box: testBox(), Services: map[string][]ServicePort{}}
	s.Box.ServiceRanges = append(s.Box.ServiceRanges, netip.MustParsePrefix("fd00::/112"))
	if r.IntN(3) == 0 {
		s.Box.InternalSources = nil
	}
	if r.IntN(3) == 0 {
		s.Box.NodePortAddresses = append(s.Box.NodePortAddresses, netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1"))
	}
	s.Box.LocalAddresses = s.Box.NodePortAddresses
	for i := range 1 + r.IntN(6) {
		name := fmt.Sprintf("default/s%d", i)
		for _, f := range Families {
			if r.IntN(3) == 0 {
				continue
			}
			s.Services[name] = append(s.Services[name], randomPort(r, name, i, f))
		}
	}
	return s
}

func randomPort(r *rand.Rand, name string, i int, f Family) ServicePort {
	addr := func(v4, v6 string, n int) netip.Addr {
		if f == IPv4 {
			return netip.MustParseAddr(fmt.Sprintf(v4, n))
		}
		return netip.MustParseAddr(fmt.Sprintf(v6, n))
	}
	p := ServicePort{ID: name + "/http", Family: f, Protocol: []Protocol{TCP, UDP, SCTP}[r.IntN(3)]}
	if r.IntN(2) == 0 {
		p.Affinity = 3600e9
	}
	for n := range r.IntN(5) {
		ep := netip.AddrPortFrom(addr("10.1.0.%d", "fd00:1::%d", 1+n+r.IntN(3)), 8080)
		if !slices.Contains(p.Pools[PoolCluster], ep) {
			p.Pools[PoolCluster] = append(p.Pools[PoolCluster], ep)
			if r.IntN(2) == 0 {
				p.Pools[PoolLocal] = append(p.Pools[PoolLocal], ep)
			}
		}
	}
	if r.IntN(8) == 0 && f == IPv4 {
		p.Pools[PoolCluster] = append(p.Pools[PoolCluster], netip.MustParseAddrPort("192.0.2.1:8080"))
	}
	p.Frontends = []Frontend{{Addr: addr("10.96.0.%d", "fd00::%d", i+1), Port: 80, SNAT: SNATOutside}}
	outside := Frontend{Addr: addr("198.51.100.%d", "2001:db8::%d", i+1), Port: 80, SNAT: SNATAlways}
	if r.IntN(2) == 0 {
		outside.Outside = Route{Pool: PoolLocal, Otherwise: Blackhole}
		outside.SNAT = SNATSelf
	}
	if r.IntN(3) == 0 {
		outside.Sources = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/25"), netip.MustParsePrefix("203.0.113.0/24")}
	}
	p.Frontends = append(p.Frontends, outside)
	outside.Addr, outside.Port = netip.Addr{}, uint16(30000+i)
	p.Frontends = append(p.Frontends, outside)
	return p
}

// TestUpdatesArriveAtTheRuleset walks through random states and holds every update
// against compiling anew, and its operations against what they claim to change.
func TestUpdatesArriveAtTheRuleset(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := NewCompiler()
		k := newModel()
		k.mustApply(t, c.Load(randomState(r)))
		for step := range 6 {
			s := randomState(r)
			tr := c.Load(s)
			k.mustApply(t, tr)
			want := text(t, Compile(s))
			// Slots depend on history, so compare with the slots sorted away.
			if got := text(t, c.Ruleset()); withoutSlots(got) != withoutSlots(want) {
				t.Fatalf("seed %d step %d: updated ruleset differs from a fresh one\n got:\n%s\nwant:\n%s", seed, step, got, want)
			}
			if got := text(t, k.ruleset()); got != text(t, c.Ruleset()) {
				t.Fatalf("seed %d step %d: the operations lead elsewhere\n got:\n%s\nwant:\n%s", seed, step, got, text(t, c.Ruleset()))
			}
			if tr := c.Load(s); !tr.Empty() {
				t.Fatalf("seed %d step %d: loading the same state again is a change: %+v", seed, step, tr)
			}
			if tr := NewCompiler().Adopt(k.ruleset(), s); !tr.Empty() {
				t.Fatalf("seed %d step %d: adopting what is there is a change: %+v", seed, step, tr)
			}
		}
	}
}

// withoutSlots sorts the endpoints of each frontend, so that two rulesets compare
// equal when only slots differ.
func withoutSlots(s string) string {
	lines := strings.Split(s, "\n")
	out := lines[:0]
	for _, l := range lines {
		l = strings.Trim(strings.TrimPrefix(strings.TrimSpace(l), "elements = { "), " ,}")
		if key, ep, ok := strings.Cut(l, " : "); ok && !strings.Contains(ep, "goto") && !strings.Contains(ep, "drop") {
			fields := strings.Split(strings.TrimSpace(key), " . ")
			l = strings.Join(fields[:len(fields)-1], ".") + " -> " + strings.Trim(ep, " ,")
		}
		out = append(out, l)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// model is a kernel that takes batches literally and refuses what the real one does.
type model struct{ rs Ruleset }

func newModel() *model { return &model{Ruleset{}} }

func (k *model) ruleset() Ruleset { return k.rs }

func (k *model) mustApply(t *testing.T, tr Transition) {
	t.Helper()
	for _, b := range []Batch{tr.Apply, tr.Cleanup} {
		for _, op := range b.Ops {
			if err := k.apply(op); err != nil {
				t.Fatalf("%T: %v", op, err)
			}
		}
	}
}

func (k *model) apply(op Op) error {
	switch op := op.(type) {
	case AddTable:
		if k.rs[op.Family] == nil {
			k.rs[op.Family] = &Table{Sets: map[string]*SetContent{}, Chains: map[string]*Chain{}}
		}
	case DeleteTable:
		delete(k.rs, op.Family)
	case AddSet:
		if k.rs[op.Family].Sets[op.Set.Name] != nil {
			return os.ErrExist
		}
		k.rs[op.Family].Sets[op.Set.Name] = &SetContent{Set: op.Set, Elements: Elements{}}
	case DeleteSet:
		if user := k.userOf(op.Family, "@"+op.Name); user != "" {
			return fmt.Errorf("set %s is in use: %s", op.Name, user)
		}
		delete(k.rs[op.Family].Sets, op.Name)
	case AddChain:
		if k.rs[op.Family].Chains[op.Chain.Name] != nil {
			return os.ErrExist
		}
		c := op.Chain
		k.rs[op.Family].Chains[c.Name] = &c
	case SetRules:
		c := *k.rs[op.Family].Chains[op.Chain]
		c.Rules = op.Rules
		k.rs[op.Family].Chains[op.Chain] = &c
		for _, r := range op.Rules {
			if missing := k.missing(op.Family, r); missing != "" {
				return fmt.Errorf("rule %s names %s, which is not there", r.Text(op.Family), missing)
			}
		}
	case DeleteChain:
		if user := k.userOf(op.Family, "goto "+op.Name); user != "" {
			return fmt.Errorf("chain %s is in use: %s", op.Name, user)
		}
		delete(k.rs[op.Family].Chains, op.Name)
	case AddElements:
		set := k.rs[op.Family].Sets[op.Set.Name]
		for _, e := range op.Elements {
			if _, ok := set.Elements[e.Key]; ok {
				return os.ErrExist
			}
			if chain, ok := strings.CutPrefix(e.Data, "goto "); ok && k.rs[op.Family].Chains[chain] == nil {
				return fmt.Errorf("element goes to chain %s, which is not there", chain)
			}
			set.Elements[e.Key] = e.Data
		}
	case DeleteElements:
		set := k.rs[op.Family].Sets[op.Set.Name]
		for _, e := range op.Elements {
			if _, ok := set.Elements[e.Key]; !ok {
				return os.ErrNotExist
			}
			delete(set.Elements, e.Key)
		}
	}
	return nil
}

// missing names a set or chain that a rule refers to and that is not there.
func (k *model) missing(f Family, r Rule) string {
	for _, s := range r {
		v := reflect.ValueOf(s)
		for _, field := range []string{"Set", "Map"} {
			if x := v.FieldByName(field); x.IsValid() && k.rs[f].Sets[x.String()] == nil {
				return "set " + x.String()
			}
		}
		if v, ok := s.(Verdict); ok && v.Chain != "" && k.rs[f].Chains[v.Chain] == nil {
			return "chain " + v.Chain
		}
	}
	return ""
}

// userOf tells who refers to a chain or set.
func (k *model) userOf(f Family, what string) string {
	for _, c := range k.rs[f].Chains {
		for _, r := range c.Rules {
			for _, word := range []string{" ", ""} {
				if strings.Contains(r.Text(f)+" ", what+word) && (word == " ") {
					return "chain " + c.Name + ": " + r.Text(f)
				}
			}
		}
	}
	for _, s := range k.rs[f].Sets {
		for _, data := range s.Elements {
			if data == what {
				return "set " + s.Name
			}
		}
	}
	return ""
}
