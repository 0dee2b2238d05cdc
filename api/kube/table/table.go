package table

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// The kinds of the types in this package.
const (
	KindTable        = "Table"
	KindMetadata     = "PartialObjectMetadata"
	KindMetadataList = "PartialObjectMetadataList"
)

// ListMeta is meta/v1 ListMeta.
type ListMeta struct {
	ResourceVersion    string `json:"resourceVersion,omitempty"`
	Continue           string `json:"continue,omitempty"`
	RemainingItemCount *int64 `json:"remainingItemCount,omitempty"`
}

// Table is meta/v1 Table. In a watch only the first one has column definitions.
type Table struct {
	Kind              string   `json:"kind"`
	APIVersion        string   `json:"apiVersion"`
	Metadata          ListMeta `json:"metadata"`
	ColumnDefinitions []Column `json:"columnDefinitions"`
	Rows              []Row    `json:"rows,omitempty"`
}

// Column is meta/v1 TableColumnDefinition.
type Column struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Format      string `json:"format"`
	Description string `json:"description"`
	Priority    int32  `json:"priority"` // 0: always shown, 1: in wide output only
}

// Row is meta/v1 TableRow.
type Row struct {
	Cells []any `json:"cells"`
	// Object is the whole object, its Metadata, or nil.
	Object any `json:"object,omitempty"`
}

// Metadata is meta/v1 PartialObjectMetadata.
type Metadata struct {
	object.TypeMeta
	Metadata object.ObjectMeta `json:"metadata"`
}

// Include is the part of an object that its row contains, as chosen by the query parameter includeObject.
type Include string

// The values of Include.
const (
	IncludeNone     Include = "None"
	IncludeMetadata Include = "Metadata"
	IncludeObject   Include = "Object"
)

// ParseInclude parses the value of includeObject; "" means Metadata.
func ParseInclude(s string) (Include, error) {
	switch include := Include(s); include {
	case "":
		return IncludeMetadata, nil
	case IncludeNone, IncludeMetadata, IncludeObject:
		return include, nil
	}
	return "", fmt.Errorf("unrecognized includeObject value: %q", s)
}

// New returns an empty table for objects of a kind. apiVersion is that of the table: meta.k8s.io/v1 or v1beta1.
func New(k kind.Kind, apiVersion string, meta ListMeta) *Table {
	return &Table{Kind: KindTable, APIVersion: apiVersion, Metadata: meta, ColumnDefinitions: Columns(k)}
}

// RowOf returns the row of an object in a table with an apiVersion.
func RowOf(o object.Object, include Include, apiVersion string, now time.Time) Row {
	row := Row{Cells: cells(o, now)}
	switch include {
	case IncludeMetadata:
		row.Object = MetadataOf(o, apiVersion)
	case IncludeObject:
		row.Object = o
	}
	return row
}

// MetadataOf returns the metadata of an object as a PartialObjectMetadata.
func MetadataOf(o object.Object, apiVersion string) Metadata {
	return Metadata{TypeMeta: object.TypeMeta{Kind: KindMetadata, APIVersion: apiVersion}, Metadata: *o.GetMeta()}
}

