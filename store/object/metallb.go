package object

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The kinds of MetalLB: they configure which addresses load balancers get, and where these are announced.
const (
	KindIPAddressPool    = "IPAddressPool"
	KindL2Advertisement  = "L2Advertisement"
	KindBGPAdvertisement = "BGPAdvertisement"
	KindCommunity        = "Community"
	KindBFDProfile       = "BFDProfile"
	KindBGPPeer          = "BGPPeer"
)

// The API versions of these kinds; APIVersionMetalLBPeer is that of BGPPeer alone.
const (
	APIVersionMetalLB     = "metallb.io/v1beta1"
	APIVersionMetalLBPeer = "metallb.io/v1beta2"
)

// MetalLBNamespace is the conventional namespace of MetalLB's objects. svcctl puts two kinds of objects into it: the status of
// addresses that are announced by flags, and a ConfigurationState if no object has another namespace.
const MetalLBNamespace = "metallb-system"

// IPAddressPool is metallb.io/v1beta1 IPAddressPool.
type IPAddressPool struct {
	TypeMeta
	Metadata ObjectMeta        `json:"metadata"`
	Spec     IPAddressPoolSpec `json:"spec" schema:"required"`
	// Status is computed on request, and never stored.
	Status *IPAddressPoolStatus `json:"status,omitempty"`
}

// IPAddressPoolSpec is metallb.io/v1beta1 IPAddressPoolSpec. Addresses are prefixes, or ranges such as "192.0.2.10-192.0.2.20".
type IPAddressPoolSpec struct {
	Addresses         []string           `json:"addresses" schema:"required"`
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
	Weight     int32         `json:"weight" schema:"required"`
	Preference LabelSelector `json:"preference" schema:"required"`
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

// NoStatus is the empty status of MetalLB's kinds. It is accepted in manifests, since kubectl prints it, but is not stored.
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
	Spec     BGPPeerSpec `json:"spec" schema:"required"`
	Status   *NoStatus   `json:"status,omitempty"`
}

