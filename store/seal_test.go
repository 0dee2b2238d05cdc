package store

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// sealBox is a box whose files have last good copies, which are loaded as at a start.
type sealBox struct {
	*box
	texts map[string]string // what is in the files
}

func newSealBox(t testing.TB, change ...func(*Config)) *sealBox {
	b := &sealBox{newBox(t, append(change, func(c *Config) { c.Program = "this one" })...), map[string]string{}}
	b.load()
	return b
}

// load reads the copies as a Watcher does, and gives how many files are sealed.
func (b *sealBox) load() (sealed int) {
	b.t.Helper()
	contents, files, err := b.s.LastGood().Load()
	if err != nil {
		b.t.Fatal(err)
	}
	b.files = map[string]*manifest.File{}
	for path, content := range contents {
		f := manifest.Decode(path, content, manifest.DefaultLimits())
		f.Hash = sha256.Sum256(content)
		b.files[path] = f
	}
	for path, f := range files {
		b.files[path] = f
	}
	return len(files)
}

// change writes files, "" removes one, and syncs. What cannot be used leaves the last good content.
func (b *sealBox) change(files map[string]string) SyncResult {
	b.t.Helper()
	for path, text := range files {
		b.texts[path] = text
		if text == "" {
			delete(b.files, path)
			b.s.LastGood().Put(path, nil)
			continue
		}
		content := []byte(yamlOf(text))
		before := b.files[path]
		if before == nil {
			before = &manifest.File{Path: path}
		}
		if next := before.Update(content, manifest.DefaultLimits()); next.Err == nil {
			next.Hash = sha256.Sum256(content)
			b.files[path] = next
			b.s.LastGood().Put(path, content)
		}
	}
	result := b.sync()
	if err := b.s.LastGood().Flush(); err != nil {
		b.t.Fatal(err)
	}
	return result
}

func (b *sealBox) seal() (sealed []*manifest.File) {
	b.t.Helper()
	sealed, err := b.s.LastGood().Seal()
	if err != nil {
		b.t.Fatal(err)
	}
	return sealed
}

// again is a start from the same data with another program, which is one that believes no seal.
func (b *sealBox) again(program string) *sealBox {
	b.t.Helper()
	other := &sealBox{&box{t: b.t, cfg: b.cfg, guard: b.guard, now: b.now, uids: b.uids, engine: faulty.NewMemory()}, map[string]string{}}
	b.engine.Tamper(func(pairs map[string]engine.Pair) {
		other.engine.Tamper(func(copied map[string]engine.Pair) {
			for key, pair := range pairs {
				copied[key] = pair
			}
		})
	})
	other.cfg.Program = program
	other.cfg.Clock = func() time.Time { return other.now }
	other.cfg.NewUID = func() string { other.uids++; return fmt.Sprint("uid-", other.uids) }
	other.open()
	return other
}

const sliceOfWeb = `
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.2.3]}]
`

// A start does not decode what it has sealed, nor writes it; who asks for a document has it.
func TestSealedFilesAreNotDecoded(t *testing.T) {
	b := newSealBox(t)
	b.change(map[string]string{"a.yaml": yamlOf("web {clusterIP: 172.30.0.9}") + sliceOfWeb, "b.yaml": "db {}", "c.yaml": "lb {type: LoadBalancer}"})
	b.seal()
	again := b.again("this one")
	if sealed := again.load(); sealed != 2 {
		t.Errorf("%d files are sealed, want a.yaml and b.yaml", sealed)
	}
	opened := 0
	for path, f := range again.files {
		if names, sealed := f.Names(); sealed {
			again.files[path] = manifest.Sealed(path, f.Hash, names, copyFunc(func(string) *manifest.File { opened++; return f.Opened() }))
		}
	}
	if result := again.sync(); result != (SyncResult{Revision: b.s.Revision()}) || again.engine.Commits() != 0 {
		t.Errorf("the same again is %+v, %d commits", result, again.engine.Commits())
	}
	if opened != 0 {
		t.Errorf("%d files were decoded", opened)
	}
	if objects(again.s) != objects(b.s) || again.s.HasUndeclared() {
		t.Errorf("objects\n%s\nwant\n%s", objects(again.s), objects(b.s))
	}
	ref := object.Ref{Kind: object.KindEndpointSlice, Namespace: "default", Name: "web-1"}
	document, path, line := again.s.Document(ref)
	if document == nil || path != "a.yaml" || line < 5 || document.(*object.EndpointSlice).Endpoints[0].Addresses[0] != "10.1.2.3" {
		t.Errorf("document %v in %s, line %d", document, path, line)
	}
	if opened != 1 {
		t.Errorf("%d files were decoded for one document", opened)
	}
	// A change of a sealed file is like any other.
	again.change(map[string]string{"a.yaml": "web {clusterIP: 172.30.0.9}"})
	if _, slices, _ := again.s.Service("default/web"); len(slices) != 0 || !again.has("db") {
		t.Errorf("%d slices, db %t", len(slices), again.has("db"))
	}
}

