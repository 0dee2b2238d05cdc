package resolve

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Relay holds the settings for relaying connections of a Service.
type Relay struct {
	// Affinity is the time for which a client keeps its endpoint; 0 means no affinity.
	Affinity time.Duration
	// ConnectTimeout is the time that an endpoint has to accept a connection.
	ConnectTimeout time.Duration
	// ConnectRetries is the maximum number of further endpoints that are tried after the first one did not accept the connection.
	ConnectRetries int
	// ProxyProtocol is the version of the PROXY protocol header that is sent to endpoints; 0 means no header.
	ProxyProtocol int
	// ProxyFrom lists the load balancers in front of the box whose connections begin with a PROXY protocol header.
	ProxyFrom []netip.Prefix
	// Transparent makes the relay connect to TCP endpoints from the client's address instead of an address of the box.
	Transparent bool
	// IdleTimeout is the time without data after which a TCP connection is closed; 0 means never.
	IdleTimeout time.Duration
	// Fronts are the settings of ports for TLS and HTTP, by nft.ServicePort.ID, with Secrets and Services as "namespace/name". A port that
	// is not in it has no such settings.
	Fronts map[string]*annotation.Front
}

// The reasons of problems about relayed ports.
const (
	// ReasonNotRelayed is the problem reason for a port that should be relayed, but whose connections the kernel translates instead.
	ReasonNotRelayed = "NotRelayed"
	// ReasonNoRelay is the problem reason for a port that should be relayed but cannot be. The port is then not served.
	ReasonNoRelay = "NoRelay"
)

// relay makes a port relayed, if its Service asks for it. The kernel then only decides which clients may connect and selects the pool; it redirects
// the connections to a listener of this box. The relay handles affinity and the source address. shared is set if the endpoints are of the other IP
// family; they then see the box as the source.
func (r *resolver) relay(i int, p *nft.ServicePort, shared bool) {
	if !r.relayed.Relays(r.Service, i) {
		return
	}
	mode, front := r.relayed, r.fronted(i)
	if !slices.Contains(r.out.Needs, AnyListener) {
		r.out.Needs = append(r.out.Needs, AnyListener)
	}
	listeners, has := r.facts.Relays[p.Family]
	why, family := "", p.Family.Name()
	switch {
	case !has:
		why = fmt.Sprintf("this box has no %s address for a relay to listen on: give an interface one", family)
	default:
		for _, at := range listeners {
			why = cmp.Or(why, r.state(Need{Kind: NeedListener, Protocol: p.Protocol, At: at}).Wrong)
		}
		if mode.Transparent && p.Protocol == nft.TCP && !shared {
			why = cmp.Or(why, r.state(Need{Kind: NeedReturnRoutes, Family: p.Family}).Wrong)
		}
	}
	p.Relay, p.RelayAlone = listeners, front != nil && len(front.Services) > 0
	if r.unkeyed[i] && why == "" {
		r.refuseClients(p) // checkFronts has reported why
	}
	switch {
	case r.facts.Relays == nil:
		r.warn(r.ref, fmt.Sprintf("spec.ports[%d]", i), ReasonNoRelay, "port %d/%s is relayed over %s by a listener at an address of the box, which is not known here: it is shown as one that refuses",
			r.Service.Spec.Ports[i].Port, p.Protocol.Name(), family)
	case why != "":
		r.refuse(fmt.Sprintf("spec.ports[%d]", i), ReasonNoRelay, "clients of port %d/%s are refused over %s: %s", r.Service.Spec.Ports[i].Port, p.Protocol.Name(), family, why)
	}
	if why != "" {
		r.refuseClients(p)
	}
	p.Affinity, p.AffinityOptions = 0, nft.AffinityOptions{}
	for j := range p.Frontends {
		p.Frontends[j].SNAT = nft.SNATNever // the client ends here
	}
	if r.out.Relay == nil {
		r.out.Relay = &Relay{
			Affinity: r.affinity(), ConnectTimeout: mode.ConnectTimeout, ConnectRetries: mode.ConnectRetries,
			ProxyProtocol: mode.ProxyProtocol, ProxyFrom: mode.ProxyFrom, Transparent: mode.Transparent, IdleTimeout: p.Idle, Fronts: map[string]*annotation.Front{},
		}
	}
	if front != nil {
		r.out.Relay.Fronts[p.ID] = front
	}
	p.Idle = 0 // the relay ends idle connections
	if p.Balance == nft.Random && !r.balanceNamed {
		p.Balance = nft.RoundRobin // as in the userspace mode of kube-proxy
	}
}

// otherFamily returns the key of the same port in the other IP family.
func (k portKey) otherFamily() portKey {
	if k.family == nft.IPv4 {
		return portKey{k.name, k.proto, nft.IPv6}
	}
	return portKey{k.name, k.proto, nft.IPv4}
}

