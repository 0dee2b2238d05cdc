package object

// The kinds of MetalLB: which addresses load balancers get, and where they are announced.
const (
	KindIPAddressPool    = "IPAddressPool"
	KindL2Advertisement  = "L2Advertisement"
	KindBGPAdvertisement = "BGPAdvertisement"
	KindCommunity        = "Community"
	KindBFDProfile       = "BFDProfile"
	KindBGPPeer          = "BGPPeer"
)

// The API versions of these kinds: that of BGPPeer, and that of the others.
const (
	APIVersionMetalLB     = "metallb.io/v1beta1"
	APIVersionMetalLBPeer = "metallb.io/v1beta2"
)

// MetalLBNamespace is the namespace of MetalLB's objects by convention, and here of the states of addresses that flags
// announce, and of the configuration when no object names another.
const MetalLBNamespace = "metallb-system"

// IPAddressPool is metallb.io/v1beta1 IPAddressPool.
type IPAddressPool struct {
	TypeMeta
	Metadata ObjectMeta        `json:"metadata"`
	Spec     IPAddressPoolSpec `json:"spec"`
	// Status is computed on request, and never stored.
	Status *IPAddressPoolStatus `json:"status,omitempty"`
}

// IPAddressPoolSpec is metallb.io/v1beta1 IPAddressPoolSpec. Addresses are prefixes, or ranges as
// "192.0.2.10-192.0.2.20".
type IPAddressPoolSpec struct {
	Addresses         []string           `json:"addresses"`
	AutoAssign        *bool              `json:"autoAssign,omitempty"`
	AvoidBuggyIPs     bool               `json:"avoidBuggyIPs,omitempty"`
	ServiceAllocation *ServiceAllocation `json:"serviceAllocation,omitempty"`
}

// ServiceAllocation is metallb.io/v1beta1 ServiceAllocation.
type ServiceAllocation struct {
	Priority           int32           `json:"priority,omitempty"`
	Namespaces         []string        `json:"namespaces,omitempty"`
	NamespaceSelectors []LabelSelector `json:"namespaceSelectors,omitempty"`
	ServiceSelectors   []LabelSelector `json:"serviceSelectors,omitempty"`
}

// L2Advertisement is metallb.io/v1beta1 L2Advertisement.
type L2Advertisement struct {
	TypeMeta
	Metadata ObjectMeta          `json:"metadata"`
	Spec     L2AdvertisementSpec `json:"spec,omitzero"`
	Status   *NoStatus           `json:"status,omitempty"`
}

// L2AdvertisementSpec is metallb.io/v1beta1 L2AdvertisementSpec.
type L2AdvertisementSpec struct {
	IPAddressPools         []string                `json:"ipAddressPools,omitempty"`
	IPAddressPoolSelectors []LabelSelector         `json:"ipAddressPoolSelectors,omitempty"`
	NodeSelectors          []LabelSelector         `json:"nodeSelectors,omitempty"`
	Interfaces             []string                `json:"interfaces,omitempty"`
	ServiceSelectors       []LabelSelector         `json:"serviceSelectors,omitempty"`
	PreferredNodeSelectors []PreferredNodeSelector `json:"preferredNodeSelectors,omitempty"`
}

// PreferredNodeSelector is metallb.io/v1beta1 PreferredNodeSelector.
type PreferredNodeSelector struct {
	Weight     int32         `json:"weight"`
	Preference LabelSelector `json:"preference"`
}

// BGPAdvertisement is metallb.io/v1beta1 BGPAdvertisement.
type BGPAdvertisement struct {
	TypeMeta
	Metadata ObjectMeta           `json:"metadata"`
	Spec     BGPAdvertisementSpec `json:"spec,omitzero"`
	Status   *NoStatus            `json:"status,omitempty"`
}

// BGPAdvertisementSpec is metallb.io/v1beta1 BGPAdvertisementSpec.
type BGPAdvertisementSpec struct {
	AggregationLength      *int32          `json:"aggregationLength,omitempty"`
	AggregationLengthV6    *int32          `json:"aggregationLengthV6,omitempty"`
	LocalPref              int64           `json:"localPref,omitempty"`
	Communities            []string        `json:"communities,omitempty"`
	IPAddressPools         []string        `json:"ipAddressPools,omitempty"`
	IPAddressPoolSelectors []LabelSelector `json:"ipAddressPoolSelectors,omitempty"`
	NodeSelectors          []LabelSelector `json:"nodeSelectors,omitempty"`
	Peers                  []string        `json:"peers,omitempty"`
	ServiceSelectors       []LabelSelector `json:"serviceSelectors,omitempty"`
}

// Community is metallb.io/v1beta1 Community: names for values in BGPAdvertisements.
type Community struct {
	TypeMeta
	Metadata ObjectMeta    `json:"metadata"`
	Spec     CommunitySpec `json:"spec,omitzero"`
	Status   *NoStatus     `json:"status,omitempty"`
}

// CommunitySpec is metallb.io/v1beta1 CommunitySpec.
type CommunitySpec struct {
	Communities []CommunityAlias `json:"communities,omitempty"`
}

