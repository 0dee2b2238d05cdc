package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet"
)

// old opens a box whose version reads the format before the newest one, in a fleet of that format.
func (c *cluster) old(name string) *fleet.Engine {
	c.t.Helper()
	e, err := fleet.Old(c.config(name), fleet.Format-1, func() {})
	if err != nil {
		c.t.Fatal(err)
	}
	if err := e.Await(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	return e
}

// setFormat has the fleet be of a format, as an older version has made it.
func (c *cluster) setFormat(format int) {
	c.t.Helper()
	client := c.client()
	for _, key := range []string{"fleet", "head"} {
		resp, err := client.Get(c.t.Context(), c.key(key))
		if err != nil {
			c.t.Fatal(err)
		}
		var value map[string]any
		d := json.NewDecoder(strings.NewReader(string(resp.Kvs[0].Value)))
		d.UseNumber()
		if err := d.Decode(&value); err != nil {
			c.t.Fatal(err)
		}
		value["format"] = format
		text, err := json.Marshal(value)
		if err != nil {
			c.t.Fatal(err)
		}
		if _, err := client.Put(c.t.Context(), c.key(key), string(text)); err != nil {
			c.t.Fatal(err)
		}
	}
}

// headIs asserts that the newest commit is of a format, and by which box.
func (c *cluster) headIs(format int, box string) {
	c.t.Helper()
	resp, err := c.client().Get(c.t.Context(), c.key("head"))
	if err != nil {
		c.t.Fatal(err)
	}
	var head struct {
		Format int
		Box    string
	}
	if err := json.Unmarshal(resp.Kvs[0].Value, &head); err != nil || head.Format != format || head.Box != box {
		c.t.Errorf("the newest commit is %+v of %s, want %d of %s (%v)", head.Format, head.Box, format, box, err)
	}
}

// Test613 raises the format in the very instant in which a box with an older version starts, or has a commit under way:
// nothing is written in the old format afterwards.
func Test613_no_commit_of_an_old_format_after_the_upgrade(t *testing.T) {
	upgrade := func(c *cluster) {
		if _, to, err := fleet.Upgrade(t.Context(), c.config("x"), nil); err != nil || to != fleet.Format {
			t.Errorf("the format is raised to %d: %v", to, err)
		}
	}
	refused := func(c *cluster, b *box) {
		t.Helper()
		eventually(t, "the old box says so", func() bool { return b.engine.State().Kind == fleet.TooNew })
		var away *engine.AwayError
		if err := b.create("never"); !errors.As(err, &away) || !strings.Contains(err.Error(), "upgrade this box") {
			t.Errorf("a write of the old box gave %v", err)
		}
		c.headIs(fleet.Format, "x")
	}
	t.Run("start", func(t *testing.T) {
		c := ownFleet(t)
		c.init()
		c.setFormat(fleet.Format - 1)
		e := c.old("old")
		var once sync.Once
		e.OnJoin(func() { once.Do(func() { upgrade(c) }) })
		refused(c, c.run(e, c.config("old"), storeConfig))
	})
	t.Run("first start", func(t *testing.T) {
		c := ownFleet(t)
		c.init()
		c.setFormat(fleet.Format - 1)
		cfg := c.config("old")
		var once sync.Once
		e, err := fleet.Old(cfg, fleet.Format-1, func() { once.Do(func() { upgrade(c) }) })
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		joined := make(chan error, 1)
		go func() { joined <- e.Await(ctx) }()
		eventually(t, "the old box reports it", func() bool {
			s := e.State()
			return s.Kind == fleet.Waiting && strings.Contains(s.Why, "upgrade this box")
		})
		stop()
		if err := <-joined; !errors.Is(err, context.Canceled) {
			t.Errorf("an old box joined: %v", err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		c.headIs(fleet.Format, "x")
	})
	t.Run("commit", func(t *testing.T) {
		c := ownFleet(t)
		c.init()
		c.setFormat(fleet.Format - 1)
		e := c.old("old")
		b := c.run(e, c.config("old"), storeConfig)
		eventually(t, "the old box may write", func() bool { return b.create("web") == nil })
		c.headIs(fleet.Format-1, "old")
		var once sync.Once
		e.OnStep(func() { once.Do(func() { upgrade(c) }) }) // before the call
		if err := b.create("late"); err == nil {
			t.Error("a commit that was under way is made after the upgrade")
		}
		refused(c, b)
		fresh := c.join("new")
		if fresh.clusterIP("web") == "" || fresh.clusterIP("late") != "" {
			t.Errorf("web has %q, late %q", fresh.clusterIP("web"), fresh.clusterIP("late"))
		}
		if r, err := fresh.Write(store.Write{Ref: serviceRef("web"), Delete: true}); err != nil || r[0].Err != nil {
			t.Error(err, r)
		}
	})
}