// borrows reports whether the port with the index i is relayed and uses the endpoints of the other IP family. It does if the Service has a cluster IP
// of the family of own, and the port has endpoints only in the other family.
func (r *resolver) borrows(i int, own portKey, endpoints map[portKey][]endpoint) bool {
	return r.relayed.Relays(r.Service, i) && r.vips.of(own.family).cluster.IsValid() && len(endpoints[own]) == 0 && len(endpoints[own.otherFamily()]) > 0
}

// shareFamilies gives each relayed port that has no endpoints in its IP family the endpoints of the other family, ready or not: a relay can connect
// from IPv4 to IPv6 and vice versa. It returns the ports that use such endpoints.
func (r *resolver) shareFamilies(endpoints map[portKey][]endpoint) (shared map[portKey]bool) {
	for i := range r.Service.Spec.Ports {
		port := &r.Service.Spec.Ports[i]
		proto, ok := nft.ProtocolNamed(port.Protocol)
		if !ok {
			continue
		}
		for _, family := range nft.Families {
			own := portKey{port.Name, proto, family}
			other := own.otherFamily()
			if !r.borrows(i, own, endpoints) {
				continue
			}
			if shared == nil {
				shared = map[portKey]bool{}
			}
			endpoints[own], shared[own] = endpoints[other], true
			if r.backends != nil {
				r.backends[own] = r.backends[other]
			}
			if r.relayed.Transparent && proto == nft.TCP {
				r.warn(r.ref, annotation.Field(annotation.Transparent), reasonNoEffect, "clients of port %d over %s are seen at the address of the box: its endpoints are all %s",
					port.Port, own.family.Name(), other.family.Name())
			}
		}
	}
	return shared
}

// checkRelayed adds a warning for each port that is not relayed although the Service asks for it.
func (r *resolver) checkRelayed() {
	mode := r.relayed
	for i := range r.Service.Spec.Ports {
		port := &r.Service.Spec.Ports[i]
		if mode.Key == "" || mode.Kernel || port.Protocol == object.ProtocolTCP {
			continue
		}
		field := fmt.Sprintf("spec.ports[%d].protocol", i)
		switch headers := mode.ProxyProtocol != 0 || len(mode.ProxyFrom) > 0; {
		case port.Protocol == object.ProtocolSCTP && mode.Userspace:
			r.warn(r.ref, field, ReasonNotRelayed, "%s asks for a relay, and SCTP is not relayed: port %d is served by the kernel, which picks at random and tries no other endpoint", mode.Key, port.Port)
		case !mode.Userspace:
			r.warn(r.ref, field, ReasonNotRelayed, "%s asks for headers of the PROXY protocol, and there are none over %s: port %d is served by the kernel, without", mode.Key, port.Protocol, port.Port)
		case headers:
			r.warn(r.ref, field, ReasonNotRelayed, "headers of the PROXY protocol are asked for, and there are none over %s: port %d is relayed without", port.Protocol, port.Port)
		}
	}
}

// refuseMode reports whether the annotations of a port contradict each other: one requests the kernel (annotation.ProxyMode), another a feature that
// only the relay has. It adds an error in this case.
func (r *resolver) refuseMode(i int) bool {
	port := &r.Service.Spec.Ports[i]
	key := r.front(i).Key
	if key == "" && port.Protocol == object.ProtocolTCP {
		key = r.relayed.Key
	}
	if !r.relayed.Kernel || key == "" {
		return false
	}
	r.refuse(annotation.Field(annotation.ProxyMode), ReasonInvalidAnnotation, "port %d/%s is not served: the kernel is to serve it, and %s needs a relay; leave one of the two out", port.Port, port.Protocol, key)
	return true
}

// refuseClients makes the kernel reject connections to a port, by removing its relay and pools.
func (r *resolver) refuseClients(p *nft.ServicePort) {
	p.Relay, p.RelayAlone = [nft.NumPools]netip.AddrPort{}, false
	p.Pools = [nft.NumPools][]netip.AddrPort{}
}

