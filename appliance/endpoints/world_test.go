package endpoints

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store/object"
)

// world is a store in memory, as far as a Controller knows one.
type world struct {
	t       testing.TB
	objects map[object.Ref]object.Object
	ours    map[object.Ref]bool
	uids    int
	dirty   Changes
	c       *Controller
	last    Batch
}

var facts = Facts{NodeName: "gw1", Zone: "zone-a", ServiceRanges: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16")}}

func newWorld(t testing.TB) *world {
	return &world{t: t, objects: map[object.Ref]object.Object{}, ours: map[object.Ref]bool{}, c: New(facts)}
}

func (w *world) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	namespace, name := cutKey(key)
	svc, _ := w.objects[object.Ref{Kind: object.KindService, Namespace: namespace, Name: name}].(*object.Service)
	endpoints, _ := w.objects[object.Ref{Kind: object.KindEndpoints, Namespace: namespace, Name: name}].(*object.Endpoints)
	var parts []*object.EndpointSlice
	for _, o := range w.objects {
		if part, ok := o.(*object.EndpointSlice); ok && part.Metadata.Namespace == namespace && part.Metadata.Labels[object.LabelServiceName] == name {
			parts = append(parts, part)
		}
	}
	slices.SortFunc(parts, func(a, b *object.EndpointSlice) int { return cmp.Compare(a.Metadata.Name, b.Metadata.Name) })
	return svc, parts, endpoints
}

func (w *world) Pod(key string) *object.Pod {
	namespace, name := cutKey(key)
	pod, _ := w.objects[object.Ref{Kind: object.KindPod, Namespace: namespace, Name: name}].(*object.Pod)
	return pod
}

func (w *world) Selected(namespace string, selector map[string]string) []*object.Pod {
	var pods []*object.Pod
	for _, o := range w.objects {
		if pod, ok := o.(*object.Pod); ok && pod.Metadata.Namespace == namespace && object.HasLabels(pod.Metadata.Labels, selector) {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *object.Pod) int { return cmp.Compare(a.Metadata.Name, b.Metadata.Name) })
	return pods
}

func (w *world) Selecting(namespace string, labels map[string]string) []string {
	var keys []string
	for ref, o := range w.objects {
		if svc, ok := o.(*object.Service); ok && ref.Namespace == namespace && len(svc.Spec.Selector) > 0 && object.HasLabels(labels, svc.Spec.Selector) {
			keys = append(keys, ref.Key())
		}
	}
	slices.Sort(keys)
	return keys
}

func (w *world) ZoneOf(string) (string, bool) { return "", false }

func (w *world) Holder(ref object.Ref) Holder {
	switch {
	case w.objects[ref] == nil:
		return Nobody
	case w.ours[ref]:
		return Ours
	}
	return Others
}

// put stores an object as the store does: another one, with what the server says.
func (w *world) put(o object.Object, ours bool) {
	w.t.Helper()
	object.Default(o)
	ref := object.RefOf(o)
	if _, ok := o.(*object.Service); !ok { // these Services have no families to default
		if errs := object.Validate(o, object.Options{}); len(errs) > 0 {
			w.t.Fatalf("%s: %v", ref, errs)
		}
	}
	fresh := object.StrategyOf(o).New()
	text, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(text, fresh)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.uids++
	fresh.GetMeta().ResourceVersion = fmt.Sprint(w.uids)
	if old := w.objects[ref]; old != nil {
		if reflect.DeepEqual(withoutServer(old), withoutServer(fresh)) {
			return
		}
		fresh.GetMeta().UID = old.GetMeta().UID
	} else {
		fresh.GetMeta().UID = fmt.Sprintf("%s-%s", strings.ToLower(ref.Kind), ref.Name)
	}
	w.objects[ref], w.ours[ref] = fresh, ours
	w.changed(fresh)
}

func withoutServer(o object.Object) object.Object {
	c := object.DeepCopy(o)
	c.GetMeta().ResourceVersion, c.GetMeta().UID = "", ""
	return c
}

func (w *world) remove(ref object.Ref) {
	o := w.objects[ref]
	if o == nil {
		return
	}
	delete(w.objects, ref)
	w.changed(o)
}

