package discover

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/discover/write"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/store/object"
)

const (
	// manager is the field manager of all objects that svcctl discover writes.
	manager = "svcctl-discover"
	// joined is the least time between two writes. A first answer is written at once; answers that arrive within this time after it are written
	// together.
	joined = 50 * time.Millisecond
	// writeEach is the least time between two writes for one Service, so that a flapping provider does not fill the journal.
	writeEach = 200 * time.Millisecond
	// refusedRetry is the time after which an EndpointSlice that the API refused is written again.
	refusedRetry = 30 * time.Second
)

// schedule has the Services whose EndpointSlices may have to be written, and the time of the next write.
type schedule struct {
	dirty   map[string]bool
	at      time.Time            // time of the next write; zero: none is scheduled
	rest    time.Time            // no write before this time, not even of a Lease
	written map[string]time.Time // the last write of a Service
	writing bool                 // a write is under way
	retry   pauses
}

func newSchedule() schedule {
	return schedule{dirty: map[string]bool{}, written: map[string]time.Time{}}
}

// touch schedules a comparison of a Service's stored slices with the wanted ones at a time, or later if no write is allowed then.
func (s *schedule) touch(at time.Time, service string) {
	s.dirty[service] = true
	s.by(at)
}

// by schedules the next comparison for the time `at`, or for the earliest time at which a write is allowed, whichever is later. A comparison that is
// already scheduled for an earlier time stays scheduled.
func (s *schedule) by(at time.Time) {
	at = later(at, s.rest)
	if s.at.IsZero() || at.Before(s.at) {
		s.at = at
	}
}

// due returns the Services to compare now. It schedules a later comparison for those that were written less than writeEach ago.
func (s *schedule) due(now time.Time) (keys []string) {
	if s.at.IsZero() || now.Before(s.at) {
		return nil
	}
	s.at = time.Time{}
	for _, key := range slices.Sorted(maps.Keys(s.dirty)) {
		if free := s.written[key].Add(writeEach); now.Before(free) {
			s.by(free)
			continue
		}
		delete(s.dirty, key)
		keys = append(keys, key)
	}
	return keys
}

// wrote records a write for a Service.
func (s *schedule) wrote(now time.Time, service string) {
	s.written[service], s.rest = now, now.Add(joined)
}

// failed delays all writes after one that failed, for longer each time.
func (s *schedule) failed(now time.Time) {
	s.rest = now.Add(s.retry.longer())
	s.at = s.rest
}

// batch has the objects of one write.
type batch struct {
	slices []*write.Slice
	leases []*asking
	bodies []json.RawMessage // of the slices, then of the leases
	gone   []*write.Slice    // slices to delete that no other slice replaces
}

// writeResult is the result of writing a batch.
type writeResult struct {
	batch
	results []wire.Applied // one for each body, in order; fewer after an error
	deleted []*write.Slice
	err     error
}

// flush starts the write that is due: EndpointSlices of Services that changed, and Leases.
func (d *discovery) flush(ctx context.Context, now time.Time) {
	if d.schedule.writing || !d.stored.complete() || now.Before(d.schedule.rest) {
		return
	}
	var b batch
	for _, key := range d.schedule.due(now) {
		changed, gone := d.changed(now, key)
		if len(changed)+len(gone) > 0 {
			d.schedule.wrote(now, key)
		}
		b.slices, b.gone = append(b.slices, changed...), append(b.gone, gone...)
	}
	for _, s := range b.slices {
		b.add(s.Object())
	}
	for _, name := range slices.Sorted(maps.Keys(d.providers)) {
		p := d.providers[name]
		if now.Before(p.lease.next(now)) {
			continue
		}
		report := d.reportOf(now, p)
		p.lease.looked, p.lease.changed = now, false
		if p.lease.held && now.Before(p.lease.renewal(now)) && report == p.lease.report {
			continue // it is as it was, and the renewal has its time
		}
		if before := p.lease.holder(); !p.lease.held && before != "" {
			d.log.Info("the process that asked a provider has not renewed its Lease: this one takes over", "provider", name, "before", before)
		}
		b.leases = append(b.leases, p)
		b.add(p.lease.desired(now, d.node, report))
	}
	if len(b.bodies)+len(b.gone) == 0 {
		return
	}
	d.schedule.writing = true
	d.tasks.Go(func() error {
		task.Send(ctx, d.wrote, d.write(ctx, b))
		return nil
	})
}

func (b *batch) add(o object.Object) {
	text, err := json.Marshal(o)
	if err != nil {
		panic("discover: encode an object: " + err.Error()) // our own types: a bug
	}
	b.bodies = append(b.bodies, text)
}

