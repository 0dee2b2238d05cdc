package discover

import (
	"context"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/appliance/discover/ledger"
	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/discover/write"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

const (
	// joined is the least time between two writes: the first answer is written at once, and those that come after it together.
	joined = 50 * time.Millisecond
	// writeEach is the least time between two writes for one Service: a provider that flaps must not fill the journal.
	writeEach = 200 * time.Millisecond
	// steadyGC is GOGC: most of the heap is connections, and little garbage comes of an answer. started is the time of a start.
	steadyGC = 40
	started  = 30 * time.Second
	// refusedRetry is after what time a slice that the API refused is written again.
	refusedRetry = 30 * time.Second
)

// Config holds the settings of the process.
type Config struct {
	Client *client.Client
	// Node is the name of the box, which its Leases are held by.
	Node      string
	Providers []Provider
}

// Provider is a provider with the name that annotations have for it.
type Provider struct {
	Name, Kind string
	provider.Provider
	// Own is set for a daemon of the box: each box asks its own.
	Own bool
}

// asking is a provider with the state of asking it.
type asking struct {
	Provider
	// from begins the annotation of its slices: "consul:", "docker@gw1:".
	from    string
	lease   lease
	turns   gate
	refused map[string]refusal // by question
}

// refusal is why the API did not take the endpoints of a question.
type refusal struct {
	text  string
	since time.Time
	until time.Time // it is written again
}

// discovery decides which questions are asked and which slices are written. Only the goroutine of run uses it, except events and inbox. It has more than 15
// fields: those of one decision about objects, answers and writes, which only make sense together.
type discovery struct {
	client *client.Client
	log    *slog.Logger
	node   string
	tasks  *errgroup.Group
	events chan seen
	inbox  *inbox

	ledger    *ledger.Ledger
	providers map[string]*asking
	questions map[ledger.Asked]*question

	listed   map[string]bool // by path
	services map[string]*service
	slices   map[string]map[string]storedSlice // by Service, by name
	claims   map[string]map[ledger.Key]want    // begun ones, by Service
	leases   map[string]bool                   // the names of all providers with a Lease

	dirty   map[string]bool // Services whose slices may have to be written
	flushAt time.Time       // zero: nothing is to be written
	restAt  time.Time       // until then nothing is written
	written map[string]time.Time
	writing bool
	wrote   chan writeResult
	retry   pauses
}

// Run follows the providers until ctx is done.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	tasks, ctx := errgroup.WithContext(ctx)
	d := &discovery{
		client: cfg.Client, log: log, node: cfg.Node, tasks: tasks, events: make(chan seen), inbox: newInbox(),
		ledger: ledger.New(time.Now()), providers: map[string]*asking{}, questions: map[ledger.Asked]*question{},
		listed: map[string]bool{}, services: map[string]*service{}, slices: map[string]map[string]storedSlice{}, claims: map[string]map[ledger.Key]want{}, leases: map[string]bool{},
		dirty: map[string]bool{}, written: map[string]time.Time{}, wrote: make(chan writeResult),
	}
	for _, p := range cfg.Providers {
		a := &asking{Provider: p, from: p.Name + ":", refused: map[string]refusal{}}
		a.lease.object = leaseName(p.Name, "")
		if p.Own {
			a.from, a.lease.object = p.Name+"@"+cfg.Node+":", leaseName(p.Name, cfg.Node)
		}
		d.providers[p.Name] = a
	}
	ours := url.Values{"labelSelector": {object.LabelManagedBy + "=" + object.ManagedByDiscover}}
	tasks.Go(func() error {
		return d.follow(ctx, pathServices, nil, func() object.Object { return &object.Service{} })
	})
	tasks.Go(func() error {
		return d.follow(ctx, pathSlices, ours, func() object.Object { return &object.EndpointSlice{} })
	})
	tasks.Go(func() error { return d.follow(ctx, pathLeases, nil, func() object.Object { return &object.Lease{} }) })
	tasks.Go(func() error { return d.run(ctx) })
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(steadyGC)
	}
	small := time.AfterFunc(started, debug.FreeOSMemory) // the lists of the start are garbage
	defer small.Stop()
	return tasks.Wait()
}

func (d *discovery) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			for _, p := range d.providers {
				p.lease.changed = true // a state may have lasted long enough for a report
			}
		case <-d.inbox.wake:
		case e := <-d.events:
			d.take(ctx, e)
		case r := <-d.wrote:
			d.finish(r)
		}
		now := time.Now()
		d.takeResults()
		d.ledger.Tick(now)
		for _, of := range d.ledger.Again(now) {
			if q := d.questions[of]; q != nil {
				q.ask()
			}
		}
		for _, key := range d.ledger.Changed() {
			d.touch(now, key.Service)
		}
		d.flush(ctx, now)
		timer.Reset(time.Until(d.next(now)))
	}
}