func (w *world) changed(o object.Object) {
	meta := o.GetMeta()
	switch o.(type) {
	case *object.Pod:
		w.dirty.Pods = append(w.dirty.Pods, object.RefOf(o).Key())
	case *object.EndpointSlice:
		if name := meta.Labels[object.LabelServiceName]; name != "" {
			w.dirty.Services = append(w.dirty.Services, meta.Namespace+"/"+name)
		}
	default:
		w.dirty.Services = append(w.dirty.Services, object.RefOf(o).Key())
	}
}

// update lets the controller work and writes what it wants.
func (w *world) update() Batch {
	w.t.Helper()
	w.last = w.c.Update(w, w.take())
	w.write(w.last)
	return w.last
}

func (w *world) take() Changes {
	changes := Changes{Services: sortedOnce(w.dirty.Services), Pods: sortedOnce(w.dirty.Pods)}
	w.dirty = Changes{}
	return changes
}

func sortedOnce(keys []string) []string {
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (w *world) write(batch Batch) {
	w.t.Helper()
	for _, o := range batch.Puts {
		if w.Holder(object.RefOf(o)) == Others {
			w.t.Fatalf("%s belongs to somebody else", object.RefOf(o))
		}
		w.put(object.DeepCopy(o), true)
	}
	for _, ref := range batch.Deletes {
		if w.Holder(ref) != Ours {
			w.t.Fatalf("%s is removed and is not ours", ref)
		}
		w.remove(ref)
	}
}

// restart is a new controller that is told of everything. It must find nothing to do.
func (w *world) restart() {
	w.t.Helper()
	w.c = New(facts)
	if batch := w.c.Update(w, w.everything()); !batch.Empty() {
		have := Batch{}
		for _, o := range batch.Puts {
			if old := w.objects[object.RefOf(o)]; old != nil {
				have.Puts = append(have.Puts, old)
			}
		}
		w.t.Fatalf("a restart writes\n%s\nin the place of\n%s", describe(batch), describe(have))
	}
	w.dirty = Changes{}
}

func (w *world) everything() Changes {
	var all Changes
	for ref, o := range w.objects {
		switch o := o.(type) {
		case *object.Pod:
			all.Pods = append(all.Pods, ref.Key())
		case *object.EndpointSlice:
			all.Services = append(all.Services, ref.Namespace+"/"+o.Metadata.Labels[object.LabelServiceName])
		default:
			all.Services = append(all.Services, ref.Key())
		}
	}
	return Changes{Services: sortedOnce(all.Services), Pods: sortedOnce(all.Pods)}
}

func describe(b Batch) string {
	var lines []string
	for _, o := range b.Puts {
		text, _ := json.Marshal(o)
		lines = append(lines, "put "+string(text))
	}
	for _, ref := range b.Deletes {
		lines = append(lines, "delete "+ref.String())
	}
	return strings.Join(lines, "\n")
}

// service makes a Service: port 80 named p80 to 8080, selector app=NAME, IPv4.
func (w *world) service(name string, changes ...func(*object.Service)) {
	w.t.Helper()
	svc := &object.Service{
		TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"team": "blue"}},
		Spec: object.ServiceSpec{
			Type: object.TypeClusterIP, IPFamilies: []string{object.IPv4}, ClusterIPs: []string{"172.30.0.1"},
			Selector: map[string]string{"app": name},
			Ports:    []object.ServicePort{{Name: "p80", Port: 80, Protocol: object.ProtocolTCP, TargetPort: object.FromInt(8080)}},
		},
	}
	for _, change := range changes {
		change(svc)
	}
	w.put(svc, false)
}

func headless(svc *object.Service)     { svc.Spec.ClusterIPs = []string{object.ClusterIPNone} }
func selectorless(svc *object.Service) { svc.Spec.Selector = nil }
func dual(svc *object.Service)         { svc.Spec.IPFamilies = []string{object.IPv4, object.IPv6} }
func target(name string) func(*object.Service) {
	return func(svc *object.Service) { svc.Spec.Ports[0].TargetPort = object.FromString(name) }
}
func distribute(how string) func(*object.Service) {
	return func(svc *object.Service) { svc.Spec.TrafficDistribution = &how }
}

