package object

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
)

var subsetsPath = root("subsets")

// supportedProtocols returns the protocols that a port may have, sorted.
func supportedProtocols() []string { return []string{ProtocolSCTP, ProtocolTCP, ProtocolUDP} }

func (o *Endpoints) validate(previous Object) Errors {
	old, _ := previous.(*Endpoints)
	var kept set
	if old != nil {
		kept = setOf(old.addresses())
	}
	// Kubernetes truncates what its own controller writes and documents that more
	// cannot be written by hand, but does not check it.
	if n := len(o.addresses()); n > MaxEndpointsAddresses {
		return tooMany(subsetsPath, n, MaxEndpointsAddresses)
	}
	var errs Errors
	for i := range o.Subsets {
		errs = append(errs, validateSubset(subsetsPath.index(i), &o.Subsets[i], kept)...)
	}
	return errs
}

// addresses returns all addresses of the object, ready and not.
func (o *Endpoints) addresses() []string {
	var all []string
	for _, subset := range o.Subsets {
		for _, address := range slices.Concat(subset.Addresses, subset.NotReadyAddresses) {
			all = append(all, address.IP)
		}
	}
	return all
}

// An annotation of Endpoints that are truncated because there are too many addresses, with its value.
const (
	AnnotationOverCapacity = "endpoints.kubernetes.io/over-capacity"
	overCapacityTruncated  = "truncated"
)

// Fill gives an object without subsets those of the endpoints of EndpointSlices: one for each set of ports, in the order of its first slice. Beyond
// 1,000 addresses, of which ready ones come first, it truncates. A terminating endpoint that is not ready is left out. If once is set, no list has an
// address twice.
func (o *Endpoints) Fill(parts []*EndpointSlice, once bool) {
	type place struct {
		subset int
		ready  bool
		ip     string
	}
	seen, byPorts, left := map[place]bool{}, map[string]int{}, MaxEndpointsAddresses
	var subsets []int // of the parts
fill:
	for _, ready := range []bool{true, false} {
		for i, part := range parts {
			if ready {
				ports := slices.Clone(part.Ports)
				for j := range ports {
					if Deref(ports[j].Name) == "" {
						ports[j].Name = nil
					}
				}
				key, _ := json.Marshal(ports) // text and numbers: it cannot fail
				if _, there := byPorts[string(key)]; !there {
					byPorts[string(key)] = len(o.Subsets)
					o.Subsets = append(o.Subsets, EndpointSubset{Ports: ports})
				}
				subsets = append(subsets, byPorts[string(key)])
			}
			list := &o.Subsets[subsets[i]].NotReadyAddresses
			if ready {
				list = &o.Subsets[subsets[i]].Addresses
			}
			for j := range part.Endpoints {
				e := &part.Endpoints[j]
				isReady := e.Conditions.Ready == nil || *e.Conditions.Ready
				if len(e.Addresses) == 0 || isReady != ready || !isReady && Deref(e.Conditions.Terminating) || seen[place{subsets[i], ready, e.Addresses[0]}] {
					continue
				}
				if left == 0 {
					o.Metadata.Annotations = map[string]string{AnnotationOverCapacity: overCapacityTruncated}
					break fill
				}
				left--
				if once {
					seen[place{subsets[i], ready, e.Addresses[0]}] = true
				}
				*list = append(*list, EndpointAddress{IP: e.Addresses[0], Hostname: Deref(e.Hostname), NodeName: e.NodeName, TargetRef: e.TargetRef})
			}
		}
	}
	o.Subsets = slices.DeleteFunc(o.Subsets, func(s EndpointSubset) bool { return len(s.Addresses)+len(s.NotReadyAddresses) == 0 })
	for _, subset := range o.Subsets {
		slices.SortFunc(subset.Addresses, compareAddresses)
		slices.SortFunc(subset.NotReadyAddresses, compareAddresses)
	}
}

// compareAddresses orders by IP, then by the name of the Pod.
func compareAddresses(a, b EndpointAddress) int {
	x, _ := netip.ParseAddr(a.IP)
	y, _ := netip.ParseAddr(b.IP)
	if c := cmp.Or(x.Compare(y), cmp.Compare(a.IP, b.IP)); c != 0 || a.TargetRef == nil || b.TargetRef == nil {
		return c
	}
	return cmp.Compare(a.TargetRef.Name, b.TargetRef.Name)
}

