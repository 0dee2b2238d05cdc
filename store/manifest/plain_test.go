package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// plainTexts are read without the YAML parser.
var plainTexts = []string{
	webYAML,
	"apiVersion: v1\nkind: Service\n",
	"---\n# a comment\n\na:\n  b: c\n\n  # another\n  d:\n    - 1\n    - x y z\n  e:\n  - {f: g, h: [i, \"j k\", 'l']}\n  - k: 1\n    l: 10.0.0.1\n  - m:\n      o: fd00::1\n",
	"a: [10.0.0.0/8, fd00:10::/32, 80, true, null, x:y]\nb: {}\nc: []\nd: {e: {f: [[1], 2]}}\n",
	"a: 'yes'\nb: yes\nc: http://x.y/z",
	"a: \"x\"   \nb:   y  \n",
	"addresses: [10.1.2.3]",
	"a: 0\nb: 123456789012345678\nc: 1.2.3.4/32\nd: 2001:db8::1\n",
	"a:\n- b\n- c: d\n  e: f\ng: h\n",
	"- a: [ 1 , 2 ]\n- { b: 'c' }\n",
}

// otherTexts are not plain, or no YAML at all.
var otherTexts = []string{
	"", "# nothing\n", "---\n", "a", "a:\n", "a: ~\n", "a: b\n  c\n", "a:\n  b\n", "a: |\n  b\n", "a: >-\n  b\n", "a: &x b\n", "a: *x\n", "a: !!str b\n",
	"a: b # c\n", "a: b: c\n", "a: b:\n", "a:b\n", "\ta: b\n", "a:\tb\n", "a: b\r\n", "a: é\n", "a: 010\n", "a: 1e3\n", "a: 1.5\n", "a: 0x10\n", "a: 1_000\n",
	"a: 2024-01-01\n", "a: -1\n", "a: .5\n", "a: \"x\\n\"\n", "a: 'it''s'\n", "a: \"x\" y\n", "a: [b\n", "a: [b,]\n", "a: [b c]\n", "a: [,b]\n", "a: {b}\n", "a: {b:c}\n", "a: {b: }\n",
	"a: [b: c]\n", "a: 1\na: 2\n", "yes: no\n", "a: {b: c, b: d}\n", "<<: {a: b}\n", "? a\n: b\n", "- - a\n", "-\n  a: b\n", "- a\n b\n", "a:\n    b: c\n  d: e\n",
	"a: b\n...\n", "--- a\n", "--- # c\na: b\n", "%YAML 1.1\n---\na: b\n", "\"a\": b\n", "a : b\n", "a: b\n---\nc: d\n", "a: 12345678901234567890\n", "a: 1234:5678\n",
	"a: [fd00::]\n", "a: [b]c\n", "a: [b] c\n", "a: {b: c}}\n", "a: 'b\n  c'\n", "a: @b\n", "a: `b`\n", "a: b\n c: d\n", "a:\n  - b\n - c\n", "a:\n- b\n  - c\n",
}

// agree fails when the plain reader makes other nodes than the YAML parser.
func agree(t *testing.T, text []byte, limits Limits) (plain bool) {
	t.Helper()
	var r plainReader
	if root, ok := r.read(text, limits); ok { // to be read again where other nodes were
		draw(root)
	}
	root, ok := r.read(text, limits)
	if !ok {
		return false
	}
	docs, err := parseAnyYAML(text, limits)
	if err != nil || len(docs) != 1 || len(docs[0].flaws) > 0 {
		t.Fatalf("%q is read as\n%s\nand the YAML parser says: %v, %+v", text, draw(root), err, docs)
	}
	if !reflect.DeepEqual(root, docs[0].root) {
		t.Fatalf("%q is read as\n%s\nand by the YAML parser as\n%s", text, draw(root), draw(docs[0].root))
	}
	return true
}

// draw is a node as text.
func draw(n *node) string {
	var b strings.Builder
	var walk func(*node, string)
	walk = func(n *node, in string) {
		fmt.Fprintf(&b, "%s%s at %d:%d, %d nodes, %d high, old bool %t\n", in, n.what(), n.line, n.column, n.size, n.height, n.oldBool)
		for _, f := range n.fields {
			fmt.Fprintf(&b, "%s %s at %d:%d\n", in, f.key, f.line, f.column)
			walk(f.value, in+"  ")
		}
		for _, i := range n.items {
			walk(i, in+" - ")
		}
	}
	walk(n, "")
	return b.String()
}

func TestPlain(t *testing.T) {
	for _, text := range plainTexts {
		if !agree(t, []byte(text), DefaultLimits()) {
			t.Errorf("%q is not read as plain", text)
		}
	}
	for _, text := range otherTexts {
		if agree(t, []byte(text), DefaultLimits()) {
			t.Errorf("%q is read as plain", text)
		}
	}
	limits := func(depth, keys int) Limits { return Limits{Depth: depth, Keys: keys, Nodes: 100, Documents: 1} }
	for _, test := range []struct {
		text   string
		limits Limits
		plain  bool
	}{
		{"a:\n  b:\n    c: d\n", limits(2, 9), false}, {"a:\n  b:\n    c: d\n", limits(3, 9), true},
		{"a: {b: {c: d}}\n", limits(2, 9), false}, {"a: {b: {c: d}}\n", limits(3, 9), true},
		{"a:\n- - b\n", limits(9, 9), false}, {"a: [[b]]\n", limits(2, 9), false}, {"a: [[b]]\n", limits(3, 9), true},
		{"a: {b: c, d: e}\n", limits(9, 1), false}, {"a: {b: c, d: e}\n", limits(9, 2), true},
		{"a: 1\nb: 2\n", limits(9, 1), false}, {"a: 1\nb: 2\n", limits(9, 2), true},
	} {
		if agree(t, []byte(test.text), test.limits) != test.plain {
			t.Errorf("%q under %+v is plain: %t", test.text, test.limits, !test.plain)
		}
	}
}

// The samples of Kubernetes' documentation are what people write.
func TestPlainReadsSamples(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "samples", "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatal("no samples", err)
	}
	plain, all := 0, 0
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for len(data) > 0 {
			end := nextMarker(data)
			if all++; agree(t, data[:end], DefaultLimits()) {
				plain++
			}
			data = data[end:]
		}
	}
	if 4*plain < 3*all {
		t.Errorf("only %d of %d documents are plain", plain, all)
	}
}

// FuzzPlain: what the plain reader reads, it reads as the YAML parser does.
func FuzzPlain(f *testing.F) {
	seed(f)
	for _, text := range append(plainTexts, otherTexts...) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		data, err := checkText(data)
		if err != nil || nextMarker(data) != len(data) || countStructure(data, small) != nil {
			return
		}
		agree(t, data, small)
	})
}

func BenchmarkDecode(b *testing.B) {
	var text []byte
	for i := range 50 {
		text = fmt.Appendf(text, "%s---\n", strings.ReplaceAll(webYAML, "web", fmt.Sprint("web", i)))
	}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if file := Decode("a.yaml", text, Limits{}); file.Err != nil {
			b.Fatal(file.Err)
		}
	}
}