// pod makes a ready Pod of a Service from words: its number, which makes its name and
// addresses, and then flags.
func (w *world) pod(service string, number int, changes ...func(*object.Pod)) {
	w.t.Helper()
	pod := &object.Pod{
		TypeMeta: object.TypeMeta{Kind: object.KindPod, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Name: podName(service, number), Namespace: "default", Labels: map[string]string{"app": service}},
		Status:   object.PodStatus{PodIP: podIP(number)},
	}
	for _, change := range changes {
		change(pod)
	}
	w.put(pod, false)
}

func (w *world) removePod(service string, number int) {
	w.remove(object.Ref{Kind: object.KindPod, Namespace: "default", Name: podName(service, number)})
}

func podName(service string, number int) string { return fmt.Sprintf("%s-%05d", service, number) }
func podIP(number int) string {
	return fmt.Sprintf("10.%d.%d.%d", number/62500, number/250%250, number%250+1)
}

func unready(p *object.Pod) {
	p.Status.Conditions = []object.PodCondition{{Type: "Ready", Status: "False"}}
}
func ending(p *object.Pod)    { p.Metadata.DeletionTimestamp = new(time.Time) }
func noAddress(p *object.Pod) { p.Status.PodIP = "" }
func phase(name string) func(*object.Pod) {
	return func(p *object.Pod) { p.Status.Phase = name }
}
func on(node string) func(*object.Pod) { return func(p *object.Pod) { p.Spec.NodeName = node } }
func label(name, value string) func(*object.Pod) {
	return func(p *object.Pod) { p.Metadata.Labels[name] = value }
}
func ips(texts ...string) func(*object.Pod) {
	return func(p *object.Pod) {
		p.Status.PodIP, p.Status.PodIPs = "", nil
		for _, text := range texts {
			p.Status.PodIPs = append(p.Status.PodIPs, object.PodIP{IP: text})
		}
	}
}
func port(name string, number int32, protocol string) func(*object.Pod) {
	return func(p *object.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, object.Container{
			Ports: []object.ContainerPort{{Name: name, ContainerPort: number, Protocol: protocol}},
		})
	}
}

// parts are the slices of a Service, each as "IPv4 p80/TCP/8080: 10.0.0.1 10.0.0.2!",
// sorted; after an address: ! not ready, ~ serving and terminating.
func (w *world) parts(service string) []string {
	_, all, _ := w.Service("default/" + service)
	var lines []string
	for _, part := range all {
		ports := slices.Clone(part.Ports)
		sortPorts(ports)
		line := part.AddressType + " " + strings.TrimSpace(textOfPorts(ports)) + ":"
		for _, e := range part.Endpoints {
			line += " " + e.Addresses[0]
			switch {
			case object.Deref(e.Conditions.Ready):
			case object.Deref(e.Conditions.Serving) && object.Deref(e.Conditions.Terminating):
				line += "~"
			default:
				line += "!"
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// sizes are the numbers of endpoints of a Service's slices, the largest first.
func (w *world) sizes(service string) []int {
	_, all, _ := w.Service("default/" + service)
	var sizes []int
	for _, part := range all {
		sizes = append(sizes, len(part.Endpoints))
	}
	slices.SortFunc(sizes, func(a, b int) int { return b - a })
	return sizes
}

func (w *world) want(service string, lines ...string) {
	w.t.Helper()
	if got := w.parts(service); !slices.Equal(got, lines) {
		w.t.Errorf("slices of %s:\n  %s\nwant\n  %s", service, strings.Join(got, "\n  "), strings.Join(lines, "\n  "))
	}
}

func (w *world) problems(want ...string) {
	w.t.Helper()
	var got []string
	for _, p := range w.c.Problems() {
		got = append(got, fmt.Sprintf("%s: %s: %s", p.Object, p.Reason, p.Message))
	}
	ok := len(got) == len(want)
	for i := range want {
		ok = ok && strings.Contains(got[i], want[i])
	}
	if !ok {
		w.t.Errorf("problems:\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// placesOf are the slices of a Service that each address is in.
func (w *world) placesOf(service string) map[string]string {
	_, all, _ := w.Service("default/" + service)
	places := map[string]string{}
	for _, part := range all {
		for _, e := range part.Endpoints {
			places[e.Addresses[0]] += part.Metadata.Name
		}
	}
	return places
}
