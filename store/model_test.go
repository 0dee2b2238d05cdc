package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

const (
	modelLives   = 5  // from one crash to the next
	modelWriters = 16 // at the same time
	modelReaders = 4  // beside the one that sees everything
)

// A model is what a watcher knows that has only seen events.
type model struct {
	t       *testing.T
	objects map[object.Ref]string // JSON
	seen    []uint64
	texts   map[uint64]string // of the events, by revision
	cursor  uint64
	// whole is set when the model began empty, so that all of the state is known.
	whole bool
	// mayMiss is set when the history is so short that there may be a gap; missed counts them.
	mayMiss bool
	missed  int
}

// seeds is how many seeds of a random test run: all of them in the lane SEEDED of the Makefile, a sixteenth of them with -short, a quarter otherwise.
func seeds(all uint64) uint64 {
	if os.Getenv("SVCCTL_SEEDS") == "all" {
		return all
	}
	if testing.Short() {
		return (all + 15) / 16
	}
	return (all + 3) / 4
}

func newModel(t *testing.T, cursor uint64, mayMiss bool) *model {
	return &model{t: t, mayMiss: mayMiss, objects: map[object.Ref]string{}, texts: map[uint64]string{}, cursor: cursor}
}

func jsonOf(o object.Object) string {
	if o == nil {
		return ""
	}
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// follow takes events in, and checks that each goes on where the last one of its object ended.
func (m *model) follow(events []Event) {
	for _, e := range events {
		if e.Revision <= m.cursor {
			m.t.Errorf("revision %d comes after %d", e.Revision, m.cursor)
		}
		old, now := jsonOf(e.Old), jsonOf(e.New)
		if known, has := m.objects[e.Ref]; (has || m.whole) && old != known {
			m.t.Errorf("%d: %s was\n%s\nknown is\n%s", e.Revision, e.Ref, old, known)
		}
		if old == now || e.New != nil && e.New.GetMeta().ResourceVersion != fmt.Sprint(e.Revision) {
			m.t.Errorf("%d: %s: became %s", e.Revision, e.Ref, now)
		}
		m.objects[e.Ref], m.cursor = now, e.Revision
		m.seen = append(m.seen, e.Revision)
		m.texts[e.Revision] = e.Ref.String() + old + now
	}
}

// compare holds what the store lists, as of the model's revision, against the model.
func (m *model) compare(s *Store) {
	for kind := range storedKinds {
		list, _, err := s.List(kind, "", m.cursor)
		if errors.Is(err, ErrExpired) {
			return
		}
		if err != nil {
			m.t.Error(err)
		}
		n := 0
		for _, o := range list {
			if m.objects[object.RefOf(o)] != jsonOf(o) {
				m.t.Errorf("at %d: %s is %s", m.cursor, object.RefOf(o), jsonOf(o))
			}
			n++
		}
		for ref, text := range m.objects {
			if ref.Kind == kind && text != "" {
				n--
			}
		}
		if n != 0 || !slices.IsSortedFunc(list, compareObjects) {
			m.t.Errorf("at %d: %d more of %s than known, in order %t", m.cursor, n, kind, slices.IsSortedFunc(list, compareObjects))
		}
	}
}

// look makes everything that there is what is known, as who has missed something has to.
func (m *model) look(s *Store) error {
	kinds := slices.Sorted(maps.Keys(storedKinds))
	_, at, err := s.List(kinds[0], "", 0)
	if err != nil {
		return err
	}
	objects := map[object.Ref]string{}
	for _, kind := range kinds {
		list, _, err := s.List(kind, "", at)
		if err != nil {
			return err
		}
		for _, o := range list {
			objects[object.RefOf(o)] = jsonOf(o)
		}
	}
	m.objects, m.cursor, m.whole = objects, at, true
	m.missed++
	return nil
}

// pull reads in portions until done is closed and there is nothing more.
func (m *model) pull(s *Store, r *rand.Rand, done <-chan struct{}) {
	for {
		published := s.Published()
		events, err := s.Events(m.cursor, r.IntN(20))
		for m.mayMiss && errors.Is(err, ErrExpired) {
			err = m.look(s)
		}
		if err != nil {
			m.t.Error(err)
			return
		}
		m.follow(events)
		if m.whole && r.IntN(10) == 0 {
			m.compare(s)
		}
		if len(events) > 0 {
			continue
		}
		select {
		case <-published:
		case <-done:
			if s.Revision() == m.cursor {
				return
			}
		}
	}
}

// acknowledged are the changes that a writer was told of, by revision.
type acknowledged struct {
	mu   sync.Mutex
	made map[uint64]string
}

func (a *acknowledged) add(w Write, written Written) {
	if written.Err != nil || written.Removed || w.DryRun {
		return
	}
	var revision uint64
	fmt.Sscan(written.Object.GetMeta().ResourceVersion, &revision)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.made[revision] = jsonOf(written.Object)
}

// randomWrite is something that a client may ask for, sensible or not.
func randomWrite(t *testing.T, s *Store, r *rand.Rand) Write {
	kinds := slices.Sorted(maps.Keys(storedKinds))
	kind := kinds[r.IntN(len(kinds))]
	if r.IntN(2) == 0 {
		kind = object.KindService
	}
	namespace := ""
	if storedKinds[kind] {
		namespace = fmt.Sprint("n", r.IntN(2))
	}
	o := made(t, kind, namespace, fmt.Sprint("x", r.IntN(6)))
	if kind == object.KindNamespace {
		o.GetMeta().Name = fmt.Sprint("n", r.IntN(2))
	}
	w := Write{Ref: object.RefOf(o), Object: o, By: Caller{User: fmt.Sprint(r.IntN(3))}, DryRun: r.IntN(8) == 0}
	if stored, _ := s.Get(w.Ref); stored != nil && r.IntN(4) > 0 {
		w.Object = object.DeepCopy(stored)
		if r.IntN(2) == 0 {
			w.Version = stored.GetMeta().ResourceVersion
		}
	}
	meta := w.Object.GetMeta()
	meta.Labels = map[string]string{"v": fmt.Sprint(r.IntN(5))}
	if r.IntN(6) == 0 {
		meta.Finalizers = []string{"example.com/a"}
	} else {
		meta.Finalizers = nil
	}
	if svc, ok := w.Object.(*object.Service); ok {
		svc.Spec.Type = []string{object.TypeClusterIP, object.TypeNodePort, object.TypeLoadBalancer}[r.IntN(3)]
		svc.Spec.ExternalTrafficPolicy, svc.Spec.AllocateLoadBalancerNodePorts = "", nil
	}
	switch r.IntN(6) {
	case 0, 1:
		w.Object, w.Delete = nil, true
	case 2:
		w.Status = true
		if svc, ok := w.Object.(*object.Service); ok {
			svc.Status.Conditions = []object.Condition{{Type: "Ready", Status: "True", Reason: fmt.Sprint("R", r.IntN(5)), LastTransitionTime: s.now()}}
		}
	case 3:
		w.Create = true
	}
	return w
}

// randomFiles are some of the objects that clients write to, as files have them.
func randomFiles(r *rand.Rand) map[string]*manifest.File {
	files := map[string]*manifest.File{}
	for _, path := range []string{"a.yaml", "b.yaml", "c.yaml"} {
		text := ""
		for range r.IntN(3) {
			text += fmt.Sprintf("n%d/x%d {type: %s}\n", r.IntN(2), r.IntN(6), []string{"ClusterIP", "NodePort", "LoadBalancer"}[r.IntN(3)])
		}
		files[path] = manifest.Decode(path, []byte(yamlOf(text)), manifest.DefaultLimits())
	}
	return files
}

// Every change is seen once and in order, by whoever looks from wherever on, whatever
// happens at the same time; and what was acknowledged is there after a crash.
func TestModel(t *testing.T) {
	for seed := range seeds(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { runModel(t, seed, journal.DefaultBounds()) })
	}
}

