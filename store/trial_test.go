package store

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
	"svcctl.io/svcctl/store/record"
)

var trialNow = deadline.Reading{Wall: time.Unix(1_700_000_000, 0), Boot: "boot", Up: time.Minute}

// try begins a trial.
func (b *box) try(files bool) {
	b.t.Helper()
	if _, err := b.s.BeginTimed("t1", "root", files, time.Minute, trialNow); err != nil {
		b.t.Fatal(err)
	}
}

// goBack takes the trial back, with the files as they are.
func (b *box) goBack() []Revived {
	b.t.Helper()
	revived, err := b.s.GoBack(manifest.FilesOf(b.files))
	if err != nil {
		b.t.Fatal(err)
	}
	b.check()
	return revived
}

// onTrial is a write of the trial.
func onTrial(w Write) Write {
	w.By = Caller{User: "root", Verb: "apply", Trial: "t1"}
	return w
}

// keep writes a file as the watcher does, with the copy of its content.
func (b *box) keep(path, text string) {
	b.t.Helper()
	b.write(path, text)
	if text == "" {
		b.s.LastGood().Put(path, nil)
		return
	}
	content := []byte(yamlOf(text))
	b.files[path].Hash = sha256.Sum256(content)
	b.texts[path] = content
	b.s.LastGood().Put(path, content)
}

// reread reads the files as the watcher of a new process does.
func (b *box) reread() {
	b.t.Helper()
	copies, _, err := b.s.LastGood().Load()
	if err != nil {
		b.t.Fatal(err)
	}
	for path, f := range maps.Clone(b.files) {
		next := *f
		b.files[path] = &next
		b.s.LastGood().Put(path, b.texts[path])
		delete(copies, path)
	}
	for path := range copies {
		b.s.LastGood().Put(path, nil)
	}
}

// world is all objects of the store and their owners, without what never goes back.
func (b *box) world() string {
	var lines []string
	for ref, r := range b.s.table.records {
		o := object.DeepCopy(record.Whole(r.Object))
		o.GetMeta().ResourceVersion, o.GetMeta().Generation = "", 0
		lines = append(lines, fmt.Sprintf("%s %s withheld=%t created=%d %s", ref, r.Owner, r.Withheld, r.Created, jsonOf(o)))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func oneIngress(c *Config) { c.Pools = []alloc.Pool{pool("198.51.100.1", "198.51.100.1")} }

// What a trial changes through the API goes back with uids, addresses and ports, also after a crash, and
// no other Service gets an address meanwhile.
func TestTrialGoesBack(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprintf("crash=%t", crash), func(t *testing.T) {
			b := newBox(t, oneIngress)
			b.sync()
			b.must(write(document(t, "web {type: LoadBalancer}")))
			b.must(write(document(t, "api {type: NodePort}")))
			b.must(write(document(t, "other {}")))
			b.must(write(document(t, "waits {type: LoadBalancer}")))
			before := b.world()
			b.try(false)
			b.must(onTrial(Write{Ref: ref("web"), Delete: true}))
			b.must(onTrial(changed(b, ref("api"), func(s *object.Service) {
				s.Spec.Type = object.TypeClusterIP
				s.Spec.Ports[0].NodePort = 0
			})))
			b.must(onTrial(write(document(t, "new {}"))))
			if got := b.ingress("waits"); got != "" {
				t.Errorf("waits got %q, which web may need again", got)
			}
			state, is := b.s.Pending(pending.Timed)
			if !is || !state.Pending() || fmt.Sprint(state.Objects) != fmt.Sprint([]object.Ref{ref("api"), ref("new"), ref("web")}) {
				t.Errorf("%+v %t", state, is)
			}
			if crash {
				b.restart()
				b.sync()
				if got := b.ingress("waits"); got != "" {
					t.Errorf("after a crash waits got %q", got)
				}
			}
			b.must(changed(b, ref("other"), func(s *object.Service) { s.Metadata.Labels = map[string]string{"kept": "yes"} }))
			before = strings.Replace(before, b.oldOther(t), b.lineOf("other"), 1)
			revived := b.goBack()
			if len(revived) != 3 || revived[0].Did != ReviveChanged || revived[1].Did != ReviveDeleted || revived[2].Did != ReviveCreated {
				t.Errorf("%+v", revived)
			}
			if got := b.world(); got != before {
				t.Errorf("got\n%s\nwant\n%s", got, before)
			}
			b.restart()
			if got := b.world(); got != before {
				t.Errorf("after a restart\n%s\nwant\n%s", got, before)
			}
			if _, is := b.s.Pending(pending.Timed); is {
				t.Error("it is still there")
			}
			if w := b.ask(onTrial(write(document(t, "late {}")))); !errors.Is(w.Err, pending.ErrTimedOver) {
				t.Errorf("a late write of it: %v", w.Err)
			}
			if left, err := b.engine.Load(pending.Timed.Prefix()); err != nil || len(left) > 0 {
				t.Errorf("%d keys are left, %v", len(left), err)
			}
		})
	}
}

