package store

import (
	"fmt"
	"path/filepath"
	"testing"

	"svcctl.io/svcctl/store/manifest"
)

// fullFiles are n Services with five endpoints each, a hundred in a file.
func fullFiles(n int) map[string]*manifest.File {
	const each = 100
	files := make(map[string]*manifest.File, n/each)
	for first := 0; first < n; first += each {
		var text []byte
		for i := first; i < first+each; i++ {
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
		path := fmt.Sprintf("/manifests/%05d.yaml", first)
		files[path] = manifest.Decode(path, text, manifest.Limits{})
	}
	return files
}

// BenchmarkStart is the first sync of many Services, and what a restart over them reads.
func BenchmarkStart(b *testing.B) {
	for _, n := range []int{10_000, 50_000} {
		files := fullFiles(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cfg := newBox(b, wideRange).cfg
			root, dir := b.TempDir(), ""
			open := func() (*File, *Store) {
				engine := mustOpenFile(b, dir)
				s, err := Open(engine, cfg)
				if err != nil {
					b.Fatal(err)
				}
				return engine, s
			}
			sync := func(s *Store, created int) {
				if result, err := s.SyncFiles(files); err != nil || result.Created != created || result.Updated != 0 {
					b.Fatal(result, err)
				}
			}
			created := 0
			b.Run("cold", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					dir = filepath.Join(root, fmt.Sprint(b.N, created))
					created++
					engine, s := open()
					sync(s, 2*n)
					engine.Close()
				}
			})
			b.Run("open", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					engine, _ := open()
					engine.Close()
				}
			})
			b.Run("again", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					engine, s := open()
					sync(s, 0)
					engine.Close()
				}
			})
		})
	}
}
