package discover

import (
	"encoding/json"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

const (
	// leaseLasts is the time without a renewal after which another process takes over. leaseRenewed is the interval of renewals. They are rare
	// because each takes an entry of the bounded journal. The endpoints of a provider stay while no process asks it.
	leaseLasts   = 60 * time.Second
	leaseRenewed = 20 * time.Second
	// reportEvery is the least time between two reports.
	reportEvery = 2 * time.Second
)

// lease is the state of the Lease of a provider, which names the process that asks it and holds its report.
type lease struct {
	object string // name of the Lease

	stored   *object.Lease // the stored Lease; nil if there is none
	since    time.Time     // when stored was received
	held     bool
	report   string    // the report in stored
	changed  bool      // the report may have changed
	looked   time.Time // when the report was last compared with the stored one
	released string    // last seen value of the annotation EndpointsReleased
	listed   bool
}

// leaseName returns the name of a provider's Lease. node is the box, for a provider that each box asks for itself, else "".
func leaseName(provider, node string) string {
	if node == "" {
		return annotation.DiscoverLeasePrefix + provider
	}
	return annotation.DiscoverLeasePrefix + provider + "." + strings.ToLower(node)
}

// see records the stored Lease o, which is nil if it was deleted. released reports whether an operator has confirmed that the retained endpoints may
// be removed: this process is the holder, and the annotation EndpointsReleased differs from that of the previous Lease. It is false for the first
// Lease.
func (l *lease) see(now time.Time, o *object.Lease, me string) (released bool) {
	l.stored, l.since = o, now
	if o == nil {
		l.held, l.report = false, ""
		return false
	}
	l.held = l.holder() == me
	l.report = o.Metadata.Annotations[annotation.EndpointsState]
	at := o.Metadata.Annotations[annotation.EndpointsReleased]
	released = l.listed && at != "" && at != l.released && l.held
	l.released, l.listed = at, true
	return released
}

// holder returns the name of the box with the process that asks the provider; "" if there is none.
func (l *lease) holder() string {
	if l.stored == nil {
		return ""
	}
	return object.Deref(l.stored.Spec.HolderIdentity)
}

// next returns the time at which the desired Lease must be compared with the stored one again. It is at least a second after the last comparison,
// since the API may have refused the write.
func (l *lease) next(now time.Time) time.Time {
	at, again := l.looked, l.looked.Add(time.Second)
	switch {
	case l.holder() == "":
	case !l.held:
		at = l.since.Add(leaseLasts)
	default:
		if at = l.renewal(now); l.changed && l.looked.Add(reportEvery).Before(at) {
			at = l.looked.Add(reportEvery)
		}
	}
	return later(at, again)
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// renewal returns the time at which a Lease that this process holds must be renewed. It counts from the last renewal even if a previous process made
// that, so that a restart writes nothing.
func (l *lease) renewal(now time.Time) time.Time {
	at := l.since
	if r := l.stored.Spec.RenewTime; r != nil && r.Before(at) && now.Sub(r.Time) < leaseLasts {
		at = r.Time
	}
	return at.Add(leaseRenewed)
}

// desired returns the Lease that this process wants to store.
func (l *lease) desired(now time.Time, me, report string) *object.Lease {
	o := &object.Lease{TypeMeta: object.TypeMeta{Kind: object.KindLease, APIVersion: "coordination.k8s.io/v1"}}
	o.Metadata.Name, o.Metadata.Namespace = l.object, annotation.DiscoverLeaseNamespace
	o.Metadata.Annotations = map[string]string{annotation.EndpointsState: report}
	lasts, renewed := int32(leaseLasts/time.Second), object.MicroTime{Time: now.UTC()}
	o.Spec = object.LeaseSpec{HolderIdentity: &me, LeaseDurationSeconds: &lasts, AcquireTime: &renewed, RenewTime: &renewed}
	if l.stored != nil {
		o.Metadata.ResourceVersion = l.stored.Metadata.ResourceVersion
		if l.held && l.stored.Spec.AcquireTime != nil {
			o.Spec.AcquireTime = l.stored.Spec.AcquireTime
		}
	}
	return o
}

// reportOf returns the report about a provider in JSON, for its Lease.
func (d *discovery) reportOf(now time.Time, p *asking) string {
	r := wire.Discovered{Kind: p.Kind}
	r.States, r.Services = d.ledger.Report(now, p.Name)
	for i := range r.States {
		r.States[i].Since = r.States[i].Since.UTC().Truncate(time.Second)
	}
	for from, why := range p.refused {
		r.States = append(r.States, wire.DiscoveredState{State: wire.DiscoveredStale, Why: why.text, Since: why.since.UTC().Truncate(time.Second), Services: 1, Of: []string{from}})
	}
	before := p.reported
	p.reported = map[string]bool{}
	for _, s := range r.States {
		reason := s.State + " " + s.Why
		if p.reported[reason] = true; !before[reason] {
			d.log.Warn("a provider has no answer that can be used: endpoints stay", "provider", p.Name, "state", s.State, "why", s.Why, "services", s.Services)
		}
	}
	if len(before) > 0 && len(r.States) == 0 {
		d.log.Info("a provider answers again", "provider", p.Name)
	}
	text, _ := json.Marshal(r)     // of strings and numbers
	if len(text) > longestReport { // names of questions are long: without them
		for i := range r.States {
			r.States[i].Of = nil
		}
		text, _ = json.Marshal(r)
	}
	return string(text)
}

// longestReport is the largest size of a report in bytes, below Kubernetes' limit of 256 KiB for all annotations of an object.
const longestReport = 128 << 10
