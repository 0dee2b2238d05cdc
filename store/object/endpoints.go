package object

import "slices"

var subsetsPath = root("subsets")

// supportedProtocols are sorted, as they are shown.
func supportedProtocols() []string { return []string{ProtocolSCTP, ProtocolTCP, ProtocolUDP} }

func validateEndpoints(o, old *Endpoints) Errors {
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
		name := Deref(port.Name)
		if name == "" && len(subset.Ports) > 1 {
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
		errs = append(errs, invalidFor(p.child("hostname"), address.Hostname, dns1123LabelProblems(address.Hostname))...)
	}
	return append(errs, validateNodeName(p.child("nodeName"), address.NodeName)...)
}

func validateNodeName(p path, name *string) Errors {
	if name == nil {
		return nil
	}
	return invalidFor(p, *name, dns1123SubdomainProblems(*name))
}

// validateEndpointPort checks what ports of Endpoints and of EndpointSlices have in common.
func validateEndpointPort(p path, port *EndpointPort) Errors {
	var errs Errors
	if name := Deref(port.Name); name != "" {
		errs = append(errs, invalidFor(p.child("name"), name, dns1123LabelProblems(name))...)
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
	return invalidFor(p, *appProtocol, labelKeyProblems(*appProtocol))
}

// oneOf refuses a value that is not one of the supported.
func oneOf(p path, value string, supported []string) Errors {
	if slices.Contains(supported, value) {
		return nil
	}
	return notSupported(p, value, supported)
}
