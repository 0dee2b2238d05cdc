package store

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

var update = flag.Bool("update", false, "write testdata/earlier")

// alone is an engine that other machines could write to, and do not.
type alone struct{ *faulty.Memory }

func (alone) Follow() []engine.Followed   { return nil }
func (alone) Arrived() <-chan struct{}    { return nil }
func (alone) Published()                  {}
func (alone) Refuse(error)                {}
func (alone) Sealing() error              { return nil }
func (alone) Tries() error                { return nil }
func (alone) Rolls() error                { return nil }
func (alone) Fresh(context.Context) error { return nil }
func (a alone) Keep(t engine.Transaction) {
	t.CompareKey, t.CompareRevision = headKey, a.head()
	_ = a.Commit(t)
}
func (a alone) head() uint64 { p, _ := a.Load(headKey); return p[0].Revision }

// pairsOf are all stored pairs, one a line.
func pairsOf(t *testing.T, e engine.Engine) (lines []string) {
	t.Helper()
	pairs, err := e.Load("")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pairs {
		lines = append(lines, fmt.Sprintf("%s %d %q", p.Key, p.Revision, p.Value))
	}
	slices.Sort(lines)
	return lines
}

// parsePair reads a line of pairsOf.
func parsePair(t *testing.T, line string) engine.Pair {
	t.Helper()
	parts := strings.SplitN(line, " ", 3)
	revision, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	value, err := strconv.Unquote(parts[2])
	if err != nil {
		t.Fatal(err)
	}
	return engine.Pair{Key: parts[0], Revision: revision, Value: []byte(value)}
}

// sameValue compares two values; those of JSON are the same in any order of their fields.
func sameValue(a, b []byte) bool {
	var left, right any
	if json.Unmarshal(a, &left) == nil && json.Unmarshal(b, &right) == nil {
		x, _ := json.Marshal(left)
		y, _ := json.Marshal(right)
		return bytes.Equal(x, y)
	}
	return bytes.Equal(a, b)
}

// Test884_pending_changes_are_stored_as_before: what a trial, a rollout, held removals and reservations store is what an earlier version stores,
// pair by pair, so that either version goes on with the data of the other. The pairs in testdata/earlier were written by the version before the
// three became one mechanism.
func Test884_pending_changes_are_stored_as_before(t *testing.T) {
	large := func(c *Config) {
		largeRange(c)
		c.Clocks = func() deadline.Reading { return trialNow }
		c.Box = "gw2"
	}
	apply := func(b *box, kind, id, text string) {
		t.Helper()
		w := write(document(t, text))
		w.By = callerOf(kind, id)
		w.Version = ""
		b.must(w)
	}
	start := func(b *box) {
		b.keep("a.yaml", "filed {type: NodePort}")
		b.keep("b.yaml", "second {}")
		b.sync()
		if err := b.s.LastGood().Flush(); err != nil {
			t.Fatal(err)
		}
		apply(b, "", "", "web {type: LoadBalancer}")
		apply(b, "", "", "gone {type: NodePort}")
	}
	shared := func(b *box) { // the store of a fleet has a revision from its start
		e := alone{b.engine}
		s, err := Open(e, b.cfg)
		if err != nil {
			t.Fatal(err)
		}
		b.s = s
	}
	keep := func(Removals) func(string) Decision { return func(string) Decision { return Keep } }
	scenarios := []struct {
		name  string
		write func(b *box)
		check func(b *box)
	}{
		{"trial", func(b *box) {
			start(b)
			b.try(true)
			apply(b, "trial", "t1", "web {type: ClusterIP}")
			apply(b, "trial", "t1", "new {type: NodePort}")
			b.must(Write{Ref: ref("gone"), Delete: true, By: callerOf("trial", "t1")})
			b.keep("a.yaml", "filed {type: ClusterIP}")
			b.keep("b.yaml", "")
			b.sync()
		}, func(b *box) {
			b.keep("a.yaml", "filed {type: ClusterIP}")
			b.sync()
			if got := outcomeOf(b.goBack()); got != "default/filed changed, default/gone created, default/new deleted, default/second created, default/web changed" {
				t.Errorf("going back gives %s", got)
			}
			b.sync()
			if b.ingress("web") == "" || b.nodePort("filed") == 0 || b.nodePort("gone") == 0 || b.has("new") || !b.has("second") {
				t.Errorf("it did not go back:\n%s", b.world())
			}
		}},
		{"back", func(b *box) {
			start(b)
			b.try(true)
			b.keep("a.yaml", "filed {type: ClusterIP}")
			b.keep("b.yaml", "")
			b.sync()
			b.goBack()
		}, func(b *box) {
			b.keep("a.yaml", "filed {type: ClusterIP}")
			b.sync()
			if b.nodePort("filed") == 0 || !b.has("second") {
				t.Errorf("files are not held:\n%s", b.world())
			}
			b.confirmAll()
			b.sync()
			if b.nodePort("filed") != 0 || b.has("second") {
				t.Errorf("what was confirmed is held:\n%s", b.world())
			}
		}},
		{"rollout", func(b *box) {
			start(b)
			shared(b)
			beginStaged(b, "r1")
			apply(b, "rollout", "r1", "web {type: ClusterIP}")
			apply(b, "rollout", "r1", "new {type: NodePort}")
			b.must(Write{Ref: ref("gone"), Delete: true, By: callerOf("rollout", "r1")})
			moveStaged(b)
		}, func(b *box) {
			shared(b)
			if svc, _, _ := b.s.InForce().Service("default/web"); svc == nil || svc.Spec.Type != object.TypeLoadBalancer {
				t.Errorf("a box outside of the rollout programs %v", svc)
			}
			if got := stagedState(b); got != `r1 Programming turn 2 boxes [gw1] plan {"bake":120000000000,"known":{"gw1":["x"]},"reverts":true,"step":0,"steps":["gw1","100%"],"within":60000000000} left 1m0s` {
				t.Errorf("the rollout is %s", got)
			}
			if got := outcomeOf(undoStaged(b)); got != "default/gone created, default/new deleted, default/web changed" {
				t.Errorf("the undo gives %s", got)
			}
			if b.ingress("web") == "" || b.nodePort("gone") == 0 || b.has("new") {
				t.Errorf("it is not undone:\n%s", b.world())
			}
		}},
		{"removal", func(b *box) {
			start(b)
			b.guard = keep
			b.keep("b.yaml", "")
			b.sync()
		}, func(b *box) {
			b.guard = keep
			b.keep("a.yaml", "filed {type: NodePort}")
			b.sync()
			if !b.has("second") || len(b.s.Held()) != 1 {
				t.Errorf("the removal is not held: %v", b.s.Held())
			}
			b.guard = nil
			b.sync()
			if b.has("second") {
				t.Error("a removal that was confirmed is held")
			}
		}},
		{"reserved", func(b *box) {
			if err := b.s.Reserve([]ReservedFrontend{{Addr: netip.MustParseAddr("172.30.0.9")}}); err != nil {
				t.Fatal(err)
			}
			apply(b, "", "", "web {clusterIP: 172.30.0.9}")
		}, func(b *box) {
			if !b.s.HasReserved() {
				t.Error("the reservation is forgotten")
			}
			if err := b.s.Unreserve(); err != nil || b.s.HasReserved() {
				t.Errorf("it does not end: %v", err)
			}
		}},
	}
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			path := "testdata/earlier/" + sc.name + ".txt"
			b := newBox(t, large)
			sc.write(b)
			now := pairsOf(t, b.engine)
			if *update {
				if err := os.WriteFile(path, []byte(strings.Join(now, "\n")+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			earlier := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
			if len(now) != len(earlier) {
				t.Fatalf("%d pairs are stored, an earlier version has %d:\n%s\n\n%s", len(now), len(earlier), strings.Join(now, "\n"), text)
			}
			opened := newBox(t, large)
			opened.engine = faulty.NewMemory()
			out := engine.Transaction{CompareKey: headKey}
			for i, line := range earlier {
				was, is := parsePair(t, line), parsePair(t, now[i])
				if was.Key != is.Key || was.Revision != is.Revision || !sameValue(was.Value, is.Value) {
					t.Errorf("stored is\n%s\nan earlier version has\n%s", now[i], line)
				}
				out.Puts = append(out.Puts, was)
			}
			if err := opened.engine.Commit(out); err != nil {
				t.Fatal(err)
			}
			opened.now = opened.now.Add(time.Second)
			opened.uids = 100
			opened.open()
			sc.check(opened)
		})
	}
}

