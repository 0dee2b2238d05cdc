package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// endpointFile is a file of a Service and its EndpointSlice with one endpoint.
func endpointFile(endpoint int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 80}]}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
		"metadata: {name: s-x, labels: {kubernetes.io/service-name: s}}\naddressType: IPv4\nendpoints: [{addresses: [10.0.0.%d]}]\n", endpoint)
}

// change is a change of a file as the watcher makes it: its copy waits when the file is synced.
func (b *box) change(path, text string) {
	b.t.Helper()
	b.keep(path, text)
	b.sync()
}

func (b *box) flush() {
	b.t.Helper()
	if err := b.s.LastGood().Flush(); err != nil {
		b.t.Fatal(err)
	}
}

// restartIsSame has a new process find the objects of this one.
func (b *box) restartIsSame() {
	b.t.Helper()
	want := objects(b.s)
	b.restart()
	if got := objects(b.s); got != want {
		b.t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// changing is a box of which two changes are in one commit that is still to come, and the revision of the first.
func changing(t *testing.T) (b *box, first uint64) {
	t.Helper()
	b = newBox(t)
	b.change("s.yaml", endpointFile(1))
	b.flush()
	commits := b.engine.Commits()
	b.change("s.yaml", endpointFile(2))
	first = b.s.Revision()
	b.change("s.yaml", endpointFile(3))
	if now := b.engine.Commits(); now != commits {
		t.Fatalf("%d commits of changes of endpoints", now-commits)
	}
	return b, first
}

func (b *box) wantEndpoint(last int) {
	b.t.Helper()
	_, slices, _ := b.s.Service("default/s")
	if len(slices) != 1 || slices[0].Endpoints[0].Addresses[0] != fmt.Sprint("10.0.0.", last) {
		b.t.Errorf("the EndpointSlices are %v, want endpoint %d", slices, last)
	}
}

// Test1008_changes_of_endpoints_share_a_commit changes endpoints in a file. The changes are there at once and in the journal, and stored
// with the copy of the file, with the next write of a client, and with any other commit.
func Test1008_changes_of_endpoints_share_a_commit(t *testing.T) {
	for name, store := range map[string]func(b *box){
		"the copies of the files": func(b *box) { b.flush() },
		"a write of a client": func(b *box) {
			if _, err := b.put(document(t, "api {}")); err != nil {
				b.t.Error(err)
			}
		},
		"another change of a file": func(b *box) { b.change("other.yaml", "other {}") },
		"an export": func(b *box) {
			if _, _, err := b.s.everything(); err != nil {
				b.t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, first := changing(t)
			b.wantEndpoint(3)
			commits, revision := b.engine.Commits(), b.s.Revision()
			store(b)
			if now := b.engine.Commits(); now != commits+1 {
				t.Errorf("%d commits", now-commits)
			}
			b.restartIsSame()
			events, err := b.s.Events(first, 1)
			if err != nil || len(events) != 1 || events[0].Revision != revision || events[0].Old.(*object.EndpointSlice).Endpoints[0].Addresses[0] != "10.0.0.2" {
				t.Errorf("the journal has %v: %v", events, err)
			}
			b.sync()
			b.change("s.yaml", endpointFile(4))
			b.change("s.yaml", endpointFile(5))
			b.flush()
			b.apply("s.yaml", endpointFile(6))
			b.apply("last.yaml", "last {}")
			b.restartIsSame()
			b.sync()
			b.change("s.yaml", endpointFile(7))
			b.flush()
			b.change("s.yaml", endpointFile(8))
			b.change("s.yaml", "")
			b.restartIsSame()
		})
	}
}

// Test1008_other_changes_are_stored_at_once makes changes that a crash might lose for good: each is a commit.
func Test1008_other_changes_are_stored_at_once(t *testing.T) {
	service, slice, _ := strings.Cut(endpointFile(1), "---\n")
	for name, change := range map[string]func(b *box){
		"a Service":                     func(b *box) { b.change("s.yaml", strings.Replace(endpointFile(1), "80", "81", 1)) },
		"a new EndpointSlice":           func(b *box) { b.change("t.yaml", strings.ReplaceAll(slice, "s-x", "s-y")) },
		"an EndpointSlice that is gone": func(b *box) { b.change("s.yaml", service) },
		"a client's label": func(b *box) {
			b.keep("other.yaml", "# nothing")
			o := object.DeepCopy(b.s.table.get(object.Ref{Kind: object.KindEndpointSlice, Namespace: "default", Name: "s-x"}).Object)
			o.GetMeta().Labels["client"] = "x"
			if _, err := b.put(o); err != nil {
				b.t.Error(err)
			}
		},
		"endpoints during a trial":                            func(b *box) { b.change("s.yaml", endpointFile(4)) },
		"a file that is gone":                                 func(b *box) { b.change("s.yaml", "") },
		"a file whose copy is stored":                         func(b *box) { b.apply("s.yaml", endpointFile(4)) },
		"endpoints after the revisions that a crash may lose": func(b *box) { b.s.numbers.seed = b.s.Revision() + laterMost; b.change("s.yaml", endpointFile(4)) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			b.change("s.yaml", endpointFile(1))
			b.flush()
			if strings.HasSuffix(name, "during a trial") {
				b.try(true)
			}
			commits := b.engine.Commits()
			change(b)
			if now := b.engine.Commits(); now != commits+1 {
				t.Errorf("%d commits", now-commits)
			}
		})
	}
}

// Test1008_a_full_disk_is_reported has the commit of changes of endpoints fail: they stay in force, the next change is refused, and all is
// stored once there is space.
func Test1008_a_full_disk_is_reported(t *testing.T) {
	b, _ := changing(t)
	b.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Full })
	if err := b.s.LastGood().Flush(); !errors.Is(err, engine.ErrNoSpace) {
		t.Errorf("got %v", err)
	}
	b.keep("s.yaml", endpointFile(4))
	if _, err := b.s.SyncFiles(manifest.FilesOf(b.files)); !errors.Is(err, engine.ErrNoSpace) {
		t.Errorf("the next change: %v", err)
	}
	b.wantEndpoint(3)
	b.engine.Inject(nil)
	b.sync()
	b.wantEndpoint(4)
	b.restartIsSame()
}