// changed returns the slices of a Service that must be written, and those that must be deleted (gone). A slice that becomes empty because its
// endpoints move to other slices is in changed, and is deleted after the write.
func (d *discovery) changed(now time.Time, key string) (changed, gone []*write.Slice) {
	var all []*write.Slice
	claims := d.claims[key]
	s := d.stored.services[key]
	for k, w := range claims {
		claim := write.Claim{Namespace: s.namespace, Service: s.name, UID: s.uid, Port: k.Port, Protocol: w.protocol, From: d.fromOf(k)}
		p := d.providers[k.Provider]
		if r, is := p.refused[k.Question.String()]; is && now.Before(r.until) {
			d.schedule.touch(r.until, key)
			continue
		}
		var stored []*write.Slice
		for _, have := range d.stored.slices[key] {
			if have.From == claim.From && have.Port == k.Port {
				stored = append(stored, have.Slice)
			}
		}
		all = append(all, write.Arrange(claim, d.ledger.Endpoints(k), stored)...)
	}
	orphaned := s != nil && len(claims) == 0 && d.namesUnknown(s)
	for _, have := range d.stored.slices[key] {
		if d.isOurs(have.From) && !d.isWanted(have.Slice, claims) && !orphaned {
			emptied := *have.Slice
			emptied.Endpoints = nil
			all = append(all, &emptied)
		}
	}
	for _, w := range all {
		if have, is := d.stored.slices[key][w.Name]; len(w.Endpoints) == 0 && (len(claims) == 0 || is && len(have.Endpoints) == 0) {
			gone = append(gone, w)
		} else {
			changed = append(changed, w)
		}
	}
	slices.SortFunc(changed, func(a, b *write.Slice) int { return len(b.Endpoints) - len(a.Endpoints) }) // additions first
	return changed, gone
}

// namesUnknown reports whether all providers that a Service names are unknown, for example by a typo. Its slices are kept then.
func (d *discovery) namesUnknown(s *service) bool {
	return !slices.ContainsFunc(s.wants, func(w want) bool { return d.providers[w.key.Provider] != nil || d.stored.leases[w.key.Provider] })
}

// write stores a batch, then deletes the slices that are empty.
func (d *discovery) write(ctx context.Context, b batch) writeResult {
	r := writeResult{batch: b}
	if len(b.bodies) > 0 {
		r.err = d.client.Apply(ctx, client.ApplyOptions{Manager: manager, Force: true}, b.bodies, func(_ int, a wire.Applied) error {
			r.results = append(r.results, a)
			return nil
		})
	}
	gone := slices.Clone(b.gone)
	for i, s := range b.slices {
		if len(s.Endpoints) == 0 && i < len(r.results) && r.results[i].Result != wire.Refused {
			gone = append(gone, s)
		}
	}
	for _, s := range gone {
		if r.err != nil {
			break
		}
		_, err := d.client.Delete(ctx, "/apis/discovery.k8s.io/v1/namespaces/"+s.Namespace+"/endpointslices/"+s.Name, nil, "")
		failure, refused := errors.AsType[*wire.Failure](err)
		if err == nil || refused && failure.Code == http.StatusNotFound {
			r.deleted = append(r.deleted, s)
		} else {
			r.err = err
		}
	}
	return r
}

// finish processes the result of a write, and schedules what failed again.
func (d *discovery) finish(r writeResult) {
	now := time.Now()
	d.schedule.writing = false
	for i, s := range r.slices {
		key := s.Namespace + "/" + s.Service
		if i >= len(r.results) {
			d.schedule.dirty[key] = true
			continue
		}
		applied := r.results[i]
		var p *asking
		question := ""
		for _, other := range d.providers {
			if rest, is := strings.CutPrefix(s.From, other.from); is {
				p, question = other, rest
			}
		}
		if applied.Result == wire.Refused {
			d.schedule.dirty[key] = true
			why := "the API refused its EndpointSlice " + s.Name
			if applied.Status != nil {
				why += ": " + applied.Status.Message
			}
			d.log.Error("an EndpointSlice is refused: what is stored stays", "slice", s.Namespace+"/"+s.Name, "err", why)
			if p != nil {
				since := now
				if before, is := p.refused[question]; is {
					since = before.since
				}
				p.refused[question] = refusal{why, since, now.Add(refusedRetry)}
				p.lease.changed = true
			}
			continue
		}
		if p != nil && len(p.refused) > 0 {
			delete(p.refused, question)
			p.lease.changed = true
		}
		d.stored.keep(storedSlice{s, objectRevision(applied.Object)})
	}
	for _, s := range r.gone {
		d.schedule.dirty[s.Namespace+"/"+s.Service] = true // if it was not removed
	}
	for _, s := range r.deleted {
		d.stored.forget(storedSlice{s, math.MaxUint64})
	}
	for i, p := range r.leases {
		if n := len(r.slices) + i; n >= len(r.results) || r.results[n].Result == wire.Refused {
			p.lease.changed = true // as it is stored then
			if n < len(r.results) && r.results[n].Status != nil && r.results[n].Status.Reason != wire.ReasonConflict {
				d.log.Error("a Lease is refused", "lease", p.lease.object, "err", r.results[n].Status.Message)
			}
		}
	}
	if r.err == nil {
		d.schedule.retry.reset()
		if len(d.schedule.dirty) > 0 && d.schedule.at.IsZero() {
			d.schedule.by(now)
		}
		return
	}
	if d.schedule.retry.last == 0 { // once: it may be away for days
		d.log.Warn("endpoints are not written: they wait in memory", "err", r.err)
	}
	d.schedule.failed(now)
}

// objectRevision returns the resourceVersion of an object in a response.
func objectRevision(o client.Object) uint64 {
	meta, _ := o["metadata"].(map[string]any)
	text, _ := meta["resourceVersion"].(string)
	return revisionOf(&object.ObjectMeta{ResourceVersion: text})
}
