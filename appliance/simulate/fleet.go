package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/object"
)

// Verbs of a fleet. Boxes are a, b and c.
const (
	doWrite   = "write"   // BOX NAME [ADDRESS]: the client of a Service writes it at a box, with a cluster IP of its choice
	doDrop    = "drop"    // BOX NAME: the client of a Service deletes it at a box
	doCut     = "cut"     // BOX: it reaches etcd no more, and packets are lost without an answer
	doHeal    = "heal"    // BOX
	doCall    = "call"    // BOX lost|unanswered|slow|refused N: a fault of the Nth call of etcd from now on
	doCrash   = "crash"   // BOX: it is killed, and starts again with the replica as it was on the disk
	doRejoin  = "rejoin"  // BOX: it is stopped orderly, and starts again
	doEmpty   = "empty"   // BOX: it loses its data directory, and starts again
	doCompact = "compact" // etcd forgets its history
)

var (
	fleetBoxes  = []string{"a", "b", "c"}
	fleetPrefix = netip.MustParsePrefix("10.96.0.0/27") // few addresses, so that boxes compete for them
)

// GenerateFleet returns the script of a fleet for a seed.
func GenerateFleet(seed uint64) Script {
	r := rand.New(rand.NewPCG(seed, 3))
	s := Script{Seed: seed, Fleet: true}
	add := func(verb string, args ...string) { s.Events = append(s.Events, Event{verb, args}) }
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	without := map[string]bool{}
	for _, what := range []string{doCut, doCall, doCrash, doRejoin, doEmpty, doCompact} {
		without[what] = r.IntN(3) == 0
	}
	for range rounds {
		for range 8 + r.IntN(24) {
			box, name := one(fleetBoxes...), fmt.Sprintf("s%d", r.IntN(12))
			switch what := one(doWrite, doWrite, doWrite, doWrite, doWrite, doDrop, doDrop, doWait, doWait, doCut, doHeal, doCall, doCall, doCrash, doRejoin, doEmpty, doCompact); {
			case without[what]:
			case what == doWrite && r.IntN(3) == 0:
				add(doWrite, box, name, fmt.Sprintf("10.96.0.%d", 1+r.IntN(30)))
			case what == doWrite, what == doDrop:
				add(what, box, name)
			case what == doWait:
				add(doWait, one("1ms", "50ms", "400ms", "3s", "20s", "90s"))
			case what == doCall:
				add(doCall, box, one(callLost, callUnanswered, callSlow, callRefused), fmt.Sprint(1+r.IntN(6)))
			case what == doEmpty && r.IntN(3) != 0:
			case what == doCompact:
				add(what)
			default:
				add(what, box)
			}
		}
		add(doRest)
	}
	return s
}

// member is one box of a fleet, with its processes.
type member struct {
	name  string
	dir   string
	fleet *fleetRun

	mu     sync.Mutex
	link   *link         // of the process
	engine *fleet.Engine // nil: there is no process
	store  *store.Store
	end    context.CancelFunc
	done   *sync.WaitGroup
}

// fleetRun is a run of a fleet.
type fleetRun struct {
	etcd  *etcd
	boxes map[string]*member
	log   *slog.Logger
	whole int // store.Config.Whole; 0: nothing is packed

	queues  map[string]chan func() // of the client of each Service
	clients sync.WaitGroup

	mu      sync.Mutex
	allowed map[string]map[string]bool // by Service: versions that may be stored; "": none
	values  map[string][]string
	writes  int
	wrong   []string
	stats   Stats
}

