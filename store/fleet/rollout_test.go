package fleet_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

// slice is an EndpointSlice of a Service with one endpoint.
func slice(name, service, addr string) *object.EndpointSlice {
	port := int32(8080)
	return &object.EndpointSlice{
		TypeMeta:    object.TypeMeta{Kind: object.KindEndpointSlice, APIVersion: object.APIVersionDiscovery},
		Metadata:    object.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{object.LabelServiceName: service}},
		AddressType: object.IPv4, Ports: []object.EndpointPort{{Port: &port}}, Endpoints: []object.Endpoint{{Addresses: []string{addr}}},
	}
}

func sliceRef(name string) object.Ref {
	return object.Ref{Kind: object.KindEndpointSlice, Namespace: "default", Name: name}
}

// inForce returns the programmed state of a Service on a box: its port and its endpoints, "none" when there is none; and its
// Secret s.
func (b *box) inForce(name string) string {
	svc, all, _ := b.InForce().Service("default/" + name)
	if svc == nil {
		return "none"
	}
	text := svc.Spec.Ports[0].Name
	for _, s := range all {
		for _, e := range s.Endpoints {
			text += " " + strings.Join(e.Addresses, "+")
		}
	}
	if !slices.Contains(b.InForce().Services(), "default/"+name) || b.InForce().Since("default/"+name).Created == 0 {
		return "not listed"
	}
	return text
}

func (b *box) secretInForce() string {
	s := b.InForce().Secret("default/s")
	if s == nil {
		return ""
	}
	return string(s.Data["password"])
}

