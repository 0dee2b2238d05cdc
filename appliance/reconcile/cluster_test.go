package reconcile

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// namespaces are the names of all Namespaces, with a star behind those of clients.
func (r *rig) namespaces() string {
	r.t.Helper()
	list, _, err := r.store.List(object.KindNamespace, "", 0)
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, o := range list {
		name := o.GetMeta().Name
		if _, owner := r.store.Get(object.RefOf(o)); owner.Controller != control.NamespacesOwner {
			name += "*"
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// client makes one change as a client of the API does.
func (r *rig) client(w store.Write) {
	r.t.Helper()
	w.By = store.Caller{User: "root", Verb: "test"}
	if w.Object != nil {
		w.Ref = object.RefOf(w.Object)
	}
	results, err := r.store.Write(w)
	if err == nil {
		err = results[0].Err
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func configMap(namespace, name string) object.Object {
	return &object.ConfigMap{
		TypeMeta: object.TypeMeta{Kind: object.KindConfigMap, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Namespace: namespace, Name: name},
	}
}

func inNamespace(namespace, text string) string {
	return strings.ReplaceAll(text, "metadata: {", "metadata: {namespace: "+namespace+", ")
}

func TestNamespaces(t *testing.T) {
	r := newRig(t)
	r.host()
	want := func(names string) {
		t.Helper()
		r.step()
		if got := r.namespaces(); got != names {
			t.Errorf("Namespaces are %s, want %s", got, names)
		}
	}
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	want("default kube-system")
	r.write("shop.yaml", inNamespace("shop", web("web", "10.96.0.11", "10.1.0.2")))
	want("default kube-system shop")
	r.write("shop.yaml", "")
	want("default kube-system")

	// What clients have keeps a Namespace, and what clients write to is theirs.
	r.write("shop.yaml", inNamespace("shop", web("web", "10.96.0.11", "10.1.0.2")))
	want("default kube-system shop")
	r.client(store.Write{Object: configMap("shop", "mine"), Create: true})
	r.write("shop.yaml", "")
	want("default kube-system shop")
	r.client(store.Write{Ref: object.RefOf(configMap("shop", "mine")), Delete: true})
	want("default kube-system")
	labeled := namespaceObject("default").(*object.Namespace)
	labeled.Metadata.Labels["mine"] = "yes"
	r.client(store.Write{Object: labeled})
	r.client(store.Write{Object: namespaceObject("theirs"), Create: true})
	want("default* kube-system theirs*")
	r.write("theirs.yaml", inNamespace("theirs", web("web", "10.96.0.12", "10.1.0.3")))
	want("default* kube-system theirs*")
	r.write("theirs.yaml", "")
	want("default* kube-system theirs*")

	// One that a client deletes is there again while there is a need for it.
	for _, name := range []string{"default", "kube-system", "theirs"} {
		r.client(store.Write{Ref: object.Ref{Kind: object.KindNamespace, Name: name}, Delete: true})
	}
	r.clock = r.clock.Add(time.Minute) // else it were the last Service of several that vanish at once
	r.write("web.yaml", "")
	r.step()
	want("default kube-system")
}

// TestNamespacesBeforeTheManifests: clients need not wait for files that take long to read.
func TestNamespacesBeforeTheManifests(t *testing.T) {
	r := newRig(t)
	r.step()
	if got := r.namespaces(); got != "default kube-system" {
		t.Errorf("Namespaces are %s", got)
	}
	if r.board.Ready() == nil {
		t.Error("ready without the manifests")
	}
}

// TestSyncedUpToAWrite: the resourceVersion of what a client has written is a revision that
// can be waited for, and what clients only tell each other is no reason to wait.
func TestSyncedUpToAWrite(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	waits := func(o object.Object) bool {
		t.Helper()
		r.client(store.Write{Object: o, Create: true})
		stored, _ := r.store.Get(object.RefOf(o))
		revision, err := strconv.ParseUint(stored.GetMeta().ResourceVersion, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond) // real time: it is not synced meanwhile
		defer cancel()
		waits := r.board.Synced(ctx, revision) != nil
		if synced := r.board.Status().Synced; synced == waits {
			t.Errorf("%s: waited: %v, the status says synced: %v", object.RefOf(o), waits, synced)
		}
		return waits
	}
	svc := &object.Service{
		TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Namespace: "default", Name: "made"},
		Spec:     object.ServiceSpec{Ports: []object.ServicePort{{Port: 80}}},
	}
	lease := &object.Lease{
		TypeMeta: object.TypeMeta{Kind: object.KindLease, APIVersion: "coordination.k8s.io/v1"},
		Metadata: object.ObjectMeta{Namespace: "default", Name: "mine"},
	}
	if !waits(svc) {
		t.Error("a Service is programmed before the loop has seen it")
	}
	if waits(lease); r.board.Status().Synced {
		t.Error("a Lease makes a Service programmed")
	}
	r.step()
	if s := r.board.Status(); !s.Synced || s.Revision.Programmed != r.store.Revision() {
		t.Errorf("after a step: %+v", s.Revision)
	}
	lease.Metadata.Name = "another"
	if waits(lease) {
		t.Error("a Lease is waited for")
	}
}

func TestThisNode(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.observed.facts.Primary = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	r.step()
	ref := object.Ref{Kind: object.KindNode, Name: "gw1"}
	get := func() *object.Node {
		t.Helper()
		o, owner := r.store.Get(ref)
		if o == nil || owner.Controller != control.NodeOwner {
			t.Fatalf("the Node is %v, of %s", o, owner)
		}
		return o.(*object.Node)
	}
	first := get()
	if got := fmt.Sprint(first.Status.Addresses); got != "[{InternalIP 192.0.2.1} {InternalIP 2001:db8::1} {Hostname gw1}]" {
		t.Errorf("addresses %s", got)
	}
	if c := first.Status.Conditions; len(c) != 1 || c[0].Type != object.NodeReady || c[0].Status != "True" || c[0].LastTransitionTime == nil {
		t.Errorf("conditions %+v", c)
	}
	if i := first.Status.NodeInfo; i.KernelVersion == "" || i.OperatingSystem != "linux" {
		t.Errorf("node info %+v", i)
	}
	same := *r.observed.facts // the same again
	r.observed.facts = &same
	r.step()
	if get() != first {
		t.Error("the same facts wrote the Node again")
	}
	more := *r.observed.facts
	more.Addresses = append(slices.Clone(more.Addresses), node.Address{Prefix: netip.MustParsePrefix("198.51.100.7/24"), Interface: "ext1", Index: 3},
		node.Address{Prefix: netip.MustParsePrefix("203.0.113.9/32"), Interface: "lo", Index: 1}) // a VIP
	r.observed.facts, r.observed.moved = &more, true
	r.step()
	second := get()
	if got := fmt.Sprint(second.Status.Addresses); got != "[{InternalIP 192.0.2.1} {InternalIP 198.51.100.7} {InternalIP 2001:db8::1} {Hostname gw1}]" {
		t.Errorf("addresses %s", got)
	}
	if !second.Status.Conditions[0].LastTransitionTime.Equal(*first.Status.Conditions[0].LastTransitionTime) || second.Metadata.UID != first.Metadata.UID {
		t.Error("an address more made another Node, or another transition")
	}
}

// TestAnotherNodeName: a box that is called otherwise is still one box.
func TestAnotherNodeName(t *testing.T) {
	r := newRig(t)
	r.host()
	r.step()
	r.client(store.Write{Object: &object.Node{
		TypeMeta: object.TypeMeta{Kind: object.KindNode, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Name: "gw2"},
	}, Create: true})
	r.start()
	r.rename("gw3")
	r.host()
	r.step()
	nodes, _, err := r.store.List(object.KindNode, "", 0)
	if err != nil || len(nodes) != 2 || nodes[0].GetMeta().Name != "gw2" || nodes[1].GetMeta().Name != "gw3" {
		t.Errorf("nodes %v, %v", nodes, err)
	}
}

// TestLongNodeName: what may be the name of a box need not be one that a label can have.
func TestLongNodeName(t *testing.T) {
	r := newRig(t)
	r.host()
	r.rename(strings.Repeat("gw1.", 20) + "example")
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	if err := r.board.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	o, _ := r.store.Get(object.Ref{Kind: object.KindNode, Name: r.cfg.NodeName})
	if o == nil {
		t.Fatal("there is no Node")
	}
	if labels := o.GetMeta().Labels; labels["kubernetes.io/hostname"] != "" || labels["kubernetes.io/os"] == "" {
		t.Errorf("labels %v", labels)
	}
}

func TestTheRanges(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	o, owner := r.store.Get(object.Ref{Kind: object.KindServiceCIDR, Name: "kubernetes"})
	if o == nil || owner.Controller != control.ServiceCIDROwner {
		t.Fatalf("the ServiceCIDR is %v, of %s", o, owner)
	}
	if got := o.(*object.ServiceCIDR).Spec.CIDRs; !slices.Equal(got, []string{"10.96.0.0/16", "fd00:10:96::/112"}) {
		t.Errorf("ranges %v", got)
	}
}

// TestClusterCostsNothing: what tells clients about the box writes nothing when nothing has
// changed, also after a restart, and leaves alone what a client has made.
func TestClusterCostsNothing(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	revision := r.store.Revision()
	for range 3 {
		r.step()
	}
	r.start()
	r.host()
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	if r.store.Revision() != revision || r.engine.Commits() != 0 {
		t.Errorf("%d commits after a restart over unchanged input", r.engine.Commits())
	}
	other := newRig(t)
	other.client(store.Write{Object: &object.Node{
		TypeMeta: object.TypeMeta{Kind: object.KindNode, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Name: "gw1"},
	}, Create: true})
	other.host()
	other.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	other.step()
	other.step()
	if err := other.board.Ready(); err != nil {
		t.Errorf("with a Node of somebody else: %v", err)
	}
	if _, owner := other.store.Get(object.Ref{Kind: object.KindNode, Name: "gw1"}); owner != (store.Owner{}) {
		t.Errorf("the Node belongs to %s", owner)
	}
}

// BenchmarkCluster measures one step at 10,000 Services when nothing has changed.
func BenchmarkCluster(b *testing.B) {
	r := newRig(b)
	r.host()
	for i := range 100 {
		var text strings.Builder
		for j := range 100 {
			text.WriteString(web(fmt.Sprintf("s%d", i*100+j), fmt.Sprintf("10.96.%d.%d", i+1, j+1), "10.1.0.1") + "---\n")
		}
		r.write(fmt.Sprintf("%d.yaml", i), inNamespace(fmt.Sprintf("n%d", i), text.String()))
	}
	r.step()
	for b.Loop() {
		if err := r.opts.Cluster.Sync(r.observed.facts); err != nil {
			b.Fatal(err)
		}
	}
}

func namespaceObject(name string) object.Object {
	return &object.Namespace{
		TypeMeta: object.TypeMeta{Kind: object.KindNamespace, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/metadata.name": name}},
		Status:   object.NamespaceStatus{Phase: object.NamespaceActive},
	}
}

// rename gives the host another name before it is read for the first time.
func (r *rig) rename(name string) {
	r.cfg.NodeName = name
	r.opts.Cluster = control.NewClusterObjects(r.cfg.ClusterObjects(), r.store, r.hosts)
}
