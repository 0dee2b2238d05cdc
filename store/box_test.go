package store

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// box is a store over a memory engine, with files to write to.
type box struct {
	t      testing.TB
	engine *faulty.Memory
	cfg    Config
	now    time.Time
	uids   int
	guard  RemovalGuard // nil: what vanishes is removed
	s      *Store
	files  map[string]*manifest.File
	texts  map[string][]byte // of files, see keep
}

func newBox(t testing.TB, change ...func(*Config)) *box {
	t.Helper()
	b := &box{t: t, engine: faulty.NewMemory(), now: time.Unix(1_700_000_000, 0), files: map[string]*manifest.File{}, texts: map[string][]byte{}}
	b.cfg = Config{
		ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/24"), netip.MustParsePrefix("fd00:172:30::/112")},
		Pools:           []alloc.Pool{pool("198.51.100.0", "198.51.100.15")},
		Clock:           func() time.Time { return b.now },
		NewUID:          func() string { b.uids++; return fmt.Sprint("uid-", b.uids) },
	}
	for _, f := range change {
		f(&b.cfg)
	}
	b.open()
	return b
}

func pool(first, last string) alloc.Pool {
	return alloc.Pool{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
}

func (b *box) open() {
	b.t.Helper()
	s, err := Open(b.engine, b.cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.s = s
}

// bound has the journal keep less than usual.
func (b *box) bound(most journal.Bounds) {
	b.t.Helper()
	entries, err := b.engine.Load(journalPrefix)
	if err != nil {
		b.t.Fatal(err)
	}
	b.s.feed.journal = journal.New(most)
	b.s.feed.journal.Load(entries, b.s.feed.revision)
}

// restart is a crash and a new start; the files are read anew.
func (b *box) restart() {
	b.t.Helper()
	b.engine = b.engine.Reopen()
	b.open()
}

// write puts a file in its place; empty text removes it. Lines of text may be shortened
// forms of Services: see yamlOf.
func (b *box) write(path, text string) {
	if text == "" {
		delete(b.files, path)
		return
	}
	b.files[path] = manifest.Decode(path, []byte(yamlOf(text)), manifest.DefaultLimits())
}

// yamlOf makes "web {type: NodePort}" a Service of that name and spec, with port 80 if
// the spec has no ports. Text that does not begin with such a line is YAML.
func yamlOf(text string) string {
	name, spec, short := strings.Cut(strings.TrimSpace(text), " {")
	if !short || strings.ContainsAny(name, ":\n") {
		return text
	}
	var out strings.Builder
	for line := range strings.Lines(strings.TrimSpace(text)) {
		name, spec, _ = strings.Cut(strings.TrimSpace(line), " {")
		namespace := "default"
		if before, after, found := strings.Cut(name, "/"); found {
			namespace, name = before, after
		}
		if !strings.Contains(spec, "ports:") {
			spec = "ports: [{port: 80}], " + spec
		}
		annotations := ""
		if key, rest, found := strings.Cut(spec, "KEY "); found {
			value, after, _ := strings.Cut(rest, ",")
			annotations = ", annotations: {" + annotation.SharingKey + ": " + value + "}"
			spec = key + after
		}
		fmt.Fprintf(&out, "---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: %s%s}\nspec: {%s\n", name, namespace, annotations, spec)
	}
	return out.String()
}

func (b *box) sync() SyncResult {
	b.t.Helper()
	result, err := b.s.SyncGuarded(manifest.FilesOf(b.files), b.guard)
	if err != nil {
		b.t.Fatal(err)
	}
	b.check()
	return result
}

// apply writes a file and syncs.
func (b *box) apply(path, text string) SyncResult {
	b.t.Helper()
	b.write(path, text)
	return b.sync()
}

func (b *box) service(name string) *object.Service {
	b.t.Helper()
	svc, _, _ := b.s.Service(key(name))
	if svc == nil {
		b.t.Fatalf("there is no Service %s; problems:\n%s", name, b.problems())
	}
	return svc
}

func (b *box) has(name string) bool {
	svc, _, _ := b.s.Service(key(name))
	return svc != nil
}

func key(name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return "default/" + name
}

func (b *box) ip(name string) string { b.t.Helper(); return b.service(name).Spec.ClusterIP }

func (b *box) nodePort(name string) int32 {
	b.t.Helper()
	return b.service(name).Spec.Ports[0].NodePort
}

// ingress is the load balancer IPs of a Service with spaces between them.
func (b *box) ingress(name string) string {
	b.t.Helper()
	var ips []string
	for _, ingress := range b.service(name).Status.LoadBalancer.Ingress {
		ips = append(ips, ingress.IP)
	}
	return strings.Join(ips, " ")
}

func (b *box) problems() string {
	var lines []string
	for _, p := range b.s.Problems() {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// wantProblems checks that each problem contains the next of the texts.
func (b *box) wantProblems(want ...string) {
	b.t.Helper()
	var got []string
	if text := b.problems(); text != "" {
		got = strings.Split(text, "\n")
	}
	if len(got) != len(want) {
		b.t.Errorf("got %d problems, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
		return
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			b.t.Errorf("problem %d:\n got %s\nwant %s", i, got[i], want[i])
		}
	}
}

// check holds the store against what must always be true.
func (b *box) check() {
	b.t.Helper()
	checkInvariants(b.t, b.s)
}

func checkInvariants(t testing.TB, s *Store) {
	t.Helper()
	holders := map[string]string{}
	revisions := map[string]bool{}
	for ref, r := range s.table.records {
		version := record.Whole(r.Object).GetMeta().ResourceVersion
		if revisions[version] {
			t.Errorf("%s shares revision %s with another object", ref, version)
		}
		revisions[version] = true
		svc, ok := record.Whole(r.Object).(*object.Service)
		if !ok || r.Withheld {
			continue
		}
		v := valuesOf(svc)
		var held []string
		for _, addr := range v.clusterIPs {
			held = append(held, addr.String())
			if a := s.allocator.addresses[addr.Is4()]; a != nil {
				if owner, _ := a.Owner(addr); owner != ref.Key() {
					t.Errorf("%s has %s, which the allocator gives to %q", ref, addr, owner)
				}
			}
		}
		for _, port := range v.ports {
			held = append(held, port.String())
			if owner, _ := s.allocator.ports.Owner(port); owner != ref.Key() {
				t.Errorf("%s has %s, which the allocator gives to %q", ref, port, owner)
			}
		}
		for _, addr := range v.ingress {
			if _, has := s.allocator.pools.RequestOf(addr, ref.Key()); !has {
				t.Errorf("%s has %s, of which the pools do not know", ref, addr)
			}
			for _, port := range svc.Spec.Ports {
				held = append(held, fmt.Sprint(addr, port.Protocol, port.Port))
			}
		}
		for _, value := range held {
			if other, taken := holders[value]; taken {
				t.Errorf("%s and %s both have %s", ref, other, value)
			}
			holders[value] = ref.String()
		}
	}
	ips, ingress, noRange := 0, 0, false
	for _, r := range s.table.records {
		svc, ok := record.Whole(r.Object).(*object.Service)
		if !ok || r.Withheld {
			continue
		}
		v := valuesOf(svc)
		ingress += len(v.ingress)
		for _, addr := range v.clusterIPs {
			if s.allocator.addresses[addr.Is4()] != nil {
				ips++
			} else {
				noRange = true
			}
		}
	}
	for _, a := range s.allocator.addresses {
		for _, owner := range a.Holders() {
			if !s.allocator.reserves(owner) {
				ips--
			}
		}
	}
	for _, owners := range s.allocator.pools.Holders() {
		for _, owner := range owners {
			if !s.allocator.reserves(owner) {
				ingress--
			}
		}
	}
	if ips != 0 || ingress != 0 {
		t.Errorf("objects have %d more cluster IPs and %d more load balancer IPs than are taken", ips, ingress)
	}
	if s.allocator.sum() != s.table.values && !noRange {
		t.Error("the sum of what Services hold is not that of what the allocator has")
	}
}

// document is the only object of a text.
func document(t *testing.T, text string) object.Object {
	t.Helper()
	file := manifest.Decode("put", []byte(yamlOf(text)), manifest.DefaultLimits())
	if len(file.Documents) != 1 {
		t.Fatalf("%s: %v", text, file.Problems)
	}
	return file.Documents[0].Object
}

func ref(name string) object.Ref {
	return object.Ref{Kind: object.KindService, Namespace: "default", Name: name}
}

// put writes a version as the API does, which is for any stored version unless it says
// which one.
func (b *box) put(o object.Object) (object.Object, error) {
	b.t.Helper()
	written := b.ask(Write{Ref: refInFile(object.RefOf(o)), Object: o, Version: o.GetMeta().ResourceVersion})
	return written.Object, written.Err
}

// remove deletes a Service as the API does.
func (b *box) remove(name string) error {
	b.t.Helper()
	return b.ask(Write{Ref: ref(name), Delete: true}).Err
}

// ask writes one thing. An error of the engine is that of the Write.
func (b *box) ask(w Write) Written {
	b.t.Helper()
	results, err := b.s.Write(w)
	if err != nil {
		return Written{Err: err}
	}
	return results[0]
}

func mustOpenFile(t testing.TB, dir string) *engine.File {
	t.Helper()
	f, err := engine.OpenFile(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