func validateSubset(p path, subset *EndpointSubset, kept set) Errors {
	var errs Errors
	if len(subset.Addresses)+len(subset.NotReadyAddresses) == 0 {
		errs = append(errs, required(p, "must specify `addresses` or `notReadyAddresses`")...)
	}
	for i := range subset.Addresses {
		errs = append(errs, validateEndpointAddress(p.child("addresses").index(i), &subset.Addresses[i], kept)...)
	}
	for i := range subset.NotReadyAddresses {
		errs = append(errs, validateEndpointAddress(p.child("notReadyAddresses").index(i), &subset.NotReadyAddresses[i], kept)...)
	}
	for i := range subset.Ports {
		port, portPath := &subset.Ports[i], p.child("ports").index(i)
		if name := Deref(port.Name); name == "" && len(subset.Ports) > 1 {
			errs = append(errs, required(portPath.child("name"), "")...)
		}
		errs = append(errs, validateEndpointPort(portPath, port)...)
		errs = append(errs, invalidFor(portPath.child("port"), Deref(port.Port), portNumberProblems(Deref(port.Port)))...)
	}
	return errs
}

func validateEndpointAddress(p path, address *EndpointAddress, kept set) Errors {
	errs := checkReachableIP(p.child("ip"), address.IP, kept)
	if address.Hostname != "" {
		errs = append(errs, invalidFor(p.child("hostname"), address.Hostname, DNSLabelProblems(address.Hostname))...)
	}
	return append(errs, validateNodeName(p.child("nodeName"), address.NodeName)...)
}

func validateNodeName(p path, name *string) Errors {
	if name == nil {
		return nil
	}
	return invalidFor(p, *name, dns1123SubdomainProblems(*name))
}

// validateEndpointPort checks the rules that apply both to ports of Endpoints and to ports of EndpointSlices.
func validateEndpointPort(p path, port *EndpointPort) Errors {
	var errs Errors
	if name := Deref(port.Name); name != "" {
		errs = append(errs, invalidFor(p.child("name"), name, DNSLabelProblems(name))...)
	}
	errs = append(errs, validateProtocol(p.child("protocol"), Deref(port.Protocol))...)
	return append(errs, validateAppProtocol(p.child("appProtocol"), port.AppProtocol)...)
}

func validateProtocol(p path, protocol string) Errors {
	if protocol == "" {
		return required(p, "")
	}
	return oneOf(p, protocol, supportedProtocols())
}

func validateAppProtocol(p path, appProtocol *string) Errors {
	if appProtocol == nil {
		return nil
	}
	return invalidFor(p, *appProtocol, LabelKeyProblems(*appProtocol))
}

// oneOf returns an error if a value is not one of the supported ones.
func oneOf(p path, value string, supported []string) Errors {
	if slices.Contains(supported, value) {
		return nil
	}
	return notSupported(p, value, supported)
}

var (
	endpointsPath   = root("endpoints")
	slicePortsPath  = root("ports")
	addressTypePath = root("addressType")
)

func (o *EndpointSlice) validate(previous Object) Errors {
	old, _ := previous.(*EndpointSlice)
	kept := set{}
	// An address of another type was another thing: then nothing is kept.
	if old != nil && old.AddressType == o.AddressType {
		for _, endpoint := range old.Endpoints {
			kept.add(endpoint.Addresses...)
		}
	}
	var errs Errors
	if o.AddressType == "" {
		errs = append(errs, required(addressTypePath, "")...)
	} else {
		errs = append(errs, oneOf(addressTypePath, o.AddressType, []string{FQDN, IPv4, IPv6})...)
	}
	if n := len(o.Endpoints); n > maxSliceEndpoints {
		errs = append(errs, tooMany(endpointsPath, n, maxSliceEndpoints)...)
	} else {
		for i := range o.Endpoints {
			errs = append(errs, validateEndpoint(endpointsPath.index(i), &o.Endpoints[i], o.AddressType, kept)...)
		}
	}
	return append(errs, validateSlicePorts(o.Ports)...)
}

