package store

import (
	"fmt"
	"testing"

	"svcctl.io/svcctl/store/manifest"
)

// fullFiles are n Services with five endpoints each, a hundred in a file.
func fullFiles(n int) manifest.Files {
	files := map[string]*manifest.File{}
	for first := 0; first < n; first += perFile {
		path := fmt.Sprintf("/manifests/%05d.yaml", first)
		files[path] = manifest.Decode(path, fullText(first, 0), manifest.Limits{})
	}
	return manifest.FilesOf(files)
}

// perFile is how many Services are in one of fullFiles.
const perFile = 100

// fullText is a file with the Services from first on; the last endpoint depends on the version.
func fullText(first, version int) (text []byte) {
	for i := first; i < first+perFile; i++ {
		text = fmt.Appendf(text, `---
apiVersion: v1
kind: Service
metadata:
  name: s%05[1]d
spec:
  ports:
    - name: p80
      port: 80
      targetPort: 8080
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: s%05[1]d-1
  labels:
    kubernetes.io/service-name: s%05[1]d
addressType: IPv4
ports:
  - name: p80
    port: 8080
endpoints:
`, i)
		for k := range 5 {
			text = fmt.Appendf(text, "  - addresses: [10.%d.%d.%d]\n", 130+i>>16, i>>8&255, (i+k)&255)
		}
	}
	return fmt.Appendf(text, "  - addresses: [10.129.0.%d]\n", version%250)
}

// BenchmarkStart is the first sync of many Services, and what a restart over them reads.
func BenchmarkStart(b *testing.B) {
	for _, n := range []int{10_000, 50_000} {
		files := fullFiles(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cfg := newBox(b, wideRange).cfg
			start := func(dir string) *Store {
				s, err := Open(mustOpenFile(b, dir), cfg)
				if err != nil {
					b.Fatal(err)
				}
				return s
			}
			stop := func(s *Store) { s.storage.engine.Close() }
			sync := func(s *Store, created int) {
				if result, err := s.SyncFiles(files); err != nil || result.Changes != created {
					b.Fatal(result, err)
				}
			}
			filled := b.TempDir()
			s := start(filled)
			sync(s, 2*n)
			stop(s)
			b.Run("cold", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s := start(b.TempDir())
					sync(s, 2*n)
					stop(s)
				}
			})
			b.Run("open", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					stop(start(filled))
				}
			})
			b.Run("again", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s := start(filled)
					sync(s, 0)
					stop(s)
				}
			})
		})
	}
}

// BenchmarkSyncOneOfMany is one endpoint changed in one of 100 files with 100 Services each:
// what a watcher and a loop have to do for it.
func BenchmarkSyncOneOfMany(b *testing.B) {
	s, err := Open(mustOpenFile(b, b.TempDir()), newBox(b, wideRange).cfg)
	if err != nil {
		b.Fatal(err)
	}
	const changed = "/manifests/00700.yaml"
	files := fullFiles(10_000)
	texts := [][]byte{fullText(700, 1), fullText(700, 2)}
	i := 0
	step := func() {
		files = files.Updated(map[string]*manifest.File{changed: files.Get(changed).Update(texts[i%2], manifest.Limits{})})
		i++
		if result, err := s.SyncFiles(files); err != nil || result.Changes == 0 {
			b.Fatal(result, err)
		}
	}
	step()
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		file := files.Get(changed)
		for i := 0; b.Loop(); i++ {
			file = file.Update(texts[i%2], manifest.Limits{})
		}
	})
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			step()
		}
	})
}
