package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/fleet/stream"
	"svcctl.io/svcctl/store/object"
)

// serve has a box answer leaves, as its API does, and returns the URL.
func (b *box) serve(t testing.TB) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(b.engine.Commits(func(*http.Request) string { return "" }))
	t.Cleanup(func() { cutOff(s) })
	return s
}

// cutOff ends a server with all of its connections.
func cutOff(s *httptest.Server) {
	s.Listener.Close()
	s.CloseClientConnections()
}

// leaf is a box that follows core boxes. It has nothing of etcd.
func (c *cluster) leaf(name string, cores ...string) *box {
	c.t.Helper()
	return c.open(c.leafConfig(name, cores...), storeConfig)
}

func (c *cluster) leafConfig(name string, cores ...string) fleet.Config {
	cfg := c.config(name)
	cfg.Endpoints, cfg.Cores = nil, cores
	return cfg
}

// said has what an Engine logs.
type said struct {
	slog.Handler
	reloads *atomic.Int64
}

func (s said) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "reads all of the fleet's objects again") {
		s.reloads.Add(1)
	}
	return s.Handler.Handle(ctx, r)
}

func countReloads(cfg *fleet.Config) *atomic.Int64 {
	n := &atomic.Int64{}
	cfg.Log = slog.New(said{cfg.Log.Handler(), n})
	return n
}

// Over the death of its core box, and over that of the next one, a leaf has each commit, in order, once.
func Test600_a_leaf_follows_over_the_death_of_its_core_box(t *testing.T) {
	c, a, b := twoBoxes(t, "web")
	servers := []*httptest.Server{a.serve(t), b.serve(t)}
	cfg := c.leafConfig("leaf", servers[0].URL, servers[1].URL)
	reloads := countReloads(&cfg)
	l := c.open(cfg, storeConfig)
	same(t, a, l)
	from := l.Revision()
	stop := b.createOn(t)
	has := func(n int) func() bool {
		return func() bool { return l.clusterIP(fmt.Sprintf("s%d", n)) != "" }
	}
	eventually(t, "the leaf follows", has(20))
	for i := range servers { // the one that it follows, and then the other one
		if servers[i].URL == l.engine.Core() {
			servers[0], servers[1] = servers[i], servers[1-i]
			break
		}
	}
	first := servers[0].URL
	cutOff(servers[0])
	eventually(t, "it follows the other one", func() bool { return l.engine.Core() != first })
	at := l.Revision()
	eventually(t, "it goes on", func() bool { return l.Revision() > at+20 })
	names := stop()
	same(t, b, l)
	l.hasEach(t, names, from)
	if n := reloads.Load(); n > 0 {
		t.Errorf("the leaf has read all objects %d times", n)
	}
}

// createOn creates Services one after the other until stop, which returns their names in order.
func (b *box) createOn(t *testing.T) (stop func() (names []string)) {
	writing, ended := make(chan struct{}), make(chan error, 1)
	var names []string
	go func() {
		for n := 0; ; n++ {
			select {
			case <-writing:
				ended <- nil
				return
			default:
			}
			name := fmt.Sprintf("s%d", n)
			if err := b.create(name); err != nil {
				ended <- err
				return
			}
			names = append(names, name)
		}
	}()
	return func() []string {
		t.Helper()
		close(writing)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		return names
	}
}

// hasEach fails the test unless the changes of a leaf since a revision are those of these objects, in order and once.
func (b *box) hasEach(t *testing.T, names []string, since uint64) {
	t.Helper()
	events, err := b.Events(since, 0)
	if err != nil {
		t.Fatalf("the journal of the leaf has a gap: %v", err)
	}
	if len(events) != len(names) {
		t.Errorf("the journal of the leaf has %d changes of %d", len(events), len(names))
	}
	for i, e := range events {
		if i < len(names) && e.Ref.Name != names[i] {
			t.Fatalf("change %d is of %s, and was of %s", i, e.Ref.Name, names[i])
		}
	}
}