// rolls writes the changes of a rollout: web has another port and other endpoints, old goes with its slice, fresh comes, and the
// Secret is another one.
func (b *box) rolls(t *testing.T, id string) {
	t.Helper()
	by := store.Caller{User: "test", Rollout: id}
	web := b.service("web")
	web.Spec.Ports[0].Name = "new"
	s, _ := b.Get(secretRef("s"))
	secret := object.DeepCopy(s).(*object.Secret)
	secret.Data["password"] = []byte("the new one")
	namespace := &object.Namespace{TypeMeta: object.TypeMeta{Kind: object.KindNamespace, APIVersion: object.APIVersionCore}, Metadata: object.ObjectMeta{Name: "shop"}}
	results, err := b.Write(
		store.Write{Ref: serviceRef("web"), Object: web, By: by}, store.Write{Ref: sliceRef("web-1"), Object: slice("web-1", "web", "10.1.0.9"), By: by},
		store.Write{Ref: serviceRef("old"), Delete: true, By: by}, store.Write{Ref: sliceRef("old-1"), Delete: true, By: by},
		store.Write{Ref: serviceRef("fresh"), Object: service("fresh"), Create: true, By: by}, store.Write{Ref: sliceRef("fresh-1"), Object: slice("fresh-1", "fresh", "10.1.0.3"), Create: true, By: by},
		store.Write{Ref: secretRef("s"), Object: secret, By: by},
		store.Write{Ref: object.Ref{Kind: object.KindNamespace, Name: "shop"}, Object: namespace, Create: true, By: by},
	)
	if err != nil {
		t.Fatal(err)
	}
	last := len(results) - 1
	for _, r := range results[:last] {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if err := results[last].Err; err == nil || !strings.Contains(err.Error(), "without --rollout") {
		t.Errorf("a Namespace in a rollout: %v", err)
	}
}

// writes writes one object.
func (b *box) writes(o object.Object) error {
	r, err := b.Write(store.Write{Ref: object.RefOf(o), Object: o, By: store.Caller{User: "test"}})
	if err != nil {
		return err
	}
	return r[0].Err
}

// The changes of a rollout are programmed by the boxes of its step alone; all others have what was there before, over restarts and
// without etcd, while other changes go on. Values of both versions stay taken; undone, all is what it was.
func Test590_a_rollout_comes_to_some_boxes_first(t *testing.T) {
	c := startEtcd(t, 1)
	c.init()
	keys := newKeyFile(t, 1)
	open := func(name, dir string) *box {
		of, cfg := storeConfig, c.withKeys(name, keys)
		if of.Box = name; dir != "" {
			cfg.Dir = dir
		}
		return c.open(cfg, of)
	}
	boxes := map[string]*box{}
	for _, name := range []string{"a", "b", "c"} {
		boxes[name] = open(name, "")
	}
	a, b := boxes["a"], boxes["b"]
	have := func(what string, of map[string]string) {
		t.Helper()
		for name, want := range of {
			x := boxes[name]
			eventually(t, what+" on box "+name+": "+want, func() bool {
				return x.Fresh(t.Context()) == nil && strings.Join([]string{x.inForce("web"), x.inForce("old"), x.inForce("fresh"), x.secretInForce()}, "; ") == want
			})
		}
	}
	const before, after = " 10.1.0.1;  10.1.0.2; none; as it was", "new 10.1.0.9; none;  10.1.0.3; the new one"
	eventually(t, "box a may write", func() bool { return a.create("web", "old") == nil })
	for _, s := range []*object.EndpointSlice{slice("web-1", "web", "10.1.0.1"), slice("old-1", "old", "10.1.0.2")} {
		if err := a.writes(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.putSecret("s", "as it was"); err != nil {
		t.Fatal(err)
	}
	old, uid := a.clusterIP("old"), metaOf(a, "old").UID
	takesOld := func(x *box, name string) error {
		svc := service(name)
		svc.Spec.ClusterIP = old
		return x.writes(svc)
	}
	begin := func(x *box, id string) {
		t.Helper()
		if _, err := x.BeginStaged(pending.Head{ID: id, Plan: []byte(`{"steps":["b","100%"]}`)}, time.Hour); err != nil {
			t.Fatal(err)
		}
		x.rolls(t, id)
	}
	move := func(x *box, names ...string) {
		t.Helper()
		x.fresh(t)
		head, _ := x.PendingHead(pending.Staged)
		head.Phase, head.Boxes = pending.Programming, names
		if err := x.Advance(head, time.Hour); err != nil {
			t.Fatal(err)
		}
	}

	begin(a, "one")
	have("nobody has what is gathered", map[string]string{"a": before, "b": before, "c": before})
	seen := b.Changes(0).Revision
	stale, _ := b.PendingHead(pending.Staged)
	move(a, "b")
	have("box b has the changes", map[string]string{"a": before, "b": after, "c": before})
	if changed := b.Changes(seen); !slices.Equal(changed.Services, []string{"default/fresh", "default/old", "default/web"}) || !slices.Equal(changed.Secrets, []string{"default/s"}) || changed.All {
		t.Errorf("box b is told to look at %+v", changed)
	}
	b.fresh(t)
	if err := b.Advance(stale, 0); !errors.Is(err, pending.ErrMoved) {
		t.Errorf("a rollout that has moved is moved: %v", err)
	}

	// What others may do meanwhile.
	var inRollout *pending.StagedError
	for _, x := range boxes {
		web := x.service("web")
		web.Metadata.Labels = map[string]string{"x": "y"}
		if err := x.writes(web); !errors.As(err, &inRollout) || inRollout.ID != "one" || !strings.Contains(err.Error(), "svcctl fleet rollout undo") {
			t.Errorf("a write to an object in a rollout: %v", err)
		}
		if err := takesOld(x, "thief"); err == nil {
			t.Error("an address that some boxes serve is given to another Service")
		}
		if _, err := x.BeginStaged(pending.Head{ID: "two"}, time.Hour); !errors.As(err, &inRollout) {
			t.Errorf("a second rollout: %v", err)
		}
	}
	r, err := b.Write(store.Write{Ref: serviceRef("late"), Object: service("late"), Create: true, By: store.Caller{Rollout: "one"}})
	if err != nil || !errors.Is(r[0].Err, pending.ErrStagedOver) {
		t.Errorf("a late write of the rollout: %v %v", err, r)
	}
	if err := b.writes(slice("web-2", "web", "10.1.0.7")); err != nil {
		t.Fatal(err)
	}
	have("other endpoints come to all", map[string]string{"a": " 10.1.0.1 10.1.0.7;  10.1.0.2; none; as it was", "b": "new 10.1.0.9 10.1.0.7; none;  10.1.0.3; the new one"})
	if r, err := b.Write(store.Write{Ref: sliceRef("web-2"), Delete: true}); err != nil || r[0].Err != nil {
		t.Fatal(err, r)
	}
	have("and go", map[string]string{"a": before, "b": after, "c": before})

	// What a controller makes of the new versions is a part of the rollout at once.
	made := slice("web-m", "web", "10.1.0.8")
	for _, want := range []string{"new 10.1.0.9 10.1.0.8", "new 10.1.0.9"} {
		puts, deletes := []object.Object{made}, []object.Ref(nil)
		if want == "new 10.1.0.9" {
			puts, deletes = nil, []object.Ref{sliceRef("web-m")}
		}
		if _, err := a.Generate("endpoints", puts, deletes); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"a": " 10.1.0.1", "b": want, "c": " 10.1.0.1"} {
			x := boxes[name]
			x.fresh(t)
			if got := x.inForce("web"); got != want {
				t.Errorf("box %s has %q, want %q", name, got, want)
			}
		}
	}

	// What controllers make for boxes outside of the step, whether it was there or not.
	generated := slice("web-g", "web", "10.1.0.5")
	for _, want := range []string{" 10.1.0.1 10.1.0.5", " 10.1.0.1 10.1.0.6", " 10.1.0.1"} {
		seen := map[string]uint64{}
		for name, x := range boxes {
			x.fresh(t)
			seen[name] = x.Changes(0).Revision
		}
		puts, deletes := []object.Object{generated}, []object.Ref(nil)
		if want == " 10.1.0.1" {
			puts, deletes = nil, []object.Ref{sliceRef("web-g")}
		}
		if err := a.GenerateBefore("endpoints", puts, deletes); err != nil {
			t.Fatal(err)
		}
		generated = slice("web-g", "web", "10.1.0.6")
		for name, want := range map[string]string{"a": want, "b": "new 10.1.0.9", "c": want} {
			x := boxes[name]
			x.fresh(t)
			if got := x.inForce("web"); got != want {
				t.Errorf("box %s has %q, want %q", name, got, want)
			}
			if changed := x.Changes(seen[name]); slices.Contains(changed.Services, "default/web") == (name == "b") {
				t.Errorf("box %s is told to look at %+v", name, changed)
			}
		}
	}

	// Boxes that start anew, the second time without etcd.
	for _, without := range []bool{false, true} {
		for _, name := range []string{"b", "c"} {
			boxes[name].stop()
		}
		if without {
			a.fresh(t)
			c.kill(0)
		}
		for _, name := range []string{"b", "c"} {
			x := open(name, boxes[name].cfg.Dir)
			boxes[name] = x
			want := map[string]string{"b": after, "c": before}[name]
			if got := strings.Join([]string{x.inForce("web"), x.inForce("old"), x.inForce("fresh"), x.secretInForce()}, "; "); got != want {
				t.Errorf("box %s started anew (without etcd: %v) with %q, want %q", name, without, got, want)
			}
		}
		if without {
			have := boxes["a"].inForce("web")
			if have != " 10.1.0.1" {
				t.Errorf("a box that is cut off programs %q", have)
			}
			c.start(0)
			c.ready()
		}
	}
	b = boxes["b"]
	for name, x := range boxes {
		eventually(t, "box "+name+" may write", func() bool { return x.create("again-"+name) == nil })
	}
	if takesOld(b, "thief") == nil {
		t.Error("after a start an address that some boxes serve is given to another Service")
	}

	// Undone from a box that it has not come to.
	x := boxes["c"]
	x.fresh(t)
	head, _ := x.PendingHead(pending.Staged)
	if _, err := x.Undo(head, store.Caller{User: "test"}); err != nil {
		t.Fatal(err)
	}
	have("undone", map[string]string{"a": before, "b": before, "c": before})
	if a.clusterIP("old") != old || metaOf(a, "old").UID != uid {
		t.Error("the Service that was deleted is another one")
	}
	if head, _ := b.PendingHead(pending.Staged); head.Phase != pending.Undone || head.Pending() {
		t.Errorf("after undo it is %s", head.Phase)
	}
	if _, err := b.Undo(head, store.Caller{}); !errors.Is(err, pending.ErrNoStaged) {
		t.Errorf("undone twice: %v", err)
	}
	same(t, a, b)
	same(t, a, x)

	begin(b, "three")
	move(b, "a", "b")
	have("two boxes have the changes", map[string]string{"a": after, "b": after, "c": before})
	a.fresh(t)
	head, _ = a.PendingHead(pending.Staged)
	if err := a.Finish(head); err != nil {
		t.Fatal(err)
	}
	have("all have it", map[string]string{"a": after, "b": after, "c": after})
	if err := takesOld(x, "heir"); err != nil {
		t.Errorf("the address is not free after the rollout: %v", err)
	}
	same(t, a, b)
	same(t, a, x)
	resp, err := c.client().Get(t.Context(), c.key("rollout/"), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || resp.Count != 1 {
		t.Errorf("etcd has %d keys of rollouts, %v", resp.Count, err)
	}
	c.hasNothingOf("s", "as it was", "the new one")

	// A box that leaves the fleet in the middle goes on alone with what it had, until somebody decides.
	if _, err := a.BeginStaged(pending.Head{ID: "four", Plan: []byte(`{"steps":["b","100%"]}`)}, time.Hour); err != nil {
		t.Fatal(err)
	}
	web := a.service("web")
	web.Spec.Ports[0].Name = "newer"
	if r, err := a.Write(store.Write{Ref: serviceRef("web"), Object: web, By: store.Caller{Rollout: "four"}}); err != nil || r[0].Err != nil {
		t.Fatal(err, r)
	}
	move(a, "b")
	x.fresh(t)
	x.stop()
	if _, err := fleet.OpenSecrets(fleet.Config{Keys: keys.keys(), Secret: store.IsSecretKey}, x.cfg.Dir); err != nil {
		t.Fatal(err)
	}
	file, err := engine.OpenFile(x.cfg.Dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	of := storeConfig
	of.Box = "c"
	alone, err := store.Open(file, of)
	if err != nil {
		t.Fatal(err)
	}
	l := &box{Store: alone}
	if got := l.inForce("web"); got != "new 10.1.0.9" {
		t.Errorf("alone it programs %q", got)
	}
	if _, err := alone.BeginStaged(pending.Head{ID: "x"}, time.Hour); !errors.Is(err, pending.ErrAlone) {
		t.Errorf("a rollout of one box: %v", err)
	}
	seen, head = alone.Changes(0).Revision, pending.Head{}
	head, _ = alone.PendingHead(pending.Staged)
	if err := alone.Finish(head); err != nil || l.inForce("web") != "newer 10.1.0.9" || !slices.Equal(alone.Changes(seen).Services, []string{"default/web"}) || alone.Revision() <= seen {
		t.Errorf("it goes on to %q, and is to look at %+v: %v", l.inForce("web"), alone.Changes(seen), err)
	}
}
