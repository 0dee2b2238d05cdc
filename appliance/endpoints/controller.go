package endpoints

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// Facts describes the box.
type Facts struct {
	NodeName string // Pods of this node are in the box's zone
	Zone     string // "" when the box has none
	// ServiceRanges has the ranges of cluster IPs: no endpoint may lie in them.
	ServiceRanges []netip.Prefix
}

// Holder is the kind of owner of an object.
type Holder int

// The kinds of owners.
const (
	Nobody Holder = iota // there is no such object
	Ours                 // one of the controllers of this package made it
	Others               // a file or a client of the API
)

// Objects lists the objects that the controllers read. They are never changed afterwards.
type Objects interface {
	// Service is a Service, nil when there is none, with its EndpointSlices by name and
	// the Endpoints object of its name.
	Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints)
	// Pod is a Pod, nil when there is none.
	Pod(key string) *object.Pod
	// Selected are the Pods that a selector matches, by name.
	Selected(namespace string, selector map[string]string) []*object.Pod
	// Selecting are the keys of the Services whose selector matches these labels; sorted.
	Selecting(namespace string, labels map[string]string) []string
	// ZoneOf returns the zone of a node, for boxes that write for each other; known is false where each box writes for
	// itself. It is asked for when endpoints are written, and not followed.
	ZoneOf(node string) (zone string, known bool)
	// Holder returns the owner of an object.
	Holder(ref object.Ref) Holder
}

// Changes has the keys ("namespace/name") of objects that may have changed.
type Changes struct {
	// Services has the Services that changed, or whose EndpointSlices or Endpoints did.
	Services []string
	Pods     []string
}

// Batch holds the writes of one Update, for one commit.
type Batch struct {
	Puts    []object.Object // by kind, namespace and name
	Deletes []object.Ref    // by kind, namespace and name

	services []string // whose objects these are
}

// Empty reports whether there is nothing to write.
func (b *Batch) Empty() bool { return len(b.Puts)+len(b.Deletes) == 0 }

// Problem is something about an object that keeps it from working as written.
type Problem struct {
	Object  object.Ref
	Field   string // "" when it is about the object as a whole
	Reason  string // one word, CamelCase
	Message string
	Warning bool // the object works in all other respects
}

// Controller keeps the endpoints of all Services. Not safe for concurrent use.
type Controller struct {
	facts    Facts
	services map[string]*service // those that have generated objects
	pods     map[string]*pod     // all Pods
	vips     addressIndex        // of all Services
	hosts    addressIndex        // of all Pods
	mirrored addressIndex        // of all Endpoints that are mirrored, by Service
	redo     map[string]struct{} // Services that were forgotten
	problems map[string]Problem
}

// pod is a Pod as it was last seen.
type pod struct {
	object   *object.Pod
	services []string // that have it as an endpoint
}

// New returns an empty Controller: its first Update needs the keys of all Services and Pods.
func New(facts Facts) *Controller {
	return &Controller{
		facts:    facts,
		services: map[string]*service{},
		pods:     map[string]*pod{},
		vips:     addressIndex{},
		hosts:    addressIndex{},
		mirrored: addressIndex{},
		redo:     map[string]struct{}{},
		problems: map[string]Problem{},
	}
}

// Aside returns a Controller for other versions of some Services: it has the addresses of all Services and Pods, and no
// generated objects.
func (c *Controller) Aside() *Controller {
	a := New(c.facts)
	a.vips, a.hosts = c.vips.clone(), c.hosts.clone()
	return a
}