// runFleet runs a script of a fleet in a directory of its own, in a bubble of testing/synctest. The error is a violated invariant.
func runFleet(s Script, dir string, log io.Writer) (Stats, error) {
	if log == nil {
		log = io.Discard
	}
	f := &fleetRun{
		etcd: newEtcd(), boxes: map[string]*member{}, queues: map[string]chan func(){}, allowed: map[string]map[string]bool{}, values: map[string][]string{},
		log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), whole: int(s.Seed / 4 % 2),
	}
	began := time.Now()
	if err := f.begin(dir); err != nil {
		return f.stats, err
	}
	ctx, end := context.WithCancel(context.Background())
	var ticker sync.WaitGroup
	ticker.Go(func() {
		for ctx.Err() == nil {
			f.etcd.expire()
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	defer ticker.Wait()
	defer end()
	defer f.stop()
	for i, e := range s.Events {
		f.stats.Events++
		fmt.Fprintf(log, "=== event %d, after %v: %s %s\n", i+1, time.Since(began), e.Verb, strings.Join(e.Args, " "))
		if err := f.do(e); err != nil {
			f.stats.Simulated = time.Since(began)
			return f.stats, fmt.Errorf("event %d (%s): %w", i+1, e.Verb, err)
		}
	}
	f.stats.Simulated = time.Since(began)
	return f.stats, nil
}

// begin makes the fleet, as svcctl fleet init does, and starts its boxes.
func (f *fleetRun) begin(dir string) error {
	c := newLink(f.etcd).client(context.Background())
	for key, value := range map[string]any{
		"fleet": map[string]any{"id": "f", "format": 4},
		"head":  map[string]any{"revision": uint64(time.Now().Unix()) << 20, "id": "h0", "box": "init", "format": 4, "digest": strings.Repeat("0", 32)},
	} {
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if _, err := c.Put(context.Background(), "svcctl/sim/"+key, string(text)); err != nil {
			return err
		}
	}
	for _, name := range fleetBoxes {
		m := &member{name: name, dir: filepath.Join(dir, name), fleet: f}
		f.boxes[name] = m
		if err := m.start(); err != nil {
			return err
		}
	}
	return nil
}

// start begins a process of a box.
func (m *member) start() error {
	link := newLink(m.fleet.etcd)
	if m.link != nil && m.link.isCut() {
		link.setCut(true)
	}
	e, err := fleet.Open(fleet.Config{
		Fleet: "sim", Box: m.name, Endpoints: []string{"http://127.0.0.1:1"}, Dir: m.dir, Settings: []byte(`{"ranges":"10.96.0.0/27"}`),
		Log: m.fleet.log.With("box", m.name), Readable: store.KnowsKey, Secret: store.IsSecretKey,
	})
	if err != nil {
		return fmt.Errorf("open the engine of %s: %w", m.name, err)
	}
	ctx, end := context.WithCancel(context.Background())
	client := hookOf[*clientv3.Client](e, "client") // no configuration has another one
	_ = (*client).Close()
	*client = link.client(context.Background())
	done := &sync.WaitGroup{}
	m.mu.Lock()
	m.link, m.end, m.done = link, end, done
	m.mu.Unlock()
	m.fleet.stats.Starts++
	done.Go(func() {
		if e.Await(ctx) != nil {
			<-ctx.Done()
			_ = e.Close()
			return
		}
		s, err := store.Open(e, store.Config{ClusterIPRanges: []netip.Prefix{fleetPrefix}, Whole: m.fleet.whole})
		if err != nil {
			m.fleet.violated("open the store of %s: %v", m.name, err)
			return
		}
		if m.fleet.whole > 0 {
			s.Pack()
		}
		m.mu.Lock()
		m.engine, m.store = e, s
		m.mu.Unlock()
		var tasks sync.WaitGroup
		tasks.Go(func() { _ = e.Run(ctx) })
		tasks.Go(func() { _ = s.Follow(ctx) })
		tasks.Wait()
		m.mu.Lock()
		m.engine, m.store = nil, nil
		m.mu.Unlock()
		_ = e.Close()
	})
	return nil
}

// isCut reports whether the link is cut.
func (l *link) isCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

// running returns the store of a box, nil while there is none.
func (m *member) running() (*fleet.Engine, *store.Store) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.engine, m.store
}

// stop ends the process of a box. One that is killed leaves the data file as it was.
func (m *member) stop(killed bool) error {
	path := filepath.Join(m.dir, "state.db")
	content, err := os.ReadFile(path)
	if killed && err == nil {
		m.link.setCut(true) // nothing outside obeys it any more
	}
	m.end()
	m.done.Wait()
	if killed && err == nil {
		return os.WriteFile(path, content, 0o600)
	}
	return nil
}

func (f *fleetRun) stop() {
	for _, name := range fleetBoxes {
		if m := f.boxes[name]; m != nil {
			m.link.setCut(false)
		}
	}
	for _, q := range f.queues {
		close(q)
	}
	f.clients.Wait()
	for _, name := range fleetBoxes {
		if m := f.boxes[name]; m != nil {
			_ = m.stop(false)
		}
	}
}

func (f *fleetRun) violated(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
}

// do carries out an event.
func (f *fleetRun) do(e Event) error {
	m := f.boxes[e.arg(0)]
	switch e.Verb {
	case doWrite, doDrop:
		f.request(m, e.arg(1), e.arg(2), e.Verb == doDrop)
	case doCut:
		f.stats.Cuts++
		m.link.setCut(true)
	case doHeal:
		m.link.setCut(false)
	case doCall:
		n := 1
		_, _ = fmt.Sscan(e.arg(2), &n)
		m.link.fault(e.arg(1), n)
	case doCrash, doRejoin, doEmpty:
		cut := m.link.isCut()
		if err := m.stop(e.Verb == doCrash); err != nil {
			return err
		}
		if e.Verb == doEmpty {
			if err := os.RemoveAll(m.dir); err != nil {
				return err
			}
		}
		m.link.setCut(cut)
		return m.start()
	case doCompact:
		f.etcd.mu.Lock()
		now := f.etcd.revision
		f.etcd.mu.Unlock()
		_ = f.etcd.compact(now)
	case doWait:
		time.Sleep(e.duration(0))
	case doRest:
		return f.rest()
	default:
		return fmt.Errorf("unknown verb")
	}
	return nil
}

// request has the client of a Service make a request, after those before. It has one client, so that there is an order.
func (f *fleetRun) request(m *member, name, address string, remove bool) {
	q := f.queues[name]
	if q == nil {
		q = make(chan func(), 1024)
		f.queues[name] = q
		f.clients.Go(func() {
			for do := range q {
				do()
			}
		})
	}
	f.writes++
	as := fmt.Sprint(f.writes)
	q <- func() { f.write(m, name, as, address, remove) }
}

// write makes a request, and notes what may be stored after its answer.
func (f *fleetRun) write(m *member, name, as, address string, remove bool) {
	m.mu.Lock()
	s, link := m.store, m.link
	m.mu.Unlock()
	if s == nil {
		return
	}
	before := link.isCut()
	ref := object.Ref{Kind: object.KindService, Namespace: "default", Name: name}
	w := store.Write{Ref: ref, By: store.Caller{User: name}, Delete: remove}
	if remove {
		as = ""
	} else {
		service := &object.Service{
			TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore},
			Metadata: object.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{version: as}},
			Spec:     object.ServiceSpec{Ports: []object.ServicePort{{Port: 80}}, ClusterIP: address},
		}
		if have, _ := s.Get(ref); have != nil {
			service.Spec.ClusterIP = have.(*object.Service).Spec.ClusterIP
		}
		w.Object = service
	}
	results, err := s.Write(w)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.allowed[name] == nil {
		f.allowed[name] = map[string]bool{"": true}
	}
	var away *engine.AwayError
	switch {
	case err == nil && results[0].Err == nil:
		f.stats.Acknowledged++
		f.allowed[name] = map[string]bool{as: true}
		if before && link.neverHealed() {
			f.wrong = append(f.wrong, fmt.Sprintf("box %s, which is cut off, has acknowledged a write of %s", m.name, name))
		}
	case err == nil, errors.As(err, &away) && !errors.Is(err, engine.ErrUnsettled):
		f.stats.Refused++
	default:
		f.stats.Open++
		f.allowed[name][as] = true
	}
}

