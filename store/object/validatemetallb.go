package object

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

func validateL2Advertisement(o *L2Advertisement) Errors {
	return slices.Concat(validateSelectors(specPath, o.Spec.IPAddressPoolSelectors, o.Spec.NodeSelectors, o.Spec.ServiceSelectors), validateInterfaces(o.Spec.Interfaces))
}

// ParseAddressRange reads "192.0.2.0/28", of which all addresses belong to the range, or "192.0.2.10-192.0.2.20".
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

func validateIPAddressPool(o *IPAddressPool) Errors {
	at := specPath.child("addresses")
	if len(o.Spec.Addresses) == 0 {
		return required(at, "a pool needs addresses, as 192.0.2.0/28 or 192.0.2.10-192.0.2.20")
	}
	var errs Errors
	for i, text := range o.Spec.Addresses {
		if _, _, err := ParseAddressRange(text); err != nil {
			errs = append(errs, invalid(at.index(i), text, err.Error())...)
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

func validateBGPAdvertisement(o *BGPAdvertisement) Errors {
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

// ParseCommunity reads "64512:100" or "large:64512:1:2". The first one has two values, the other three.
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

func validateCommunity(o *Community) Errors {
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

func validateBFDProfile(o *BFDProfile) Errors {
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

func validateBGPPeer(o *BGPPeer) Errors {
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
