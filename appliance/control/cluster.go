package control

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// Owners (store.Owner.Controller) of the objects that ClusterObjects writes.
const (
	NamespacesOwner  = store.NamespacesController
	NodeOwner        = store.NodeController
	ServiceCIDROwner = "pools" // value stored in existing data directories
)

// Namespaces that exist in every Kubernetes cluster.
const (
	namespaceDefault = "default"
	namespaceSystem  = "kube-system"
)

// serviceCIDRName is the name of the ServiceCIDR that Kubernetes creates for its configured ranges.
const serviceCIDRName = "kubernetes"

// Labels of a Node (k8s.io/api/core/v1, well_known_labels.go). labelName is set on every Namespace instead, and holds its name.
const (
	labelHostname = "kubernetes.io/hostname"
	labelOS       = "kubernetes.io/os"
	labelArch     = "kubernetes.io/arch"
	labelZone     = "topology.kubernetes.io/zone"
	labelName     = "kubernetes.io/metadata.name"
)

// maxLabelValue is the maximum length of a label value in bytes. Names of Nodes may be longer.
const maxLabelValue = 63

// ClusterConfig holds the settings of ClusterObjects.
type ClusterConfig struct {
	NodeName, Zone string
	// NodeOwner is the owner of this box's Node in the store; "" means the constant NodeOwner. In a fleet each box has its own.
	NodeOwner string
	// ReportNode, when not nil, sends the Node of this box to another box, which stores it.
	ReportNode func(*object.Node) error
	// Version is the version of the program; the Node shows it as kubeletVersion.
	Version string
	// ServiceRanges lists the prefixes of the ServiceCIDR, with the primary family first.
	ServiceRanges []netip.Prefix
}

// ClusterObjects stores the objects that Kubernetes clients expect of a cluster: Namespaces, the Node for this host, and the ServiceCIDR of
// the configured ranges.
type ClusterObjects struct {
	cfg   ClusterConfig
	store *store.Store
	host  object.NodeSystemInfo
	hosts *HostAddresses

	namespaceState uint64        // NamespacesInUse.State at the last sync of the Namespaces
	facts          *node.Facts   // facts at the last sync of the Node
	node           object.Object // the Node as last stored; serviceCIDR likewise
	serviceCIDR    object.Object
}

// NewClusterObjects returns ClusterObjects for a store. It reads the host's system information (os-release(5), uname(2)) once. hosts
// identifies the VIPs among the addresses of this host.
func NewClusterObjects(cfg ClusterConfig, objects *store.Store, hosts *HostAddresses) *ClusterObjects {
	host := hostInfo()
	host.KubeletVersion = cfg.Version
	cfg.NodeOwner = cmp.Or(cfg.NodeOwner, NodeOwner)
	return &ClusterObjects{cfg: cfg, store: objects, host: host, hosts: hosts}
}

// Sync updates the Namespaces, the Node and the ServiceCIDR, and writes only changes. It does not change an object that a file or a client
// created under the same name. If facts is nil, it does not update the Node.
func (c *ClusterObjects) Sync(facts *node.Facts) error {
	return errors.Join(c.KeepNamespaces(), c.syncNode(facts), c.syncServiceCIDR())
}

// KeepNamespaces creates a Namespace for each namespace of an object from files (clients must create their Namespaces first). It deletes a
// Namespace that is no longer used, unless a client created or changed it.
func (c *ClusterObjects) KeepNamespaces() error {
	inUse, changed := c.store.Namespaces(c.namespaceState)
	if !changed {
		return nil
	}
	used := slices.Concat([]string{namespaceDefault, namespaceSystem}, inUse.Files, inUse.Clients)
	slices.Sort(used)
	used = slices.Compact(used)
	var puts []object.Object
	for _, name := range used {
		if o, _ := c.store.Get(object.Ref{Kind: object.KindNamespace, Name: name}); o == nil {
			puts = append(puts, namespaceObject(name))
		}
	}
	var deletes []object.Ref
	all, _, err := c.store.List(object.KindNamespace, "", 0)
	if err != nil {
		return fmt.Errorf("list the Namespaces: %w", err)
	}
	for _, o := range all {
		ref := object.RefOf(o)
		_, owner := c.store.Get(ref)
		if _, found := slices.BinarySearch(used, ref.Name); !found && owner.Controller == NamespacesOwner {
			deletes = append(deletes, ref)
		}
	}
	if len(puts)+len(deletes) > 0 {
		if _, err := c.store.Generate(NamespacesOwner, puts, deletes); err != nil && !isOwned(err) {
			return fmt.Errorf("keep the Namespaces: %w", err)
		}
	}
	c.namespaceState = inUse.State
	return nil
}