// neverHealed reports whether the link was cut from its begin on.
func (l *link) neverHealed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.healed:
		return false
	default:
		return l.cuts == 1
	}
}

// rest ends all faults, and judges.
func (f *fleetRun) rest() error {
	f.stats.Rests++
	for _, name := range fleetBoxes {
		l := f.boxes[name].link
		l.setCut(false)
		l.mu.Lock()
		l.faults = map[int]string{}
		open := l.open
		l.mu.Unlock()
		if open > 0 {
			return fmt.Errorf("box %s: %d calls of etcd without a time limit", name, open)
		}
	}
	time.Sleep(2 * calm)
	for name, q := range f.queues {
		if len(q) > 0 {
			return fmt.Errorf("the client of %s has waited for an answer for %v", name, 2*calm)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.wrong) > 0 {
		return errors.New(f.wrong[0])
	}
	var first map[string]*object.Service
	var revision uint64
	for _, name := range fleetBoxes {
		e, s := f.boxes[name].running()
		if s == nil {
			return fmt.Errorf("box %s has not joined", name)
		}
		if st := e.State(); st.Kind != fleet.Following {
			return fmt.Errorf("box %s is %s at rest: %s", name, st.Kind, st.Why)
		}
		all := map[string]*object.Service{}
		for _, key := range s.ServiceKeys() {
			service, _, _ := s.Service(key)
			all[service.Metadata.Name] = service
		}
		if first == nil {
			first, revision = all, s.Revision()
			continue
		}
		if revision != s.Revision() {
			return fmt.Errorf("box %s stands at revision %d, box a at %d", name, s.Revision(), revision)
		}
		if !maps.EqualFunc(first, all, func(x, y *object.Service) bool {
			return reflect.DeepEqual(x.Metadata, y.Metadata) && reflect.DeepEqual(x.Spec, y.Spec)
		}) {
			return fmt.Errorf("boxes a and %s have other Services: %s and %s", name, names(first), names(all))
		}
	}
	return f.judge(first)
}

func names(all map[string]*object.Service) (text string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		text += fmt.Sprintf(" %s:%s:%s", name, all[name].Metadata.Annotations[version], all[name].Spec.ClusterIP)
	}
	return text
}

// judge compares what all boxes have with what clients were answered.
func (f *fleetRun) judge(all map[string]*object.Service) error {
	holders := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s := all[name]
		if other, twice := holders[s.Spec.ClusterIP]; twice {
			return fmt.Errorf("%s is held by %s and %s", s.Spec.ClusterIP, other, name)
		}
		holders[s.Spec.ClusterIP] = name
		now := []string{s.Metadata.UID, s.Metadata.Annotations[version], s.Spec.ClusterIP}
		if before := f.values[name]; len(before) > 0 && before[0] == now[0] && before[2] != now[2] {
			return fmt.Errorf("the cluster IP of %s changed from %s to %s", name, before[2], now[2])
		}
		f.values[name] = now
	}
	for name, allowed := range f.allowed {
		is := ""
		if s := all[name]; s != nil {
			is = s.Metadata.Annotations[version]
		}
		if !allowed[is] {
			return fmt.Errorf("%s is stored with version %q; clients were told %q", name, is, slices.Sorted(maps.Keys(allowed)))
		}
		f.allowed[name] = map[string]bool{is: true}
	}
	return nil
}
