package store

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
)

// manyFiles are n files, each with a Service and an EndpointSlice of five endpoints.
func manyFiles(n int) map[string]*manifest.File {
	files := make(map[string]*manifest.File, n)
	for i := range n {
		path := fmt.Sprintf("svc-%d.yaml", i)
		files[path] = fileOf(path, i, 1)
	}
	return files
}

func fileOf(path string, i, version int) *manifest.File {
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: svc-%[1]d}
spec: {selector: {app: svc-%[1]d}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: svc-%[1]d-1, labels: {kubernetes.io/service-name: svc-%[1]d}}
addressType: IPv4
endpoints: [{addresses: [10.1.0.1]}, {addresses: [10.1.0.2]}, {addresses: [10.1.0.3]}, {addresses: [10.1.0.4]}, {addresses: [10.1.1.%[2]d]}]
ports: [{port: 8080}]
`, i, version%250+1)
	return manifest.Decode(path, []byte(text), manifest.DefaultLimits())
}

func wideRange(c *Config) {
	c.ClusterIPRanges = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
}

// Readers see either all of a sync or nothing of it, while syncs go on.
func TestReadersBesideWriters(t *testing.T) {
	b := newBox(t, wideRange)
	files := manyFiles(20)
	if _, err := b.s.SyncFiles(manifest.FilesOf(files)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			since := uint64(0)
			for {
				select {
				case <-done:
					return
				default:
				}
				set := b.s.Changes(since)
				for _, key := range set.Services {
					svc, slices, _ := b.s.Service(key)
					if svc == nil || len(slices) != 1 || len(slices[0].Endpoints) != 5 {
						t.Errorf("%s: %v, %v", key, svc, slices)
					}
				}
				b.s.Services()
				b.s.Problems()
				since = set.Revision
			}
		})
	}
	for version := range 100 {
		for i := range 5 {
			path := fmt.Sprintf("svc-%d.yaml", (version+i)%20)
			files[path] = fileOf(path, (version+i)%20, version)
		}
		if _, err := b.s.SyncFiles(manifest.FilesOf(files)); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	readers.Wait()
}

// What many CPUs do at once comes to what one would have done, also after a restart.
func TestManyObjectsAtOnce(t *testing.T) {
	const n = 10 * parallel.Share
	b := newBox(t, wideRange)
	files := manyFiles(n)
	for restarted, want := range []int{2 * n, 0} {
		result, err := b.s.SyncFiles(manifest.FilesOf(files))
		if err != nil || result.Changes != want {
			t.Fatalf("restarted %d times: %+v, %v", restarted, result, err)
		}
		b.restart()
	}
	holders := map[string]string{}
	for i := range n {
		name := fmt.Sprint("svc-", i)
		svc, slices, _ := b.s.Service(key(name))
		if svc == nil || len(slices) != 1 || slices[0].Metadata.Labels[object.LabelServiceName] != name {
			t.Fatalf("%s is %+v with %v", name, svc, slices)
		}
		if other, held := holders[svc.Spec.ClusterIP]; held {
			t.Errorf("%s and %s have %s", other, name, svc.Spec.ClusterIP)
		}
		holders[svc.Spec.ClusterIP] = name
	}
}

// After a change of much of everything all is to be looked at, and after the next one only
// what that has changed.
func TestChangesForgetsWhatIsMuch(t *testing.T) {
	b := newBox(t, wideRange)
	b.apply("first.yaml", "first {}")
	before := b.s.Revision()
	files := manyFiles(maxLogged/2 + 1)
	files["first.yaml"] = b.files["first.yaml"]
	if _, err := b.s.SyncFiles(manifest.FilesOf(files)); err != nil {
		t.Fatal(err)
	}
	if set := b.s.Changes(before); !set.All {
		t.Errorf("%d Services are said to have changed", len(set.Services))
	}
	before = b.s.Revision()
	files["svc-7.yaml"] = fileOf("svc-7.yaml", 7, 9)
	if _, err := b.s.SyncFiles(manifest.FilesOf(files)); err != nil {
		t.Fatal(err)
	}
	if set := b.s.Changes(before); set.All || len(set.Services) != 1 {
		t.Errorf("a change of one is %+v", set)
	}
}

// BenchmarkSyncOneFile is one endpoint changed in one of 10,000 files, without the
// parsing of the file. The memory engine leaves out the disk.
func BenchmarkSyncOneFile(b *testing.B) {
	for _, engine := range []string{"memory", "file"} {
		b.Run(engine, func(b *testing.B) {
			const n = 10_000
			bx := newBox(b, wideRange)
			if engine == "file" {
				s, err := Open(mustOpenFile(b, b.TempDir()), bx.cfg)
				if err != nil {
					b.Fatal(err)
				}
				bx.s = s
			}
			files := manyFiles(n)
			if _, err := bx.s.SyncFiles(manifest.FilesOf(files)); err != nil {
				b.Fatal(err)
			}
			// What a watcher hands out: new files, with one that is another.
			snapshots := []manifest.Files{manifest.FilesOf(files), manifest.FilesOf(files)}
			for i := range snapshots {
				snapshots[i] = snapshots[i].Updated(map[string]*manifest.File{"svc-7.yaml": fileOf("svc-7.yaml", 7, 10+i)})
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				result, err := bx.s.SyncFiles(snapshots[i%2])
				i++
				if err != nil || result.Changes != 1 {
					b.Fatal(result, err)
				}
			}
		})
	}
}

// BenchmarkSyncAll is the first sync of 10,000 files, and the first one after a restart.
func BenchmarkSyncAll(b *testing.B) {
	const n = 10_000
	files := manyFiles(n)
	var filled *box
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			filled = newBox(b, wideRange)
			if _, err := filled.s.SyncFiles(manifest.FilesOf(files)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("restart", func(b *testing.B) {
		for b.Loop() {
			filled.engine = filled.engine.Reopen()
			filled.open()
			result, err := filled.s.SyncFiles(manifest.FilesOf(files))
			if err != nil || result.Changes != 0 {
				b.Fatal(result, err)
			}
		}
	})
}
