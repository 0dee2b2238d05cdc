package manifest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/manifest/styles"
	"svcctl.io/svcctl/store/object"
)

// knownTexts are read without the library.
var knownTexts = []string{
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
	"a:\n", "a: ~\n", "a: b\n  c\n", "a:\n  b\n", "a: |\n  b\n", "a: >-\n  b\n", "a: &x b\n", "a: b # c\n", "a:\tb\n", "a: b\r\n", "a: é\n", "a: 010\n", "a: 1e3\n", "a: 1.5\n", "a: 0x10\n", "a: 1_000\n", "a: 2024-01-01\n", "a: -1\n", "a: .5\n", "a: \"x\\n\"\n",
	"a: 'it''s'\n", "a: [b,]\n", "a: [b c]\n", "<<: {a: b}\n", "- - a\n", "-\n  a: b\n", "- a\n b\n", "a: b\n...\n", "--- # c\na: b\n", "\"a\": b\n", "a : b\n", "a: 12345678901234567890\n", "a: 1234:5678\n", "a: [fd00::]\n", "a: 'b\n  c'\n", "a:\n- b\n  - c\n",
	// The ends of lines, of documents and of texts.
	"a: b\r\nc:\r\n- d\r\n", "a: b # c\n\n# d\n\ne: f\n...\n# g\n\n", "a: b \t# c\nd: [e]\t\n", "---\na: b\n", "a: b\n  \n   \nc: d", "a:  # b\n  # c\n  d: e\n", "# a\n- b # c\n# d\n- e\n",
	// Block scalars.
	"a: |\n  b\n\n   c\n\n\nd: e\n", "a: |-\n  b\n\nc: d\n", "a: |+\n  b\n\n\nc: d\n", "a: |2\n   b\n  c\n", "a: |2-\n  b\n", "a: |-2\n  b\n", "a: | # b\n  c\n", "a: |\n\n\n  b\n", "a: |\nb: c\n", "a: |",
	"a: >\n  b\n  c\n\n  d\n   e\n  f\n\n\n  g\n", "a: >-\n  b\n  c\n# d\ne: f\n", "a: >+\n  b\n\n", "- |\n b\n- >\n c\n d\n", "a:\n- |\n  b\n- c\n", "a: |\r\n  b\r\n  c\r\nd: e\r\n", "a: |\n  b\tc \n  \td\n", "a: |\n  é # ü\n",
	// Quotes.
	"a: \"\"\nb: ''\n", "a: \"b\\u00e9\\U0001F600\\x41\"", "a: \"\\0\\a\\b\\t\\n\\v\\f\\r\\e\\ \\\"\\'\\\\\\N\\_\\L\\P\"\n", "a: \"b\n  c\n\n  d\"\n", "a: \"b \\\n   c\"\n", "a: \"b\\\n\n  c\"\n", "a: 'b  \n  c''\n\n\n  d'\n",
	"\"a b\" : c\n'd': e\n", "a:\n  \"b\": c\n", "- \"a\": b\n  'c': d\n", "a: \"é\" # ü\nü: ö\n", "- 'a'\n- \"b\"\n", "a: \"b\"   \n",
	// Flow collections.
	"a: [\n  b, # c\n  d,\n]\n", "a: {b: c,\n\td: e}\n", "{a: b, \"c\":d, 'e' : f}\n", "[a, [b, {c: d}], ]\n", "a: {b: [c], }\n", "- [a]\n- {b: c}\n", "a: [b#c, d:e, -f]\n", "a: {b: x y , c: d}\n", "a: [é, {ü: ö}]\n", "a:\n  [b]\nc:\n  {d: e}\n",
	"a: [ ]\nb: { }\n", "a: &b c\nd: [*b, *b ]\n", "a: [&b c, *b]\n", "a: {b: &c {d: e}, f: *c}\n",
	// Anchors, aliases and merge keys.
	"a: &b\n  c: d\ne: *b\nf:\n  <<: *b\n  g: h\n", "a: &b\n- c\nd: *b\n", "a: &b\n  - c\nd: [*b]\n", "- &a\n  b: c\n- *a\n- <<: *a\n  b: d\n", "a: &b [c]\nd: &e {f: g}\nh: &i \"j\"\nk: &l |\n  m\no: [*b, *e, *i, *l]\n",
	"a: &b 1\nc: &b 2\nd: *b\n", "a: &b {c: d}\ne: &f {g: h}\ni:\n  <<: [*b, *f]\n  c: j\n", "<<: {a: b}\na: c\n", "\"<<\": a\n", "a: <<\n", "- &a # b\n  c: d\n- *a # e\n", "x: &a-b_1 c\na: *a-b_1\n",
	// Values that are not there, and values on lines of their own.
	"a:\nb:\n  c:\n  d: e\n", "a: # b\nc: d\n", "- \n- a\n-\n", "a:\n-\nb: c\n", "a:\n  b c\n  d\n", "a:\n  - b\n\n  - c:\n    d:\n", "a:\n- b: c\n  d:\n  - e\nf: g\n", "é:\n",
	// Scalars without quotes.
	"a: b:c\nd: e#f\ng: http://h/i?j=k&l#m\n", "a b: c d\n-e: f\n", "a: b\n   c\n\n\n  d # e\nf: g\n", "a: b, [c] {d}\n", "a: 5f0f2a0e-3b1c-4d6e\nb: 1e5-3\nc: 12:30\nd: 1e-5\ne: 0b1\nf: 0o7\ng: 0xAf\nh: 1.\ni: +1\nj: .inf\nk: -.INF\nl: .nan\nm: +a\no: -0b1\n",
	"a: 2001-12-14T21:59:43Z\nb: 2001-12-1\nc: 2001-a\nd: 200-1\n", "a: ~b\nb: null \nc: True\nd: trues\ne: falses\nf: No\ng: Off\nh: nu\n", "a: =\nb: (c)\nd: <e>\nf: $g\nh: ^i\nj: ;k\n", "a: -b\nc: --d\n", "k:{\"x\":1}: y\n", ".: {}\n",
}

