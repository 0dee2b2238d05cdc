package parts

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Discovered reports problems of endpoints that `svcctl discover` reads from providers. It derives them from the reports that the processes of svcctl
// discover write into Leases.
type Discovered struct {
	reconcile.NopPart
	store     *store.Store
	providers *Providers
	planned   chan struct{}

	mu       sync.Mutex
	asks     map[string][]asked // by Service
	leases   map[string]report  // by name of the Lease
	problems []resolve.Problem
	outdated bool      // asks or leases have changed since problems was computed
	due      time.Time // when problems changes although no event occurs; zero: never
}

// asked is a source of endpoints that an annotation of a Service names. since is the time at which this process first saw it.
type asked struct {
	field  string
	source annotation.Source
	since  time.Time
}

// report is the newest report of svcctl discover about a provider, from a Lease.
type report struct {
	provider, node string
	holder         string
	version        string
	seen           time.Time // when this process first saw this version
	lasts          time.Duration
	wire.Discovered
}

// discoverPatience is how long svcctl discover may take until its first report about a provider; after that a problem is reported.
const discoverPatience = 10 * time.Second

// NewDiscovered returns a Discovered that reads the Leases of objects. It passes the names of the providers in them to providers.
func NewDiscovered(objects *store.Store, providers *Providers) *Discovered {
	return &Discovered{store: objects, providers: providers, planned: make(chan struct{}, 1), asks: map[string][]asked{}, leases: map[string]report{}, outdated: true}
}

// Name implements reconcile.Part.
func (d *Discovered) Name() string { return "discovered endpoints" }

// Planned implements reconcile.Part.
func (d *Discovered) Planned(_ *reconcile.Host, services []reconcile.Service) {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := false
	for _, svc := range services {
		o, _, _ := d.store.InForce().Service(svc.Key)
		var now []asked
		before := d.asks[svc.Key]
		if o != nil && annotation.HasSources(o.Metadata.Annotations) {
			for _, p := range o.Spec.Ports {
				field := annotation.EndpointsFrom
				if _, own := o.Metadata.Annotations[field+"."+p.Name]; own {
					field += "." + p.Name
				}
				for _, s := range annotation.Sources(o, p.Name) {
					a := asked{annotation.Field(field), s, time.Now()}
					same := func(x asked) bool { return x.field == a.field && x.source == s }
					if slices.ContainsFunc(now, same) {
						continue
					}
					if i := slices.IndexFunc(before, same); i >= 0 {
						a = before[i]
					}
					now = append(now, a)
				}
			}
		}
		if slices.Equal(now, before) {
			continue
		}
		changed = true
		if d.asks[svc.Key] = now; len(now) == 0 {
			delete(d.asks, svc.Key)
		}
	}
	if changed {
		d.outdated = true
		task.Wake(d.planned)
	}
}

// Run implements reconcile.Part.
func (d *Discovered) Run(ctx context.Context) error {
	for {
		published := d.store.PublishedEphemeral() // before the Leases are read
		var late <-chan time.Time
		if due := d.look(time.Now()); !due.IsZero() {
			late = time.After(time.Until(due))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-published:
		case <-d.planned:
		case <-late:
		}
	}
}

