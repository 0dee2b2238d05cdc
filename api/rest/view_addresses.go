package rest

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// The labels of IPAddress objects (networking/v1).
const (
	labelIPFamily       = "ipaddress.kubernetes.io/ip-family"
	labelAddressManaged = "ipaddress.kubernetes.io/managed-by"
	addressesAreManaged = "ipallocator.k8s.io"
	parentResource      = "services"
)

// addressesOf is the view of who holds which address: an IPAddress for each cluster IP and
// load balancer IP of a Service.
func addressesOf(s *store.Store) view {
	derive := func() derivation { return holders{} }
	return view{store: s, derive: derive, one: func(_, name string) object.Object {
		// Nothing is indexed by address: who holds it is found by looking at all.
		all := holders{}
		services, _, err := s.List(object.KindService, "", 0)
		if err != nil {
			return nil
		}
		for _, o := range services {
			all.take(nil, o)
		}
		return all.show(viewKey{name: name})
	}}
}

// holders are the Services that have an address. One load balancer IP may be shared: then
// it counts as that of the oldest.
type holders map[string][]*object.Service

func (h holders) sources() []string { return []string{object.KindService} }

func (h holders) affected(o object.Object) []viewKey {
	var keys []viewKey
	for _, address := range addressesIn(o.(*object.Service)) {
		keys = append(keys, viewKey{name: address})
	}
	return keys
}

func (h holders) take(old, new object.Object) {
	if service, ok := old.(*object.Service); ok {
		for _, address := range addressesIn(service) {
			left := slices.DeleteFunc(slices.Clone(h[address]), func(other *object.Service) bool {
				return object.RefOf(other) == object.RefOf(service)
			})
			if h[address] = left; len(left) == 0 {
				delete(h, address)
			}
		}
	}
	if service, ok := new.(*object.Service); ok {
		for _, address := range addressesIn(service) {
			h[address] = append(h[address], service)
		}
	}
}

func (h holders) show(key viewKey) object.Object {
	services := h[key.name]
	if len(services) == 0 {
		return nil
	}
	holder := slices.MinFunc(services, func(a, b *object.Service) int {
		return cmp.Or(timeOf(a).Compare(timeOf(b)), cmp.Compare(a.Metadata.Namespace, b.Metadata.Namespace), cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	meta := &holder.Metadata
	family := object.IPv4
	if addr, err := netip.ParseAddr(key.name); err == nil && addr.Is6() {
		family = object.IPv6
	}
	return &object.IPAddress{
		TypeMeta: object.TypeMeta{Kind: object.KindIPAddress, APIVersion: object.APIVersionNetworking},
		Metadata: object.ObjectMeta{
			Name: key.name, UID: derivedUID(meta.UID, key.name), CreationTimestamp: meta.CreationTimestamp,
			Labels: map[string]string{labelIPFamily: family, labelAddressManaged: addressesAreManaged},
		},
		Spec: object.IPAddressSpec{ParentRef: &object.ParentReference{
			Resource: parentResource, Namespace: meta.Namespace, Name: meta.Name,
		}},
	}
}

func timeOf(o object.Object) time.Time {
	if created := o.GetMeta().CreationTimestamp; created != nil {
		return *created
	}
	return time.Time{}
}

// addressesIn are the addresses that a Service has been given, each once and in its
// canonical form.
func addressesIn(service *object.Service) []string {
	var all []string
	add := func(text string) {
		if addr, err := netip.ParseAddr(text); err == nil && !slices.Contains(all, addr.String()) {
			all = append(all, addr.String())
		}
	}
	for _, ip := range service.Spec.ClusterIPs { // of a headless Service it is "None"
		add(ip)
	}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		add(ingress.IP)
	}
	return all
}
