package settings

import (
	"strings"
	"testing"
)

func FuzzParseConfig(f *testing.F) {
	for _, s := range []string{"", "---", "zone: a", "manifests: [a, b]", "a: &x [1]\nb: *x", "? [a]\n: b", "- a", "zone: a\n---\nzone: b", "\xff", "<<: {zone: a}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		values, problems := parseConfig("f", data)
		for key, g := range values {
			if g.Texts == nil || !strings.HasPrefix(g.source, "f:") {
				t.Errorf("%s: %+v", key, g)
			}
		}
		for _, p := range problems {
			if !strings.HasPrefix(p.Error(), "f:") {
				t.Errorf("no place in %v", p)
			}
		}
	})
}
