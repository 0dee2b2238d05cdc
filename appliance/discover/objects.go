package discover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/discover/ledger"
	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/discover/remote"
	"svcctl.io/svcctl/appliance/discover/write"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// API paths of the kinds of objects that are watched.
const (
	pathServices = "/api/v1/services"
	pathSlices   = "/apis/discovery.k8s.io/v1/endpointslices"
	pathLeases   = "/apis/coordination.k8s.io/v1/namespaces/" + annotation.DiscoverLeaseNamespace + "/leases"
)

// objects has the stored objects that svcctl discover needs, as of the last events.
type objects struct {
	listed   map[string]bool // paths with a complete list
	services map[string]*service
	slices   map[string]map[string]storedSlice // by Service, by name
	leases   map[string]bool                   // the names of all providers with a Lease
}

func newObjects() objects {
	return objects{map[string]bool{}, map[string]*service{}, map[string]map[string]storedSlice{}, map[string]bool{}}
}

// complete reports whether the objects of all kinds were listed.
func (o *objects) complete() bool {
	return o.listed[pathServices] && o.listed[pathSlices] && o.listed[pathLeases]
}

// keep records an EndpointSlice, unless a newer version of it is recorded.
func (o *objects) keep(s storedSlice) {
	key := s.Namespace + "/" + s.Service
	if o.slices[key] == nil {
		o.slices[key] = map[string]storedSlice{}
	}
	if s.revision >= o.slices[key][s.Name].revision {
		o.slices[key][s.Name] = s
	}
}

// forget removes a recorded EndpointSlice, unless a newer version than s is recorded.
func (o *objects) forget(s storedSlice) {
	key := s.Namespace + "/" + s.Service
	if o.slices[key][s.Name].revision <= s.revision {
		delete(o.slices[key], s.Name)
	}
	if len(o.slices[key]) == 0 {
		delete(o.slices, key)
	}
}

// seen is an event of the watch: the change of an object, or a full list.
type seen struct {
	path string
	// all is set for a full list: other objects of the path do not exist.
	all     bool
	objects []object.Object
	deleted bool
}

// follow lists and watches the objects at a path until ctx is done. It reconnects after a pause when the appliance does not respond.
func (d *discovery) follow(ctx context.Context, path string, query url.Values, empty func() object.Object) error {
	pause := pauses{}
	for {
		err := d.followOnce(ctx, path, query, empty, &pause)
		if ctx.Err() != nil {
			return nil
		}
		failure, answered := errors.AsType[*wire.Failure](err)
		switch {
		case answered && failure.Reason == wire.ReasonUnauthorized:
			return fmt.Errorf("%w: endpoints stay as they are; make a token with `svcctl admin token --role endpoints` and start it again", err)
		case err == nil || answered && failure.Reason == wire.ReasonExpired:
		case pause.last == 0 && (answered || path == pathServices): // once, and not for each path: it may be away for days
			d.log.Warn("the appliance is not reached: endpoints wait in memory", "path", path, "err", err)
		}
		if !pause.wait(ctx) {
			return nil
		}
	}
}

func (d *discovery) followOnce(ctx context.Context, path string, query url.Values, empty func() object.Object, pause *pauses) error {
	list := seen{path: path, all: true}
	decode := func(text json.RawMessage) (object.Object, error) {
		o := empty()
		return o, json.Unmarshal(text, o)
	}
	version, err := d.client.Each(ctx, path, query, func(text json.RawMessage) error {
		o, err := decode(text)
		if err == nil && keeps(o) {
			list.objects = append(list.objects, o)
		}
		return err
	})
	if err != nil {
		return err
	}
	if pause.reset(); !task.Send(ctx, d.events, list) {
		return nil
	}
	from := url.Values{"resourceVersion": {version}, "allowWatchBookmarks": {"true"}}
	maps.Copy(from, query)
	return d.client.Watch(ctx, path, from, func(c client.Change) error {
		if c.Type == client.Bookmark {
			return nil
		}
		text, err := json.Marshal(c.Object)
		if err != nil {
			return err
		}
		o, err := decode(text)
		if err != nil {
			return err
		}
		task.Send(ctx, d.events, seen{path: path, objects: []object.Object{o}, deleted: c.Type == client.Deleted})
		return nil
	})
}

// keeps reports whether a listed object is needed. Services without the annotation svcctl.io/endpoints-from are not needed; most Services lack it.
func keeps(o object.Object) bool {
	svc, is := o.(*object.Service)
	return !is || annotation.HasSources(svc.Metadata.Annotations)
}

// service is a Service with the annotation svcctl.io/endpoints-from.
type service struct {
	namespace, name, uid string
	wants                []want
}

// want is a claim that a Service asks for.
type want struct {
	key      ledger.Key
	terms    ledger.Terms
	protocol string
	byName   bool // the targetPort of the Service port is a name
}

// newService returns the claims that the annotations of a Service request; nil if there are none or the Service is being deleted.
func newService(o *object.Service) *service {
	s := &service{namespace: o.Metadata.Namespace, name: o.Metadata.Name, uid: o.Metadata.UID}
	if o.Metadata.DeletionTimestamp != nil {
		return nil
	}
	for i := range o.Spec.Ports {
		p := &o.Spec.Ports[i]
		target := p.TargetPort.Int
		if p.TargetPort.IsZero() {
			target = p.Port
		}
		for _, source := range annotation.Sources(o, p.Name) {
			q := provider.Question{Name: source.Name, Params: source.Params}
			if q.Values().Has("published") {
				q.Port = uint16(target)
			}
			s.wants = append(s.wants, want{
				key:   ledger.Key{Service: s.key(), Port: p.Name, Asked: ledger.Asked{Provider: source.Provider, Question: q}},
				terms: ledger.Terms{Hold: source.Hold, Target: uint16(target)}, protocol: p.Protocol, byName: p.TargetPort.Name != "",
			})
		}
	}
	if len(s.wants) == 0 {
		return nil
	}
	return s
}

func (s *service) key() string { return s.namespace + "/" + s.name }

// storedSlice is an EndpointSlice that svcctl discover wrote, as it is stored, with its revision.
type storedSlice struct {
	*write.Slice
	revision uint64
}

func revisionOf(meta *object.ObjectMeta) uint64 {
	n, _ := strconv.ParseUint(meta.ResourceVersion, 10, 64) // 0 is older than all
	return n
}

// pauses computes the waits between attempts: they double from 0.1 to 5 s.
type pauses struct{ last time.Duration }

func (p *pauses) reset() { p.last = 0 }

// longer returns the next pause, with jitter.
func (p *pauses) longer() time.Duration {
	p.last = min(max(2*p.last, 100*time.Millisecond), 5*time.Second)
	return jitter(p.last)
}

// wait sleeps for the next pause. It returns false if ctx is done.
func (p *pauses) wait(ctx context.Context) bool {
	return remote.Sleep(ctx, p.longer()) == nil
}
