package manifest

import (
	"bytes"
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// seed adds the samples, and text that once was, or looked, difficult.
func seed(f *testing.F) {
	eachFile(f, func(_ string, data []byte) { f.Add(data) }, "testdata/samples/*")
	for _, text := range []string{webYAML, webJSON, bomb(), "%YAML 1.1\n---\n", "a: &a [*a]", "{a: b}{c: d}", `{"a":1}{`, "--- |\n a\n---\n",
		"0: [:!00 \xef", "a:\n- b:\n  *,", "? a\n: b", "!!binary x", "<<: [{a: b}, c]", "\xef\xbb\xbf---\n", "a\r\n---\r\nb", "\r\r0"} {
		f.Add([]byte(text))
	}
}

// yamlBreak matches the end of a line (YAML 1.1, 4.2 Line Breaks).
var yamlBreak = regexp.MustCompile("\r\n|[\r\n\u0085\u2028\u2029]")

// small are limits that a fuzzer reaches.
var small = Limits{Bytes: 1 << 16, Documents: 50, Depth: 20, Keys: 40, Nodes: 2000, Aliases: 50}

// FuzzDecode: whatever the bytes, there is an answer; it keeps its promises;
// an update from any other file equals a fresh reading; good objects survive printing.
func FuzzDecode(f *testing.F) {
	seed(f)
	before := Decode("a.yaml", []byte(webYAML+"---\n"+webJSON), small)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, path := range []string{"a.yaml", "a.json"} {
			file := Decode(path, data, small)
			check(t, file, data)
			other := *before
			other.Path = path
			updated := other.Update(data, small)
			if !reflect.DeepEqual(messages(file), messages(updated)) || len(file.Documents) != len(updated.Documents) {
				t.Errorf("updated: %q\nfresh: %q", messages(updated), messages(file))
			}
			for i := range file.Documents {
				if !reflect.DeepEqual(file.Documents[i].Object, updated.Documents[i].Object) || file.Documents[i].Line != updated.Documents[i].Line {
					t.Errorf("document %d differs after an update", i)
				}
			}
		}
	})
}

func check(t *testing.T, file *File, data []byte) {
	t.Helper()
	lines := len(yamlBreak.FindAll(data, -1)) + 1
	if file.Err != nil && (len(file.Documents) > 0 || len(file.Problems) > 0) {
		t.Errorf("%v, and yet %d documents, %d problems", file.Err, len(file.Documents), len(file.Problems))
	}
	problems := file.Problems
	if file.Err != nil {
		problems = append(problems, *file.Err)
	}
	for _, p := range problems {
		if p.Line < 0 || p.Line > lines+1 || p.Message == "" || p.Reason == "" {
			t.Errorf("problem %#v in a file of %d lines", p, lines)
		}
		if s := p.String(); strings.ContainsAny(s, "\n\r\x1b\x00") || !utf8.ValidString(s) {
			t.Errorf("not one line: %q", s)
		}
	}
	for i := range file.Documents {
		d := &file.Documents[i]
		if line, _ := d.Position("spec.ports[0].port"); line < 1 || line > lines || d.Line < 1 || d.Line > lines || d.Object.GetMeta().Name == "" {
			t.Errorf("document %d: line %d, field line %d of %d", i, d.Line, line, lines)
		}
		printed, err := EncodeYAML(d.Object)
		if err != nil {
			t.Errorf("EncodeYAML: %v", err)
			continue
		}
		again := Decode("again.yaml", printed, Limits{})
		if len(again.Documents) != 1 {
			t.Errorf("%q after printing:\n%s", messages(again), printed)
			continue
		}
		want, err := encodeJSON(d.Object)
		if err != nil {
			t.Errorf("encodeJSON: %v", err)
		}
		if got, _ := encodeJSON(again.Documents[0].Object); !bytes.Equal(want, got) {
			t.Errorf("printing changed\n%s\ninto\n%s", want, got)
		}
	}
}

// FuzzJSON: our JSON reader accepts what encoding/json accepts, and nothing else.
func FuzzJSON(f *testing.F) {
	seed(f)
	for _, text := range []string{`[1,-0,1e9,1.5E-3,true,false,null,"\ud83d\ude00\/"]`, `{"a":{"b":[]}}`, `01`, `"\x"`, `[1,]`, `{"a"}`, `-`, `nul`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		data = bytes.TrimSpace(data)
		if len(data) == 0 || !utf8.Valid(data) {
			return
		}
		s := &jsonScanner{text: data, line: 1, limits: DefaultLimits()}
		_, err := s.value(0)
		if err != nil && err.reason == ReasonLimit {
			return
		}
		if got, want := err == nil && s.at == len(data), json.Valid(data); got != want {
			t.Errorf("%q: valid %t (%v), encoding/json says %t", data, got, err, want)
		}
		skip := &jsonScanner{text: data, line: 1, stop: len(data), limits: DefaultLimits()}
		if skipErr := skip.skip(0); (skipErr == nil) != (err == nil) || err == nil && skip.at != s.at {
			t.Errorf("%q: value %v at %d, skip %v at %d", data, err, s.at, skipErr, skip.at)
		}
	})
}

// FuzzCountStructure: the count that is taken before parsing is never below the number
// of nodes that parsing makes, or the limit on memory would be none.
func FuzzCountStructure(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		data, err := checkText(data)
		if err != nil || nextMarker(data) != len(data) {
			return
		}
		nodes := yamlNodes(data)
		if nodes > documentCharge && countStructure(data, Limits{Nodes: nodes - 1, Documents: 100}) == nil {
			t.Errorf("%q makes %d nodes, and was counted as fewer", data, nodes)
		}
	})
}

// yamlNodes is the number of nodes that the YAML parser makes of the first document.
func yamlNodes(data []byte) (n int) {
	defer func() {
		if recover() != nil {
			n = 0
		}
	}()
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil {
		return 0
	}
	var count func(*yaml.Node)
	count = func(node *yaml.Node) {
		n++
		for _, child := range node.Content {
			count(child)
		}
	}
	count(&doc)
	return n
}