// next returns when something is to be done by the time alone.
func (d *discovery) next(now time.Time) time.Time {
	at := now.Add(time.Hour)
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	sooner(d.ledger.Next(now))
	if d.writing {
		return at // the rest when that is done
	}
	sooner(d.flushAt)
	if d.complete() {
		for _, p := range d.providers {
			sooner(p.lease.next(now))
		}
	}
	if least := now.Add(10 * time.Millisecond); at.Before(least) {
		return least
	}
	return at
}

// complete reports whether all objects were listed.
func (d *discovery) complete() bool {
	return d.listed[pathServices] && d.listed[pathSlices] && d.listed[pathLeases]
}

// touch has the slices of a Service compared with the wanted ones soon.
func (d *discovery) touch(now time.Time, service string) {
	d.dirty[service] = true
	d.flushBy(now)
}

// flushBy has the Services that may have changed compared at a time, or sooner.
func (d *discovery) flushBy(at time.Time) {
	if at.Before(d.restAt) {
		at = d.restAt
	}
	if d.flushAt.IsZero() || at.Before(d.flushAt) {
		d.flushAt = at
	}
}

// takeResults hands the results of questions to the ledger.
func (d *discovery) takeResults() {
	for q := range d.inbox.take() {
		of := q.of
		if d.questions[of] != q {
			continue // it was stopped
		}
		for _, r := range q.take() {
			d.providers[of.Provider].lease.changed = true
			if r.answer == nil {
				d.ledger.Fail(r.at, of, r.why)
				continue
			}
			d.ledger.Answer(r.at, of, *r.answer, append(r.bad, d.portless(of, r.answer)...))
		}
	}
}

// portless describes the ports of Services that a name is the target of, where an answer has no ports.
func (d *discovery) portless(of ledger.Asked, a *provider.Answer) (bad []string) {
	if !slices.ContainsFunc(a.Endpoints, func(e provider.Endpoint) bool { return e.Port == 0 }) {
		return nil
	}
	for _, key := range d.ledger.Claims(of) {
		if d.claims[key.Service][key].byName {
			bad = append(bad, "the answer has no ports, and the targetPort of port "+short(key.Port)+" of "+key.Service+" is a name: write its number")
		}
	}
	return bad
}

// take follows a change of objects.
func (d *discovery) take(ctx context.Context, e seen) {
	now := time.Now()
	was := d.complete()
	if e.all {
		d.listed[e.path] = true
	}
	switch e.path {
	case pathServices:
		d.takeServices(ctx, now, e)
	case pathSlices:
		d.takeSlices(now, e)
	case pathLeases:
		d.takeLeases(ctx, now, e)
	}
	if !was && d.complete() {
		d.syncAll(ctx, now)
	}
}

func (d *discovery) takeServices(ctx context.Context, now time.Time, e seen) {
	gone := map[string]bool{}
	if e.all {
		for key := range d.services {
			gone[key] = true
		}
	}
	for _, o := range e.objects {
		svc := o.(*object.Service)
		key := svc.Metadata.Namespace + "/" + svc.Metadata.Name
		s := newService(svc)
		if e.deleted || s == nil {
			gone[key] = d.services[key] != nil
			continue
		}
		delete(gone, key)
		if before := d.services[key]; before != nil && before.uid == s.uid && slices.Equal(before.wants, s.wants) {
			continue
		}
		d.services[key] = s
		d.sync(ctx, now, key)
	}
	for key, is := range gone {
		if is {
			delete(d.services, key)
			delete(d.written, key)
			d.sync(ctx, now, key)
		}
	}
}

func (d *discovery) takeSlices(now time.Time, e seen) {
	before := d.slices
	if e.all {
		d.slices = map[string]map[string]storedSlice{}
	}
	for _, o := range e.objects {
		s := write.Read(o.(*object.EndpointSlice))
		if s == nil {
			continue
		}
		d.keep(storedSlice{s, revisionOf(o.GetMeta())}, e.deleted)
		d.touch(now, s.Namespace+"/"+s.Service)
	}
	if e.all {
		for key := range before {
			d.touch(now, key)
		}
	}
}

// keep notes a slice as it is stored, unless a newer version is known.
func (d *discovery) keep(s storedSlice, deleted bool) {
	key := s.Namespace + "/" + s.Service
	if before, is := d.slices[key][s.Name]; is && before.revision > s.revision {
		return
	}
	if deleted {
		if delete(d.slices[key], s.Name); len(d.slices[key]) == 0 {
			delete(d.slices, key)
		}
		return
	}
	if d.slices[key] == nil {
		d.slices[key] = map[string]storedSlice{}
	}
	d.slices[key][s.Name] = s
}