// columns maps each kind to its columns, in the form "NAME = FIELD"; the documentation of FIELD describes the column. A * before the name marks a
// column that only wide output shows.
var columns = map[string]string{
	object.KindService:            "Name | Type = ServiceSpec.type | Cluster-IP = ServiceSpec.clusterIP | External-IP = ServiceSpec.externalIPs | Port(s) = ServiceSpec.ports | Age | *Selector = ServiceSpec.selector",
	object.KindEndpoints:          "Name | Endpoints = Endpoints.subsets | Age",
	object.KindEndpointSlice:      "Name | AddressType = EndpointSlice.addressType | Ports = EndpointSlice.ports | Endpoints = EndpointSlice.endpoints | Age",
	object.KindPod:                "Name | Ready = PodStatus.conditions | Status = PodStatus.phase | Age | *IP = PodStatus.podIP | *Node = PodSpec.nodeName",
	object.KindNode:               "Name | Status = NodeStatus.conditions | Roles = ObjectMeta.labels | Age | Version = NodeSystemInfo.kubeletVersion | *Internal-IP = NodeStatus.addresses | *External-IP = NodeStatus.addresses | *OS-Image = NodeSystemInfo.osImage | *Kernel-Version = NodeSystemInfo.kernelVersion | *Container-Runtime = NodeSystemInfo.containerRuntimeVersion",
	object.KindEvent:              "Last Seen = Event.lastTimestamp | Type = Event.type | Reason = Event.reason | Object = Event.involvedObject | *Subobject = ObjectReference.fieldPath | *Source = Event.source | Message = Event.message | *First Seen = Event.firstTimestamp | *Count = Event.count | *Name",
	object.KindNamespace:          "Name | Status = NamespaceStatus.phase | Age",
	object.KindConfigMap:          "Name | Data = ConfigMap.data | Age",
	object.KindSecret:             "Name | Type = Secret.type | Data = Secret.data | Age",
	object.KindLease:              "Name | Holder = LeaseSpec.holderIdentity | Age",
	object.KindIPAddressPool:      "Name | Auto Assign = IPAddressPoolSpec.autoAssign | Avoid Buggy IPs = IPAddressPoolSpec.avoidBuggyIPs | Addresses = IPAddressPoolSpec.addresses | *Age",
	object.KindL2Advertisement:    "Name | IPAddressPools = L2AdvertisementSpec.ipAddressPools | Interfaces = L2AdvertisementSpec.interfaces | *Age",
	object.KindBGPAdvertisement:   "Name | IPAddressPools = BGPAdvertisementSpec.ipAddressPools | Peers = BGPAdvertisementSpec.peers | Communities = BGPAdvertisementSpec.communities | *Age",
	object.KindServiceL2Status:    "Name | Allocated Node = ServiceL2StatusStatus.node | Service Name = ServiceL2StatusStatus.serviceName | Service Namespace = ServiceL2StatusStatus.serviceNamespace | *Age",
	object.KindServiceBGPStatus:   "Name | Node = ServiceBGPStatusStatus.node | Service Name = ServiceBGPStatusStatus.serviceName | Service Namespace = ServiceBGPStatusStatus.serviceNamespace | *Age",
	object.KindConfigurationState: "Name | Result = ConfigurationStateStatus.result | ErrorSummary = ConfigurationStateStatus.errorSummary | Age",
	object.KindBFDProfile:         "Name | Transmit Interval = BFDProfileSpec.transmitInterval | Receive Interval = BFDProfileSpec.receiveInterval | Multiplier = BFDProfileSpec.detectMultiplier | *Age",
	object.KindBGPPeer:            "Name | Address = BGPPeerSpec.peerAddress | ASN = BGPPeerSpec.peerASN | BFD Profile = BGPPeerSpec.bfdProfile | *Age",
	object.KindGatewayClass:       "Name | Controller = GatewayClassSpec.controllerName | Accepted = GatewayClassStatus.conditions | Age | *Description = GatewayClassSpec.description",
	object.KindGateway:            "Name | Class = GatewaySpec.gatewayClassName | Address = GatewayStatus.addresses | Programmed = GatewayStatus.conditions | Age",
	object.KindListenerSet:        "Name | Accepted = ListenerSetStatus.conditions | Programmed = ListenerSetStatus.conditions | Age",
	object.KindTLSRoute:           "Name | Age | *Hostnames = TLSRouteSpec.hostnames",
	object.KindHTTPRoute:          "Name | Hostnames = HTTPRouteSpec.hostnames | Age",
	object.KindServiceCIDR:        "Name | CIDRs = ServiceCIDRSpec.cidrs | Age",
	object.KindIPAddress:          "Name | ParentRef = IPAddressSpec.parentRef",
}

// Columns returns the columns of a kind. A kind without an entry in columns has a name and an age.
func Columns(k kind.Kind) []Column {
	row, has := columns[k.Name]
	if !has {
		row = "Name | Age"
	}
	var all []Column
	for text := range strings.SplitSeq(row, " | ") {
		name, field, _ := strings.Cut(text, " = ")
		c := Column{Name: strings.TrimPrefix(name, "*"), Type: "string"}
		switch c.Name {
		case "Name":
			c.Format, field = "name", "ObjectMeta.name"
		case "Age":
			field = "ObjectMeta.creationTimestamp"
		}
		if strings.HasPrefix(name, "*") {
			c.Priority = 1
		}
		c.Description = object.Doc(field)
		all = append(all, c)
	}
	return all
}

