package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// A story with everything that takes and releases values, one sync a step.
var story = []map[string]string{
	{"a.yaml": "a {type: LoadBalancer, externalTrafficPolicy: Local}\nb {type: NodePort}"},
	{"b.yaml": "c {type: LoadBalancer, loadBalancerIP: 198.51.100.4}\nd {clusterIP: 172.30.0.5}"},
	{"a.yaml": "a {type: ClusterIP}\nb {type: NodePort, ports: [{name: x, port: 80}, {name: y, port: 81}]}"},
	{"b.yaml": "", "c.yaml": "e {clusterIP: 172.30.0.5}\nf {type: LoadBalancer, loadBalancerIP: 198.51.100.4}"},
	{"a.yaml": "{", "c.yaml": "e {ports: [{port: 0}]}\nf {type: LoadBalancer}"},
	{"a.yaml": "b {}", "d.yaml": "b {type: NodePort}\ng {ipFamilyPolicy: PreferDualStack}"},
	{"a.yaml": "", "c.yaml": ""},
}

// objects returns the content of a store, without fields that depend on the time of writing.
func objects(s *Store) string {
	var lines []string
	for ref, r := range s.table.records {
		copied := object.DeepCopy(record.Whole(r.Object))
		copied.GetMeta().ResourceVersion, copied.GetMeta().UID, copied.GetMeta().CreationTimestamp = "", "", nil
		copied.GetMeta().Generation = 0
		text, _ := json.Marshal(copied)
		lines = append(lines, fmt.Sprintf("%s of %s, withheld %t: %s", ref, r.Owner, r.Withheld, text))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// A crash in any commit loses nothing that was accepted, and gives nothing twice.
func TestCrashInEveryCommit(t *testing.T) {
	reference := newBox(t)
	var states []string
	for _, step := range story {
		for path, text := range step {
			reference.write(path, text)
		}
		reference.sync()
		states = append(states, objects(reference.s))
	}
	for _, fault := range []faulty.Fault{faulty.Refuse, faulty.CrashBefore, faulty.CrashAfter} {
		for crash := range story {
			t.Run(fmt.Sprint("fault ", fault, " in step ", crash), func(t *testing.T) {
				b := newBox(t)
				for i, step := range story {
					for path, text := range step {
						b.write(path, text)
					}
					if i == crash {
						b.crash(fault)
					}
					b.sync()
					if got := objects(b.s); got != states[i] {
						t.Fatalf("after step %d:\n%s\nwant\n%s", i, got, states[i])
					}
				}
			})
		}
	}
}

// crash fails the next commit, checks that nothing has changed, and starts anew where
// the process would have died.
func (b *box) crash(fault faulty.Fault) {
	b.t.Helper()
	before, problems, revision := objects(b.s), b.problems(), b.s.Revision()
	b.engine.Inject(func(engine.Transaction) faulty.Fault { return fault })
	if _, err := b.s.SyncFiles(manifest.FilesOf(b.files)); !errors.Is(err, faulty.ErrInjected) {
		b.t.Fatalf("got %v", err)
	}
	b.engine.Inject(nil)
	b.check()
	if objects(b.s) != before || b.problems() != problems || b.s.Revision() != revision {
		b.t.Error("a failed commit has changed something")
	}
	if fault != faulty.Refuse {
		b.restart()
	}
}

func TestRevisionsNeverGoBack(t *testing.T) {
	b := newBox(t)
	last := uint64(0)
	step := func(name string) {
		t.Helper()
		b.apply("a.yaml", name+" {}")
		if got := b.s.Revision(); got <= last {
			t.Errorf("%s: revision %d after %d", name, got, last)
		}
		last = b.s.Revision()
		if got := b.service(name).Metadata.ResourceVersion; got > strconv.FormatUint(last, 10) {
			t.Errorf("%s: resourceVersion %s, store at %d", name, got, last)
		}
	}
	if first := b.s.Revision(); first != uint64(b.now.Unix())<<20 {
		t.Errorf("the first revision is %d", first)
	}
	step("one")
	b.now = b.now.Add(-365 * 24 * time.Hour)
	step("clock-back")
	b.restart()
	if b.s.Revision() != last {
		t.Errorf("after a restart %d, before %d", b.s.Revision(), last)
	}
	step("restarted")
	b.now = b.now.Add(2 * 365 * 24 * time.Hour)
	b.restart()
	step("clock-forward")
	if last < uint64(b.now.Unix())<<20 {
		t.Errorf("revision %d is before the clock", last)
	}
	// Nothing is left: the clock puts the first revision after all that were seen.
	b.engine = faulty.NewMemory()
	b.now = b.now.Add(time.Minute)
	b.open()
	step("lost")
}

// A clock that jumps does not make a newcomer older than who was there before.
func TestS07_creationNeverGoesBack(t *testing.T) {
	b := newBox(t)
	last := time.Time{}
	for i, jump := range []time.Duration{0, -365 * 24 * time.Hour, 0, 2 * 365 * 24 * time.Hour, -time.Hour, -time.Hour} {
		b.now = b.now.Add(jump)
		if i%2 == 1 {
			b.restart()
		}
		name := fmt.Sprintf("s%d", i)
		b.apply(name+".yaml", name+" {}")
		created := *b.service(name).Metadata.CreationTimestamp
		if i > 0 && jump < 0 && !created.After(last) || created.Before(last) {
			t.Errorf("%s, after a jump of %v, is from %v; the one before from %v", name, jump, created, last)
		}
		last = created
	}
}

func TestChanges(t *testing.T) {
	b := newBox(t)
	if set := b.s.Changes(0); !set.All {
		t.Errorf("from nothing: %+v", set)
	}
	start := b.s.Revision()
	select {
	case <-b.s.Changed():
		t.Error("dirty before anything has changed")
	default:
	}
	slice := func(service string) string {
		return "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s1, labels: {kubernetes.io/service-name: " + service + "}}\n" +
			"addressType: IPv4\nendpoints: [{addresses: [10.1.0.1]}]\nports: [{port: 8080}]\n"
	}
	from := start
	for i, step := range []struct {
		path, text string
		want       []string
	}{
		{"a.yaml", "a {}\nb {}\nc {}", []string{"default/a", "default/b", "default/c"}},
		{"a.yaml", "a {}\nb {type: NodePort}\nc {}", []string{"default/b"}},
		{"a.yaml", "a {}\nb {type: NodePort}", []string{"default/c"}},
		{"s.yaml", slice("a"), []string{"default/a"}},
		{"s.yaml", slice("b"), []string{"default/a", "default/b"}},
		{"s.yaml", slice("nobody"), []string{"default/b", "default/nobody"}},
		{"e.yaml", "apiVersion: v1\nkind: Endpoints\nmetadata: {name: a}\nsubsets: []\n", []string{"default/a"}},
		{"s.yaml", "", []string{"default/nobody"}},
		{"e.yaml", "", []string{"default/a"}},
	} {
		b.apply(step.path, step.text)
		select {
		case <-b.s.Changed():
		default:
			t.Errorf("step %d: not dirty", i)
		}
		set := b.s.Changes(from)
		if set.All || !slices.Equal(set.Services, step.want) || set.Revision != b.s.Revision() {
			t.Errorf("step %d: got %+v, want %v", i, set, step.want)
		}
		if again := b.s.Changes(set.Revision); again.All || len(again.Services) != 0 {
			t.Errorf("step %d: asked again: %+v", i, again)
		}
		from = set.Revision
	}
	if set := b.s.Changes(start); set.All || len(set.Services) != 4 {
		t.Errorf("from the start: %+v", set)
	}
	for _, since := range []uint64{start - 1, b.s.Revision() + 1} {
		if set := b.s.Changes(since); !set.All {
			t.Errorf("since %d: %+v", since, set)
		}
	}
}

func TestChangeLogForgets(t *testing.T) {
	var l changeLog
	for revision := range uint64(maxLog + 10) {
		l.add(logEntry{revision + 1, "default/web", ofService})
	}
	if len(l.entries) > maxLog || l.since == 0 || l.entries[0].revision != l.since+1 {
		t.Errorf("%d entries since %d, first %d", len(l.entries), l.since, l.entries[0].revision)
	}
}

// Two stored objects with one value: the older one keeps it, nothing is renumbered.
func TestRepairAtStart(t *testing.T) {
	for name, spec := range map[string]string{
		"cluster IP": "clusterIP: 172.30.0.5",
		"node port":  "type: NodePort, ports: [{port: 80, nodePort: 30007}]",
	} {
		t.Run(name, func(t *testing.T) {
			b := doubled(t, spec)
			for range 2 {
				if b.has("a-younger") || !b.has("z-older") {
					t.Errorf("younger %t, older %t", b.has("a-younger"), b.has("z-older"))
				}
				problems := b.s.Problems()
				if len(problems) != 1 || problems[0].Reason != ReasonConflict || problems[0].Warning || problems[0].Object.Name != "a-younger" ||
					!strings.Contains(problems[0].Message, "already allocated to Service default/z-older") {
					t.Errorf("problems:\n%s", b.problems())
				}
				if o, _ := b.s.Get(object.Ref{Kind: "Service", Namespace: "default", Name: "a-younger"}); o == nil {
					t.Error("the younger object is gone")
				}
				b.sync()
			}
			since := b.s.Revision()
			b.apply("z.yaml", "")
			if !b.has("a-younger") || len(b.s.Problems()) != 0 {
				t.Errorf("after the older one went: %s", b.problems())
			}
			if set := b.s.Changes(since); !slices.Contains(set.Services, "default/a-younger") {
				t.Errorf("its coming back is not among the changes: %+v", set)
			}
		})
	}
}

// doubled is a store that was opened on two Services with one value of the same spec.
func doubled(t *testing.T, spec string) *box {
	t.Helper()
	b, other := newBox(t), newBox(t)
	b.apply("z.yaml", "z-older {"+spec+"}")
	b.now = b.now.Add(time.Second)
	other.now = b.now
	other.apply("a.yaml", "a-younger {"+spec+"}")
	b.write("a.yaml", "a-younger {"+spec+"}")
	pairs, err := other.engine.Load(record.ObjectPrefix)
	if err != nil {
		t.Fatal(err)
	}
	pairs[0].Value = []byte(strings.NewReplacer(`"resourceVersion":"`, `"resourceVersion":"9`, `"created":`, `"created":9`).Replace(string(pairs[0].Value)))
	if err := b.engine.Commit(engine.Transaction{CompareKey: headKey, CompareRevision: b.s.Revision(), Puts: pairs}); err != nil {
		t.Fatal(err)
	}
	b.restart()
	return b
}

// A load balancer IP is nothing that a Service has for good: the younger one waits.
func TestRepairOfLoadBalancerIPAtStart(t *testing.T) {
	b := doubled(t, "type: LoadBalancer, loadBalancerIP: 198.51.100.4")
	if b.has("a-younger") || b.ingress("z-older") != "198.51.100.4" {
		t.Errorf("right after the start: younger %t, older %q", b.has("a-younger"), b.ingress("z-older"))
	}
	b.sync()
	if b.ingress("a-younger") != "" || b.ingress("z-older") != "198.51.100.4" {
		t.Errorf("younger %q, older %q", b.ingress("a-younger"), b.ingress("z-older"))
	}
	b.wantProblems("Service default/a-younger: spec.loadBalancerIP: 198.51.100.4 cannot be given")
}

func TestDataOfAnotherKindIsRefused(t *testing.T) {
	for _, pair := range []engine.Pair{
		{Key: "object/Gateway/default/x", Value: []byte("{}")},
		{Key: "object/Service/default/x", Value: []byte("{")},
		{Key: "object/Service/default/x", Value: []byte(`{"owner":{},"object":{"kind":"Service","apiVersion":"v1","metadata":{"name":"y","namespace":"default"}}}`)},
		{Key: "object/Service/default/x", Value: []byte(`{"owner":{},"object":null}`)},
	} {
		b := newBox(t)
		if err := b.engine.Commit(engine.Transaction{CompareKey: headKey, CompareRevision: b.s.Revision(), Puts: []engine.Pair{pair}}); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(b.engine, b.cfg); err == nil {
			t.Errorf("%s = %s was accepted", pair.Key, pair.Value)
		}
	}
}

// The store over a real file, reopened from a copy of it, is the same store.
func TestReopenCopiedFile(t *testing.T) {
	dir, copied := t.TempDir(), t.TempDir()
	b := newBox(t)
	open := func(dir string) *Store {
		s, err := Open(mustOpenFile(t, dir), b.cfg)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	b.s = open(dir)
	for i, step := range story[:6] {
		for path, text := range step {
			b.write(path, text)
		}
		b.sync()
		data, err := os.ReadFile(filepath.Join(dir, "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(copied, fmt.Sprint(i))
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "state.db"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		again := open(at)
		checkInvariants(t, again)
		if objects(again) != objects(b.s) || again.Revision() != b.s.Revision() {
			t.Errorf("step %d: the copy holds\n%s\nwant\n%s", i, objects(again), objects(b.s))
		}
	}
}

// Random files, faults and restarts: no value twice, nothing lost, and what was accepted
// is what the files say.
func TestRandomStories(t *testing.T) {
	for seed := range seeds(6) {
		random := rand.New(rand.NewPCG(seed, 9))
		b := newBox(t, smallPool, func(c *Config) { c.NodePorts = PortRange{30000, 30012} })
		for range 120 {
			for range 1 + random.IntN(3) {
				b.write(fmt.Sprintf("f%d.yaml", random.IntN(5)), randomFile(random))
			}
			b.now = b.now.Add(time.Second)
			switch random.IntN(8) {
			case 0:
				b.restart()
			case 1:
				before := objects(b.s)
				b.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Refuse })
				if _, err := b.s.SyncFiles(manifest.FilesOf(b.files)); objects(b.s) != before {
					t.Fatalf("a commit that failed was published: %v", err)
				}
				b.engine.Inject(nil)
			}
			b.sync()
			b.checkAgainstFiles()
			before := objects(b.s)
			commits := b.engine.Commits()
			if b.sync(); objects(b.s) != before || b.engine.Commits() != commits {
				t.Fatalf("seed %d: a second sync changes something", seed)
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

func randomFile(random *rand.Rand) string {
	if random.IntN(6) == 0 {
		return ""
	}
	if random.IntN(12) == 0 {
		return "{"
	}
	var lines []string
	for range 1 + random.IntN(4) {
		port := 1 + random.IntN(3)
		specs := []string{
			"type: ClusterIP", fmt.Sprintf("clusterIP: 172.30.0.%d", 1+random.IntN(6)), "clusterIP: None",
			"type: ExternalName, externalName: x.example", "type: NodePort", "bogus: 1", "ports: [{port: 0}]",
			fmt.Sprintf("type: NodePort, ports: [{port: %d, nodePort: %d}]", port, 30000+random.IntN(14)),
			fmt.Sprintf("type: LoadBalancer, loadBalancerIP: 198.51.100.%d, ports: [{port: %d}]", 4+random.IntN(3), port),
			fmt.Sprintf("type: LoadBalancer, externalTrafficPolicy: Local, ports: [{port: %d}]", port),
			fmt.Sprintf("KEY k%d, type: LoadBalancer, ports: [{port: %d}]", random.IntN(2), port),
			"type: LoadBalancer, ipFamilyPolicy: PreferDualStack",
		}
		lines = append(lines, fmt.Sprintf("svc-%d {%s}", random.IntN(12), specs[random.IntN(len(specs))]))
	}
	return strings.Join(lines, "\n")
}

// checkAgainstFiles: every document is accepted or has a problem, and every object that
// belongs to a file is in it, or the file is broken.
func (b *box) checkAgainstFiles() {
	b.t.Helper()
	troubled := map[object.Ref]bool{}
	for _, p := range b.s.Problems() {
		troubled[p.Object] = true
	}
	declared := map[object.Ref]bool{}
	for path, file := range b.files {
		for i := range file.Documents {
			ref := object.RefOf(file.Documents[i].Object)
			declared[ref] = true
			if _, owner := b.s.Get(ref); owner.File != path && !troubled[ref] {
				b.t.Errorf("%s of %s was dropped in silence", ref, path)
			}
		}
	}
	for ref, r := range b.s.table.records {
		file := b.files[r.Owner.File]
		if file == nil && !troubled[ref] {
			b.t.Errorf("%s outlives %s", ref, r.Owner)
		} else if !declared[ref] && !troubled[ref] && !isUnreadable(file) {
			b.t.Errorf("%s is in no file", ref)
		}
	}
}
