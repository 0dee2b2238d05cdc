package store

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/manifest"
)

// Ten thousand objects with one annotation that has no effect here are one warning, with an
// example, and it goes with the last of them; over a restart too.
func TestForeignersAreOneWarning(t *testing.T) {
	engine := faulty.NewMemory()
	config := Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}
	s, err := Open(engine, config)
	if err != nil {
		t.Fatal(err)
	}
	text := func(names ...string) manifest.Files {
		files := map[string]*manifest.File{}
		for _, name := range names {
			path := name + ".yaml"
			files[path] = manifest.Decode(path, fmt.Appendf(nil, `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, labels: {kubernetes.io/service-name: web, endpointslice.kubernetes.io/managed-by: controller}}
addressType: IPv4
endpoints: [{addresses: [10.1.0.1]}]
ports: [{port: 80}]
`, name), manifest.DefaultLimits())
		}
		return manifest.FilesOf(files)
	}
	sync := func(files manifest.Files) []manifest.Problem {
		t.Helper()
		if _, err := s.SyncFiles(files); err != nil {
			t.Fatal(err)
		}
		return s.Problems()
	}
	one := sync(text("a"))
	if len(one) != 1 || !one[0].Warning || one[0].Reason != ReasonNoEffect || one[0].File != "a.yaml" || one[0].Line != 3 || strings.Contains(one[0].Message, "other") {
		t.Fatalf("%+v", one)
	}
	if all := sync(text("a", "b", "c")); len(all) != 1 || !strings.HasSuffix(all[0].Message, "; other objects have it too") {
		t.Errorf("%+v", all)
	}
	if rest := sync(text("b", "c")); len(rest) != 1 {
		t.Errorf("%+v", rest)
	}
	if s, err = Open(engine.Reopen(), config); err != nil {
		t.Fatal(err)
	}
	if again := sync(text("b", "c")); len(again) != 1 || again[0].File == "" {
		t.Errorf("after a restart: %+v", again)
	}
	if none := sync(manifest.Files{}); len(none) != 0 {
		t.Errorf("%+v", none)
	}
}
