package table

import (
	"fmt"
	"strings"
	"time"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// APIVersion of the forms in this package.
const APIVersion = "meta.k8s.io/v1"

// The kinds of the forms in this package.
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
	Rows              []Row    `json:"rows"`
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

// Include is the part of its object that a row contains: the value of includeObject in a
// query.
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

// New returns an empty table for objects of a kind.
func New(k kind.Kind, meta ListMeta) *Table {
	return &Table{Kind: KindTable, APIVersion: APIVersion, Metadata: meta, ColumnDefinitions: Columns(k), Rows: []Row{}}
}

// RowOf returns the row of an object.
func RowOf(o object.Object, include Include, now time.Time) Row {
	row := Row{Cells: cells(o, now)}
	switch include {
	case IncludeMetadata:
		row.Object = MetadataOf(o)
	case IncludeObject:
		row.Object = o
	}
	return row
}

// MetadataOf returns the metadata of an object as a PartialObjectMetadata.
func MetadataOf(o object.Object) Metadata {
	return Metadata{TypeMeta: object.TypeMeta{Kind: KindMetadata, APIVersion: APIVersion}, Metadata: *o.GetMeta()}
}

// columns are those of a kind, each with the field that has its description; * is before those of wide output alone.
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

// Columns returns the columns of a kind: of one that is not in the table, a name and an age.
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