// The same with a history so short that readers have to look anew now and then.
func TestModelOfShortHistory(t *testing.T) {
	if missed := runModel(t, 5, journal.Bounds{Entries: 40, Bytes: 1 << 20, Recent: 5}); missed == 0 {
		t.Error("nobody has missed anything: that is no test")
	}
}

func runModel(t *testing.T, seed uint64, most journal.Bounds) (missed int) {
	r := rand.New(rand.NewPCG(seed, 7))
	b := newBox(t, smallPool, func(c *Config) { c.NewUID = randomUIDs() })
	mayMiss := most != journal.DefaultBounds()
	all := newModel(t, b.s.Revision(), mayMiss)
	all.whole = true
	acks := &acknowledged{made: map[uint64]string{}}
	var others []*model
	for life := range modelLives {
		b.bound(most)
		fault := []faulty.Fault{faulty.CrashBefore, faulty.CrashAfter}[r.IntN(2)]
		commit, commits := 50+r.IntN(250), 0
		b.engine.Inject(func(engine.Transaction) faulty.Fault {
			if commits++; commits >= commit {
				return fault
			}
			return faulty.NoFault
		})
		others = append(others, b.live(all, acks, seed*100+uint64(life))...)
		checkInvariants(t, b.s)
		if s := b.s.Revision(); s != all.cursor {
			t.Errorf("life %d: the store is at %d, seen is %d", life, s, all.cursor)
		}
		b.restart()
	}
	done := make(chan struct{})
	close(done)
	all.pull(b.s, r, done)
	all.compare(b.s)
	checkInvariants(t, b.s)
	for revision, text := range acks.made {
		seen, has := all.texts[revision]
		if !has && mayMiss {
			continue
		}
		if len(seen) < len(text) || seen[len(seen)-len(text):] != text {
			t.Errorf("%d was acknowledged as\n%s\nand seen as\n%s", revision, text, seen)
		}
	}
	if len(acks.made) < 100 || !mayMiss && len(all.seen) < len(acks.made) {
		t.Errorf("%d acknowledged, %d seen: that is no test", len(acks.made), len(all.seen))
	}
	missed = all.missed
	for _, m := range others {
		if missed += m.missed; !mayMiss {
			compareSuffix(t, all, m)
		}
	}
	return missed
}

