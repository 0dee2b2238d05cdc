package discover

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/appliance/discover/consul"
	"svcctl.io/svcctl/appliance/discover/dns"
	"svcctl.io/svcctl/appliance/discover/docker"
	"svcctl.io/svcctl/appliance/discover/ledger"
	"svcctl.io/svcctl/appliance/discover/nomad"
	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/discover/targets"
	"svcctl.io/svcctl/appliance/discover/write"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

const (
	// steadyGC is the value of GOGC, unless the environment sets another. It is low because most of the heap belongs to connections, and answers make
	// little garbage. started is the time after the start at which the garbage of the first lists is returned to the system.
	steadyGC = 40
	started  = 30 * time.Second
)

// Config holds the settings of svcctl discover.
type Config struct {
	Client *client.Client
	// Node is the name of the box. It is the holder identity of the Leases.
	Node      string
	Providers []Provider
}

// Provider is a provider with the name by which annotations refer to it.
type Provider struct {
	Name, Kind string
	provider.Provider
	// Own is set for a daemon that runs on each box: svcctl discover asks the daemon of its own box only.
	Own bool
}

// asking is a provider with the state of its questions and its Lease.
type asking struct {
	Provider
	// from is the prefix of the annotation of its slices: "consul:", "docker@gw1:".
	from    string
	lease   lease
	turns   gate
	refused map[string]refusal // refused writes, by question
	// reported has the states of the last report.
	reported map[string]bool
}

// refusal is the reason why the API refused to store the endpoints of a question.
type refusal struct {
	text  string
	since time.Time
	until time.Time // when the write is tried again
}

// discovery decides which questions are asked and which EndpointSlices are written. Only the goroutine of run uses it, except for events
// and inbox.
type discovery struct {
	client *client.Client
	log    *slog.Logger
	node   string
	tasks  *errgroup.Group
	events chan seen
	wrote  chan writeResult
	inbox  *inbox

	stored    objects
	ledger    *ledger.Ledger
	providers map[string]*asking
	questions map[ledger.Asked]*question
	claims    map[string]map[ledger.Key]want // claims that the ledger has, by Service
	schedule  schedule
}

// Run asks the providers and writes EndpointSlices until ctx is done.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	tasks, ctx := errgroup.WithContext(ctx)
	d := &discovery{
		client: cfg.Client, log: log, node: cfg.Node, tasks: tasks, events: make(chan seen), wrote: make(chan writeResult), inbox: newInbox(),
		stored: newObjects(), ledger: ledger.New(time.Now()), providers: map[string]*asking{}, questions: map[ledger.Asked]*question{},
		claims: map[string]map[ledger.Key]want{}, schedule: newSchedule(),
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
			d.schedule.touch(now, key.Service)
		}
		d.flush(ctx, now)
		timer.Reset(time.Until(d.next(now)))
	}
}

// next returns the time of the next work that is due without a new answer: a write, a question or an expiry. It is at most an hour away.
func (d *discovery) next(now time.Time) time.Time {
	at := now.Add(time.Hour)
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	sooner(d.ledger.Next(now))
	if d.schedule.writing {
		return at // the rest when that is done
	}
	write := func(t time.Time) {
		if !t.IsZero() {
			sooner(later(t, d.schedule.rest))
		}
	}
	write(d.schedule.at)
	if d.stored.complete() {
		for _, p := range d.providers {
			write(p.lease.next(now))
		}
	}
	return later(at, now.Add(10*time.Millisecond))
}

// takeResults passes the new results of questions to the ledger.
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

// portless returns an error for each Service port whose targetPort is a name, if the answer has endpoints without a port number.
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

// take processes a change of objects in the store.
func (d *discovery) take(ctx context.Context, e seen) {
	now := time.Now()
	was := d.stored.complete()
	if e.all {
		d.stored.listed[e.path] = true
	}
	switch e.path {
	case pathServices:
		d.takeServices(ctx, now, e)
	case pathSlices:
		d.takeSlices(now, e)
	case pathLeases:
		d.takeLeases(ctx, now, e)
	}
	if !was && d.stored.complete() {
		d.syncAll(ctx, now)
	}
}

func (d *discovery) takeServices(ctx context.Context, now time.Time, e seen) {
	gone := map[string]*service{}
	if e.all {
		gone = maps.Clone(d.stored.services)
	}
	for _, o := range e.objects {
		svc := o.(*object.Service)
		key := svc.Metadata.Namespace + "/" + svc.Metadata.Name
		s := newService(svc)
		if e.deleted || s == nil {
			gone[key] = d.stored.services[key]
			continue
		}
		delete(gone, key)
		if before := d.stored.services[key]; before != nil && before.uid == s.uid && slices.Equal(before.wants, s.wants) {
			continue
		}
		d.stored.services[key] = s
		d.sync(ctx, now, key)
	}
	for key, before := range gone {
		if before != nil {
			delete(d.stored.services, key)
			delete(d.schedule.written, key)
			d.sync(ctx, now, key)
		}
	}
}