// A leaf starts without a core box, from its replica, and says so; it writes nothing itself, and goes on where it was.
func Test601_a_leaf_without_a_core_box(t *testing.T) {
	c, a, _ := twoBoxes(t, "web")
	server := a.serve(t)
	l := c.leaf("leaf", server.URL)
	address := a.clusterIP("web")
	if l.clusterIP("web") != address {
		t.Fatalf("the leaf has %q", l.clusterIP("web"))
	}
	var away *engine.AwayError
	if err := l.create("never"); !errors.As(err, &away) || !strings.Contains(err.Error(), "leaf") || !strings.Contains(err.Error(), server.URL) {
		t.Errorf("a write on a leaf gave %v", err)
	}
	if err := l.Fresh(t.Context()); err != nil {
		t.Errorf("a fresh read: %v", err)
	}
	if l.engine.HasTurn() {
		t.Error("a leaf has the turn")
	}
	cutOff(server)
	eventually(t, "the leaf says that it is cut off", func() bool {
		s := l.engine.State()
		return s.Kind == fleet.CutOff && strings.Contains(s.Why, "core boxes") && l.clusterIP("web") == address
	})
	if err := l.Fresh(t.Context()); !errors.As(err, &away) {
		t.Errorf("a fresh read without a core box gave %v", err)
	}
	l.stop()
	if err := a.create("later"); err != nil {
		t.Fatal(err)
	}
	l = c.open(l.cfg, storeConfig)
	if l.clusterIP("web") != address || l.clusterIP("later") != "" {
		t.Fatal("the start did not begin with the replica")
	}
	l.stop()
	l.cfg.Cores = []string{a.serve(t).URL}
	reloads := countReloads(&l.cfg)
	l = c.open(l.cfg, storeConfig)
	eventually(t, "the leaf goes on", func() bool { return l.clusterIP("later") != "" })
	same(t, a, l)
	if reloads.Load() > 0 {
		t.Error("it has read all objects, and could have followed")
	}
	eventually(t, "the leaf is one of the boxes", func() bool {
		all, err := l.engine.Boxes(t.Context())
		for _, b := range all {
			if err == nil && b.Box == "leaf" && b.Present && b.Core == l.cfg.Cores[0] && b.State == fleet.Following {
				return true
			}
		}
		return false
	})
	l.stop()
	eventually(t, "the leaf is away", func() bool {
		all, _ := a.engine.Boxes(t.Context())
		for _, b := range all {
			if b.Box == "leaf" {
				return !b.Present
			}
		}
		return false
	})
}