// BGPPeerSpec is metallb.io/v1beta2 BGPPeerSpec; times are durations such as "90s". It has more than 15 fields: those of MetalLB.
type BGPPeerSpec struct {
	MyASN                  int64           `json:"myASN" schema:"required"`
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

func (o *IPAddressPool) GetMeta() *ObjectMeta    { return &o.Metadata }
func (o *L2Advertisement) GetMeta() *ObjectMeta  { return &o.Metadata }
func (o *BGPAdvertisement) GetMeta() *ObjectMeta { return &o.Metadata }
func (o *Community) GetMeta() *ObjectMeta        { return &o.Metadata }
func (o *BFDProfile) GetMeta() *ObjectMeta       { return &o.Metadata }
func (o *BGPPeer) GetMeta() *ObjectMeta          { return &o.Metadata }

// The kinds of MetalLB that report status. Clients cannot write them.
const (
	KindServiceL2Status    = "ServiceL2Status"
	KindServiceBGPStatus   = "ServiceBGPStatus"
	KindConfigurationState = "ConfigurationState"
)

// IPAddressPoolStatus is metallb.io/v1beta1 IPAddressPoolStatus: how many addresses of a pool are assigned, and how many
// are free.
type IPAddressPoolStatus struct {
	AssignedIPv4  int64 `json:"assignedIPv4"`
	AssignedIPv6  int64 `json:"assignedIPv6"`
	AvailableIPv4 int64 `json:"availableIPv4"`
	AvailableIPv6 int64 `json:"availableIPv6"`
}

// ServiceL2Status is metallb.io/v1beta1 ServiceL2Status: where a Service is announced on segments.
type ServiceL2Status struct {
	TypeMeta
	Metadata ObjectMeta            `json:"metadata"`
	Spec     ServiceL2StatusSpec   `json:"spec,omitzero"`
	Status   ServiceL2StatusStatus `json:"status,omitzero"`
}

// ServiceL2StatusSpec is metallb.io/v1beta1 ServiceL2StatusSpec, which has no fields.
type ServiceL2StatusSpec struct{}

// ServiceL2StatusStatus is metallb.io/v1beta1 MetalLBServiceL2Status.
type ServiceL2StatusStatus struct {
	Node             string          `json:"node,omitempty"`
	ServiceName      string          `json:"serviceName,omitempty"`
	ServiceNamespace string          `json:"serviceNamespace,omitempty"`
	Interfaces       []InterfaceInfo `json:"interfaces,omitempty"`
}

// InterfaceInfo is metallb.io/v1beta1 InterfaceInfo.
type InterfaceInfo struct {
	Name string `json:"name,omitempty"`
}

// ServiceBGPStatus is metallb.io/v1beta1 ServiceBGPStatus: the BGP peers that a Service is announced to.
type ServiceBGPStatus struct {
	TypeMeta
	Metadata ObjectMeta             `json:"metadata"`
	Spec     ServiceBGPStatusSpec   `json:"spec,omitzero"`
	Status   ServiceBGPStatusStatus `json:"status,omitzero"`
}

// ServiceBGPStatusSpec is metallb.io/v1beta1 ServiceBGPStatusSpec, which has no fields.
type ServiceBGPStatusSpec struct{}

// ServiceBGPStatusStatus is metallb.io/v1beta1 MetalLBServiceBGPStatus.
type ServiceBGPStatusStatus struct {
	Node             string   `json:"node,omitempty"`
	ServiceName      string   `json:"serviceName,omitempty"`
	ServiceNamespace string   `json:"serviceNamespace,omitempty"`
	Peers            []string `json:"peers,omitempty"`
}

// ConfigurationState is metallb.io/v1beta1 ConfigurationState: whether the objects of MetalLB's kinds are valid and in use.
type ConfigurationState struct {
	TypeMeta
	Metadata ObjectMeta               `json:"metadata"`
	Status   ConfigurationStateStatus `json:"status,omitzero"`
}

// ConfigurationStateStatus is metallb.io/v1beta1 ConfigurationStateStatus. Result is Valid or Invalid.
type ConfigurationStateStatus struct {
	Result       string      `json:"result,omitempty"`
	ErrorSummary string      `json:"errorSummary,omitempty"`
	Conditions   []Condition `json:"conditions,omitempty"`
}

func (o *ServiceL2Status) GetMeta() *ObjectMeta    { return &o.Metadata }
func (o *ServiceBGPStatus) GetMeta() *ObjectMeta   { return &o.Metadata }
func (o *ConfigurationState) GetMeta() *ObjectMeta { return &o.Metadata }

func (o *L2Advertisement) validate(Object) Errors {
	return slices.Concat(validateSelectors(specPath, o.Spec.IPAddressPoolSelectors, o.Spec.NodeSelectors, o.Spec.ServiceSelectors), validateInterfaces(o.Spec.Interfaces))
}

// ParseAddressRange parses "192.0.2.0/28", all addresses of which belong to the range, or "192.0.2.10-192.0.2.20".
func ParseAddressRange(text string) (first, last netip.Addr, err error) {
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || p.Addr().Is4In6() {
			return first, last, fmt.Errorf("%q is neither a prefix, as 192.0.2.0/28, nor a range, as 192.0.2.10-192.0.2.20", text)
		}
		p = p.Masked()
		b := p.Addr().AsSlice()
		for i := p.Bits(); i < len(b)*8; i++ {
			b[i/8] |= 0x80 >> (i % 8)
		}
		last, _ = netip.AddrFromSlice(b)
		return p.Addr(), last, nil
	}
	first, err1 := netip.ParseAddr(strings.TrimSpace(from))
	last, err2 := netip.ParseAddr(strings.TrimSpace(to))
	if err1 != nil || err2 != nil || first.BitLen() != last.BitLen() || last.Less(first) || first.Zone()+last.Zone() != "" || first.Is4In6() || last.Is4In6() {
		return first, last, fmt.Errorf("%q is no range from an address to a higher one of the same family", text)
	}
	return first, last, nil
}