func (d *discovery) takeSlices(now time.Time, e seen) {
	before := d.stored.slices
	if e.all {
		d.stored.slices = map[string]map[string]storedSlice{}
	}
	for _, o := range e.objects {
		s := write.Read(o.(*object.EndpointSlice))
		if s == nil {
			continue
		}
		if stored := (storedSlice{s, revisionOf(o.GetMeta())}); e.deleted {
			d.stored.forget(stored)
		} else {
			d.stored.keep(stored)
		}
		d.schedule.touch(now, s.Namespace+"/"+s.Service)
	}
	if e.all {
		for key := range before {
			d.schedule.touch(now, key)
		}
	}
}

func (d *discovery) takeLeases(ctx context.Context, now time.Time, e seen) {
	if e.all {
		d.stored.leases = map[string]bool{}
	}
	present := map[string]*object.Lease{}
	for _, o := range e.objects {
		name, ours := strings.CutPrefix(o.GetMeta().Name, annotation.DiscoverLeasePrefix)
		if !ours {
			continue
		}
		present[o.GetMeta().Name] = o.(*object.Lease)
		name, _, _ = strings.Cut(name, ".")
		d.stored.leases[name] = !e.deleted
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
		if held != p.lease.held && d.stored.complete() {
			d.log.Info("which process asks a provider has changed", "provider", p.Name, "this", p.lease.held)
			d.syncAll(ctx, now)
		}
	}
}

func (d *discovery) syncAll(ctx context.Context, now time.Time) {
	keys := map[string]bool{}
	for key := range d.stored.services {
		keys[key] = true
	}
	for key := range d.stored.slices {
		keys[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		d.sync(ctx, now, key)
	}
}

// sync begins and ends claims of a Service (key) so that they match its annotations, and the questions of these claims.
func (d *discovery) sync(ctx context.Context, now time.Time, key string) {
	if !d.stored.complete() {
		return
	}
	wanted := map[ledger.Key]want{}
	var served, orphaned = map[string]bool{}, map[string]bool{} // ports
	if s := d.stored.services[key]; s != nil {
		for _, w := range s.wants {
			p := d.providers[w.key.Provider]
			if p != nil && p.lease.held {
				wanted[w.key] = w
			}
			if p != nil || d.stored.leases[w.key.Provider] {
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
	d.schedule.touch(now, key)
}

// fromOf returns the value of the annotation on the EndpointSlices of a claim: the provider and the question.
func (d *discovery) fromOf(k ledger.Key) string {
	return d.providers[k.Provider].from + k.Question.String()
}

// storedFor returns the stored endpoints with which a claim begins. These are the claim's own endpoints, or else the endpoints of earlier questions
// of the port, which stay in use until the new question is answered.
func (d *discovery) storedFor(service string, k ledger.Key, wanted map[ledger.Key]want) (own []provider.Endpoint) {
	var earlier []provider.Endpoint
	for _, s := range d.stored.slices[service] {
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

// isOurs reports whether an EndpointSlice with this annotation is of a provider that this process asks.
func (d *discovery) isOurs(from string) bool {
	for _, p := range d.providers {
		if p.lease.held && strings.HasPrefix(from, p.from) {
			return true
		}
	}
	return false
}

// begin starts to ask a question, unless it is asked already.
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

// end stops asking a question that has no claims.
func (d *discovery) end(of ledger.Asked) {
	if q := d.questions[of]; q != nil && len(d.ledger.Claims(of)) == 0 {
		q.stop()
		delete(d.questions, of)
	}
}

// kinds maps a kind of provider to its constructor.
var kinds = map[string]func(provider.Config) (provider.Provider, error){
	"consul": consul.New, "dns": dns.New, "docker": docker.New, "nomad": nomad.New, "targets": targets.New,
}

// providerName matches the valid names of providers, which become parts of the names of Leases.
var providerName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`) })

// Open returns the provider for a text of the form [NAME=]KIND[+URL]. It makes no connection yet.
func Open(text, node string, env map[string]string) (p Provider, err error) {
	name, spec, named := strings.Cut(text, "=")
	if !named || strings.ContainsAny(name, "+:/") { // an "=" of the URL
		name, spec = "", text
	}
	kind, url, _ := strings.Cut(spec, "+")
	p = Provider{Name: cmp.Or(name, kind), Kind: kind, Own: kind == "docker"}
	open := kinds[kind]
	switch {
	case open == nil:
		return p, fmt.Errorf("%q is no kind of provider: give one of %s, as consul or eu=consul+https://consul.eu:8501", kind, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	case !providerName().MatchString(p.Name):
		return p, fmt.Errorf("%q is no name for a provider: use lower case letters, digits and '-', at most 40", p.Name)
	}
	p.Provider, err = open(provider.Config{URL: url, Env: env, Node: node})
	return p, err
}
