package store

import (
	"fmt"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// A few large objects that come and go do not push everything else out of the journal.
func TestJournalOutlivesLargeObjects(t *testing.T) {
	b := newBox(t)
	first := b.s.Revision()
	b.apply("a.yaml", "web {}")
	var text strings.Builder
	for i := range 900_000 / 60 {
		fmt.Fprintf(&text, "server { listen %d; location / { proxy_pass http://10.0.%d.%d; } }\n", 1024+i, i>>8&255, i&255)
	}
	for i := range 60 {
		o := &object.ConfigMap{
			TypeMeta: object.TypeMeta{Kind: object.KindConfigMap, APIVersion: object.APIVersionCore},
			Metadata: object.ObjectMeta{Namespace: "default", Name: fmt.Sprint("large", i)}, Data: map[string]string{"nginx.conf": text.String()},
		}
		for _, w := range []Write{{Ref: object.RefOf(o), Object: o, Create: true}, {Ref: object.RefOf(o), Delete: true}} {
			if err := b.ask(w).Err; err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 { // and after a restart
		events, err := b.s.Events(first, 0)
		if err != nil || len(events) < 121 {
			t.Fatalf("%d changes are known, %v", len(events), err)
		}
		last := events[len(events)-1]
		if old, is := last.Old.(*object.ConfigMap); !is || old.Data["nginx.conf"] != text.String() {
			t.Errorf("the last one was of %v", last.Ref)
		}
		b.restart()
	}
}