// lineOf is the line of a Service in the world, oldOther the one that it had without labels.
func (b *box) lineOf(name string) string {
	for line := range strings.SplitSeq(b.world(), "\n") {
		if strings.HasPrefix(line, ref(name).String()+" ") {
			return line
		}
	}
	return ""
}

func (b *box) oldOther(t *testing.T) string {
	t.Helper()
	return strings.Replace(b.lineOf("other"), `,"labels":{"kept":"yes"}`, "", 1)
}

// A trial that is to be confirmed only without a change stays when it has one, by whatever client, when it covers files, and when it is
// another one.
func TestUnchangedTrialIsConfirmed(t *testing.T) {
	b := newBox(t)
	b.must(write(document(t, "web {}")))
	confirmed := func(id string) bool {
		t.Helper()
		_, err := b.s.Confirm(id)
		if err != nil && !errors.Is(err, pending.ErrNoTimed) {
			t.Fatal(err)
		}
		return err == nil
	}
	id := func() string {
		state, _ := b.s.Pending(pending.Timed)
		return state.ID
	}
	b.try(false)
	if confirmed("another") || !confirmed(id()) {
		t.Error("by the ID of another trial it is confirmed, or by its own it is not")
	}
	b.try(true)
	if confirmed(id()) {
		t.Error("a trial that covers files is confirmed")
	}
	if !confirmed("") {
		t.Error("it is not confirmed at all")
	}
	b.try(false)
	b.must(onTrial(Write{Ref: ref("web"), Delete: true}))
	if confirmed(id()) {
		t.Error("a trial with a change is confirmed")
	}
}

// Confirmed, it stays, and what it gave up is for others.
func TestTrialIsConfirmed(t *testing.T) {
	b := newBox(t, oneIngress)
	b.sync()
	b.must(write(document(t, "web {type: LoadBalancer}")))
	b.must(write(document(t, "waits {type: LoadBalancer}")))
	b.try(false)
	b.must(onTrial(Write{Ref: ref("web"), Delete: true}))
	b.restart()
	if state, err := b.s.Confirm(""); err != nil || len(state.Objects) != 1 {
		t.Errorf("%+v, %v", state, err)
	}
	b.check()
	if b.has("web") || b.ingress("waits") != "198.51.100.1" {
		t.Errorf("web is there: %t; waits has %q", b.has("web"), b.ingress("waits"))
	}
	if _, err := b.s.GoBack(manifest.Files{}); !errors.Is(err, pending.ErrNoTimed) {
		t.Errorf("go back: %v", err)
	}
	if _, err := b.s.Confirm(""); !errors.Is(err, pending.ErrNoTimed) {
		t.Errorf("once more: %v", err)
	}
	b.restart()
	if _, is := b.s.Pending(pending.Timed); is || b.has("web") {
		t.Error("it is back after a restart")
	}
}

// TestTrialKeepsValuesInRepair: the values that a Service gave up in a trial are no disagreement, and a repair of the pools leaves them to it.
func TestTrialKeepsValuesInRepair(t *testing.T) {
	b := newBox(t, oneIngress)
	b.sync()
	b.must(write(document(t, "web {type: LoadBalancer}")))
	ip, before := b.ip("web"), poolLines(b.s.Pools(math.MaxInt))
	b.try(false)
	b.must(onTrial(Write{Ref: ref("web"), Delete: true}))
	for _, repair := range []bool{false, true, false} {
		if found := b.s.CheckPools(repair); len(found) > 0 {
			t.Errorf("repair %t of values that were given up: %+v", repair, found)
		}
	}
	if w := b.ask(write(document(t, "thief {clusterIP: "+ip+"}"))); w.Err == nil || !strings.Contains(w.Err.Error(), "on trial") {
		t.Errorf("another Service: %v", w.Err)
	}
	if b.goBack(); poolLines(b.s.Pools(math.MaxInt)) != before {
		t.Errorf("back:\n%swant\n%s", poolLines(b.s.Pools(math.MaxInt)), before)
	}
}