// Update brings the endpoints of what changed up to date. What it returns must be
// written, or given to Forget, before the next call.
func (c *Controller) Update(objs Objects, changes Changes) Batch {
	w := work{objs: objs, whole: map[string]bool{}, pods: map[string][]string{}}
	for key := range c.redo {
		w.whole[key] = true
	}
	clear(c.redo)
	var moved []string // Pods at addresses that became or ceased to be VIPs
	for _, key := range changes.Services {
		w.whole[key] = true
		svc, _, _ := objs.Service(key)
		for _, addr := range c.vips.set(key, vipsOf(svc)) {
			moved = append(moved, c.hosts.keys(addr)...)
			for _, mirror := range c.mirrored.keys(addr) {
				delete(c.services, mirror)
				w.whole[mirror] = true
			}
		}
	}
	for _, key := range slices.Concat(changes.Pods, moved) {
		c.seePod(&w, key)
	}
	var batch Batch
	for _, key := range w.services() {
		if w.whole[key] {
			c.examine(&w, key, &batch)
		} else {
			c.updatePods(&w, key, &batch)
		}
	}
	batch.sort()
	return batch
}

// Forget marks a Batch as not written: the next Update computes its Services again.
func (c *Controller) Forget(batch Batch) {
	for _, key := range batch.services {
		delete(c.services, key)
		c.redo[key] = struct{}{}
	}
}

// Known returns the keys of all Services and Pods that the controller has seen, for a full update.
func (c *Controller) Known() Changes {
	known := Changes{Services: c.vips.owners()}
	known.Services = slices.AppendSeq(known.Services, maps.Keys(c.services))
	known.Pods = slices.AppendSeq(known.Pods, maps.Keys(c.pods))
	return known
}

// Problems returns all problems, sorted by object.
func (c *Controller) Problems() []Problem {
	all := slices.AppendSeq(c.shared(), maps.Values(c.problems))
	slices.SortFunc(all, func(a, b Problem) int {
		return strings.Compare(a.Object.String()+a.Field+a.Message, b.Object.String()+b.Field+b.Message)
	})
	return slices.Compact(all)
}

// note keeps a problem under a key; nil: there is none.
func (c *Controller) note(key string, problem *Problem) {
	if problem == nil {
		delete(c.problems, key)
		return
	}
	c.problems[key] = *problem
}

// work holds the Services and Pods that one Update examines.
type work struct {
	objs  Objects
	whole map[string]bool     // Services
	pods  map[string][]string // names of Pods by Service
}

// services returns the keys of the Services with work to do, sorted.
func (w *work) services() []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(w.whole)), maps.Keys(w.pods))
	slices.Sort(keys)
	return slices.Compact(keys)
}

// seePod notes a Pod and which Services have to look at it.
func (c *Controller) seePod(w *work, key string) {
	now, before := w.objs.Pod(key), c.pods[key]
	var services []string
	if before != nil {
		services = slices.Clone(before.services)
	}
	if now == nil {
		c.hosts.set(key, nil)
		if len(services) == 0 {
			delete(c.pods, key)
		}
	} else {
		c.hosts.set(key, addressesOf(now))
		services = append(services, w.objs.Selecting(now.Metadata.Namespace, now.Metadata.Labels)...)
	}
	if before != nil {
		before.object = now
	} else if now != nil {
		c.pods[key] = &pod{object: now}
	}
	_, name := cutKey(key)
	slices.Sort(services)
	for _, service := range slices.Compact(services) {
		w.pods[service] = append(w.pods[service], name)
	}
}

// member notes whether a Pod is an endpoint of a Service.
func (c *Controller) member(podKey, service string, is bool) {
	p := c.pods[podKey]
	if p == nil {
		if !is {
			return
		}
		p = &pod{}
		c.pods[podKey] = p
	}
	switch at := slices.Index(p.services, service); {
	case is && at < 0:
		p.services = append(p.services, service)
	case !is && at >= 0:
		p.services = slices.Delete(p.services, at, at+1)
	}
	if p.object == nil && len(p.services) == 0 {
		delete(c.pods, podKey)
	}
}

func cutKey(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")
	return namespace, name
}

func (b *Batch) sort() {
	slices.SortFunc(b.Puts, func(x, y object.Object) int { return compareRefs(object.RefOf(x), object.RefOf(y)) })
	slices.SortFunc(b.Deletes, compareRefs)
}

func compareRefs(a, b object.Ref) int { return strings.Compare(a.String(), b.String()) }