// The texts of cells without a value.
const (
	none    = "<none>"
	pending = "<pending>" // the value is not assigned yet
	unknown = "<unknown>"
)

// shown is the number of items of a list that a cell names.
const shown = 3

// cells returns the cells of an object's row in the order of Columns.
func cells(o object.Object, now time.Time) []any {
	meta := o.GetMeta()
	name, age := meta.Name, age(meta.CreationTimestamp, now)
	switch o := o.(type) {
	case *object.Service:
		return serviceCells(o, age)
	case *object.Endpoints:
		return []any{name, endpointsText(o), age}
	case *object.EndpointSlice:
		return []any{name, o.AddressType, slicePorts(o.Ports), sliceAddresses(o.Endpoints), age}
	case *object.Pod:
		return podCells(o, age)
	case *object.Node:
		return nodeCells(o, age)
	case *object.Event:
		return eventCells(o, now)
	case *object.EventView:
		return eventCells(o.Event(), now)
	case *object.Namespace:
		return []any{name, o.Status.Phase, age}
	case *object.ConfigMap:
		return []any{name, len(o.Data) + len(o.BinaryData), age}
	case *object.Secret:
		return []any{name, o.Type, len(o.Data), age}
	case *object.Lease:
		return []any{name, object.Deref(o.Spec.HolderIdentity), age}
	case *object.IPAddressPool:
		return []any{name, strconv.FormatBool(o.Spec.AutoAssign == nil || *o.Spec.AutoAssign), strconv.FormatBool(o.Spec.AvoidBuggyIPs), allText(o.Spec.Addresses), age}
	case *object.L2Advertisement:
		return []any{name, allText(o.Spec.IPAddressPools), allText(o.Spec.Interfaces), age}
	case *object.BGPAdvertisement:
		return []any{name, allText(o.Spec.IPAddressPools), allText(o.Spec.Peers), allText(o.Spec.Communities), age}
	case *object.ServiceL2Status:
		return []any{name, o.Status.Node, o.Status.ServiceName, o.Status.ServiceNamespace, age}
	case *object.ServiceBGPStatus:
		return []any{name, o.Status.Node, o.Status.ServiceName, o.Status.ServiceNamespace, age}
	case *object.ConfigurationState:
		return []any{name, o.Status.Result, o.Status.ErrorSummary, age}
	case *object.BFDProfile:
		return []any{name, numberText(o.Spec.TransmitInterval), numberText(o.Spec.ReceiveInterval), numberText(o.Spec.DetectMultiplier), age}
	case *object.BGPPeer:
		asn := cmp.Or(o.Spec.DynamicASN, strconv.FormatInt(o.Spec.PeerASN, 10))
		return []any{name, cmp.Or(o.Spec.PeerAddress, o.Spec.Interface), asn, cmp.Or(o.Spec.BFDProfile, none), age}
	case *object.GatewayClass:
		return []any{name, o.Spec.ControllerName, conditionText(o.Status.Conditions, "Accepted"), age, object.Deref(o.Spec.Description)}
	case *object.Gateway:
		addresses := object.Texts(o.Status.Addresses, func(a object.GatewayStatusAddress) string { return a.Value })
		return []any{name, o.Spec.GatewayClassName, strings.Join(addresses, ","), conditionText(o.Status.Conditions, "Programmed"), age}
	case *object.ListenerSet:
		return []any{name, conditionText(o.Status.Conditions, "Accepted"), conditionText(o.Status.Conditions, "Programmed"), age}
	case *object.TLSRoute:
		return []any{name, age, listText(o.Spec.Hostnames, len(o.Spec.Hostnames))}
	case *object.HTTPRoute:
		return []any{name, listText(o.Spec.Hostnames, len(o.Spec.Hostnames)), age}
	case *object.ServiceCIDR:
		return []any{name, strings.Join(o.Spec.CIDRs, ","), age}
	case *object.IPAddress:
		return []any{name, parentText(o.Spec.ParentRef)}
	}
	return []any{name, age}
}

// conditionText returns the status of the condition of a type, or "" if there is none.
func conditionText(conditions []object.Condition, kind string) string {
	for _, c := range conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}