func validateEndpoint(p path, endpoint *Endpoint, addressType string, kept set) Errors {
	var errs Errors
	addressesPath := p.child("addresses")
	switch n := len(endpoint.Addresses); {
	case n == 0:
		errs = append(errs, required(addressesPath, "must contain at least 1 address")...)
	case n > maxSliceAddresses:
		errs = append(errs, tooMany(addressesPath, n, maxSliceAddresses)...)
	}
	for i, address := range endpoint.Addresses {
		errs = append(errs, validateSliceAddress(addressesPath.index(i), address, addressType, kept)...)
	}
	errs = append(errs, validateNodeName(p.child("nodeName"), endpoint.NodeName)...)
	if n := len(endpoint.DeprecatedTopology); n > maxSliceTopology {
		errs = append(errs, tooMany(p.child("deprecatedTopology"), n, maxSliceTopology)...)
	}
	errs = append(errs, validateLabels(p.child("deprecatedTopology"), endpoint.DeprecatedTopology)...)
	if hostname := endpoint.Hostname; hostname != nil {
		errs = append(errs, invalidFor(p.child("hostname"), *hostname, DNSLabelProblems(*hostname))...)
	}
	if endpoint.Hints != nil {
		errs = append(errs, validateHints(p.child("hints"), endpoint.Hints)...)
	}
	return errs
}

func validateSliceAddress(p path, address, addressType string, kept set) Errors {
	switch addressType {
	case IPv4, IPv6:
		if isUsualAddress(address, addressType) {
			return nil
		}
		errs := checkReachableIP(p, address, kept)
		if family := familyOf(address); family != "" && family != addressType {
			errs = append(errs, invalid(p, address, "must be an "+addressType+" address")...)
		}
		return errs
	case FQDN:
		return validateFQDN(p, address)
	}
	// The type is refused already.
	return nil
}

// isUsualAddress reports whether a text is a global unicast address of the family, without a zone and not IPv4-mapped. It is a fast path: such an
// address is valid by all other rules, too.
func isUsualAddress(address, family string) bool {
	addr, err := netip.ParseAddr(address)
	if err != nil || !addr.IsGlobalUnicast() || addr.Zone() != "" || addr.Is4In6() {
		return false
	}
	return addr.Is4() == (family == IPv4)
}

// validateFQDN requires at least two labels; a trailing dot is allowed.
func validateFQDN(p path, name string) Errors {
	if name == "" {
		return required(p, "")
	}
	name = strings.TrimSuffix(name, ".")
	if problems := dns1123SubdomainProblems(name); len(problems) > 0 {
		return invalid(p, name, strings.Join(problems, ","))
	}
	labels := strings.Split(name, ".")
	if len(labels) < 2 {
		return invalid(p, name, "should be a domain with at least two segments separated by dots")
	}
	for _, label := range labels {
		if problems := DNSLabelProblems(label); len(problems) > 0 {
			return invalid(p, label, strings.Join(problems, ","))
		}
	}
	return nil
}

func validateHints(p path, hints *EndpointHints) Errors {
	zones := Texts(hints.ForZones, func(z ForZone) string { return z.Name })
	nodes := Texts(hints.ForNodes, func(n ForNode) string { return n.Name })
	return append(
		validateHintNames(p.child("forZones"), zones, LabelValueProblems),
		validateHintNames(p.child("forNodes"), nodes, dns1123SubdomainProblems)...)
}

func validateHintNames(p path, names []string, problems func(string) []string) Errors {
	if len(names) > maxSliceHints {
		return tooMany(p, len(names), maxSliceHints)
	}
	var errs Errors
	seen := set{}
	for i, name := range names {
		namePath := p.index(i).child("name")
		if seen[name] {
			errs = append(errs, duplicate(namePath, name)...)
		}
		seen[name] = true
		errs = append(errs, invalidFor(namePath, name, problems(name))...)
	}
	return errs
}

func validateSlicePorts(ports []EndpointPort) Errors {
	if len(ports) > maxSlicePorts {
		return tooMany(slicePortsPath, len(ports), maxSlicePorts)
	}
	var errs Errors
	seen := set{}
	for i := range ports {
		p, port := slicePortsPath.index(i), &ports[i]
		name := Deref(port.Name)
		if seen[name] {
			errs = append(errs, duplicate(p.child("name"), name)...)
		}
		seen[name] = true
		errs = append(errs, validateEndpointPort(p, port)...)
		// Absent and 0 are ports that no proxy uses. Beyond 65535 Kubernetes takes
		// what no packet can carry; here it is refused.
		if n := Deref(port.Port); n != 0 {
			errs = append(errs, invalidFor(p.child("port"), n, portNumberProblems(n))...)
		}
	}
	return errs
}

// validateChange returns errors for changes of the immutable fields of an EndpointSlice.
func (o *EndpointSlice) validateChange(previous Object) Errors {
	if before, _ := previous.(*EndpointSlice); o.AddressType != before.AddressType {
		return invalid(addressTypePath, o.AddressType, immutableText)
	}
	return nil
}
