package reconcile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/test/judge"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
)

func rulesetText(t *testing.T, rs nft.Ruleset) string {
	t.Helper()
	var b strings.Builder
	if err := rs.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// operations is a transition as text.
func operations(t *testing.T, tr *nft.Transition) string {
	t.Helper()
	var b strings.Builder
	for _, batch := range []nft.Batch{tr.Apply, tr.Cleanup} {
		if err := batch.WriteText(&b); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("%sforget %v", &b, tr.Forget)
}

// TestForeseenIsPlanned foresees the second and the third of three worlds, with conflicts of all kinds and another host:
// the operations are those that are planned then, and to foresee them has no influence.
func TestForeseenIsPlanned(t *testing.T) {
	r := newRig(t)
	revision := r.store.Revision()
	moved := 0
	for seed := range seeds(150) {
		random := rand.New(rand.NewPCG(seed, 11))
		first := oracle.Generate(random)
		history := []*oracle.World{first, first.Next(random), oracle.Generate(random)}
		p := newPlanner()
		planStep(p, history[:1])
		was := rulesetText(t, p.compiler.Ruleset())
		l := &Loop{opts: Options{Accepted: Accepted{Store: r.store}}, shown: r.store, planner: p, applier: &applier{generation: 1}, adopted: true, planned: revision}
		for i := 1; i < len(history); i++ {
			before, after := history[i-1], history[i]
			objs := (*worldObjects)(after)
			setWorld(p, after, uint64(i+1))
			ask := Foresee{Objects: objs, Revision: revision, All: objs.keys(), Changes: store.ChangeSet{Revision: revision, Services: changedServices(before, after)}}
			if !reflect.DeepEqual(before.Box, after.Box) {
				moved++
				cfg, facts := judge.Config(&after.Box), judge.Facts(&after.Box)
				ask.Host = func(*node.Facts) Host {
					return Host{Facts: &facts, Box: cfg.Box(&facts), Resolve: cfg.ResolveFacts(&facts, nil)}
				}
			}
			foreseen, err := l.foresee(&ask)
			if err != nil {
				t.Fatal(err)
			}
			got := operations(t, &foreseen.Transition)
			if now := rulesetText(t, p.compiler.Ruleset()); now != was {
				t.Fatalf("seed %d: to foresee a world has changed the ruleset\n%s\nto\n%s", seed, was, now)
			}
			tr := planStep(p, history[:i+1])
			if was = rulesetText(t, p.compiler.Ruleset()); got != operations(t, &tr) {
				t.Fatalf("seed %d, world %d: foreseen is\n%s\nplanned is\n%s", seed, i, got, operations(t, &tr))
			}
		}
	}
	if moved < int(seeds(100)) {
		t.Errorf("the host was another one only %d times", moved)
	}
}

// TestForeseeIsRefused says so while what is planned is not what is in force.
func TestForeseeIsRefused(t *testing.T) {
	r := newRig(t)
	ask := func(revision uint64) error {
		_, err := r.foresee(&Foresee{Objects: r.store.InForce(), Revision: revision})
		return err
	}
	if err := ask(r.store.Revision()); !errors.Is(err, ErrUnsettled) {
		t.Errorf("before the first plan: %v", err)
	}
	r.host()
	r.write("web.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n")
	revision := r.store.Revision()
	r.step()
	if err := ask(revision); !errors.Is(err, ErrBehind) {
		t.Errorf("of a copy from before a Service: %v", err)
	}
	if err := ask(1); !errors.Is(err, ErrBehind) {
		t.Errorf("of a copy that is too old to tell: %v", err)
	}
	if err := ask(r.store.Revision()); err != nil {
		t.Errorf("of a copy of now: %v", err)
	}
	r.observed.tampered = true
	if err := ask(r.store.Revision()); !errors.Is(err, ErrUnsettled) {
		t.Errorf("while somebody else has changed the tables: %v", err)
	}
	r.observed.tampered, r.wait = false, 1
	if err := ask(r.store.Revision()); !errors.Is(err, ErrUnsettled) {
		t.Errorf("while a commit is tried again: %v", err)
	}
}

// Test813_plan_against_running_judges_endpoints: what the loop would report of Services without endpoints is foreseen.
func Test813_plan_against_running_judges_endpoints(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	fork := newRig(t)
	fork.host()
	fork.write("web.yaml", strings.Replace(web("web", "10.96.0.10", "10.1.0.1"), "service-name: web", "service-name: wbe", 1))
	fork.write("api.yaml", strings.Replace(web("api", "10.96.0.11", "10.1.0.1"), "[10.1.0.1]\n", "[10.1.0.1]\n  conditions: {ready: false}\n", 1))
	fork.step()
	f, err := r.foresee(&Foresee{Objects: fork.store.InForce(), Revision: r.store.Revision(), Changes: store.ChangeSet{Services: []string{"default/web", "default/api"}}})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, p := range f.Problems {
		found[p.Object+" "+p.Reason] = p.Severity
	}
	if found["Service default/web NoEndpoints"] != "warning" || found["Service default/api NoReadyEndpoint"] != "error" || len(found) != 2 {
		t.Errorf("foreseen: %v", f.Problems)
	}
}