// NotUnicast returns the name of the first class of addresses between first and last that cannot be VIPs, as "loopback addresses"; "" when there is
// none.
func NotUnicast(first, last netip.Addr) string {
	for _, kind := range []struct{ prefix, name string }{
		{"0.0.0.0/8", "addresses of this network"},
		{"127.0.0.0/8", "loopback addresses"},
		{"169.254.0.0/16", "link-local addresses"},
		{"224.0.0.0/3", "multicast and reserved addresses"},
		{"::/127", "the unspecified and the loopback address"},
		{"::ffff:0:0/96", "IPv4-mapped addresses"},
		{"fe80::/10", "link-local addresses"},
		{"ff00::/8", "multicast addresses"},
	} {
		p := netip.MustParsePrefix(kind.prefix)
		if p.Contains(first) || p.Contains(last) || first.BitLen() == p.Addr().BitLen() && first.Less(p.Addr()) && p.Addr().Less(last) {
			return kind.name
		}
	}
	return ""
}

// InAddressRange reports whether an address lies in a range in the form of ParseAddressRange.
func InAddressRange(addr netip.Addr, text string) bool {
	first, last, err := ParseAddressRange(text)
	return err == nil && first.BitLen() == addr.BitLen() && !addr.Less(first) && !last.Less(addr)
}

func (o *IPAddressPool) validate(Object) Errors {
	at := specPath.child("addresses")
	if len(o.Spec.Addresses) == 0 {
		return required(at, "a pool needs addresses, as 192.0.2.0/28 or 192.0.2.10-192.0.2.20")
	}
	var errs Errors
	for i, text := range o.Spec.Addresses {
		first, last, err := ParseAddressRange(text)
		if err != nil {
			errs = append(errs, invalid(at.index(i), text, err.Error())...)
		} else if why := NotUnicast(first, last); why != "" {
			errs = append(errs, invalid(at.index(i), text, why+" cannot be load balancer IPs: give a range of unicast addresses")...)
		}
	}
	if a := o.Spec.ServiceAllocation; a != nil {
		in := specPath.child("serviceAllocation")
		if a.Priority < 0 {
			errs = append(errs, invalid(in.child("priority"), a.Priority, "must be 0 or greater: the lowest number is the first choice, and 0 the last")...)
		}
		errs = append(errs, validateSelectors(in, a.NamespaceSelectors, a.ServiceSelectors)...)
	}
	return errs
}

func validateInterfaces(names []string) Errors {
	var errs Errors
	for i, name := range names {
		if name == "" || len(name) > 15 || strings.ContainsAny(name, "/ \t\n") {
			errs = append(errs, invalid(specPath.child("interfaces").index(i), name, "must be the name of an interface, as ip link lists it")...)
		}
	}
	return errs
}

func (o *BGPAdvertisement) validate(Object) Errors {
	s := &o.Spec
	errs := validateSelectors(specPath, s.IPAddressPoolSelectors, s.NodeSelectors, s.ServiceSelectors)
	length := func(name string, value *int32, most int32) {
		if value != nil && (*value < 1 || *value > most) {
			errs = append(errs, invalid(specPath.child(name), *value, fmt.Sprintf("must be between 1 and %d, inclusive", most))...)
		}
	}
	if s.LocalPref < 0 || s.LocalPref > 1<<32-1 {
		errs = append(errs, invalid(specPath.child("localPref"), s.LocalPref, "must be between 0 and 4294967295, inclusive")...)
	}
	length("aggregationLength", s.AggregationLength, 32)
	length("aggregationLengthV6", s.AggregationLengthV6, 128)
	aggregates := s.AggregationLength != nil && *s.AggregationLength != 32 || s.AggregationLengthV6 != nil && *s.AggregationLengthV6 != 128
	if aggregates && len(s.ServiceSelectors) > 0 {
		errs = append(errs, forbidden(specPath.child("serviceSelectors"), "may not be set with an aggregation length: an aggregate leads to the addresses of other Services as well")...)
	}
	return errs
}

// ParseCommunity parses a BGP community, "64512:100", which has two values, or a large one, "large:64512:1:2", which has three.
func ParseCommunity(text string) ([]uint32, error) {
	parts, bits := strings.Split(text, ":"), 16
	if parts[0] == "large" {
		parts, bits = parts[1:], 32
	}
	values := make([]uint32, 0, len(parts))
	for _, part := range parts {
		n, err := strconv.ParseUint(part, 10, bits)
		if err != nil {
			break
		}
		values = append(values, uint32(n))
	}
	if len(values) != len(parts) || bits == 16 && len(parts) != 2 || bits == 32 && len(parts) != 3 {
		return nil, fmt.Errorf("%q is no community, as 64512:100 with numbers up to 65535 or large:64512:1:2 with numbers up to 4294967295", text)
	}
	return values, nil
}

