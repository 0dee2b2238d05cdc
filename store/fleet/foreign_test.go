package fleet_test

import (
	"fmt"
	"strings"
	"testing"
)

func Test656_keys_that_somebody_else_writes(t *testing.T) {
	c, a, b := twoBoxes(t, "web", "other")
	client := c.client()
	key := func(name string) string { return c.key("object/Service/default/" + name) }
	says := func(want string) {
		t.Helper()
		for _, of := range []*box{a, b} {
			eventually(t, of.cfg.Box+" names "+want, func() bool { return of.engine.State().Foreign == want })
		}
	}
	// A large commit is unfolded without a head, and is the boxes' own.
	var large []string
	for n := range 300 {
		large = append(large, fmt.Sprintf("large%d", n))
	}
	if err := a.create(large...); err != nil {
		t.Fatal(err)
	}
	same(t, a, b)
	eventually(t, "it is unfolded", func() bool {
		now, err := client.Get(t.Context(), c.key("head"))
		return err == nil && len(now.Kvs) == 1 && !strings.Contains(string(now.Kvs[0].Value), `"bundle"`)
	})
	if err := b.create("after"); err != nil {
		t.Fatal(err)
	}
	same(t, a, b)
	says("")
	was, err := client.Get(t.Context(), key("web"))
	if err != nil || len(was.Kvs) != 1 {
		t.Fatal(err, was)
	}
	if _, err := client.Delete(t.Context(), key("web")); err != nil {
		t.Fatal(err)
	}
	says(key("web"))
	if _, err := client.Put(t.Context(), key("stray"), "{}"); err != nil {
		t.Fatal(err)
	}
	says(key("stray") + " and 1 more")
	if a.clusterIP("web") == "" || b.clusterIP("stray") != "" {
		t.Error("what somebody else did is followed")
	}
	// What a box commits of a key is the boxes' again.
	if err := a.create("stray"); err != nil {
		t.Fatal(err)
	}
	says(key("web"))
	// So it is when somebody puts back what there was.
	if _, err := client.Put(t.Context(), key("web"), string(was.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	says("")
	if a.clusterIP("web") == "" || b.clusterIP("web") == "" {
		t.Error("what somebody else did is followed")
	}
}

func Test657_a_report_that_cannot_be_read(t *testing.T) {
	c, a, _ := twoBoxes(t)
	client := c.client()
	for name, report := range map[string]string{"torn": "{", "null": "null", "other": `{"box":"b"}`} {
		if _, err := client.Put(t.Context(), c.key("box/"+name), report); err != nil {
			t.Fatal(err)
		}
		boxes, err := a.engine.Boxes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for i := range boxes {
			if boxes[i].Box == name {
				found = strings.Contains(boxes[i].Failing, "remove "+c.key("box/"+name))
			}
		}
		if !found {
			t.Errorf("%s: %+v", name, boxes)
		}
	}
}