// Test1009_a_crash_before_the_commit_of_endpoints has the process end before changes of endpoints are stored. The files make the same objects
// again, no revision is used twice, even if the clock goes back, and a client that follows a lost one reads everything again.
func Test1009_a_crash_before_the_commit_of_endpoints(t *testing.T) {
	for name, back := range map[string]time.Duration{"the clock goes on": 0, "the clock goes back": time.Hour} {
		t.Run(name, func(t *testing.T) {
			b, first := changing(t)
			want, last := objects(b.s), b.s.Revision()
			b.now = b.now.Add(-back)
			b.restart()
			b.wantEndpoint(1)
			b.sync()
			if objects(b.s) != want {
				t.Errorf("got\n%s\nwant\n%s", objects(b.s), want)
			}
			if now := b.s.Revision(); now <= last {
				t.Errorf("revision %d after %d", now, last)
			}
			for _, lost := range []uint64{first, last} {
				if _, err := b.s.Events(lost, 0); !errors.Is(err, ErrExpired) {
					t.Errorf("a watch from %d: %v", lost, err)
				}
				if _, _, err := b.s.List(object.KindEndpointSlice, "", lost); !errors.Is(err, ErrExpired) {
					t.Errorf("a list at %d: %v", lost, err)
				}
			}
			if events, err := b.s.Events(first-1, 0); err != nil || len(events) != 1 {
				t.Errorf("a watch from what was stored: %v, %v", events, err)
			}
		})
	}
}

// wantStored has the engine hold what the store has: the objects, the revision, and the entries of the journal and no others.
func (b *box) wantStored() {
	b.t.Helper()
	var entries, stored []string
	for _, e := range b.s.feed.journal.Entries() {
		entries = append(entries, journal.Key(e.Revision))
	}
	all, err := b.engine.Load("")
	if err != nil {
		b.t.Fatal(err)
	}
	for _, pair := range all {
		if strings.HasPrefix(pair.Key, journalPrefix) {
			stored = append(stored, pair.Key)
		}
	}
	if !slices.Equal(entries, stored) {
		b.t.Errorf("%d entries of the journal are stored, want %d", len(stored), len(entries))
	}
	other := &box{t: b.t, engine: faulty.NewMemory(), cfg: b.cfg}
	if err := other.engine.Commit(engine.Transaction{CompareKey: headKey, Puts: all}); err != nil {
		b.t.Fatal(err)
	}
	if other.open(); objects(other.s) != objects(b.s) || other.s.Revision() != b.s.Revision() {
		b.t.Errorf("at %d the engine has\n%s\nwant at %d\n%s", other.s.Revision(), objects(other.s), b.s.Revision(), objects(b.s))
	}
}

// Test1010_the_journal_drops_what_no_commit_has makes more changes than the journal keeps before a commit, and one that empties it.
func Test1010_the_journal_drops_what_no_commit_has(t *testing.T) {
	for name, most := range map[string]journal.Bounds{"entries": {Entries: 4, Bytes: 1 << 20}, "bytes": {Entries: 100, Bytes: 2000}, "none": {Entries: 100, Bytes: 1}} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			b.change("s.yaml", endpointFile(1))
			b.flush()
			b.bound(most)
			commits := b.engine.Commits()
			for i := range 12 {
				b.change("s.yaml", endpointFile(2+i))
			}
			if now := b.engine.Commits(); now != commits {
				t.Errorf("%d commits of changes of endpoints", now-commits)
			}
			b.flush()
			b.wantStored()
		})
	}
}