// A Service can have again in the trial what it gave up in it.
func TestTrialServiceRegainsItsValues(t *testing.T) {
	b := newBox(t, oneIngress)
	b.sync()
	b.must(write(document(t, "web {type: LoadBalancer}")))
	ip := b.ip("web")
	b.try(false)
	b.must(onTrial(Write{Ref: ref("web"), Delete: true}))
	if w := b.ask(write(document(t, "thief {clusterIP: "+ip+"}"))); w.Err == nil || !strings.Contains(w.Err.Error(), "on trial") {
		t.Errorf("another Service: %v", w.Err)
	}
	b.must(write(document(t, "web {type: LoadBalancer, clusterIP: "+ip+", loadBalancerIP: 198.51.100.1}")))
	if b.ip("web") != ip || b.ingress("web") != "198.51.100.1" {
		t.Errorf("%s %s", b.ip("web"), b.ingress("web"))
	}
	b.goBack()
	if b.ip("web") != ip || b.ingress("web") != "198.51.100.1" {
		t.Errorf("back: %s %s", b.ip("web"), b.ingress("web"))
	}
}

// Files that changed, came and went are held as they were, over restarts, until they change once
// more or are confirmed; their objects are the same ones.
func TestTrialOfFiles(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarts=%t", restarts), func(t *testing.T) {
			b := newBox(t)
			again := func() {
				if restarts {
					b.restart()
					b.reread()
				}
				b.sync()
			}
			b.keep("/m/changed", "changed {type: LoadBalancer}")
			b.keep("/m/gone", "gone {type: NodePort}\ngone2 {}\n")
			b.keep("/m/same", "same {}")
			again()
			before := b.world()
			b.try(true)
			b.keep("/m/changed", "changed {type: ClusterIP}")
			b.keep("/m/gone", "")
			b.keep("/m/new", "new {}")
			again()
			if !b.has("new") || b.has("gone") || b.service("changed").Spec.Type != object.TypeClusterIP {
				t.Fatal("the changes are not in force")
			}
			if state, _ := b.s.Pending(pending.Timed); restarts && len(state.Files) < 2 {
				t.Errorf("%+v", state)
			}
			b.goBack()
			for range 2 {
				again()
				if got := b.world(); got != before {
					t.Fatalf("got\n%s\nwant\n%s", got, before)
				}
			}
			state, is := b.s.Pending(pending.Timed)
			if !is || state.Pending() || fmt.Sprint(state.Files) != "[/m/changed /m/gone /m/new]" {
				t.Errorf("%+v", state)
			}
			if _, err := b.s.BeginTimed("t2", "root", false, time.Minute, trialNow); !errors.Is(err, pending.ErrFilesHeld) {
				t.Errorf("another trial: %v", err)
			}
			// A file that changes once more is taken; one that is as it was is held no longer.
			b.keep("/m/new", "new {type: NodePort}")
			b.keep("/m/changed", "changed {type: LoadBalancer}")
			again()
			if !b.has("new") || !b.has("gone") {
				t.Error("new is held, or gone is not")
			}
			if state, _ := b.s.Pending(pending.Timed); fmt.Sprint(state.Files) != "[/m/gone]" {
				t.Errorf("%+v", state)
			}
			again()
			if _, err := b.s.Confirm(""); err != nil {
				t.Error(err)
			}
			again()
			if b.has("gone") || !b.has("new") {
				t.Error("what was confirmed is not in force")
			}
			if left, err := b.engine.Load(pending.Timed.Prefix()); err != nil || len(left) > 0 {
				t.Errorf("%d keys are left, %v", len(left), err)
			}
		})
	}
}

// A trial of what is held brings it into force once more, and it goes back to the same state.
func TestTrialOfHeldFiles(t *testing.T) {
	b := newBox(t)
	b.keep("/m/web", "web {type: LoadBalancer}")
	b.sync()
	before := b.world()
	b.try(true)
	b.keep("/m/web", "web {}")
	b.sync()
	b.goBack()
	b.sync()
	b.try(true)
	b.sync()
	if b.service("web").Spec.Type != object.TypeClusterIP {
		t.Error("it is not in force")
	}
	b.restart()
	b.goBack()
	b.sync()
	if got := b.world(); got != before {
		t.Errorf("got\n%s\nwant\n%s", got, before)
	}
}

