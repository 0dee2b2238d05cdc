package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store/engine"
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
	b.engine.Inject(func(engine.Transaction) engine.Fault { return engine.Full })
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