func namespaceObject(name string) object.Object {
	return &object.Namespace{
		TypeMeta: object.TypeMeta{Kind: object.KindNamespace, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Name: name, Labels: map[string]string{labelName: name}},
		Status:   object.NamespaceStatus{Phase: object.NamespaceActive},
	}
}

// syncNode updates the Node object of this box, if facts changed.
func (c *ClusterObjects) syncNode(facts *node.Facts) error {
	ref := object.Ref{Kind: object.KindNode, Name: c.cfg.NodeName}
	have, _ := c.store.Get(ref)
	if facts == nil || facts == c.facts && have != nil && have == c.node {
		return nil
	}
	var err error
	if node := c.nodeObject(facts, have); c.cfg.ReportNode != nil {
		err = c.cfg.ReportNode(node)
	} else {
		err = c.keep(c.cfg.NodeOwner, node)
	}
	if err == nil && c.facts == nil && c.cfg.ReportNode == nil {
		err = c.dropFormerNodes()
	}
	if err != nil {
		return fmt.Errorf("keep the Node of this box: %w", err)
	}
	c.facts = facts
	c.node, _ = c.store.Get(ref)
	return nil
}

// dropFormerNodes deletes the Nodes that this box stored under earlier names.
func (c *ClusterObjects) dropFormerNodes() error {
	all, _, err := c.store.List(object.KindNode, "", 0)
	if err != nil {
		return err
	}
	var former []object.Ref
	for _, o := range all {
		ref := object.RefOf(o)
		if _, owner := c.store.Get(ref); owner.Controller == c.cfg.NodeOwner && ref.Name != c.cfg.NodeName {
			former = append(former, ref)
		}
	}
	if len(former) == 0 {
		return nil
	}
	_, err = c.store.Generate(c.cfg.NodeOwner, nil, former)
	return err
}

// nodeObject returns the Node of this box. The fields that clients may write are copied from have, the stored Node, if it is not nil.
func (c *ClusterObjects) nodeObject(facts *node.Facts, have object.Object) *object.Node {
	n := &object.Node{
		TypeMeta: object.TypeMeta{Kind: object.KindNode, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Name: c.cfg.NodeName, Labels: map[string]string{labelOS: runtime.GOOS, labelArch: runtime.GOARCH}},
		Status:   object.NodeStatus{NodeInfo: c.host},
	}
	if len(c.cfg.NodeName) <= maxLabelValue {
		n.Metadata.Labels[labelHostname] = c.cfg.NodeName
	}
	if c.cfg.Zone != "" {
		n.Metadata.Labels[labelZone] = c.cfg.Zone
	}
	for _, addr := range nodeAddresses(facts, c.hosts.IsVIP) {
		n.Status.Addresses = append(n.Status.Addresses, object.NodeAddress{Type: object.NodeInternalIP, Address: addr.String()})
	}
	n.Status.Addresses = append(n.Status.Addresses, object.NodeAddress{Type: object.NodeHostname, Address: c.cfg.NodeName})
	KeepOfClients(n, have)
	since := time.Now().UTC().Truncate(time.Second)
	if before, ok := have.(*object.Node); ok {
		if was := object.ReadyOf(before); was != nil && was.Status == object.ConditionTrue && was.LastTransitionTime != nil {
			since = *was.LastTransitionTime
		}
	}
	n.Status.Conditions = []object.NodeCondition{readyCondition(since)}
	if strings.HasPrefix(c.cfg.NodeOwner, NodeOwner+"/") { // of a box of a fleet
		KeepReady(n, have)
	}
	return n
}

// KeepOfClients copies the fields that clients may write from the stored Node, have, to n: the spec, the annotations, and all labels except
// those set by the box.
func KeepOfClients(n *object.Node, have object.Object) {
	before, ok := have.(*object.Node)
	if !ok {
		return
	}
	n.Spec, n.Metadata.Annotations = before.Spec, before.Metadata.Annotations
	for key, value := range before.Metadata.Labels {
		if !slices.Contains(nodeLabels, key) {
			n.Metadata.Labels[key] = value
		}
	}
}

// nodeLabels lists the keys of the labels that a box sets on its Node.
var nodeLabels = []string{labelHostname, labelOS, labelArch, labelZone}

// NodeLabels returns the subset of the given labels that a box sets on its Node.
func NodeLabels(labels map[string]string) map[string]string {
	of := map[string]string{}
	for _, key := range nodeLabels {
		if value, has := labels[key]; has {
			of[key] = value
		}
	}
	return of
}

