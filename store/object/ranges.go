package object

import "net/netip"

// ServiceCIDR is networking.k8s.io/v1 ServiceCIDR: a range that cluster IPs come from.
type ServiceCIDR struct {
	TypeMeta
	Metadata ObjectMeta        `json:"metadata"`
	Spec     ServiceCIDRSpec   `json:"spec,omitzero"`
	Status   ServiceCIDRStatus `json:"status,omitzero"`
}

// ServiceCIDRSpec is networking.k8s.io/v1 ServiceCIDRSpec.
type ServiceCIDRSpec struct {
	CIDRs []string `json:"cidrs,omitempty"`
}

// ServiceCIDRStatus is networking.k8s.io/v1 ServiceCIDRStatus.
type ServiceCIDRStatus struct {
	Conditions []Condition `json:"conditions,omitempty"`
}

// IPAddress is networking.k8s.io/v1 IPAddress: who holds an address. Its name is the
// address in its canonical form.
type IPAddress struct {
	TypeMeta
	Metadata ObjectMeta    `json:"metadata"`
	Spec     IPAddressSpec `json:"spec,omitzero"`
}

// IPAddressSpec is networking.k8s.io/v1 IPAddressSpec.
type IPAddressSpec struct {
	ParentRef *ParentReference `json:"parentRef,omitempty"`
}

// ParentReference is networking.k8s.io/v1 ParentReference.
type ParentReference struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

func (o *ServiceCIDR) GetTypeMeta() *TypeMeta { return &o.TypeMeta }
func (o *ServiceCIDR) GetMeta() *ObjectMeta   { return &o.Metadata }
func (o *IPAddress) GetTypeMeta() *TypeMeta   { return &o.TypeMeta }
func (o *IPAddress) GetMeta() *ObjectMeta     { return &o.Metadata }

// DeepCopy implements Object.
func (o *ServiceCIDR) DeepCopy() Object { return deepCopy(o) }

// DeepCopy implements Object.
func (o *IPAddress) DeepCopy() Object { return deepCopy(o) }

// addressNameProblems is for the name of an IPAddress.
func addressNameProblems(name string) []string {
	if addr, err := netip.ParseAddr(name); err != nil || addr.Zone() != "" {
		return []string{"must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"}
	} else if addr.String() != name || addr.Is4In6() {
		return []string{"must be a valid IP address in canonical form"}
	}
	return nil
}

// validateServiceCIDR wants one CIDR, or one of each family (ValidateServiceCIDR of
// pkg/apis/networking/validation).
func validateServiceCIDR(o *ServiceCIDR) Errors {
	at := specPath.child("cidrs")
	var errs Errors
	var families []string
	switch n := len(o.Spec.CIDRs); {
	case n == 0:
		return required(at, "at least one CIDR required")
	case n > 2:
		return invalid(at, o.Spec.CIDRs, "must only contain up to 2 values")
	}
	for i, cidr := range o.Spec.CIDRs {
		prefix, err := netip.ParsePrefix(cidr)
		switch {
		case err != nil || prefix.Addr().Is4In6():
			errs = append(errs, invalid(at.index(i), cidr, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)")...)
		case prefix.Masked().String() != cidr:
			errs = append(errs, invalid(at.index(i), cidr, "must be in canonical form ("+prefix.Masked().String()+")")...)
		case prefix.Addr().Is4():
			families = append(families, IPv4)
		default:
			families = append(families, IPv6)
		}
	}
	if len(families) == 2 && families[0] == families[1] {
		errs = append(errs, invalid(at, o.Spec.CIDRs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64")...)
	}
	return errs
}

func validateIPAddress(o *IPAddress) Errors {
	at := specPath.child("parentRef")
	if o.Spec.ParentRef == nil {
		return required(at, "")
	}
	var errs Errors
	if o.Spec.ParentRef.Resource == "" {
		errs = append(errs, required(at.child("resource"), "")...)
	}
	if o.Spec.ParentRef.Name == "" {
		errs = append(errs, required(at.child("name"), "")...)
	}
	return errs
}
