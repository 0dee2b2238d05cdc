package store

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

// exportOf is an export of a box that has something of everything.
func exportOf(t *testing.T) (*box, []byte) {
	t.Helper()
	b := newBox(t)
	b.keep("/m/web", "web {type: LoadBalancer}")
	b.sync()
	b.must(write(document(t, "api {type: NodePort}")))
	b.must(changed(b, ref("api"), func(s *object.Service) { s.Metadata.Annotations = map[string]string{"a": "<b>&c"} }))
	b.must(write(document(t, "gone {}")))
	b.must(Write{Ref: ref("gone"), Delete: true})
	b.try(false)
	b.must(onTrial(Write{Ref: ref("api"), Delete: true}))
	var out bytes.Buffer
	if err := b.s.Export(&out, "v1"); err != nil {
		t.Fatal(err)
	}
	return b, out.Bytes()
}

// What is restored onto an empty box is what was exported: revisions, uids, journal, the trial that goes back.
func TestExportIsRestored(t *testing.T) {
	b, text := exportOf(t)
	other := newBox(t)
	other.engine = other.engine.Reopen()
	header, err := Import(other.engine, bytes.NewReader(text), false)
	if err != nil || header.Objects == 0 || header.Revision != b.s.feed.revision {
		t.Fatalf("%+v, %v", header, err)
	}
	other.restart()
	if got, want := other.world(), b.world(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if other.s.feed.revision != b.s.feed.revision || len(other.s.feed.journal.Entries()) != len(b.s.feed.journal.Entries()) {
		t.Errorf("revision %d with %d entries, want %d with %d", other.s.feed.revision, len(other.s.feed.journal.Entries()), b.s.feed.revision, len(b.s.feed.journal.Entries()))
	}
	var again bytes.Buffer
	if err := other.s.Export(&again, "v1"); err != nil || !bytes.Equal(again.Bytes(), text) {
		t.Errorf("an export of it is another one: %v", err)
	}
	b.goBack()
	other.goBack()
	if got, want := other.world(), b.world(); got != want || !other.has("api") {
		t.Errorf("back: got\n%s\nwant\n%s", got, want)
	}
	// What is there is not replaced by accident.
	other.restart()
	before := other.world()
	if _, err := Import(other.engine, bytes.NewReader(text), false); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("onto a box with Services: %v", err)
	}
	other.restart()
	if other.world() != before {
		t.Error("it changed something")
	}
	if _, err := Import(other.engine, bytes.NewReader(text), true); err != nil {
		t.Error(err)
	}
	other.restart()
	if state, is := other.s.Pending(pending.Timed); !is || !state.Pending() {
		t.Error("the trial of the export is not under way")
	}
}

// An export that is not whole is refused with its line, and nothing is written.
func TestBadExports(t *testing.T) {
	_, good := exportOf(t)
	lines := strings.SplitAfter(string(good), "\n")
	last := len(lines) - 2
	for name, test := range map[string]struct{ text, want string }{
		"nothing":     {"", "line 1: it ends here"},
		"not one":     {"apiVersion: v1\n", "line 1: this is no export"},
		"newer":       {strings.Replace(string(good), `"version":1`, `"version":2`, 1), "version 2"},
		"cut short":   {strings.Join(lines[:last], ""), "cut short"},
		"cut inside":  {string(good[:len(good)/2]), "line "},
		"changed":     {strings.Replace(string(good), `"nodePort":3`, `"nodePort":2`, 1), "checksum"},
		"more":        {string(good) + lines[1], "something follows"},
		"another key": {strings.Replace(string(good), `{"key":"head"`, `{"key":"toe"`, 1), `"toe"`},
		"no object":   {strings.Replace(string(good), `"kind":"Service"`, `"kind":1`, 1), "read stored"},
	} {
		e := faulty.NewMemory()
		if _, err := Import(e, strings.NewReader(test.text), true); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		if pairs, _ := e.Load(""); len(pairs) > 0 {
			t.Errorf("%s: it wrote %d pairs", name, len(pairs))
		}
	}
}
