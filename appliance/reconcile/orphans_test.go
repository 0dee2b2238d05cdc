package reconcile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// lose is a new process on a data directory that is new, and the kernel as it was.
func (r *rig) lose() {
	r.engine = faulty.NewMemory()
	r.start()
	r.host()
}

// file is r.write and a step.
func (r *rig) file(path, text string) {
	r.write(path, text)
	r.step()
}

// automatic is web without a cluster IP of its own choice.
func automatic(name, endpoint string) string {
	return strings.Replace(web(name, "X", endpoint), "clusterIP: X, ", "", 1)
}

// sticky is web with session affinity and a node port.
func sticky(name, ip, endpoint string) string {
	return strings.Replace(web(name, ip, endpoint), "spec: {", "spec: {type: NodePort, sessionAffinity: ClientIP, ", 1)
}

// When the data directory is lost, what the kernel serves and no object declares stays in force,
// over a restart too; what is declared is programmed, and changes.
func TestLostDataDirectory(t *testing.T) {
	r := newRig(t)
	r.host()
	for i := range 30 {
		r.client(store.Write{Object: parse(t, web(fmt.Sprintf("c%d", i), fmt.Sprintf("10.96.1.%d", i), "10.1.0.1"), 0), Create: true})
		r.client(store.Write{Object: parse(t, web(fmt.Sprintf("c%d", i), fmt.Sprintf("10.96.1.%d", i), "10.1.0.1"), 1), Create: true})
	}
	r.client(store.Write{Object: parse(t, sticky("cart", "10.96.3.1", "10.1.0.7"), 0), Create: true})
	r.client(store.Write{Object: parse(t, sticky("cart", "10.96.3.1", "10.1.0.7"), 1), Create: true})
	r.write("manifests/named.yaml", web("named", "10.96.2.1", "10.1.0.2"))
	r.file("manifests/auto.yaml", automatic("auto", "10.1.0.3"))
	before, commits := r.text(), r.kernel.Commits()
	auto, _, _ := r.store.Service("default/auto")

	for range 3 { // and again, as long as no operator decides about it
		r.lose()
		r.write("manifests/named.yaml", web("named", "10.96.2.1", "10.1.0.2"))
		r.file("manifests/auto.yaml", automatic("auto", "10.1.0.3"))
		if got := r.text(); got != before || r.kernel.Commits() != commits {
			t.Fatalf("%d commits, the ruleset is\n%s\nand was\n%s", r.kernel.Commits()-commits, got, before)
		}
		s := r.board.Status()
		// 30 clients' Services, a cluster IP and a node port.
		if !r.hasProblem(reasonOrphans) || s.UnknownFrontends != 32 || s.Errors() != 1 || !s.Synced {
			t.Fatalf("%d unknown frontends, problems %v, synced %v", s.UnknownFrontends, s.Problems, s.Synced)
		}
		r.step()
	}
	if now, _, _ := r.store.Service("default/auto"); now.Spec.ClusterIP != auto.Spec.ClusterIP {
		t.Errorf("a Service of a file has %s and had %s", now.Spec.ClusterIP, auto.Spec.ClusterIP)
	}
	// What the box is like goes on to be followed, and what others do is undone.
	r.kernel.Tamper(func(rs nft.Ruleset) { clear(rs) })
	r.observed.tampered = true
	r.step()
	if got := r.text(); got != before {
		t.Errorf("after a flush the ruleset is\n%s\nand was\n%s", got, before)
	}

	// What is declared changes, and others get other addresses.
	r.file("manifests/named.yaml", web("named", "10.96.2.1", "10.1.0.9"))
	r.want("10.96.2.1 . tcp . 80 . 0 : 10.1.0.9 . 8080", "10.96.1.7 . tcp . 80 . 0 : 10.1.0.1 . 8080")
	for i := range 40 {
		r.client(store.Write{Object: parse(t, automatic(fmt.Sprintf("new%d", i), "10.1.0.4"), 0), Create: true})
		svc, _, _ := r.store.Service(fmt.Sprintf("default/new%d", i))
		if strings.HasPrefix(svc.Spec.ClusterIP, "10.96.1.") {
			t.Fatalf("a new Service got %s, which is in force for another one", svc.Spec.ClusterIP)
		}
	}
	// A client declares one of its own again.
	r.client(store.Write{Object: parse(t, web("c7", "10.96.1.7", "10.1.0.8"), 0), Create: true})
	r.client(store.Write{Object: parse(t, web("c7", "10.96.1.7", "10.1.0.8"), 1), Create: true})
	r.step()
	r.want("10.96.1.7 . tcp . 80 . 0 : 10.1.0.8 . 8080", "!10.96.1.7 . tcp . 80 . 1 ", "10.96.1.8 . tcp . 80 . 0 : 10.1.0.1 . 8080")
	if n := r.board.Status().UnknownFrontends; n != 31 {
		t.Errorf("%d unknown frontends, want 31", n)
	}
	// A restart keeps on holding, with what is declared now; one does not come back when its
	// Service goes.
	r.client(store.Write{Ref: object.Ref{Kind: object.KindService, Namespace: "default", Name: "c7"}, Delete: true})
	r.step()
	r.want("!10.96.1.7 .")
	after, files := r.text(), r.files
	r.start()
	r.host()
	r.files = files
	r.file("manifests/x.yaml", "# nothing")
	if got := r.text(); got != after || r.board.Status().UnknownFrontends != 31 || !r.hasProblem(reasonOrphans) {
		t.Errorf("after a restart %d unknown frontends, problems %v, and the ruleset is\n%s\nand was\n%s",
			r.board.Status().UnknownFrontends, r.board.Status().Problems, got, after)
	}

	if released := r.release(); released.Frontends != 31 {
		t.Errorf("%+v released", released)
	}
	r.step()
	r.want("!10.96.1.", "!10.96.3.1", "!default/cart", "10.96.2.1 . tcp . 80 . 0 : 10.1.0.9 . 8080")
	if s := r.board.Status(); len(s.Problems) != 0 || s.UnknownFrontends != 0 || r.store.HasReserved() {
		t.Errorf("after the release: %+v", s)
	}
	r.start()
	r.host()
	r.file("manifests/x.yaml", "# nothing more")
	if r.hasProblem(reasonOrphans) {
		t.Error("it is held again after a restart")
	}
}