func (d *discovery) takeLeases(ctx context.Context, now time.Time, e seen) {
	if e.all {
		d.leases = map[string]bool{}
	}
	present := map[string]*object.Lease{}
	for _, o := range e.objects {
		name, ours := strings.CutPrefix(o.GetMeta().Name, annotation.DiscoverLeasePrefix)
		if !ours {
			continue
		}
		present[o.GetMeta().Name] = o.(*object.Lease)
		name, _, _ = strings.Cut(name, ".")
		d.leases[name] = !e.deleted
	}
	for _, p := range d.providers {
		o, is := present[p.lease.object]
		if !is && !e.all {
			continue
		}
		if e.deleted {
			o = nil
		}
		held := p.lease.held
		released := p.lease.see(now, o, d.node)
		if released {
			n := d.ledger.Release(p.Name)
			d.log.Info("endpoints that were held are released", "provider", p.Name, "services", n)
			p.lease.changed = true
		}
		if held != p.lease.held && d.complete() {
			d.log.Info("which process asks a provider has changed", "provider", p.Name, "this", p.lease.held)
			d.syncAll(ctx, now)
		}
	}
}

func (d *discovery) syncAll(ctx context.Context, now time.Time) {
	keys := map[string]bool{}
	for key := range d.services {
		keys[key] = true
	}
	for key := range d.slices {
		keys[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		d.sync(ctx, now, key)
	}
}

// sync begins and ends the claims of a Service by its annotations, and the questions that they need.
func (d *discovery) sync(ctx context.Context, now time.Time, key string) {
	if !d.complete() {
		return
	}
	wanted := map[ledger.Key]want{}
	var served, orphaned = map[string]bool{}, map[string]bool{} // ports
	if s := d.services[key]; s != nil {
		for _, w := range s.wants {
			p := d.providers[w.key.Provider]
			if p != nil && p.lease.held {
				wanted[w.key] = w
			}
			if p != nil || d.leases[w.key.Provider] {
				served[w.key.Port] = true
			} else {
				orphaned[w.key.Port] = true
			}
		}
	}
	for k, w := range d.claims[key] {
		_, still := wanted[k]
		switch p := d.providers[k.Provider]; {
		case still:
		case p.lease.held && orphaned[k.Port] && !served[k.Port]:
			wanted[k] = w // the annotation names unknown providers alone: what it named before stays
		default:
			d.ledger.Drop(k)
			d.end(k.Asked)
		}
	}
	for k, w := range wanted {
		if !d.ledger.Has(k) {
			d.ledger.Claim(now, k, w.terms, d.storedFor(key, k, wanted))
		} else {
			d.ledger.Claim(now, k, w.terms, nil)
		}
		d.begin(ctx, k.Asked)
		d.providers[k.Provider].lease.changed = true
	}
	if d.claims[key] = wanted; len(wanted) == 0 {
		delete(d.claims, key)
	}
	d.touch(now, key)
}

// fromOf is the annotation of the slices of a claim.
func (d *discovery) fromOf(k ledger.Key) string {
	return d.providers[k.Provider].from + k.Question.String()
}

// storedFor returns the endpoints that a claim begins with: its own that are stored, or else those of earlier questions of the port,
// which stay until the new one is answered.
func (d *discovery) storedFor(service string, k ledger.Key, wanted map[ledger.Key]want) (own []provider.Endpoint) {
	var earlier []provider.Endpoint
	for _, s := range d.slices[service] {
		switch {
		case s.Port != k.Port:
		case s.From == d.fromOf(k):
			own = append(own, s.Endpoints...)
		case d.isOurs(s.From) && !d.isWanted(s.Slice, wanted):
			earlier = append(earlier, s.Endpoints...)
		}
	}
	if len(own) > 0 {
		return own
	}
	return earlier
}

func (d *discovery) isWanted(s *write.Slice, wanted map[ledger.Key]want) bool {
	for k := range wanted {
		if k.Port == s.Port && d.fromOf(k) == s.From {
			return true
		}
	}
	return false
}

// isOurs reports whether this process asks the provider that the endpoints of a slice are from.
func (d *discovery) isOurs(from string) bool {
	for _, p := range d.providers {
		if p.lease.held && strings.HasPrefix(from, p.from) {
			return true
		}
	}
	return false
}

// begin has a question asked.
func (d *discovery) begin(ctx context.Context, of ledger.Asked) {
	if d.questions[of] != nil {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	q := &question{of: of, stop: stop, to: d.inbox}
	d.questions[of] = q
	p := d.providers[of.Provider]
	d.tasks.Go(func() error {
		q.run(ctx, p.Provider, &p.turns)
		return nil
	})
}

// end ends a question that no claim is on.
func (d *discovery) end(of ledger.Asked) {
	if q := d.questions[of]; q != nil && len(d.ledger.Claims(of)) == 0 {
		q.stop()
		delete(d.questions, of)
	}
}