// relaysNothing adds warnings about relay settings on a Service that is of a type that cannot be relayed. kind names the type in messages ("an
// ExternalName Service").
func (r *resolver) relaysNothing(kind string) {
	mode := annotation.RelayOf(r.Service)
	r.report(mode.Bad...)
	keys := []string{mode.Key}
	for _, f := range mode.Fronts {
		keys = append(keys, f.Key)
	}
	for key, value := range r.Service.Metadata.Annotations {
		bad := slices.ContainsFunc(mode.Bad, func(b annotation.Bad) bool { return b.Key == key })
		if annotation.AsksTLS(key, value) || annotation.Relays(key) && !bad && strings.TrimSpace(value) != "" {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		if key != "" {
			r.warn(r.ref, annotation.Field(key), ReasonNotRelayed, "%s has no address that connections could be relayed from: leave it out", kind)
		}
	}
}

// The reasons of problems about TLS and HTTP at relayed ports.
const (
	// ReasonSecretUnusable is the problem reason for a Secret that is missing or unusable.
	ReasonSecretUnusable = "SecretUnusable"
	// ReasonSecretNotInForce is the problem reason for an unusable Secret whose last usable version serves.
	ReasonSecretNotInForce = "SecretNotInForce"
	// ReasonCertificateExpires is the problem reason for a certificate that expires soon.
	ReasonCertificateExpires = "CertificateExpires"
	// ReasonBackendUnchecked is the problem reason for a port where the relay does not verify the TLS certificates of endpoints.
	ReasonBackendUnchecked = "BackendUnchecked"
)

// front returns the TLS and HTTP settings of the port with the index i, as its annotations specify them.
func (r *resolver) front(i int) *annotation.Front {
	if i >= len(r.relayed.Fronts) {
		return &annotation.Front{}
	}
	return &r.relayed.Fronts[i]
}

// refuseFront reports whether the TLS or HTTP settings of a port are invalid, so that the port is not served. It adds the problem in this case.
func (r *resolver) refuseFront(i int) bool {
	f := r.front(i)
	if f.Key == "" || f.Why == "" {
		return false
	}
	reason := ReasonInvalidAnnotation
	if len(f.Secrets) > 0 || len(f.Services) > 0 || f.Unencrypted {
		reason = reasonTLSNotTerminated
	}
	port := &r.Service.Spec.Ports[i]
	if !f.Misplaced {
		r.isWrong(annotation.Field(f.WhyKey))
	}
	r.refuse(annotation.Field(f.WhyKey), reason, "port %d/%s is not served, rather than passed through as it is: %s", port.Port, port.Protocol, f.Why)
	return true
}

// checkFronts adds the problems of the Secrets of all ports, each once. lack has an entry for each port: true if the port lacks a usable certificate
// or CA, so that its clients are rejected.
func (r *resolver) checkFronts() (lack []bool) {
	lack = make([]bool, len(r.Service.Spec.Ports))
	reported := map[string]bool{}
	for i := range lack {
		f := r.front(i)
		if f.Key == "" || f.Why != "" {
			continue
		}
		check := func(key, secret string, kind NeedKind) (usable bool) {
			if secret == "" {
				return true
			}
			secret = r.secret(secret)
			state := r.state(Need{Kind: kind, Name: secret})
			if id := fmt.Sprint(key, secret, kind); !reported[id] {
				reported[id] = true
				if state.Wrong != "" {
					reason, until := ReasonSecretUnusable, ""
					if state.Missing {
						until = "; until then clients are refused"
					} else if state.Serves {
						reason = ReasonSecretNotInForce
					}
					r.refuse(annotation.Field(key), reason, "Secret %s: %s%s", secret, state.Wrong, until)
				}
				if state.Soon != "" {
					r.warn(r.ref, annotation.Field(key), ReasonCertificateExpires, "Secret %s: %s", secret, state.Soon)
				}
			}
			return !state.Missing
		}
		// One certificate is enough to serve with: its clients see which one they get.
		usable := len(f.Secrets) == 0
		for _, secret := range f.Secrets {
			usable = check(f.Key, secret, NeedKeyPair) || usable
		}
		usable = check(annotation.TLSClientCA, f.ClientCA, NeedAuthority) && usable
		usable = check(annotation.BackendCA, f.BackendCA, NeedAuthority) && usable
		lack[i] = !usable
		if f.BackendUnchecked && !reported[f.Key] {
			reported[f.Key] = true
			r.warn(r.ref, annotation.Field(f.Key), ReasonBackendUnchecked, "certificates of endpoints are not checked, so any server at their address gets the requests: "+
				"name a Secret with the CA in %s, or write \"none\" there", annotation.BackendCA)
		}
	}
	return lack
}

// secret returns the "namespace/name" of a Secret of the Service.
func (r *resolver) secret(name string) string { return r.ref.Namespace + "/" + name }

// fronted returns the TLS and HTTP settings of a port with the names of Secrets and Services as "namespace/name"; nil if it has none.
func (r *resolver) fronted(i int) *annotation.Front {
	f := *r.front(i)
	if f.Key == "" {
		return nil
	}
	f.Secrets, f.Services = slices.Clone(f.Secrets), slices.Clone(f.Services)
	for j := range f.Secrets {
		f.Secrets[j] = r.secret(f.Secrets[j])
	}
	for _, name := range []*string{&f.ClientCA, &f.BackendCA} {
		if *name != "" {
			*name = r.secret(*name)
		}
	}
	for j := range f.Services {
		if s := &f.Services[j]; s.Service != "" {
			s.Service = r.secret(s.Service)
		}
	}
	return &f
}
