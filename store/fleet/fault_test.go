package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/object"
)

// A box that dies before or after any call of a large commit leaves all of it or nothing, and the next
// one finishes it; nothing is left over.
func Test461_killed_at_each_call_of_a_large_commit(t *testing.T) {
	c := ownFleet(t)
	var names []string
	for n := range 300 {
		names = append(names, fmt.Sprintf("s%d", n))
	}
	before, after := 0, 0
	for dies := 1; ; dies++ {
		cfg := func(name string) fleet.Config {
			cfg := c.config(name)
			cfg.Fleet += fmt.Sprintf("-killed%d", dies)
			return cfg
		}
		if _, err := fleet.Init(t.Context(), cfg("init"), ""); err != nil {
			t.Fatal(err)
		}
		a := c.open(cfg("a"), storeConfig)
		var steps atomic.Int64
		a.engine.OnStep(func() {
			if steps.Add(1) >= int64(dies) {
				runtime.Goexit() // nothing more is sent
			}
		})
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			a.create(names...)
		}()
		<-finished
		// What is done beside the commit comes to its end, too.
		settled := int64(-1)
		eventually(t, "the commit and what follows it end", func() bool {
			now := steps.Load()
			done := now == settled
			settled = now
			time.Sleep(300 * time.Millisecond) // real time: no more steps are made meanwhile
			return done
		})
		whole := settled < int64(dies)
		b := c.open(cfg("b"), storeConfig)
		list, _, _ := b.List(object.KindService, "", 0)
		switch len(list) {
		case 0:
			before++
		case len(names):
			after++
		default:
			t.Fatalf("killed at step %d: %d of %d objects are there", dies, len(list), len(names))
		}
		if err := b.create("next"); err != nil {
			t.Fatalf("killed at step %d: the next commit: %v", dies, err)
		}
		if err := b.engine.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		resp, err := c.client().Get(t.Context(), "svcctl/"+b.cfg.Fleet+"/bundle/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || resp.Count != 0 {
			t.Fatalf("killed at step %d: %d parts are left over, %v", dies, resp.Count, err)
		}
		same(t, b, c.open(cfg("c"), storeConfig))
		b.stop()
		if whole {
			t.Logf("%d steps: before %d, after %d", dies-1, before, after)
			break
		}
	}
	if before < 2 || after < 2 {
		t.Errorf("%d found the state before and %d the one after: the steps are not where they should be", before, after)
	}
}

// Test462 has etcd forget its history while a box is away: the box reads what there is, and its journal begins anew.
func Test462_compaction_under_a_box_that_is_behind(t *testing.T) {
	c := startEtcd(t, 1)
	a, b := c.twoBoxes(t)
	if err := a.create("old", "gone"); err != nil {
		t.Fatal(err)
	}
	same(t, a, b)
	before := b.Revision()
	b.stop()
	if r, err := a.Write(store.Write{Ref: serviceRef("gone"), Delete: true}); err != nil || r[0].Err != nil {
		t.Fatal(err, r)
	}
	for n := range 20 {
		if err := a.create(fmt.Sprintf("s%d", n)); err != nil {
			t.Fatal(err)
		}
	}
	client := c.client()
	resp, err := client.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	b = c.open(b.cfg, storeConfig)
	eventually(t, "the box reads all again", func() bool { return b.clusterIP("s19") != "" && b.clusterIP("gone") == "" })
	same(t, a, b)
	if _, err := b.Events(before, 0); !errors.Is(err, store.ErrExpired) {
		t.Errorf("a watch from before the gap is answered with %v, want %v", err, store.ErrExpired)
	}
	if err := b.create("next"); err != nil {
		t.Fatal(err)
	}
	same(t, a, b)
}

// Another program writes below the fleet's keys: what does not fit the digest is not believed.
func Test463_objects_that_nobody_committed(t *testing.T) {
	c := ownFleet(t)
	c.init()
	a := c.open(c.withKeys("a", newKeyFile(t, 1)), storeConfig)
	if err := a.replace(t, fleet.TokenKey, "", "signs"); err != nil {
		t.Fatal(err)
	}
	if err := a.create("web"); err != nil {
		t.Fatal(err)
	}
	client := c.client()
	if _, err := client.Delete(t.Context(), c.key("object/Service/default/web")); err != nil {
		t.Fatal(err)
	}
	if a.clusterIP("web") == "" {
		t.Error("what nobody committed is followed")
	}
	// A head that does not follow on the one before has the box read everything.
	head, err := client.Get(t.Context(), c.key("head"))
	if err != nil {
		t.Fatal(err)
	}
	value := strings.Replace(string(head.Kvs[0].Value), `"id":"`, `"id":"f00`, 1)
	if _, err := client.Put(t.Context(), c.key("head"), value); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the box says so", func() bool { return a.engine.State().Kind == fleet.Damaged })
	var away *engine.AwayError
	if err := a.create("never"); !errors.As(err, &away) {
		t.Errorf("a write gave %v", err)
	}
	if a.clusterIP("web") == "" {
		t.Error("what was in force is gone")
	}
	if err := a.engine.Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what etcd has is taken", func() bool { return a.clusterIP("web") == "" })
	if id, _ := a.engine.SharedKey(fleet.TokenKey); id != "" {
		t.Error("tokens that may have been revoked are valid")
	}
	if err := a.create("web"); err != nil {
		t.Fatal(err)
	}
}