// CommunityAlias is metallb.io/v1beta1 CommunityAlias. Values are "64512:100" or "large:64512:1:2".
type CommunityAlias struct {
	Name  string `json:"name,omitempty"`
	Value string `json:"value,omitempty"`
}

// BFDProfile is metallb.io/v1beta1 BFDProfile.
type BFDProfile struct {
	TypeMeta
	Metadata ObjectMeta     `json:"metadata"`
	Spec     BFDProfileSpec `json:"spec,omitzero"`
	Status   *NoStatus      `json:"status,omitempty"`
}

// NoStatus is the status of kinds of MetalLB that have no field in it. It is taken, as clusters print it, and never stored.
type NoStatus struct{}

// BFDProfileSpec is metallb.io/v1beta1 BFDProfileSpec; intervals are in milliseconds.
type BFDProfileSpec struct {
	ReceiveInterval  *int32 `json:"receiveInterval,omitempty"`
	TransmitInterval *int32 `json:"transmitInterval,omitempty"`
	DetectMultiplier *int32 `json:"detectMultiplier,omitempty"`
	EchoInterval     *int32 `json:"echoInterval,omitempty"`
	EchoMode         *bool  `json:"echoMode,omitempty"`
	PassiveMode      *bool  `json:"passiveMode,omitempty"`
	MinimumTTL       *int32 `json:"minimumTtl,omitempty"`
}

// BGPPeer is metallb.io/v1beta2 BGPPeer.
type BGPPeer struct {
	TypeMeta
	Metadata ObjectMeta  `json:"metadata"`
	Spec     BGPPeerSpec `json:"spec"`
	Status   *NoStatus   `json:"status,omitempty"`
}

// BGPPeerSpec is metallb.io/v1beta2 BGPPeerSpec; times are durations as "90s". It has more than 15 fields:
// those of MetalLB.
type BGPPeerSpec struct {
	MyASN                  int64           `json:"myASN"`
	PeerASN                int64           `json:"peerASN,omitempty"`
	LocalASN               int64           `json:"localASN,omitempty"`
	DynamicASN             string          `json:"dynamicASN,omitempty"`
	PeerAddress            string          `json:"peerAddress,omitempty"`
	Interface              string          `json:"interface,omitempty"`
	SourceAddress          string          `json:"sourceAddress,omitempty"`
	PeerPort               int32           `json:"peerPort,omitempty"`
	HoldTime               string          `json:"holdTime,omitempty"`
	KeepaliveTime          string          `json:"keepaliveTime,omitempty"`
	ConnectTime            string          `json:"connectTime,omitempty"`
	RouterID               string          `json:"routerID,omitempty"`
	NodeSelectors          []LabelSelector `json:"nodeSelectors,omitempty"`
	Password               string          `json:"password,omitempty"`
	PasswordSecret         SecretReference `json:"passwordSecret,omitzero"`
	BFDProfile             string          `json:"bfdProfile,omitempty"`
	EnableGracefulRestart  bool            `json:"enableGracefulRestart,omitempty"`
	EBGPMultiHop           bool            `json:"ebgpMultiHop,omitempty"`
	VRF                    string          `json:"vrf,omitempty"`
	DisableMP              bool            `json:"disableMP,omitempty"`
	DualStackAddressFamily bool            `json:"dualStackAddressFamily,omitempty"`
}

// SecretReference is core/v1 SecretReference.
type SecretReference struct {
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

func (o *IPAddressPool) GetTypeMeta() *TypeMeta    { return &o.TypeMeta }
func (o *IPAddressPool) GetMeta() *ObjectMeta      { return &o.Metadata }
func (o *L2Advertisement) GetTypeMeta() *TypeMeta  { return &o.TypeMeta }
func (o *L2Advertisement) GetMeta() *ObjectMeta    { return &o.Metadata }
func (o *BGPAdvertisement) GetTypeMeta() *TypeMeta { return &o.TypeMeta }
func (o *BGPAdvertisement) GetMeta() *ObjectMeta   { return &o.Metadata }
func (o *Community) GetTypeMeta() *TypeMeta        { return &o.TypeMeta }
func (o *Community) GetMeta() *ObjectMeta          { return &o.Metadata }
func (o *BFDProfile) GetTypeMeta() *TypeMeta       { return &o.TypeMeta }
func (o *BFDProfile) GetMeta() *ObjectMeta         { return &o.Metadata }
func (o *BGPPeer) GetTypeMeta() *TypeMeta          { return &o.TypeMeta }
func (o *BGPPeer) GetMeta() *ObjectMeta            { return &o.Metadata }

// DeepCopy implements Object.
func (o *IPAddressPool) DeepCopy() Object { return deepCopy(o) }

// DeepCopy implements Object.
func (o *L2Advertisement) DeepCopy() Object { return deepCopy(o) }

// DeepCopy implements Object.
func (o *BGPAdvertisement) DeepCopy() Object { return deepCopy(o) }

// DeepCopy implements Object.
func (o *Community) DeepCopy() Object { return deepCopy(o) }

// DeepCopy implements Object.
func (o *BFDProfile) DeepCopy() Object { return deepCopy(o) }

// DeepCopy implements Object.
func (o *BGPPeer) DeepCopy() Object { return deepCopy(o) }