// numberText formats a number; <none> if it is nil.
func numberText(n *int32) string {
	if n == nil {
		return none
	}
	return strconv.Itoa(int(*n))
}

func serviceCells(o *object.Service, age string) []any {
	clusterIP := none
	if len(o.Spec.ClusterIPs) > 0 {
		clusterIP = o.Spec.ClusterIPs[0]
	}
	ports := make([]string, len(o.Spec.Ports))
	for i, p := range o.Spec.Ports {
		ports[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort > 0 {
			ports[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
	}
	return []any{
		o.Metadata.Name, o.Spec.Type, clusterIP, externalIP(o), allText(ports), age,
		cmp.Or(object.Pairs(o.Spec.Selector), none),
	}
}

func externalIP(o *object.Service) string {
	switch o.Spec.Type {
	case object.TypeExternalName:
		return o.Spec.ExternalName
	case object.TypeLoadBalancer:
		var ingress []string
		for _, i := range o.Status.LoadBalancer.Ingress {
			if address := cmp.Or(i.IP, i.Hostname); address != "" {
				ingress = append(ingress, address)
			}
		}
		slices.Sort(ingress)
		return cmp.Or(strings.Join(append(slices.Compact(ingress), o.Spec.ExternalIPs...), ","), pending)
	case object.TypeClusterIP, object.TypeNodePort:
		return allText(o.Spec.ExternalIPs)
	}
	return unknown
}

func endpointsText(o *object.Endpoints) string {
	var all []string
	count := 0
	add := func(addresses []object.EndpointAddress, text func(ip string) string) {
		count += len(addresses)
		for _, a := range addresses[:min(len(addresses), shown)] {
			all = append(all, text(a.IP))
		}
	}
	for _, s := range o.Subsets {
		if len(s.Ports) == 0 {
			add(s.Addresses, func(ip string) string { return ip })
		}
		for _, p := range s.Ports {
			port := "0"
			if p.Port != nil {
				port = strconv.Itoa(int(*p.Port))
			}
			add(s.Addresses, func(ip string) string {
				if strings.Contains(ip, ":") {
					ip = "[" + ip + "]"
				}
				return ip + ":" + port
			})
		}
	}
	if len(o.Subsets) == 0 {
		return none
	}
	return listText(all, count)
}

// listText joins the first items of a list, at most shown, with commas. count is the length of the whole list; if it is greater than shown, the
// number of the other items follows.
func listText(items []string, count int) string {
	text := strings.Join(items[:min(len(items), shown)], ",")
	if count > shown {
		return fmt.Sprintf("%s + %d more...", text, count-shown)
	}
	return text
}

func slicePorts(ports []object.EndpointPort) string {
	var all []string
	for _, p := range ports {
		switch {
		case p.Port != nil:
			all = append(all, strconv.Itoa(int(*p.Port)))
		case p.Name != nil:
			all = append(all, *p.Name)
		default:
			all = append(all, "*")
		}
	}
	if len(all) == 0 {
		return "<unset>"
	}
	return listText(all, len(all))
}

func sliceAddresses(endpoints []object.Endpoint) string {
	var all []string
	count := 0
	for _, e := range endpoints {
		count += len(e.Addresses)
		if len(all) < shown {
			all = append(all, e.Addresses...)
		}
	}
	if count == 0 {
		return "<unset>"
	}
	return listText(all, count)
}

func podCells(o *object.Pod, age string) []any {
	containers := max(1, len(o.Spec.Containers))
	ready, status := 0, o.Status.Phase
	if o.Ready() {
		ready = containers
	}
	switch {
	case o.Terminating() && !o.Terminal():
		status = "Terminating"
	case status == "" && o.Ready() && o.Status.PodIP == "" && len(o.Status.PodIPs) == 0:
		ready, status = 0, object.PodPending // without an address it is no endpoint
	case status == "" && o.Ready():
		status = object.PodRunning
	case status == "":
		status = object.PodUnknown
	}
	ip := o.Status.PodIP
	if len(o.Status.PodIPs) > 0 {
		ip = o.Status.PodIPs[0].IP
	}
	return []any{
		o.Metadata.Name, fmt.Sprintf("%d/%d", ready, containers), status, age, cmp.Or(ip, none), cmp.Or(o.Spec.NodeName, none),
	}
}

func nodeCells(o *object.Node, age string) []any {
	status := "Unknown"
	for _, c := range o.Status.Conditions {
		switch {
		case c.Type != object.NodeReady:
		case c.Status == "True":
			status = "Ready"
		default:
			status = "NotReady"
		}
	}
	if o.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	address := func(kind string) string {
		for _, a := range o.Status.Addresses {
			if a.Type == kind {
				return a.Address
			}
		}
		return none
	}
	info := o.Status.NodeInfo
	kernel := cmp.Or(info.KernelVersion, unknown)
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	return []any{
		o.Metadata.Name, status, nodeRoles(o.Metadata.Labels), age, info.KubeletVersion,
		address(object.NodeInternalIP), address(object.NodeExternalIP), cmp.Or(info.OSImage, unknown),
		kernel, cmp.Or(info.ContainerRuntimeVersion, unknown),
	}
}

// nodeRoles returns the roles in the labels of a Node.
func nodeRoles(labels map[string]string) string {
	var roles []string
	for key, value := range labels {
		if role, ok := strings.CutPrefix(key, "node-role.kubernetes.io/"); ok && role != "" {
			roles = append(roles, role)
		} else if key == "kubernetes.io/role" && value != "" {
			roles = append(roles, value)
		}
	}
	slices.Sort(roles)
	return allText(slices.Compact(roles))
}

func eventCells(o *object.Event, now time.Time) []any {
	micro := func(t *object.MicroTime) string {
		if t == nil {
			return unknown
		}
		return age(&t.Time, now)
	}
	first := age(o.FirstTimestamp, now)
	if first == unknown {
		first = micro(o.EventTime)
	}
	last, count := age(o.LastTimestamp, now), max(1, o.Count)
	if last == unknown {
		last = first
	}
	if o.Series != nil {
		last, count = micro(o.Series.LastObservedTime), o.Series.Count
	}
	about := strings.ToLower(o.InvolvedObject.Kind)
	if o.InvolvedObject.Name != "" {
		about += "/" + o.InvolvedObject.Name
	}
	source := cmp.Or(o.Source.Component, o.ReportingComponent)
	if host := cmp.Or(o.Source.Host, o.ReportingInstance); host != "" {
		source += ", " + host
	}
	return []any{
		last, o.Type, o.Reason, about, o.InvolvedObject.FieldPath, source, strings.TrimSpace(o.Message), first, count, o.Metadata.Name,
	}
}

func parentText(parent *object.ParentReference) string {
	if parent == nil {
		return none
	}
	text := parent.Resource
	if parent.Group != "" {
		text += "." + parent.Group
	}
	text = strings.ToLower(text)
	if parent.Namespace != "" {
		text += "/" + parent.Namespace
	}
	return text + "/" + parent.Name
}

// allText returns a list with commas, or <none>.
func allText(list []string) string { return cmp.Or(strings.Join(list, ","), none) }

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// age formats the time since an event like kubectl, less precisely for longer times (HumanDuration of apimachinery).
func age(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return unknown
	}
	d := now.Sub(*t)
	switch {
	case d <= -2*time.Second:
		return "<invalid>"
	case d < 0:
		return "0s" // clocks of two machines
	case d < 2*time.Minute:
		return units(d, time.Second, "s", 0, "")
	case d < 10*time.Minute:
		return units(d, time.Minute, "m", time.Second, "s")
	case d < 3*time.Hour:
		return units(d, time.Minute, "m", 0, "")
	case d < 8*time.Hour:
		return units(d, time.Hour, "h", time.Minute, "m")
	case d < 2*day:
		return units(d, time.Hour, "h", 0, "")
	case d < 8*day:
		return units(d, day, "d", time.Hour, "h")
	case d < 2*year:
		return units(d, day, "d", 0, "")
	case d < 8*year:
		return units(d, year, "y", day, "d")
	}
	return units(d, year, "y", 0, "")
}

// units formats a duration in a large unit, followed by the rest in a small unit if it is at least one. small may be 0 for no second unit.
func units(d, large time.Duration, largeName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d%s", d/large, largeName)
	if small == 0 || d%large < small {
		return text
	}
	return fmt.Sprintf("%s%d%s", text, d%large/small, smallName)
}
