package manifest

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"
)

// decoded is an object in JSON, with numbers as they are written.
func decoded(t *testing.T, text string) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var o map[string]any
	if err := d.Decode(&o); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestYAML: a value is in the style of kubectl, and what looks like something else comes
// back as the text that it is.
func TestYAML(t *testing.T) {
	o := decoded(t, `{"b":true,"n":null,"i":12345678901234567890,"f":1.5,"l":[],"m":{},"nested":[[1,{}],[],{"a":"b","c":[{"d":"e\nf\n","g":"h"}]}],
		"block":{"text":"a\n\n  b\n","open":"a\nb","blank":"\n","only":" \n"},"yes":1,"1":2,"a b":3,"multi\nline":4,
		"texts":["yes","NO","on","1","1.5","0x10","null","~","","true","2001-01-01","2001-01-01T00:00:00Z","a: b","- x","#c"," lead","é","1:20","\u0007","a/b.c-d","<none>","*","&a","!x","%","@","`+"`"+`",".5","-1","a\tb"]}`)
	text, err := YAML(o)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/object.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(text)); diff != "" {
		t.Errorf("testdata/object.yaml (-want +got):\n%s", diff)
	}
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"texts", "block", "nested", "yes", "1", "multi\nline"} {
		want, _ := json.Marshal(o[part])
		got, err := json.Marshal(tree.(map[string]any)[part])
		if err != nil || cmp.Diff(string(want), string(got)) != "" {
			t.Errorf("%q became %s, %v; it was %s", part, got, err, want)
		}
	}
}

// FuzzYAML: every object comes back.
func FuzzYAML(f *testing.F) {
	for _, s := range []string{"a", "yes", "a\nb\n", " ", "- a", "\ta", "a\n  b", "\n", "#", "0x1", "a:\nb", "é\u2028", "\u0085x"} {
		f.Add(s, "key")
		f.Add("value", s)
	}
	f.Fuzz(func(t *testing.T, value, key string) {
		// YAML wants keys within 1024 characters (section 7.4.2); no field has such a long one.
		if !utf8.ValidString(key) || !utf8.ValidString(value) || len(key) > 128 {
			return
		}
		o := map[string]any{"list": []any{value, map[string]any{key: value}}, "map": map[string]any{key: map[string]any{key: value}}}
		text, err := YAML(o)
		if err != nil {
			return
		}
		var back map[string]any
		if err := yaml.Unmarshal(text, &back); err != nil {
			t.Fatalf("%q: %v\n%s", value, err, text)
		}
		if diff := cmp.Diff(o, back); diff != "" {
			t.Fatalf("%s\n%s", diff, text)
		}
	})
}