// A leaf that was away for longer than etcd keeps its history reads all objects, and takes over what differs.
func Test602_a_leaf_that_fell_behind_reads_what_differs(t *testing.T) {
	c := startEtcd(t, 1)
	a, _ := c.twoBoxes(t, "web", "gone")
	server := a.serve(t)
	defer cutOff(server)
	cfg := c.leafConfig("leaf", server.URL)
	l := c.open(cfg, storeConfig)
	address := l.clusterIP("web")
	l.stop()
	if err := a.create("new"); err != nil {
		t.Fatal(err)
	}
	if r, err := a.Write(store.Write{Ref: serviceRef("gone"), Delete: true}); err != nil || r[0].Err != nil {
		t.Fatal(err, r)
	}
	resp, err := c.client().Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.client().Compact(t.Context(), resp.Header.Revision); err != nil {
		t.Fatal(err)
	}
	l = c.open(cfg, storeConfig)
	eventually(t, "the leaf has caught up", func() bool { return l.clusterIP("new") != "" })
	if l.clusterIP("gone") != "" || l.clusterIP("web") != address {
		t.Errorf("gone has %q, web %q", l.clusterIP("gone"), l.clusterIP("web"))
	}
	same(t, a, l)
	if err := a.create("next"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it follows on", func() bool { return l.clusterIP("next") != "" })

	// So does one that lacks more than a core box keeps.
	l.stop()
	a.engine.LimitStream(1)
	for n := range 3 {
		if err := a.create(fmt.Sprintf("many%d", n)); err != nil {
			t.Fatal(err)
		}
	}
	reloads := countReloads(&cfg)
	l = c.open(cfg, storeConfig)
	eventually(t, "it has caught up again", func() bool { return l.clusterIP("many2") != "" })
	same(t, a, l)
	if reloads.Load() == 0 {
		t.Error("it was told more than is kept")
	}
}

// While no leaf follows, a core box keeps nothing for them; with some it keeps one log for all.
func Test605_a_core_box_without_leaves_keeps_nothing(t *testing.T) {
	c, a, b := twoBoxes(t, "web")
	server := a.serve(t)
	kept := func(log bool, readers int) func() bool {
		return func() bool {
			has, n := a.engine.Kept()
			return has == log && n == readers
		}
	}
	if !kept(false, 0)() {
		t.Fatal("it keeps something before there was a leaf")
	}
	l, m := c.leaf("l", server.URL), c.leaf("m", server.URL)
	eventually(t, "both follow", kept(true, 2))
	if err := b.create("one"); err != nil {
		t.Fatal(err)
	}
	same(t, a, l)
	same(t, a, m)
	l.stop()
	eventually(t, "one is left", kept(true, 1))
	m.stop()
	eventually(t, "nothing is kept", kept(false, 0))
	if err := b.create("two"); err != nil {
		t.Fatal(err)
	}
	if !kept(false, 0)() {
		t.Error("a commit has it keep something")
	}
}

// What a core box holds, its leaves hold, and say so with its words; what it accepts, they take over.
func Test609_a_leaf_holds_what_its_core_box_holds(t *testing.T) {
	c, a, b := twoBoxes(t, "web")
	cores := []string{a.serve(t).URL, b.serve(t).URL}
	l := c.leaf("leaf", cores...)
	if err := a.create("extra"); err != nil {
		t.Fatal(err)
	}
	same(t, a, l)
	// The head goes back by a commit, as after a snapshot of etcd.
	client := c.client()
	got, err := client.Get(t.Context(), c.key("head"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(got.Kvs[0].Value)
	revision := fmt.Sprintf(`"revision":%d`, a.Revision())
	if !strings.Contains(text, revision) {
		t.Fatalf("the head %s is not of %s", text, revision)
	}
	if _, err := client.Put(t.Context(), c.key("head"), strings.Replace(text, revision, fmt.Sprintf(`"revision":%d`, a.Revision()-1), 1)); err != nil {
		t.Fatal(err)
	}
	for _, box := range []*box{a, b, l} {
		eventually(t, box.cfg.Box+" holds", func() bool { return box.engine.State().Kind == fleet.WentBack })
	}
	if s := l.engine.State(); !strings.Contains(s.Why, "svcctl fleet accept") || !strings.Contains(s.Why, "core box") {
		t.Errorf("the leaf says %q", s.Why)
	}
	if l.clusterIP("extra") == "" {
		t.Error("the leaf has let something go")
	}
	if err := a.engine.Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, box := range []*box{a, b, l} {
		eventually(t, box.cfg.Box+" follows", func() bool { return box.engine.State().Kind == fleet.Following })
	}
	if err := b.create("after"); err != nil {
		t.Fatal(err)
	}
	same(t, b, l)

	// A leaf of another fleet is none of this one.
	l.stop()
	other := c.config("other")
	other.Fleet += "-second"
	if _, err := fleet.Init(t.Context(), other, ""); err != nil {
		t.Fatal(err)
	}
	o := c.open(other, storeConfig)
	l.cfg.Cores = []string{o.serve(t).URL}
	l = c.open(l.cfg, storeConfig)
	eventually(t, "the leaf says that it is another fleet", func() bool { return l.engine.State().Kind == fleet.OtherOne })
	if l.clusterIP("after") == "" {
		t.Error("the leaf has let something go")
	}
	l.stop()

	// A leaf with the name of another box.
	same2 := c.leaf("a", cores...)
	eventually(t, "the leaf says that it is a namesake", func() bool { return same2.engine.State().Kind == fleet.Namesake })
	list, _, _ := same2.List(object.KindService, "", 0)
	if len(list) == 0 {
		t.Error("it does not follow")
	}
}

// Secrets reach a leaf sealed: one with the key of the fleet has them, one without says what it lacks and has all else.
func TestSecretsReachALeafSealed(t *testing.T) {
	c := ownFleet(t)
	c.init()
	file := newKeyFile(t, 1)
	a := c.open(c.withKeys("a", file), storeConfig)
	server := a.serve(t)
	cfg := c.leafConfig("with", server.URL)
	cfg.Keys = file.keys()
	with, without := c.open(cfg, storeConfig), c.leaf("without", server.URL)
	if err := a.putSecret("s", "a value that nobody else has"); err != nil {
		t.Fatal(err)
	}
	if err := a.create("web"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the leaf with the key has it", func() bool { return with.secret("s") == "a value that nobody else has" })
	eventually(t, "the leaf without it says so", func() bool {
		return without.engine.State().Kind == fleet.KeyMissing && without.clusterIP("web") != "" && without.secret("s") == ""
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+fleet.CommitsPath+"/state", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "gzip") // it comes packed, as it is
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for frames, has := stream.NewDecoder(resp.Body), false; ; {
		f, err := frames.Next()
		if err != nil {
			t.Fatal(err)
		}
		if f.Kind == stream.End {
			if !has {
				t.Error("the state has no Secret")
			}
			break
		}
		for _, op := range f.Ops {
			has = has || strings.Contains(op.Key, "/Secret/")
			if strings.Contains(string(op.Value), "nobody else") || strings.Contains(string(op.Value), "YSB2YWx1ZSB0aGF0") {
				t.Errorf("the state has the value in %s", op.Key)
			}
		}
	}
}