// A first start is none of that, on a box without tables or with empty ones; nor is one after
// the tables were removed, or with --allow-mass-removal.
func TestFirstStartHoldsNothing(t *testing.T) {
	r := newRig(t)
	r.host()
	r.file("manifests/a.yaml", web("a", "10.96.1.1", "10.1.0.1"))
	if r.planner.orphans != nil || r.store.HasReserved() {
		t.Error("a first start looks like a loss")
	}
	r.lose()
	if r.planner.orphans == nil {
		t.Fatal("a loss looks like a first start")
	}
	r.kernel.Tamper(func(rs nft.Ruleset) { clear(rs) }) // svcctl down
	r.start()
	if r.planner.orphans != nil || r.store.HasReserved() {
		t.Error("something is held that is not in the kernel")
	}
	r.host()
	r.file("manifests/a.yaml", web("a", "10.96.1.1", "10.1.0.1"))
	objects, err := store.Open(faulty.NewMemory(), r.cfg.Store())
	if err != nil {
		t.Fatal(err)
	}
	if o, err := FindOrphans(objects, r.kernel.Read, r.cfg.Box(nil), true, r.log); o != nil || err != nil {
		t.Errorf("with --allow-mass-removal: %v, %v", o, err)
	}
}

// The last Service that a client deletes is no loss of data, even if the process ends before the
// kernel has heard of it.
func TestLastServiceDeletedAndKilled(t *testing.T) {
	r := newRig(t)
	r.host()
	r.client(store.Write{Object: parse(t, web("a", "10.96.1.1", "10.1.0.1"), 0), Create: true})
	r.file("manifests/x.yaml", "# nothing")
	r.client(store.Write{Ref: object.Ref{Kind: object.KindService, Namespace: "default", Name: "a"}, Delete: true})
	r.start()
	r.host()
	r.file("manifests/x.yaml", "# nothing")
	r.want("!10.96.1.1")
	if r.hasProblem(reasonOrphans) {
		t.Error("it is held")
	}
}