// Test1011_random_changes_and_crashes changes, moves and removes EndpointSlices in files, has clients write, fills the disk, exports and
// crashes, in a random order. No revision ever stands for two states: a list at one has what it had, or gets 410, over all restarts. Revisions
// that a crash lost get 410 at once, and after a commit the engine has what the store has.
func Test1011_random_changes_and_crashes(t *testing.T) {
	for seed := range seeds(40) {
		if changeAtRandom(t, rand.New(rand.NewPCG(seed, 0))); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func changeAtRandom(t *testing.T, r *rand.Rand) {
	b, full := newBox(t), false
	most := journal.Bounds{Entries: 5 + r.IntN(30), Bytes: 3000 << (r.IntN(2) * 8), Recent: 3}
	b.bound(most)
	listed := func(at uint64) (text string, err error) {
		list, _, err := b.s.List(object.KindEndpointSlice, "", at)
		for _, o := range list {
			text += jsonOf(o) + "\n"
		}
		return text, err
	}
	newest, states := b.s.Revision(), map[uint64]string{}
	done := func(what string, err error) {
		if err != nil && !(full && errors.Is(err, engine.ErrNoSpace)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	sync := func() {
		before := b.s.Revision()
		result, err := b.s.SyncFiles(manifest.FilesOf(b.files))
		done("sync", err)
		if b.check(); err == nil && result.Revision != before && result.Revision-uint64(result.Changes) < newest {
			t.Errorf("revision %d of %d changes follows on %d", result.Revision, result.Changes, newest)
		}
	}
	slice := func(n, service int) string {
		return fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: x%d, labels: {kubernetes.io/service-name: s%d}}\n"+
			"addressType: IPv4\nendpoints: [{addresses: [10.0.0.%d]}]\n", n, service, 1+r.IntN(3))
	}
	for range 60 {
		file := r.IntN(3)
		path := fmt.Sprint(file, ".yaml")
		switch op := r.IntN(18); op {
		case 0:
			b.keep(path, "")
			sync()
		case 1:
			_, err := b.put(document(t, fmt.Sprintf("api%d {ports: [{port: %d}]}", r.IntN(3), 1+r.IntN(1000))))
			done("a client's Service", err)
		case 2:
			for ref, of := range b.s.table.records {
				if ref.Kind == object.KindEndpointSlice {
					o := object.DeepCopy(of.Whole().Object)
					o.GetMeta().Labels["client"] = fmt.Sprint(r.IntN(5))
					_, err := b.put(o)
					done("a client's label", err)
					break
				}
			}
		case 3, 4:
			done("flush", b.s.LastGood().Flush())
		case 5, 6:
			b.engine.Inject(nil)
			full = false
			b.now = b.now.Add(time.Duration(r.IntN(3)-1) * time.Hour)
			b.restart()
			b.bound(most)
			for lost := range states {
				if _, err := b.s.Events(lost, 0); lost > b.s.Revision() && !errors.Is(err, ErrExpired) {
					t.Errorf("a watch from %d at %d: %v", lost, b.s.Revision(), err)
				}
			}
			if r.IntN(2) == 0 { // it has changed since
				b.keep(path, slice(1, 1))
			}
			sync()
		case 7:
			if full = !full; full {
				b.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Full })
				break
			}
			b.engine.Inject(nil)
			sync()
		case 8:
			_, _, err := b.s.everything()
			done("export", err)
		default:
			text := fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: s%d}\nspec: {ports: [{port: 80}]}\n", file)
			if r.IntN(8) == 0 {
				text = ""
			}
			for n := range 3 {
				if r.IntN(10) > 0 {
					text += slice(n+file*2, file)
				}
			}
			b.keep(path, text)
			sync()
		}
		now := b.s.Revision()
		if now >= newest {
			is, err := listed(0)
			if was, has := states[now]; err != nil || has && was != is {
				t.Errorf("revision %d is\n%s\nand was\n%s\n%v", now, is, was, err)
			}
			newest, states[now] = now, is
		}
		for at, was := range states {
			if is, err := listed(at); err == nil && is != was || err != nil && !errors.Is(err, ErrExpired) {
				t.Errorf("at %d there is\n%s\nand was\n%s\n%v", at, is, was, err)
			}
		}
		if len(b.s.storage.later.Puts) == 0 && !full {
			b.wantStored()
		}
	}
}