// otherTexts are left to the library: they are rare, or no YAML at all.
var otherTexts = []string{
	"", "# nothing\n", "---\n", "a", "a: *x\n", "a: !!str b\n",
	"a: b: c\n", "a: b:\n", "a:b\n", "\ta: b\n",
	"a: \"x\" y\n", "a: [b\n", "a: [,b]\n", "a: {b}\n", "a: {b:c}\n", "a: {b: }\n",
	"a: [b: c]\n", "a: 1\na: 2\n", "yes: no\n", "a: {b: c, b: d}\n", "? a\n: b\n", "a:\n    b: c\n  d: e\n",
	"--- a\n", "%YAML 1.1\n---\na: b\n", "a: b\n---\nc: d\n",
	"a: [b]c\n", "a: [b] c\n", "a: {b: c}}\n", "a: @b\n", "a: `b`\n", "a: b\n c: d\n", "a:\n  - b\n - c\n",
}

// agree fails when the reader makes other nodes than the YAML parser.
func agree(t *testing.T, text []byte, limits Limits) (plain bool) {
	t.Helper()
	var r yamlReader
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

func TestReader(t *testing.T) {
	for _, text := range knownTexts {
		if !agree(t, []byte(text), DefaultLimits()) {
			t.Errorf("%q is left to the library", text)
		}
	}
	for _, text := range otherTexts {
		if agree(t, []byte(text), DefaultLimits()) {
			t.Errorf("%q is not left to the library", text)
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
		{"a:\n- - b\n", limits(2, 9), false}, {"a:\n- - b\n", limits(3, 9), true}, {"a: [[b]]\n", limits(2, 9), false}, {"a: [[b]]\n", limits(3, 9), true},
		{"a: {b: c, d: e}\n", limits(9, 1), false}, {"a: {b: c, d: e}\n", limits(9, 2), true},
		{"a: 1\nb: 2\n", limits(9, 1), false}, {"a: 1\nb: 2\n", limits(9, 2), true},
	} {
		if agree(t, []byte(test.text), test.limits) != test.plain {
			t.Errorf("%q under %+v is plain: %t", test.text, test.limits, !test.plain)
		}
	}
}

// What kubectl, kustomize and people write is read without the library, and means two objects.
func TestReaderReadsStyles(t *testing.T) {
	for _, style := range styles.All {
		for n := range 4 {
			s := styles.Service{Name: "web", ClusterIP: netip.MustParseAddr("10.96.0.7"), Protocol: "TCP", ManagedFields: n == 3}
			for e := range n {
				s.Endpoints = append(s.Endpoints, netip.AddrFrom4([4]byte{10, 1, 2, byte(e)}))
			}
			text := style.File(s)
			for doc := range strings.SplitSeq(text, "---\n") {
				if !agree(t, []byte(doc), DefaultLimits()) {
					t.Errorf("%s: left to the library:\n%s", style.Name, doc)
				}
			}
			file := Decode("a.yaml", []byte(text), Limits{})
			if file.Err != nil || len(file.Problems) > 0 || len(file.Documents) != 2 {
				t.Fatalf("%s: %v, %v, %d documents:\n%s", style.Name, file.Err, file.Problems, len(file.Documents), text)
			}
			svc, slice := file.Documents[0].Object.(*object.Service), file.Documents[1].Object.(*object.EndpointSlice)
			if svc.Spec.ClusterIP != "10.96.0.7" || slice.Metadata.Labels[object.LabelServiceName] != "web" || len(slice.Endpoints) != n {
				t.Errorf("%s: %+v, %+v", style.Name, svc, slice)
			}
		}
	}
}

// The samples of Kubernetes' documentation are what people write.
func TestReaderReadsSamples(t *testing.T) {
	eachFile(t, func(path string, data []byte) {
		for len(data) > 0 {
			end := nextMarker(data)
			if !agree(t, data[:end], DefaultLimits()) {
				t.Errorf("%s: left to the library:\n%s", path, data[:end])
			}
			data = data[end:]
		}
	}, "testdata/samples/*.yaml")
}

// eachFile calls use for each file that matches one of the patterns. It fails if there is none.
func eachFile(t testing.TB, use func(path string, data []byte), patterns ...string) {
	t.Helper()
	none := true
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			use(path, data)
			none = false
		}
	}
	if none {
		t.Fatal("no files", patterns)
	}
}