// outcomeOf has what became of objects.
func outcomeOf(revived []Revived) string {
	var all []string
	for _, r := range revived {
		all = append(all, r.Ref.Key()+" "+r.Did)
	}
	return strings.Join(all, ", ")
}

func callerOf(kind, id string) Caller {
	switch by := (Caller{User: "root", Verb: "apply"}); kind {
	case "trial":
		by.Trial = id
		return by
	case "rollout":
		by.Rollout = id
		return by
	default:
		return by
	}
}

func (b *box) confirmAll() {
	b.t.Helper()
	if _, err := b.s.Confirm(""); err != nil {
		b.t.Fatal(err)
	}
}

func beginStaged(b *box, id string) {
	b.t.Helper()
	head := pending.Head{ID: id, Began: b.now.UTC(), User: "root", Plan: []byte(`{"steps":["gw1","100%"],"step":0,"within":60000000000,"bake":120000000000,"reverts":true}`)}
	if _, err := b.s.BeginStaged(head, 5*time.Minute); err != nil {
		b.t.Fatal(err)
	}
}

func moveStaged(b *box) {
	b.t.Helper()
	head, _ := b.s.PendingHead(pending.Staged)
	head.Phase, head.Boxes = pending.Programming, []string{"gw1"}
	head.Plan = []byte(`{"known":{"gw1":["x"]},` + string(head.Plan[1:]))
	if err := b.s.Advance(head, time.Minute); err != nil {
		b.t.Fatal(err)
	}
}

func stagedState(b *box) string {
	h, _ := b.s.PendingHead(pending.Staged)
	left, _ := b.s.PendingLeft(pending.Staged)
	return fmt.Sprintf("%s %s turn %d boxes %v plan %s left %v", h.ID, h.Phase, h.Turn, h.Boxes, h.Plan, left)
}

func undoStaged(b *box) []Revived {
	b.t.Helper()
	head, _ := b.s.PendingHead(pending.Staged)
	revived, err := b.s.Undo(head, Caller{User: "root"})
	if err != nil {
		b.t.Fatal(err)
	}
	return revived
}