// nodeAddresses returns the addresses at which other hosts reach the box, IPv4 first, with the primary address of each family first.
// Addresses with a host prefix (/32, /128) count as VIPs. VIPs are returned only if there is no other address.
func nodeAddresses(facts *node.Facts, isVIP func(netip.Addr) bool) []netip.Addr {
	addrs := slices.Clone(facts.Primary)
	var single []netip.Addr
	for _, a := range facts.Addresses {
		switch addr := a.Prefix.Addr(); {
		case addr.IsLoopback() || addr.IsLinkLocalUnicast() || slices.Contains(addrs, addr):
		case a.Prefix.IsSingleIP() || isVIP(addr):
			single = append(single, addr)
		default:
			addrs = append(addrs, addr)
		}
	}
	if len(addrs) == 0 {
		addrs = single
	}
	addrs = addrs[:min(len(addrs), maxNodeAddresses)]
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) })
	return addrs
}

// maxNodeAddresses is the maximum number of addresses of a Node. Clients use the first ones.
const maxNodeAddresses = 32

// syncServiceCIDR updates the ServiceCIDR of the configured ranges.
func (c *ClusterObjects) syncServiceCIDR() error {
	ref := object.Ref{Kind: object.KindServiceCIDR, Name: serviceCIDRName}
	have, _ := c.store.Get(ref)
	if have != nil && have == c.serviceCIDR {
		return nil
	}
	if err := c.keep(ServiceCIDROwner, c.serviceCIDRObject(have)); err != nil {
		return fmt.Errorf("keep the ServiceCIDR of the ranges: %w", err)
	}
	c.serviceCIDR, _ = c.store.Get(ref)
	return nil
}

// serviceCIDRObject returns the ServiceCIDR for the configured ranges. have is the stored ServiceCIDR, or nil.
func (c *ClusterObjects) serviceCIDRObject(have object.Object) object.Object {
	s := &object.ServiceCIDR{
		TypeMeta: object.TypeMeta{Kind: object.KindServiceCIDR, APIVersion: object.APIVersionNetworking},
		Metadata: object.ObjectMeta{Name: serviceCIDRName},
	}
	for _, p := range c.cfg.ServiceRanges {
		s.Spec.CIDRs = append(s.Spec.CIDRs, p.Masked().String())
	}
	since := time.Now().UTC().Truncate(time.Second)
	if before, ok := have.(*object.ServiceCIDR); ok && len(before.Status.Conditions) == 1 {
		since = before.Status.Conditions[0].LastTransitionTime
	}
	s.Status.Conditions = []object.Condition{{
		Type: "Ready", Status: "True", LastTransitionTime: since,
		Reason: "Configured", Message: "cluster IPs come from these ranges",
	}}
	return s
}

// keep stores a generated object, unless a file or a client created an object of that name.
func (c *ClusterObjects) keep(owner string, want object.Object) error {
	_, err := c.store.Generate(owner, []object.Object{want}, nil)
	if isOwned(err) {
		return nil
	}
	return err
}

func isOwned(err error) bool {
	_, owned := errors.AsType[*store.OwnedError](err)
	return owned
}

// hostInfo returns Node.status.nodeInfo. Fields that cannot be read are empty. It omits the boot ID, which would change with every boot,
// and the machine IDs, which are confidential (machine-id(5)).
func hostInfo() object.NodeSystemInfo {
	return object.NodeSystemInfo{
		KernelVersion:   valueIn("/proc/sys/kernel/osrelease", ""),
		OSImage:         valueIn("/etc/os-release", "PRETTY_NAME="),
		OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
	}
}

// valueIn returns the rest of the first line with the given prefix in a file, without quotes (os-release(5)); "" if there is none.
func valueIn(path, prefix string) string {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, prefix); found {
			return strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	return ""
}

// HostAddresses distinguishes the host's own addresses from VIPs that another program, such as a failover daemon, added to an interface. It
// does not classify addresses with a host prefix (/32, /128), which its users treat as VIPs. Any other address is a VIP if it belonged to a
// Service before it was added to the interface, or if the operator set it aside for Services and it is not the first address of its
// interface. The primary addresses of the host are never VIPs. An address that was once the host's own remains so, for example when a link
// goes down and up. After a restart, the own addresses are read from the Node. Its methods may be called concurrently.
type HostAddresses struct {
	// setAside reports whether an address lies in a load balancer pool or an external IP range.
	setAside func(netip.Addr) bool
	known    bool // the Node at startup listed all of the host's own addresses

	mu   sync.Mutex
	own  map[netip.Addr]bool
	vips map[netip.Addr]bool
}