// A file holds nothing of its text, whose memory the watcher uses again.
func TestFilesHoldNothingOfTheirText(t *testing.T) {
	texts := []string{webYAML, webJSON, "apiVersion: v1\nkind: Secret\nmetadata: {name: a, annotations: {b: " + strings.Repeat("c", 2*longestShared) + "}}\n" +
		"type: kubernetes.io/tls\nstringData: {tls.key: plain, tls.crt: text}\ndata: {more: bW9yZQ==}\n", "apiVersion: v1\nkind: Service\nmetadata: {name: odd, namespace: other}\nspec: {ports: [{port: x, name: [y]}], nope: z}\n"}
	eachFile(t, func(_ string, data []byte) { texts = append(texts, string(data)) },
		"testdata/samples/*", "../../examples/*.yaml", "../../examples/*/*.yaml", "../../examples/*/*/*.yaml")
	documents := 0
	for _, text := range texts {
		data := []byte(text)
		got, want := Decode("a.yaml", data, Limits{}), Decode("a.yaml", []byte(text), Limits{})
		clear(data)
		documents += len(want.Documents)
		if !reflect.DeepEqual(got.Documents, want.Documents) || !reflect.DeepEqual(messages(got), messages(want)) {
			t.Errorf("cleared: %q, %+v\nkept: %q, %+v", messages(got), got.Documents, messages(want), want.Documents)
		}
	}
	if documents < 150 {
		t.Errorf("%d documents", documents)
	}
}

// FuzzReader: what the plain reader reads, it reads as the YAML parser does.
func FuzzReader(f *testing.F) {
	seed(f)
	for _, text := range append(knownTexts, otherTexts...) {
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
	for _, style := range styles.All {
		b.Run(strings.ReplaceAll(style.Name, " ", "-"), func(b *testing.B) {
			text := []byte(style.File(styles.Service{Name: "web", ClusterIP: netip.MustParseAddr("10.96.0.7"), Protocol: "TCP",
				Endpoints: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.1.2.4"), netip.MustParseAddr("10.1.2.5")}}))
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if file := Decode("a.yaml", text, Limits{}); file.Err != nil || len(file.Documents) != 2 {
					b.Fatal(file.Err, file.Problems)
				}
			}
		})
	}
}

// tokens are the parts of random texts: most sequences of bytes are no YAML, and of these many
// are nearly.
var tokens = strings.Split(`a|b: |c: |: |- |- a: |:|-|
|
|
|
|
|
  |
  |
    |
      |
  - |
- |
a: |
b: |
  c: |
  d: | |  |	|#| # x| # x
|"|'|"x"|'y'|"a": |\|\n|\"|''|[|]|{|}|, |,|[x, y]|{x: y}|{x: "y"}|&x |&y |*x|*y|<<: |<<: *x
|$|>|$
  t
|>
  t
|$-
|>+
|$2
|x y|x|1|10.0.0.1|null|~|true|yes|0x1|1e3|-1|.5|2001-01-01|é|

|# c
|...
|---
|?|!|%|@|é: |
  "k": `, "|")

// TestReaderAgrees holds the reader against the library on texts that are made at random, the
// same ones each time.
func TestReaderAgrees(t *testing.T) {
	rounds := 20_000
	if testing.Short() {
		rounds = 2_000
	}
	random, known := rand.New(rand.NewPCG(1, 2)), 0
	for range rounds {
		var text []byte
		for range 1 + random.IntN(16) {
			text = append(text, strings.ReplaceAll(tokens[random.IntN(len(tokens))], "$", "|")...)
		}
		if random.IntN(8) == 0 {
			text = bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))
		}
		if nextMarker(text) == len(text) && countStructure(text, small) == nil && agree(t, text, small) {
			known++
		}
	}
	if known < rounds/50 {
		t.Errorf("only %d of %d texts are read", known, rounds)
	}
}