// Test464 fills etcd: writes are refused with the reason, reads go on, and all is well when there is room.
func Test464_etcd_is_full(t *testing.T) {
	c := startEtcd(t, 1)
	c.kill(0)
	c.args[0] = append(c.args[0], "--quota-backend-bytes", fmt.Sprint(4<<20))
	c.start(0)
	c.ready()
	c.init()
	a, b := c.join("a"), c.join("b")
	reports := 0
	a.engine.ReportAs(func() fleet.Report { reports++; return fleet.Report{Problems: reports} }) // another one each time
	var err error
	for n := 0; n < 1000 && err == nil; n++ {
		svc := service("big")
		svc.Metadata.Annotations = map[string]string{"x": strings.Repeat(fmt.Sprint(n%10), 100_000)}
		var r []store.Written
		if r, err = a.Write(store.Write{Ref: serviceRef("big"), Object: svc}); err == nil {
			err = r[0].Err
		}
		if errors.Is(err, store.ErrNotFound) {
			err = a.create("big")
		}
	}
	if !errors.Is(err, engine.ErrNoSpace) || !strings.Contains(err.Error(), "alarm disarm") {
		t.Fatalf("writing into a full etcd gave %v", err)
	}
	if a.clusterIP("big") == "" {
		t.Error("what was stored is not there")
	}
	eventually(t, "the box says that others see an old report of it", func() bool {
		return strings.Contains(a.engine.State().Unreported, "others see an old one: etcd is full")
	})
	if o, err := fleet.Look(t.Context(), c.config("look")); err != nil || len(o.Members) != 1 || !strings.HasSuffix(strings.Join(o.Members[0].Alarms, " "), "NOSPACE") {
		t.Errorf("the members are %+v (%v)", o.Members, err)
	}
	client := c.client()
	resp, err := client.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Defragment(t.Context(), c.urls[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "writes are accepted again", func() bool { return b.create("next") == nil })
	eventually(t, "reports, too", func() bool { return a.engine.State().Unreported == "" })
	same(t, a, b)
}

// TestADamagedReplica: the box says that all of it is in etcd.
func TestADamagedReplica(t *testing.T) {
	cfg := fleet.Config{Fleet: "test", Box: "a", Dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(cfg.Dir, "state.db"), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fleet.Joined(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "state.db, the replica of the fleet on this box, is damaged") || !strings.Contains(err.Error(), "read from etcd") {
		t.Errorf("it opens with %v", err)
	}
}

// A box of its own becomes a fleet, and a box of a fleet one of its own, with everything as it was.
func Test465_into_a_fleet_and_out_of_it(t *testing.T) {
	c := ownFleet(t)
	dir := filepath.Join(t.TempDir(), "single")
	file, err := engine.OpenFile(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	single, err := store.Open(file, storeConfig)
	if err != nil {
		t.Fatal(err)
	}
	mine := &box{Store: single, cfg: fleet.Config{Box: "single"}}
	var names []string
	for n := range 200 {
		names = append(names, fmt.Sprintf("s%d", n))
	}
	if err := mine.create(names...); err != nil {
		t.Fatal(err)
	}
	cfg := c.config("init")
	if _, err := fleet.Init(t.Context(), cfg, dir); err == nil {
		t.Fatal("a directory that a box has open was taken")
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := fleet.Init(t.Context(), cfg, dir); err != nil || n != len(names) {
		t.Fatal(n, err)
	}
	if _, err := fleet.Init(t.Context(), cfg, dir); !errors.Is(err, fleet.ErrExists) {
		t.Fatalf("a second init: %v", err)
	}
	a := c.join("a")
	same(t, mine, a)
	taken := c.config("b")
	taken.Dir = dir
	if e, err := fleet.Joined(t.Context(), taken); err == nil {
		e.Close()
		t.Error("a box joined with the data directory of a box of its own")
	} else if !strings.Contains(err.Error(), "svcctl fleet init --from") {
		t.Errorf("it is refused with %v", err)
	}
	if err := a.create("more"); err != nil {
		t.Fatal(err)
	}
	revision, address := a.Revision(), a.clusterIP("more")
	a.stop()
	file, err = engine.OpenFile(a.cfg.Dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	out, err := store.Open(file, storeConfig)
	if err != nil {
		t.Fatal(err)
	}
	if again := (&box{Store: out}).clusterIP("more"); again != address || out.Revision() != revision {
		t.Errorf("outside of the fleet it has %s at %d, inside %s at %d", again, out.Revision(), address, revision)
	}
}

// Clocks that are an hour off change neither the order nor who holds what.
func Test466_clocks_an_hour_off(t *testing.T) {
	c := ownFleet(t)
	c.init()
	at := func(name string, off time.Duration) *box {
		of := storeConfig
		of.Clock = func() time.Time { return time.Now().Add(off) }
		return c.open(c.config(name), of)
	}
	ahead, behind := at("ahead", time.Hour), at("behind", -time.Hour)
	last := uint64(0)
	for n := range 10 {
		b := []*box{ahead, behind}[n%2]
		if err := b.create(fmt.Sprintf("s%d", n)); err != nil {
			t.Fatal(err)
		}
		if b.Revision() <= last || b.Revision() > last+10 && last != 0 {
			t.Fatalf("revision %d follows on %d", b.Revision(), last)
		}
		last = b.Revision()
	}
	same(t, ahead, behind)
	for n := range 9 {
		older, younger := ahead.InForce().Since("default/"+fmt.Sprintf("s%d", n)), ahead.InForce().Since("default/"+fmt.Sprintf("s%d", n+1))
		if older.Of("", zeroPort) >= younger.Of("", zeroPort) {
			t.Errorf("s%d is not older than s%d", n, n+1)
		}
	}
	o, _ := behind.Get(serviceRef("s9"))
	if created := *o.GetMeta().CreationTimestamp; created.After(time.Now()) {
		t.Errorf("the box that is behind made an object of %s, by the clock of the other one", created)
	}
}

// The members of etcd are killed, stopped and all killed at once under boxes that write: what was
// acknowledged is there, nothing is half there, and who read saw it (porcupine).
func Test467_members_of_etcd_are_killed(t *testing.T) {
	c := startEtcd(t, 3)
	c.init()
	boxes := []*box{c.join("a"), c.join("b"), c.join("c")}
	const keys = 4
	for k := range keys {
		if err := boxes[0].create(fmt.Sprintf("k%d", k)); err != nil {
			t.Fatal(err)
		}
	}
	h := &history{began: time.Now()}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for client := range 6 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				b, key := boxes[client%len(boxes)], fmt.Sprintf("k%d", (client+n)%keys)
				if n%3 == 0 {
					h.read(ctx, client, b, key)
				} else {
					h.write(client, b, key, fmt.Sprintf("%d-%d", client, n))
				}
			}
		})
	}
	// Each box has to get on between the faults.
	progress := func(what string) {
		done := h.acknowledged()
		eventually(t, "writes go on after "+what, func() bool { return h.acknowledged() > done+20 })
	}
	progress("the start")
	leader := c.leader()
	c.kill(leader)
	progress("the leader was killed")
	c.start(leader)
	leader = c.leader()
	if err := c.members[leader].Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	progress("the leader was stopped")
	if err := c.members[leader].Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for i := range c.members {
		c.kill(i)
	}
	for i := range c.members {
		c.start(i)
	}
	progress("all were killed")
	stop()
	wg.Wait()
	for _, b := range boxes {
		eventually(t, "all boxes follow", func() bool { return b.engine.State().Kind == fleet.Following })
	}
	for k := range keys {
		for client, b := range boxes {
			h.read(t.Context(), 10+client, b, fmt.Sprintf("k%d", k))
		}
	}
	for _, b := range boxes {
		same(t, boxes[0], b)
	}
	t.Logf("%d operations, %d acknowledged writes, %d without an answer", len(h.ops), h.acknowledged(), h.unknown)
	h.check(t)
}

// leader is the member that leads.
func (c *cluster) leader() (leader int) {
	c.t.Helper()
	client := c.client()
	eventually(c.t, "etcd has a leader", func() bool {
		for i, url := range c.urls {
			ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
			resp, err := client.Status(ctx, url)
			cancel()
			if err == nil && resp.Leader == resp.Header.MemberId {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}