// look reads the Leases and updates the problems. It returns the time at which the problems will change without a new Lease, or the zero Time if they
// will not.
func (d *Discovered) look(now time.Time) (due time.Time) {
	all, _, err := d.store.List(object.KindLease, annotation.DiscoverLeaseNamespace, 0)
	if err != nil {
		return now.Add(time.Second) // the newest revision is there: it does not happen
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	leases := map[string]report{}
	for _, o := range all {
		lease, is := o.(*object.Lease)
		if rest, ours := strings.CutPrefix(o.GetMeta().Name, annotation.DiscoverLeasePrefix); is && ours {
			before := d.leases[o.GetMeta().Name]
			if before.version != lease.Metadata.ResourceVersion {
				before = report{version: lease.Metadata.ResourceVersion, seen: now, lasts: time.Minute}
				before.provider, before.node, _ = strings.Cut(rest, ".")
				before.holder = object.Deref(lease.Spec.HolderIdentity)
				if s := lease.Spec.LeaseDurationSeconds; s != nil {
					before.lasts = time.Duration(*s) * time.Second
				}
				_ = json.Unmarshal([]byte(lease.Metadata.Annotations[annotation.EndpointsState]), &before.Discovered) // a broken one reports nothing
			}
			leases[o.GetMeta().Name] = before
		}
	}
	if !maps.EqualFunc(leases, d.leases, func(a, b report) bool { return a.version == b.version }) {
		d.outdated = true
	}
	if !d.outdated && (d.due.IsZero() || now.Before(d.due)) {
		return d.due // most are of other Leases
	}
	d.leases, d.outdated, d.due = leases, false, time.Time{}
	var known []string
	for _, r := range leases {
		known = append(known, r.provider)
	}
	slices.Sort(known)
	known = slices.Compact(known)
	d.providers.known.Store(&known)
	if len(d.asks) == 0 && d.problems == nil {
		return d.due
	}
	var problems []resolve.Problem
	problems, d.due = d.judge(now)
	if !reflect.DeepEqual(problems, d.problems) {
		d.problems = problems
		d.Changed()
	}
	return d.due
}

// judge derives the problems from the Leases. due is the time at which the problems will change without a new Lease, or the zero Time if they will
// not.
func (d *Discovered) judge(now time.Time) (problems []resolve.Problem, due time.Time) {
	sooner := func(at time.Time) {
		if due.IsZero() || at.Before(due) {
			due = at
		}
	}
	names := slices.Sorted(maps.Keys(d.leases))
	byProvider := map[string][]string{}
	of := map[string][]map[string]bool{} // the questions of each state, by Lease
	for _, name := range names {
		r := d.leases[name]
		byProvider[r.provider] = append(byProvider[r.provider], name)
		for _, s := range r.States {
			set := map[string]bool{}
			for _, q := range s.Of {
				set[q] = true
			}
			of[name] = append(of[name], set)
			if s.State == wire.DiscoveredHeld && len(d.asks) > 0 {
				problems = append(problems, resolve.Problem{Reason: reasonEndpointsHeld, Message: fmt.Sprintf(
					"%d of %d Services have no endpoint in the answers of %s any more, since %s; as that may be an accident, they stay in force: put the provider right, or confirm with `svcctl confirm --removals` that they are to go",
					s.Services, r.Services, r.name(), stampOf(s.Since))})
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.asks)) {
		for _, a := range d.asks[key] {
			add := func(reason, cause, format string, args ...any) {
				problems = append(problems, resolve.Problem{Object: object.ServiceRef(key), Field: a.field, Reason: reason, Warning: true, Cause: cause, Message: fmt.Sprintf(format, args...)})
			}
			reports := byProvider[a.source.Provider]
			if patient := a.since.Add(discoverPatience); len(reports) == 0 && now.Before(patient) {
				sooner(patient)
			} else if len(reports) == 0 {
				why := d.providers.unknown(a.source.Provider, slices.Sorted(maps.Keys(byProvider)))
				add(reasonEndpointsNotRead, why, "%s", why)
			}
			for _, name := range reports {
				r := d.leases[name]
				if ends := r.seen.Add(r.lasts); now.Before(ends) {
					sooner(ends)
				} else {
					why := fmt.Sprintf("svcctl discover on %s does not report on %s any more, since %s", cmp.Or(r.holder, "another box"), r.name(), stampOf(r.seen))
					add(reasonEndpointsStale, why, "%s: the endpoints of then stay; start it with %s", why, d.providers.Packaged.Discover())
					continue
				}
				question := strings.TrimPrefix(a.source.String(), a.source.Provider+":")
				for i, s := range r.States {
					if set := of[name][i]; len(set) > 0 && !set[question] || len(set) == 0 && len(r.States[i].Of) > 0 {
						continue
					}
					cause := r.name() + ": " + s.Why
					switch s.State {
					case wire.DiscoveredUnread:
						add(reasonEndpointsNotRead, cause, "%s has not answered since %s: the stored endpoints stay", r.name(), stampOf(s.Since))
					case wire.DiscoveredStale:
						add(reasonEndpointsStale, cause, "%s has no answer since %s (%s): the endpoints of then stay", r.name(), stampOf(s.Since), s.Why)
					case wire.DiscoveredEmpty:
						add(reasonEndpointsEmpty, r.name(), "the answer to %q is empty since %s; endpoints that it had before stay until answers were empty for 30 s", a.source.String(), stampOf(s.Since))
					case wire.DiscoveredHeld:
						add(reasonEndpointsEmpty, r.name(), "the answer to %q is empty since %s, with those of most Services: the endpoints are held until `svcctl confirm --removals`", a.source.String(), stampOf(s.Since))
					case wire.DiscoveredBad:
						add("BadEndpointAddress", "", "a part of the answer to %q is left out: %s", a.source.String(), s.Why)
					}
				}
			}
		}
	}
	return problems, due
}

// Providers extends the rules of a store: it adds a remark to Services that name a provider which no process of svcctl discover reads.
type Providers struct {
	store.Rules
	Packaged wire.Packaged
	known    atomic.Pointer[[]string] // sorted names of providers; nil: no Leases read yet
}

// Remarks implements store.Rules.
func (p *Providers) Remarks(o object.Object) []annotation.Remark {
	list := p.Rules.Remarks(o)
	svc, is := o.(*object.Service)
	known := p.known.Load()
	if !is || known == nil || !annotation.HasSources(svc.Metadata.Annotations) {
		return list
	}
	for _, port := range svc.Spec.Ports {
		for _, s := range annotation.Sources(svc, port.Name) {
			if _, found := slices.BinarySearch(*known, s.Provider); !found {
				return append(list, annotation.Remark{Field: annotation.Field(annotation.EndpointsFrom), Text: p.unknown(s.Provider, *known)})
			}
		}
	}
	return list
}

// unknown returns the text of the remark about a provider that no process of svcctl discover reads.
func (p *Providers) unknown(provider string, known []string) string {
	if len(known) == 0 {
		return fmt.Sprintf("%q is asked by no process: start it with %s", provider, p.Packaged.Discover())
	}
	return fmt.Sprintf("%q is no provider of svcctl discover: it has %s (--from)", provider, strings.Join(known, ", "))
}

// name returns the provider of a report. If each box has a provider of its own, the name of the box is included.
func (r *report) name() string {
	if r.node != "" {
		return r.provider + " of " + r.node
	}
	return r.provider
}

func stampOf(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Reasons of problems with endpoints from providers.
const (
	reasonEndpointsNotRead = "EndpointsNotRead"
	reasonEndpointsStale   = "EndpointsStale"
	reasonEndpointsEmpty   = "EndpointsEmpty"
	reasonEndpointsHeld    = "MassRemovalHeld"
)

// Problems implements reconcile.Part.
func (d *Discovered) Problems() []resolve.Problem {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.problems
}

// Held returns the number of Services with endpoints that stay in use after a mass removal, until the removal is confirmed.
func (d *Discovered) Held() (services int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.leases {
		services += r.held()
	}
	return services
}

// held returns the number of Services that a report lists as held.
func (r *report) held() (services int) {
	for _, s := range r.States {
		if s.State == wire.DiscoveredHeld {
			services += s.Services
		}
	}
	return services
}

// Release confirms the removal of held endpoints, and returns the number of their Services. It writes the confirmation into the Leases, from which
// the processes of svcctl discover read it.
func (d *Discovered) Release(now time.Time) (services int, err error) {
	d.mu.Lock()
	leases := maps.Clone(d.leases)
	d.mu.Unlock()
	for name, r := range leases {
		held := r.held()
		ref := object.Ref{Kind: object.KindLease, Namespace: annotation.DiscoverLeaseNamespace, Name: name}
		stored, _ := d.store.Get(ref)
		if held == 0 || stored == nil {
			continue
		}
		o := object.DeepCopy(stored)
		if o.GetMeta().Annotations == nil {
			o.GetMeta().Annotations = map[string]string{}
		}
		o.GetMeta().Annotations[annotation.EndpointsReleased] = now.UTC().Format(time.RFC3339Nano)
		results, err := d.store.Write(store.Write{Ref: ref, Object: o})
		if err == nil {
			err = results[0].Err
		}
		if err != nil {
			return services, fmt.Errorf("release the endpoints of %s: %w", r.name(), err)
		}
		services += held
	}
	return services, nil
}