func (o *Community) validate(Object) Errors {
	var errs Errors
	at := specPath.child("communities")
	for i, c := range o.Spec.Communities {
		if c.Name == "" {
			errs = append(errs, required(at.index(i).child("name"), "a community needs a name to be used by")...)
		}
		if _, err := ParseCommunity(c.Value); err != nil {
			errs = append(errs, invalid(at.index(i).child("value"), c.Value, err.Error())...)
		}
	}
	return errs
}

func (o *BFDProfile) validate(Object) Errors {
	var errs Errors
	between := func(name string, value *int32, least, most int32) {
		if value != nil && (*value < least || *value > most) {
			errs = append(errs, invalid(specPath.child(name), *value, fmt.Sprintf("must be between %d and %d, inclusive", least, most))...)
		}
	}
	between("receiveInterval", o.Spec.ReceiveInterval, 50, 60000)
	between("transmitInterval", o.Spec.TransmitInterval, 50, 60000)
	between("detectMultiplier", o.Spec.DetectMultiplier, 2, 255)
	between("echoInterval", o.Spec.EchoInterval, 10, 60000)
	between("minimumTtl", o.Spec.MinimumTTL, 1, 254)
	return errs
}

func (o *BGPPeer) validate(Object) Errors {
	s := &o.Spec
	var errs Errors
	wrong := func(is bool, name string, value any, text string) {
		if is {
			errs = append(errs, invalid(specPath.child(name), value, text)...)
		}
	}
	isAddress := func(text string) bool { _, err := netip.ParseAddr(text); return err == nil }
	const maxAS = 1<<32 - 2
	wrong(s.MyASN < 1 || s.MyASN > maxAS, "myASN", s.MyASN, "must be the number of our autonomous system, from 1 to 4294967294")
	wrong(s.LocalASN < 0 || s.LocalASN > maxAS, "localASN", s.LocalASN, "must be the number of an autonomous system, up to 4294967294")
	wrong(s.PeerASN < 0 || s.PeerASN > maxAS, "peerASN", s.PeerASN, "must be the number of an autonomous system, up to 4294967294")
	wrong(s.PeerPort < 0 || s.PeerPort > 65535, "peerPort", s.PeerPort, "must be a port, up to 65535")
	wrong(s.PeerASN == 0 && s.DynamicASN == "", "peerASN", s.PeerASN, "must be the number of the peer's autonomous system, unless dynamicASN is set")
	wrong(s.PeerASN != 0 && s.DynamicASN != "", "dynamicASN", s.DynamicASN, "may not be set beside peerASN")
	if s.DynamicASN != "" && s.DynamicASN != "internal" && s.DynamicASN != "external" {
		errs = append(errs, notSupported(specPath.child("dynamicASN"), s.DynamicASN, []string{"internal", "external"})...)
	}
	wrong((s.PeerAddress == "") == (s.Interface == ""), "peerAddress", s.PeerAddress, "either it or interface must be set")
	wrong(s.PeerAddress != "" && !isAddress(s.PeerAddress), "peerAddress", s.PeerAddress, "must be an IP address")
	wrong(s.SourceAddress != "" && !isAddress(s.SourceAddress), "sourceAddress", s.SourceAddress, "must be an IP address")
	id, err := netip.ParseAddr(s.RouterID)
	wrong(s.RouterID != "" && (err != nil || !id.Is4()), "routerID", s.RouterID, "must be an IPv4 address")
	wrong(s.Password != "" && s.PasswordSecret.Name != "", "passwordSecret", s.PasswordSecret.Name, "may not be set beside password")
	for name, text := range map[string]string{"holdTime": s.HoldTime, "keepaliveTime": s.KeepaliveTime, "connectTime": s.ConnectTime} {
		d, err := time.ParseDuration(text)
		wrong(text != "" && (err != nil || d < 0), name, text, "must be a duration, as 90s or 1m30s")
	}
	return append(errs, validateSelectors(specPath, s.NodeSelectors)...)
}
