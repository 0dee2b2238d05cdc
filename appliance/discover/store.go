package discover

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/discover/write"
	"svcctl.io/svcctl/store/object"
)

// manager is the field manager of all that is written.
const manager = "svcctl-discover"

// batch is a write that is under way.
type batch struct {
	slices []*write.Slice
	leases []*asking
	bodies []json.RawMessage // of both, in this order
	gone   []*write.Slice    // that are removed with nothing in their place
}

// writeResult is the outcome of a batch.
type writeResult struct {
	batch
	results []wire.Applied // fewer than bodies: the rest is not known
	deleted []*write.Slice
	err     error
}

// flush makes the writes that are due: slices of Services that changed, and Leases.
func (d *discovery) flush(ctx context.Context, now time.Time) {
	if d.writing || !d.complete() {
		return
	}
	var b batch
	if !d.flushAt.IsZero() && !now.Before(d.flushAt) {
		d.flushAt = time.Time{}
		for _, key := range slices.Sorted(maps.Keys(d.dirty)) {
			if free := d.written[key].Add(writeEach); now.Before(free) {
				d.flushBy(free)
				continue
			}
			delete(d.dirty, key)
			changed, gone := d.changed(now, key)
			if len(changed)+len(gone) > 0 {
				d.written[key] = now
			}
			b.slices, b.gone = append(b.slices, changed...), append(b.gone, gone...)
		}
	}
	if len(b.slices)+len(b.gone) > 0 {
		d.restAt = now.Add(joined)
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
	d.writing = true
	d.tasks.Go(func() error {
		r := d.write(ctx, b)
		select {
		case d.wrote <- r:
		case <-ctx.Done():
		}
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

// changed returns the slices of a Service that have to be stored, with those that are emptied in favor of others, and those that have
// to be removed.
func (d *discovery) changed(now time.Time, key string) (changed, gone []*write.Slice) {
	var all []*write.Slice
	claims := d.claims[key]
	s := d.services[key]
	for k, w := range claims {
		claim := write.Claim{Namespace: s.namespace, Service: s.name, UID: s.uid, Port: k.Port, Protocol: w.protocol, From: d.fromOf(k)}
		p := d.providers[k.Provider]
		if r, is := p.refused[k.Question.String()]; is {
			if now.Before(r.until) {
				d.dirty[key] = true
				d.flushBy(r.until)
				continue
			}
		}
		var stored []*write.Slice
		for _, have := range d.slices[key] {
			if have.From == claim.From && have.Port == k.Port {
				stored = append(stored, have.Slice)
			}
		}
		all = append(all, write.Arrange(claim, d.ledger.Endpoints(k), stored)...)
	}
	orphaned := s != nil && len(claims) == 0 && d.namesUnknown(s)
	for _, have := range d.slices[key] {
		if d.isOurs(have.From) && !d.isWanted(have.Slice, claims) && !orphaned {
			emptied := *have.Slice
			emptied.Endpoints = nil
			all = append(all, &emptied)
		}
	}
	for _, w := range all {
		if have, is := d.slices[key][w.Name]; len(w.Endpoints) == 0 && (len(claims) == 0 || is && len(have.Endpoints) == 0) {
			gone = append(gone, w)
		} else {
			changed = append(changed, w)
		}
	}
	slices.SortFunc(changed, func(a, b *write.Slice) int { return len(b.Endpoints) - len(a.Endpoints) }) // additions first
	return changed, gone
}

// namesUnknown reports whether a Service names no provider that there is, as by a mistake in writing: its slices stay.
func (d *discovery) namesUnknown(s *service) bool {
	return !slices.ContainsFunc(s.wants, func(w want) bool { return d.providers[w.key.Provider] != nil || d.leases[w.key.Provider] })
}

// write applies a batch, then deletes the slices that it emptied.
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

// finish takes the outcome of a write. What failed is written again, as it is wanted then.
func (d *discovery) finish(r writeResult) {
	now := time.Now()
	d.writing = false
	for i, s := range r.slices {
		key := s.Namespace + "/" + s.Service
		if i >= len(r.results) {
			d.dirty[key] = true
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
			d.dirty[key] = true
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
		d.keep(storedSlice{s, objectRevision(applied.Object)}, false)
	}
	for _, s := range r.gone {
		d.dirty[s.Namespace+"/"+s.Service] = true // if it was not removed
	}
	for _, s := range r.deleted {
		if delete(d.slices[s.Namespace+"/"+s.Service], s.Name); len(d.slices[s.Namespace+"/"+s.Service]) == 0 {
			delete(d.slices, s.Namespace+"/"+s.Service)
		}
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
		d.retry.reset()
		if len(d.dirty) > 0 && d.flushAt.IsZero() {
			d.flushBy(now)
		}
		return
	}
	d.log.Warn("endpoints are not written: they wait in memory", "err", r.err)
	d.restAt = now.Add(d.retry.longer())
	d.flushAt = d.restAt
}

// objectRevision is the version of an object of an answer.
func objectRevision(o client.Object) uint64 {
	meta, _ := o["metadata"].(map[string]any)
	text, _ := meta["resourceVersion"].(string)
	return revisionOf(&object.ObjectMeta{ResourceVersion: text})
}