// Whenever the process dies, objects and trial agree.
func TestTrialCrashes(t *testing.T) {
	for crash := 0; ; crash++ {
		b := newBox(t, oneIngress)
		b.keep("/m/file", "file {type: NodePort}")
		b.sync()
		b.must(write(document(t, "web {type: LoadBalancer}")))
		before := b.world()
		b.try(true)
		commits := 0
		b.engine.Inject(func(_ engine.Transaction) faulty.Fault {
			commits++
			if commits > crash {
				return faulty.CrashBefore
			}
			return faulty.NoFault
		})
		b.ask(onTrial(Write{Ref: ref("web"), Delete: true}))
		b.keep("/m/file", "file {}")
		_, _ = b.s.SyncFiles(manifest.FilesOf(b.files))
		_, _ = b.s.GoBack(manifest.FilesOf(b.files))
		_, _ = b.s.SyncFiles(manifest.FilesOf(b.files))
		b.restart()
		b.sync()
		if state, is := b.s.Pending(pending.Timed); is && state.Pending() {
			b.goBack()
			b.sync()
		}
		if got := b.world(); got != before {
			t.Fatalf("dead at commit %d: got\n%s\nwant\n%s", crash, got, before)
		}
		if commits <= crash {
			if crash < 3 {
				t.Errorf("only %d commits", crash)
			}
			return
		}
	}
}

// The last changes of clients are taken back, what files own is named and left.
func TestRollback(t *testing.T) {
	b := newBox(t, oneIngress)
	b.apply("/m/f", "filed {}")
	b.must(write(document(t, "web {type: LoadBalancer}")))
	b.must(write(document(t, "gone {type: NodePort}")))
	before := b.world()
	filed := b.lineOf("filed")
	revision := b.s.feed.revision
	by := Caller{User: "root", Manager: "m", Verb: "update"}
	w := changed(b, ref("web"), func(s *object.Service) { s.Spec.Type = object.TypeClusterIP; s.Spec.Ports[0].NodePort = 0 })
	w.By = by
	b.must(w)
	b.must(Write{Ref: ref("gone"), Delete: true, By: by})
	b.must(write(document(t, "new {}")))
	b.apply("/m/f", "filed {type: NodePort}")
	dry, err := b.s.Rollback(Rollback{Revision: revision, By: by, DryRun: true})
	if err != nil || len(dry.Objects) != 4 || b.has("gone") {
		t.Errorf("dry run: %+v, %v", dry, err)
	}
	b.now = b.now.Add(time.Second)
	did, err := b.s.Rollback(Rollback{Revision: revision, By: by})
	if err != nil || fmt.Sprint(did) != fmt.Sprint(dry) {
		t.Errorf("%+v, %v", did, err)
	}
	b.check()
	got := strings.Replace(b.world(), b.lineOf("filed"), filed, 1)
	// The journal does not say which revision something deleted was created with.
	strip := func(world string) string {
		line := ""
		for l := range strings.SplitSeq(world, "\n") {
			if _, after, found := strings.Cut(l, "created="); found {
				_, rest, _ := strings.Cut(after, " ")
				line += l[:strings.Index(l, "created=")] + rest + "\n"
			}
		}
		return line
	}
	if strip(got) != strip(before) {
		t.Errorf("got\n%s\nwant\n%s", got, before)
	}
	last := did.Objects[len(did.Objects)-1]
	if last.Did != ReviveLeft || last.Ref != ref("filed") || !strings.Contains(last.Why, "/m/f") {
		t.Errorf("%+v", last)
	}
	if _, err := b.s.Rollback(Rollback{Revision: 1, By: by}); !errors.Is(err, ErrExpired) {
		t.Errorf("far back: %v", err)
	}
	// A second one takes the first one back.
	if again, err := b.s.Rollback(Rollback{By: by}); err != nil || again.Last <= did.Last || b.has("gone") || !b.has("new") {
		t.Errorf("%+v %v: gone is there: %t, new is: %t", again, err, b.has("gone"), b.has("new"))
	}
	b.check()
}

// What a Service of a file has by now is not taken away from it: the other one is back and not
// served, until the value is free.
func TestRollbackToATakenValue(t *testing.T) {
	b := newBox(t)
	b.sync()
	b.must(write(document(t, "web {}")))
	ip, revision := b.ip("web"), b.s.feed.revision
	b.must(Write{Ref: ref("web"), Delete: true})
	b.apply("/m/f", "taker {clusterIP: "+ip+"}")
	did, err := b.s.Rollback(Rollback{Revision: revision, By: Caller{User: "root"}})
	if err != nil || len(did.Objects) != 2 || did.Objects[0].Did != ReviveConflict || !strings.Contains(did.Objects[0].Why, ip) {
		t.Errorf("%+v, %v", did, err)
	}
	b.check()
	if b.has("web") || b.ip("taker") != ip {
		t.Errorf("web is served: %t; taker has %s", b.has("web"), b.ip("taker"))
	}
	b.wantProblems(ip)
	b.apply("/m/f", "")
	if b.ip("web") != ip {
		t.Errorf("web has %s", b.ip("web"))
	}
	b.wantProblems()
}
