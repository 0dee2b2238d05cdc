package reconcile

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// A need has the Services that depend on it, and ends with the last one.
func TestNeeds(t *testing.T) {
	x, y, set := keyPair("default/x"), keyPair("default/y"), resolve.Need{Kind: resolve.NeedSourceSet, Name: "office"}
	n := newNeeds()
	n.set("default/a", &resolve.Output{Needs: []resolve.Need{x, y}})
	n.set("default/b", &resolve.Output{Needs: []resolve.Need{y, set}})
	n.set("default/c", &resolve.Output{})
	for _, tt := range []struct {
		changed []resolve.Need
		want    string
	}{
		{nil, "[]"}, {secrets([]string{"default/x"}), "[default/a]"}, {[]resolve.Need{x, y}, "[default/a default/a default/b]"}, {[]resolve.Need{set}, "[default/b]"},
		{secrets([]string{"default/z", "office"}), "[]"}, {resolve.Plans("default/c", "default/x"), "[default/c default/x]"},
	} {
		got := n.users(tt.changed)
		if slices.Sort(got); fmt.Sprint(got) != tt.want {
			t.Errorf("%v: %v, want %s", tt.changed, got, tt.want)
		}
	}
	n.set("default/a", &resolve.Output{Needs: []resolve.Need{x}})
	n.set("default/b", &resolve.Output{Needs: []resolve.Need{x}})
	if ended := n.takeEnded(); len(ended) != 2 || !slices.Contains(ended, y) || !slices.Contains(ended, set) {
		t.Errorf("%v have no Service any more, want y and the set", ended)
	}
	n.set("default/a", &resolve.Output{}) // x goes to b alone
	n.set("default/b", &resolve.Output{Needs: []resolve.Need{y}})
	n.set("default/a", &resolve.Output{Needs: []resolve.Need{x}})
	if ended := n.takeEnded(); len(ended) != 0 {
		t.Errorf("%v ended, and each has a Service", ended)
	}
	n.set("default/a", &resolve.Output{})
	n.set("default/b", &resolve.Output{})
	if ended := n.takeEnded(); len(ended) != 2 || len(n.of)+len(n.by[resolve.NeedKeyPair]) != 0 {
		t.Errorf("%v ended, left is %+v", ended, n)
	}
}

func keyPair(secret string) resolve.Need {
	return resolve.Need{Kind: resolve.NeedKeyPair, Name: secret}
}

// keys is a Part that opens certificates.
type keys struct {
	NopPart
	missing               map[string]bool
	met, foreseen, closed []string
}

func (*keys) Name() string { return "keys" }

func (k *keys) Meet(service string, d *resolve.Demand, o *resolve.Observed) {
	for _, n := range d.Needs {
		if n.Kind == resolve.NeedKeyPair {
			k.met = append(k.met, service+" "+n.Name)
			state := resolve.State{Missing: k.missing[n.Name]}
			if state.Missing {
				state.Wrong = "it is not there"
			}
			o.Answer(n, state)
		}
	}
}

func (k *keys) Close(n resolve.Need) {
	if n.Kind == resolve.NeedKeyPair {
		k.closed = append(k.closed, n.Name)
	}
}

func (k *keys) Foresee(objs Objects) Answerer { return foreseenKeys{k} }

// foreseenKeys is not comparable, as an Answerer may be.
type foreseenKeys struct{ *keys }

func (f foreseenKeys) Meet(service string, d *resolve.Demand, _ *resolve.Observed) {
	for _, n := range d.Needs {
		f.foreseen = append(f.foreseen, service+" "+n.Name)
	}
	f.keys.foreseen = f.foreseen
}

// Test881_needs_are_met_by_plans: a plan opens what a Service needs; a change of a need plans the Services that have it, and no
// others; what no Service needs any more is closed once the kernel has the plan; and plan --against running opens nothing.
func Test881_needs_are_met_by_plans(t *testing.T) {
	r := newRig(t)
	part, rec := &keys{missing: map[string]bool{}}, &recorder{}
	r.opts.Parts = []Part{part, rec}
	part.Attach(r.Changed)
	r.planner.answerers = []Answerer{part}
	encrypted := func(name, ip, secret string) string {
		return strings.Replace(web(name, ip, "10.1.0.1"), "{name: "+name+"}", "{name: "+name+", annotations: {svcctl.io/tls-secret: "+secret+"}}", 1)
	}
	expect := func(when string, got *[]string, want ...string) {
		t.Helper()
		if slices.Sort(*got); !slices.Equal(*got, want) {
			t.Errorf("%s: %v, want %v", when, *got, want)
		}
		*got = nil
	}
	planned := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, svc := range rec.planned {
			got = append(got, svc.Key)
		}
		rec.planned = nil
		expect(when, &got, want...)
	}
	r.host()
	r.write("a.yaml", encrypted("a", "10.96.0.10", "x"))
	r.write("b.yaml", encrypted("b", "10.96.0.11", "x"))
	r.write("c.yaml", encrypted("c", "10.96.0.12", "y"))
	r.step()
	expect("the first plan meets", &part.met, "default/a default/x", "default/b default/x", "default/c default/y")
	planned("the first plan", "default/a", "default/b", "default/c")
	r.step()
	planned("nothing changed")

	part.missing["default/x"] = true
	part.Changed(keyPair("default/x"))
	r.step()
	planned("x is gone", "default/a", "default/b")
	if text := r.messages(); strings.Count(text, "Secret default/x: it is not there") != 2 {
		t.Errorf("problems: %s", text)
	}
	part.met = nil

	fork := newRig(t)
	fork.host()
	fork.write("c.yaml", encrypted("c", "10.96.0.12", "z"))
	fork.step()
	if _, err := r.foresee(&Foresee{Objects: fork.store.InForce(), Revision: r.store.Revision(), Changes: store.ChangeSet{Services: []string{"default/c"}}}); err != nil {
		t.Fatal(err)
	}
	expect("to foresee a change meets", &part.met)
	expect("to foresee a change asks for", &part.foreseen, "default/c default/z")

	refused := errors.New("not now")
	r.kernel.Inject(func(*nft.Batch) error { return refused })
	r.write("c.yaml", web("c", "10.96.0.12", "10.1.0.2"))
	r.step()
	expect("while the kernel has the plan before, closed are", &part.closed)
	r.kernel.Inject(nil)
	r.step()
	expect("closed are", &part.closed, "default/y")
}

// nothing is a store without objects.
type nothing struct{}

func (nothing) Service(string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	return nil, nil, nil
}
func (nothing) Since(string) store.Since                     { return store.Since{} }
func (nothing) Pod(string) *object.Pod                       { return nil }
func (nothing) Secret(string) *object.Secret                 { return nil }
func (nothing) Selecting(string, map[string]string) []string { return nil }
func (nothing) Mentions(string, map[netip.Addr]bool) bool    { return false }

// A Service that the kernel refuses is relayed as before: without that, what asks for TLS would be passed on
// in the clear.
func TestRefusedServicesStayRelayed(t *testing.T) {
	p := newPlanner()
	how := &resolve.Relay{ProxyProtocol: 2}
	p.quarantine.left["default/web"] = rejected{Service{Key: "default/web", Ports: []nft.ServicePort{{ID: "default/web"}}, Settings: resolve.Settings{Relay: how}}, errors.New("refused")}
	if out := p.resolveOne(nothing{}, "default/web"); out.Relay != how || len(out.Ports) != 1 {
		t.Errorf("%+v", out)
	}
}