// NewHostAddresses returns HostAddresses that takes the host's own addresses from the stored Nodes of owner. setAside reports whether an
// address lies in a load balancer pool or an external IP range.
func NewHostAddresses(setAside func(netip.Addr) bool, objects *store.Store, owner string) *HostAddresses {
	h := &HostAddresses{setAside: setAside, own: map[netip.Addr]bool{}, vips: map[netip.Addr]bool{}}
	all, _, err := objects.List(object.KindNode, "", 0)
	if err != nil {
		return h
	}
	for _, o := range all {
		n, isNode := o.(*object.Node)
		if _, from := objects.Get(object.RefOf(o)); !isNode || from.Controller != owner {
			continue
		}
		addresses := 0
		for _, a := range n.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == object.NodeInternalIP {
				h.own[addr] = true
				addresses++
			}
		}
		h.known = addresses > 0 && addresses < maxNodeAddresses // else some may have been left out
	}
	return h
}

// IsVIP reports whether an address of the host is a VIP that another program added.
func (h *HostAddresses) IsVIP(addr netip.Addr) bool {
	if h == nil { // this host has no VIPs
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.vips[addr]
}

// Place classifies the addresses in new facts. wasService reports whether an address belonged to a Service before it was added to the host.
func (h *HostAddresses) Place(facts *node.Facts, wasService func(netip.Addr) (bool, error)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	vips := map[netip.Addr]bool{}
	for _, a := range facts.Addresses {
		addr := a.Prefix.Addr()
		if a.Prefix.IsSingleIP() || addr.IsLoopback() || addr.IsLinkLocalUnicast() {
			continue
		}
		switch {
		case slices.Contains(facts.Primary, addr):
		case h.setAside(addr) && !a.First:
			vips[addr] = true
		case h.own[addr]:
		case h.vips[addr]:
			vips[addr] = true
		default:
			was, err := wasService(addr)
			if err != nil {
				return err
			}
			vips[addr] = was
		}
		if !vips[addr] {
			h.own[addr] = true
		}
	}
	h.vips = vips
	return nil
}

// Known reports whether the Node stored by an earlier process listed all of the host's addresses.
func (h *HostAddresses) Known() bool { return h.known }

// readyCondition returns the condition Ready for the Node of a running box.
func readyCondition(since time.Time) object.NodeCondition {
	return object.NodeCondition{
		Type: object.NodeReady, Status: object.ConditionTrue, LastTransitionTime: &since, Reason: "SvcctlReady", Message: "svcctl programs the Services of this box",
	}
}

// goneCondition returns the condition Ready for the Node of a box that does not report to its fleet, with the reason that Kubernetes uses.
func goneCondition(since time.Time) object.NodeCondition {
	return object.NodeCondition{
		Type: object.NodeReady, Status: object.ConditionUnknown, LastTransitionTime: &since, Reason: "NodeStatusUnknown",
		Message: "svcctl of this box does not report to its fleet: it is stopped, or cut off from etcd; what its kernel has stays in force",
	}
}

// KeepReady copies the conditions of the stored Node, have, to n if have has a condition Ready. In a fleet the box that runs the
// controllers writes that condition (TellPresence).
func KeepReady(n *object.Node, have object.Object) {
	if before, ok := have.(*object.Node); ok && object.ReadyOf(before) != nil {
		n.Status.Conditions = before.Status.Conditions
	}
}

// FleetNodes returns the names of the Nodes stored by boxes of a fleet, except those that a client or a file has taken over.
func FleetNodes(objects *store.Store) []string {
	return object.Texts(fleetNodes(objects), func(n *object.Node) string { return n.Metadata.Name })
}

func fleetNodes(objects *store.Store) (nodes []*object.Node) {
	all, _, err := objects.List(object.KindNode, "", 0)
	if err != nil {
		return nil // the newest state can always be listed
	}
	for _, o := range all {
		if _, owner := objects.Get(object.RefOf(o)); owner.Controller == NodeOwner+"/"+o.GetMeta().Name {
			nodes = append(nodes, o.(*object.Node))
		}
	}
	return nodes
}

// TellPresence updates the condition Ready of the Nodes of a fleet: Unknown for boxes in gone, and True again for boxes in present. It does
// not change other Nodes, and writes only changes.
func TellPresence(objects *store.Store, present, gone map[string]bool) error {
	var errs []error
	for _, n := range fleetNodes(objects) {
		name, now := n.Metadata.Name, time.Now().UTC().Truncate(time.Second)
		is := object.ReadyOf(n)
		unknown := is == nil || is.Status == object.ConditionUnknown
		var want object.NodeCondition
		switch {
		case gone[name] && (is == nil || !unknown):
			want = goneCondition(now)
		case present[name] && unknown:
			want = readyCondition(now)
		default:
			continue
		}
		next := object.DeepCopy(n)
		next.Status.Conditions = []object.NodeCondition{want}
		if _, err := objects.Generate(NodeOwner+"/"+name, []object.Object{next}, nil); err != nil && !isOwned(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