// A file of two hundred documents is sealed like a small one; of one above the bound all documents are decoded.
func TestSealedFilesOfManyDocuments(t *testing.T) {
	b := newSealBox(t, wideRange)
	many := func(name string, n int) (text string) {
		for i := range n {
			text += yamlOf(fmt.Sprintf("%s-%d {}", name, i))
		}
		return text
	}
	b.change(map[string]string{"a.yaml": many("a", 200), "b.yaml": many("b", sealMost+1)})
	b.seal()
	again := b.again("this one")
	if sealed := again.load(); sealed != 1 {
		t.Errorf("%d files are sealed, want a.yaml", sealed)
	}
	again.change(map[string]string{"a.yaml": many("a", 199)})
	if again.has("a-199") || !again.has("a-198") {
		t.Errorf("after the last document was removed: a-199 %t, a-198 %t", again.has("a-199"), again.has("a-198"))
	}
}

// A seal is not believed of another text, program or setting, nor when somebody has changed an object.
func TestSealsThatDoNotHold(t *testing.T) {
	for name, c := range map[string]struct {
		between func(b *sealBox)
		program string
		change  func(*Config)
	}{
		"as it was":       {program: "this one"},
		"another program": {program: "next"},
		"no program":      {},
		"another setting": {program: "this one", change: func(c *Config) { c.NodePorts = PortRange{30000, 30010} }},
		"another text":    {program: "this one", between: func(b *sealBox) { b.change(map[string]string{"a.yaml": "a {publishNotReadyAddresses: true}"}) }},
		"another owner": {program: "this one", between: func(b *sealBox) {
			b.engine.Tamper(func(pairs map[string]engine.Pair) {
				for key, pair := range pairs {
					pair.Value = []byte(strings.Replace(string(pair.Value), `"owner":{"file":"a.yaml"}`, `"owner":{"file":"b.yaml"}`, 1))
					pairs[key] = pair
				}
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newSealBox(t)
			b.change(map[string]string{"a.yaml": "a {}"})
			b.seal()
			if c.between != nil {
				c.between(b)
			}
			if c.change != nil {
				c.change(&b.cfg)
			}
			again := b.again(c.program)
			again.load()
			again.sync()
			documentIsRead := isSealed(again.s.declared.files.Get("a.yaml")) == false
			if documentIsRead == (name == "as it was") && name != "another owner" {
				t.Errorf("the file was decoded: %t", documentIsRead)
			}
			if _, owner := again.s.Get(object.Ref{Kind: object.KindService, Namespace: "default", Name: "a"}); owner.File != "a.yaml" {
				t.Errorf("the Service belongs to %s", owner)
			}
		})
	}
}

// A seal is of all settings, those of validation and of pools too; what is asked of functions does
// not decide about what is sealed.
func TestSealedByAllSettings(t *testing.T) {
	b := newSealBox(t, func(c *Config) { c.Pools = []alloc.Pool{pool("198.51.100.4", "198.51.100.9")} })
	was := b.s.sealedBy()
	untested := map[string]bool{}
	for field := range reflect.TypeFor[Config]().Fields() {
		if field.Type.Kind() != reflect.Func {
			untested[field.Name] = true
		}
	}
	for field, change := range map[string]func(*Config){
		"Program":         func(c *Config) { c.Program = "next" },
		"ClusterIPRanges": func(c *Config) { c.ClusterIPRanges = c.ClusterIPRanges[:1] },
		"NodePorts":       func(c *Config) { c.NodePorts.Last++ },
		"NodePortSpace":   func(c *Config) { c.NodePortSpace = alloc.Shared },
		"Pools":           func(c *Config) { c.Pools = []alloc.Pool{internalPool("198.51.100.4", "198.51.100.9")} },
		"Objects":         func(c *Config) { c.Objects.RelaxedServiceNames = true },
		"LegacyIPs":       func(c *Config) { c.LegacyIPs = true },
		"Pinned":          func(c *Config) { c.Pinned = true },
	} {
		other := &Store{cfg: b.s.cfg}
		change(&other.cfg)
		if by := other.sealedBy(); by == was || by == "" {
			t.Errorf("with another %s the seals of before are believed", field)
		}
		delete(untested, field)
	}
	delete(untested, "Box")   // no document is judged by it
	delete(untested, "Whole") // it decides about memory alone
	delete(untested, "Rules") // what they refuse in a file is the program's
	if len(untested) > 0 {
		t.Errorf("settings that are not tried: %v", untested)
	}
}

// A seal says nothing of what was stored after it: of a file whose text is the sealed one again, and was
// kept before its objects were stored, the objects are those of the text in between.
func TestSealOfEarlierObjects(t *testing.T) {
	for name, program := range map[string]string{"stored by the same program": "this one", "stored by another program": "next"} {
		t.Run(name, func(t *testing.T) {
			b := newSealBox(t)
			b.change(map[string]string{"a.yaml": "web {}"})
			sealed := []byte(yamlOf("web {}"))
			b.seal()
			b = b.again(program)
			b.load()
			b.change(map[string]string{"a.yaml": "web {publishNotReadyAddresses: true}"})
			b.s.LastGood().Put("a.yaml", sealed)
			if err := b.s.LastGood().Flush(); err != nil {
				t.Fatal(err)
			}
			again := b.again("this one")
			again.load()
			again.sync()
			if again.service("web").Spec.PublishNotReadyAddresses {
				t.Error("the Service is not what its file says")
			}
		})
	}
}

// sealTexts are the files of TestSealedStartIsTheSame.
var sealTexts = []string{
	"", "{", "web {}", "web {clusterIP: 172.30.0.9}", "web {clusterIP: 172.30.0.9}\ndb {}", "db {type: NodePort}", "db {type: LoadBalancer}",
	"web {externalIPs: [203.0.113.1]}", "db {clusterIP: 172.30.0.9}", "db {clusterIP: None}", "db {ports: [{port: 0}]}", "x {clusterIP: 10.0.0.1}",
	"web {type: ExternalName, externalName: example.org}", "lb {type: LoadBalancer, loadBalancerIP: 198.51.100.4}", "web {sessionAffinity: ClientIP}",
	"web {ipFamilyPolicy: PreferDualStack}", "web {}\nweb {}", "db {externalTrafficPolicy: Local, type: NodePort}",
	sliceOfWeb, strings.Replace(sliceOfWeb, "10.1.2.3", "10.1.2.4", 1), yamlOf("web {}") + sliceOfWeb, strings.Replace(sliceOfWeb, "10.1.2.3", "127.0.0.1", 1),
	yamlOf("web {}") + "status: {loadBalancer: {ingress: [{ip: 198.51.100.9}]}}\n", yamlOf("db {}") + "x: 1\n",
}

// A start from sealed files comes to what one from the texts comes to: objects, problems, and
// what a later change makes of them.
func TestSealedStartIsTheSame(t *testing.T) {
	believed := 0
	for seed := range seeds(150) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := newSealBox(t)
		change := func() map[string]string {
			files := map[string]string{}
			for range 1 + r.IntN(3) {
				files[string(rune('a'+r.IntN(5)))+".yaml"] = sealTexts[r.IntN(len(sealTexts))]
			}
			return files
		}
		for step := range 12 {
			b.change(change())
			if r.IntN(3) == 0 {
				b.seal()
			}
			if r.IntN(4) == 0 {
				b.touch(r)
			}
			if r.IntN(3) != 0 {
				continue
			}
			with, without := b.again("this one"), b.again("")
			believed += with.load()
			without.load()
			later := change()
			for _, round := range []string{"start", "change", "again"} {
				for _, other := range []*sealBox{with, without} {
					switch round {
					case "start":
						other.sync()
					case "change":
						other.change(later)
					default: // what is left of what was sealed goes
						other.change(map[string]string{"a.yaml": "", "b.yaml": "web {}", "c.yaml": ""})
					}
				}
				if got, want := objects(with.s)+"\n"+with.problems(), objects(without.s)+"\n"+without.problems(); got != want {
					t.Fatalf("seed %d, step %d, %s: files %q, then %q\n%s\nwant\n%s", seed, step, round, b.texts, later, got, want)
				}
				if with.s.HasUndeclared() != without.s.HasUndeclared() || fmt.Sprint(with.s.declared.undeclared) != fmt.Sprint(without.s.declared.undeclared) {
					t.Fatalf("seed %d, step %d, %s: undeclared %v, want %v", seed, step, round, with.s.declared.undeclared, without.s.declared.undeclared)
				}
			}
		}
	}
	if believed < int(seeds(100)) {
		t.Errorf("only %d files were sealed in all starts", believed)
	}
}

// touch changes objects of files as clients do.
func (b *sealBox) touch(r *rand.Rand) {
	for _, name := range []string{"web", "db"} {
		svc, _, _ := b.s.Service("default/" + name)
		if svc == nil || r.IntN(2) == 0 {
			continue
		}
		next := object.DeepCopy(svc)
		write := Write{Ref: object.RefOf(next), Object: next}
		switch r.IntN(3) {
		case 0:
			next.Metadata.Annotations = map[string]string{"client": "x"}
			next.Metadata.ManagedFields = []object.ManagedFieldsEntry{{Manager: "client", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: []byte(`{}`)}}
		case 1:
			next.Metadata.Finalizers = []string{"example.org/x"}
		default:
			next.Status.Conditions = []object.Condition{{Type: "X", Status: "True", Reason: "X"}}
			write.Status = true
		}
		if _, err := b.s.Write(write); err != nil {
			b.t.Fatal(err)
		}
	}
}

// What vanished from a file and is held is asked about again, though the file is sealed.
func TestSealedFileWithHeldObjects(t *testing.T) {
	var asked []Removals
	decision := Keep
	b := newSealBox(t)
	b.guard = func(r Removals) func(string) Decision {
		asked = append(asked, r)
		return func(string) Decision { return decision }
	}
	b.change(map[string]string{"a.yaml": "web {}\ndb {}"})
	b.change(map[string]string{"a.yaml": "web {}"})
	b.seal()
	again := b.again("this one")
	if sealed := again.load(); sealed != 1 {
		t.Fatalf("%d files are sealed", sealed)
	}
	asked, decision = nil, Remove
	again.sync()
	if len(asked) != 1 || fmt.Sprint(asked[0].Files) != "map[a.yaml:[default/db]]" {
		t.Errorf("asked about %v", asked)
	}
	if again.has("db") || !again.has("web") {
		t.Errorf("db %t, web %t", again.has("db"), again.has("web"))
	}
}

// A seal is believed while the copy of its file is the one that it was made for: another program may have written a
// copy of another text since, or have made seals that say nothing of it.
func TestSealIsOfOneCopy(t *testing.T) {
	b := newSealBox(t)
	b.change(map[string]string{"a.yaml": "a {}", "b.yaml": "b {}", "c.yaml": "c {}"})
	if sealed := b.seal(); len(sealed) != 3 {
		t.Fatalf("%d are sealed", len(sealed))
	}
	const newer = "# of other words\n"
	b.engine.Tamper(func(pairs map[string]engine.Pair) {
		pair := pairs[filePrefix+"b.yaml"]
		pair.Value = append([]byte(newer), pair.Value...) // the objects, and the revision, are the same
		pairs[pair.Key] = pair
		pair = pairs[sealPrefix+"c.yaml"]
		var one seal
		if err := json.Unmarshal(pair.Value, &one); err != nil {
			t.Fatal(err)
		}
		one.Copy = nil
		pair.Value, _ = json.Marshal(one) // as before there were sums
		pairs[pair.Key] = pair
	})
	b.restart()
	contents, sealed, err := b.s.LastGood().Load()
	if err != nil {
		t.Fatal(err)
	}
	if len(sealed) != 1 || sealed["a.yaml"] == nil || !strings.HasPrefix(string(contents["b.yaml"]), newer) || len(contents) != 2 || len(contents["c.yaml"]) == 0 {
		t.Errorf("sealed %v, contents %s", sealed, contents)
	}
	if f := sealed["a.yaml"].Opened(); f.Hash != sha256.Sum256([]byte(b.copyOf("a.yaml"))) || len(f.Documents) != 1 {
		t.Errorf("opened: %+v", f)
	}
}

// copyOf is the text of the copy of a file.
func (b *sealBox) copyOf(path string) string {
	b.t.Helper()
	pairs, err := b.engine.Load(filePrefix + path)
	if err != nil || len(pairs) != 1 {
		b.t.Fatalf("%d copies, %v", len(pairs), err)
	}
	return string(pairs[0].Value)
}

// copyFunc decodes copies of files.
type copyFunc func(path string) *manifest.File

func (c copyFunc) Copy(path string) *manifest.File { return c(path) }