// Test887 has a commit of a box of a fleet wait for etcd when nothing is to be reserved any more: each step of the loop ends
// meanwhile, and has done all of its work.
func Test887_the_loop_does_not_wait_for_a_commit(t *testing.T) {
	r := newRig(t)
	r.host()
	r.client(store.Write{Object: parse(t, web("a", "10.96.1.1", "10.1.0.1"), 0), Create: true})
	r.client(store.Write{Object: parse(t, web("a", "10.96.1.1", "10.1.0.1"), 1), Create: true})
	r.file("manifests/b.yaml", web("b", "10.96.2.1", "10.1.0.2"))
	r.shared = true
	r.lose()
	r.file("manifests/b.yaml", "# nothing")
	if released := r.release(); released.Frontends != 2 {
		t.Fatalf("%+v released", released)
	}
	held, letGo := make(chan struct{}), make(chan struct{})
	r.engine.Inject(func(engine.Transaction) faulty.Fault {
		close(held)
		<-letGo
		return faulty.NoFault
	})
	written := make(chan error, 1)
	go func() {
		_, err := r.store.Write(store.Write{Object: configMap("default", "slow"), Ref: object.RefOf(configMap("default", "slow")), Create: true})
		written <- err
	}()
	<-held
	within := func(what string) {
		t.Helper()
		r.observed.unsynced = false // in a fleet files are stored beside the loop
		done := make(chan struct{})
		go func() { r.step(); close(done) }()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatalf("%s: the loop waits for the commit", what)
		}
	}
	within("what is released goes")
	r.want("!10.96.1.1", "!10.96.2.1")
	if r.store.HasReserved() || r.planner.orphans != nil {
		t.Error("values are still reserved")
	}
	r.kernel.Tamper(func(rs nft.Ruleset) { clear(rs) })
	r.observed.tampered = true
	within("what was removed is healed")
	select {
	case err := <-written:
		t.Fatalf("the commit came to its end: %v", err)
	default:
	}
	close(letGo)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

// A store that cannot forget it is asked again, later and later, and its error stays until then.
func TestUnreserveIsTriedAgain(t *testing.T) {
	r := newRig(t)
	r.host()
	r.client(store.Write{Object: parse(t, web("a", "10.96.1.1", "10.1.0.1"), 0), Create: true})
	r.client(store.Write{Object: parse(t, web("a", "10.96.1.1", "10.1.0.1"), 1), Create: true})
	r.file("manifests/x.yaml", "# nothing")
	r.lose()
	r.file("manifests/x.yaml", "# nothing")
	r.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Refuse })
	r.release()
	r.observed.unsynced = false
	var before time.Duration
	for range 3 {
		r.step()
		if r.wait <= before || !r.store.HasReserved() || r.board.Status().Synced {
			t.Fatalf("tried again in %v after %v, reserved %v, %+v", r.wait, before, r.store.HasReserved(), r.board.Status())
		}
		before = r.wait
	}
	r.engine.Inject(nil)
	r.step()
	if r.wait != 0 || r.store.HasReserved() || r.planner.orphans != nil {
		t.Errorf("tried again in %v, reserved %v", r.wait, r.store.HasReserved())
	}
}

// parse is one of the documents of a text.
func parse(t *testing.T, text string, n int) object.Object {
	t.Helper()
	file := manifest.Decode("client", []byte(text), manifest.DefaultLimits())
	if len(file.Documents) <= n {
		t.Fatalf("%s: %v", text, file.Problems)
	}
	return file.Documents[n].Object
}

// What the kernel serves is no problem before the files have been read, which declare it.
func TestStartReportsNothingBeforeTheFilesAreRead(t *testing.T) {
	r := newRig(t)
	r.host()
	text := web("web", "10.96.0.10", "10.1.0.1")
	r.file("manifests/a.yaml", text)
	r.lose()
	r.step() // the addresses of the host are known, the files are not
	if s := r.board.Status(); len(s.Problems) > 0 || s.Ready {
		t.Errorf("ready %t, problems %v", s.Ready, s.Problems)
	}
	r.file("manifests/a.yaml", text)
	if s := r.board.Status(); len(s.Problems) > 0 || !s.Synced || strings.Contains(r.logged.String(), reasonOrphans) {
		t.Errorf("synced %t, problems %v\n%s", s.Synced, s.Problems, r.logged.String())
	}
}