// compareSuffix checks that a model has seen the same as one that has seen everything, from
// where it began to where it ended.
func compareSuffix(t *testing.T, all, m *model) {
	t.Helper()
	if len(m.seen) == 0 {
		return
	}
	from, found := slices.BinarySearch(all.seen, m.seen[0])
	if !found || len(all.seen) < from+len(m.seen) || !slices.Equal(all.seen[from:from+len(m.seen)], m.seen) {
		t.Errorf("a reader from %d on has seen other changes", m.seen[0])
	}
	for revision, text := range m.texts {
		if text != all.texts[revision] {
			t.Errorf("%d: one has seen\n%s\nanother\n%s", revision, text, all.texts[revision])
		}
	}
}

// live runs writers and readers until the engine crashes.
func (b *box) live(all *model, acks *acknowledged, seed uint64) []*model {
	t := b.t.(*testing.T)
	done := make(chan struct{})
	var writers, readers sync.WaitGroup
	dead := func(err error) bool {
		if err != nil && !errors.Is(err, faulty.ErrInjected) {
			t.Error(err)
		}
		return err != nil
	}
	for i := range modelWriters {
		writers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for {
				writes := make([]Write, 1+r.IntN(3))
				for i := range writes {
					writes[i] = randomWrite(t, b.s, r)
				}
				results, err := b.s.Write(writes...)
				if dead(err) {
					return
				}
				for i := range results {
					acks.add(writes[i], results[i])
				}
			}
		})
	}
	crashed := make(chan struct{})
	readers.Go(func() {
		for r := rand.New(rand.NewPCG(seed, 50)); ; {
			select {
			case <-crashed: // while clients have all the names, files change nothing that could fail
				return
			default:
			}
			if _, err := b.s.SyncFiles(manifest.FilesOf(randomFiles(r))); dead(err) {
				return
			}
		}
	})
	readers.Go(func() { all.pull(b.s, rand.New(rand.NewPCG(seed, 60)), done) })
	others := make([]*model, modelReaders)
	for i := range others {
		r := rand.New(rand.NewPCG(seed, uint64(70+i)))
		b.s.mu.RLock()
		from, entries := b.s.feed.journal.Since(), b.s.feed.journal.Entries()
		if n := r.IntN(len(entries) + 1); n > 0 {
			from = entries[n-1].Revision
		}
		b.s.mu.RUnlock()
		others[i] = newModel(t, from, all.mayMiss)
		readers.Go(func() { others[i].pull(b.s, r, done) })
	}
	writers.Wait()
	close(crashed)
	close(done)
	readers.Wait()
	return others
}
