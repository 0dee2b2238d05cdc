package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/relay/tlsterm"
	"svcctl.io/svcctl/store/object"
)

// ProtocolSCTP is the protocol of listeners for SCTP, which the Gateway API has no name for. Its routes are TCPRoutes.
const ProtocolSCTP = "svcctl.io/SCTP"

// listenerSet holds a ListenerSet whose parent is the Gateway. allowed is set if the Gateway allows it.
type listenerSet struct {
	object  *object.ListenerSet
	ref     object.Ref
	allowed bool
}

// listener is a listener of the Gateway, or of one of its ListenerSets.
type listener struct {
	owner object.Ref
	meta  *object.ObjectMeta
	set   *listenerSet // nil: it is the Gateway's own
	rank  int          // 0 for the Gateway's own listeners; a lower rank has precedence
	spec  *object.Listener
	// layer4 is the protocol of the Service port; "" when the protocol of the listener is not supported.
	layer4 string
	port   string   // the name of the Service port
	kinds  []string // kinds of routes that may attach
	// secrets are the usable certificates.
	secrets []object.Ref

	accepted, resolved, conflicted condition
	// attached are the accepted routes, the oldest first.
	attached []*attachment
}

// protocols has, by the protocol of a listener, the protocol of the Service port that serves it and the kind of routes that can attach.
var protocols = map[string]struct{ layer4, route string }{
	object.ProtocolTCP:   {object.ProtocolTCP, object.KindTCPRoute},
	object.ProtocolTLS:   {object.ProtocolTCP, object.KindTLSRoute},
	object.ProtocolHTTP:  {object.ProtocolTCP, object.KindHTTPRoute},
	object.ProtocolHTTPS: {object.ProtocolTCP, object.KindHTTPRoute},
	object.ProtocolUDP:   {object.ProtocolUDP, object.KindUDPRoute},
	ProtocolSCTP:         {object.ProtocolSCTP, object.KindTCPRoute},
}

// isNamed reports whether the listener can share its port with others that have different TLS server names: its protocol is TLS or HTTPS.
func (l *listener) isNamed() bool {
	return l.spec.Protocol == object.ProtocolTLS || l.spec.Protocol == object.ProtocolHTTPS
}

// terminates reports whether the listener terminates the clients' TLS.
func (l *listener) terminates() bool {
	return l.spec.Protocol == object.ProtocolHTTPS ||
		l.spec.Protocol == object.ProtocolTLS && l.spec.TLS != nil && object.Deref(l.spec.TLS.Mode) != object.TLSPassthrough
}

// hostname returns the hostname of the listener, "" if it takes any.
func (l *listener) hostname() string { return object.Deref(l.spec.Hostname) }

// serves reports whether the listener may get connections: it is accepted, allows some kind of route, and has a certificate if it needs one.
func (l *listener) serves() bool {
	return l.accepted.is && len(l.kinds) > 0 && (!l.terminates() || len(l.secrets) > 0)
}

// fault returns the condition Accepted of the listener if that is false, otherwise its condition ResolvedRefs.
func (l *listener) fault() condition {
	if l.accepted.is {
		return l.resolved
	}
	return l.accepted
}

func (l *listener) String() string {
	name := "listener " + l.spec.Name
	if l.set != nil {
		name += " of ListenerSet " + l.owner.Key()
	}
	return name
}

// checkListeners sets the conditions, allowed kinds of routes and certificates of each listener, without regard to the other listeners.
func (p *plan) checkListeners() {
	for _, l := range p.listeners {
		l.accepted = yes("Accepted", "Accepted", "the listener is valid")
		l.resolved = yes("ResolvedRefs", "ResolvedRefs", "all references are resolved")
		l.conflicted = no("Conflicted", "NoConflicts", "no other listener is in its way")
		if l.layer4 == "" {
			l.accepted = no("Accepted", "UnsupportedProtocol", fmt.Sprintf(
				"protocol %s is not served: use TCP, UDP, TLS, HTTP, HTTPS or %s", l.spec.Protocol, ProtocolSCTP))
			continue
		}
		p.checkKinds(l)
		if l.terminates() {
			p.checkCertificates(l)
		}
		switch tls := p.gateway.Spec.TLS; {
		case l.spec.TLS != nil && len(l.spec.TLS.Options) > 0:
			l.accepted = no("Accepted", "UnsupportedValue", "tls.options: svcctl has none: leave it out, and set svcctl.io/tls-* annotations in spec.infrastructure.annotations of the Gateway")
		case l.terminates() && tls != nil && tls.Frontend != nil:
			l.accepted = no("Accepted", "UnsupportedValue", "spec.tls.frontend of the Gateway asks for client certificates, which Gateways do not check here: leave it out, or use a Service with svcctl.io/tls-client-ca")
		}
	}
}

// checkKinds sets l.kinds to the kinds of routes that may attach to the listener: those that fit its protocol and that allowedRoutes permits. It sets
// ResolvedRefs to false if allowedRoutes names other kinds.
func (p *plan) checkKinds(l *listener) {
	supported := protocols[l.spec.Protocol].route
	if l.spec.AllowedRoutes == nil || len(l.spec.AllowedRoutes.Kinds) == 0 {
		l.kinds = []string{supported}
		return
	}
	var wrong []string
	for _, k := range l.spec.AllowedRoutes.Kinds {
		switch {
		case valueOr(k.Group, object.GroupGateway) != object.GroupGateway || k.Kind != supported:
			wrong = append(wrong, k.Kind)
		case !slices.Contains(l.kinds, k.Kind):
			l.kinds = append(l.kinds, k.Kind)
		}
	}
	if len(wrong) > 0 {
		l.resolved = no("ResolvedRefs", "InvalidRouteKinds", fmt.Sprintf(
			"allowedRoutes.kinds: a listener of protocol %s takes %s, not %s", l.spec.Protocol, supported, strings.Join(wrong, ", ")))
	}
}

// checkCertificates sets l.secrets to the usable certificates of a listener. It sets ResolvedRefs to false if others are not usable. One usable
// certificate is enough to serve. A listener that is served keeps a Secret that becomes unusable: the relay goes on with its last usable version.
func (p *plan) checkCertificates(l *listener) {
	fail := func(reason, format string, args ...any) {
		if l.resolved.is || l.resolved.reason == "InvalidRouteKinds" {
			l.resolved = no("ResolvedRefs", reason, fmt.Sprintf(format, args...))
		}
	}
	if l.spec.TLS == nil || len(l.spec.TLS.CertificateRefs) == 0 {
		fail("InvalidCertificateRef", "tls.certificateRefs names no Secret of type kubernetes.io/tls")
		return
	}
	for i, c := range l.spec.TLS.CertificateRefs {
		kind := valueOr(c.Kind, object.KindSecret)
		at := fmt.Sprintf("tls.certificateRefs[%d]", i)
		if object.Deref(c.Group) != "" || kind != object.KindSecret {
			fail("InvalidCertificateRef", "%s: a certificate is a Secret of the core group, not %s %q", at, kind, c.Name)
			continue
		}
		ref := object.Ref{Kind: object.KindSecret, Namespace: cmp.Or(object.Deref(c.Namespace), l.meta.Namespace), Name: c.Name}
		if !p.isGranted(l.owner.Kind, l.meta.Namespace, ref) {
			fail("RefNotPermitted", "%s: no ReferenceGrant in namespace %s lets %ss of namespace %s refer to Secret %s", at, ref.Namespace, l.owner.Kind, l.meta.Namespace, ref.Name)
			continue
		}
		secret, _ := p.get(ref).(*object.Secret)
		if secret == nil {
			fail("InvalidCertificateRef", "%s: there is no Secret %s", at, ref.Key())
			continue
		}
		if _, err := tlsterm.ParsePair(ref.Key(), secret.Data); err != nil {
			fail("InvalidCertificateRef", "%s: Secret %s: %v", at, ref.Key(), err)
			if !slices.ContainsFunc(p.stored(l), func(c object.Condition) bool { // it is not served as it is specified now
				return c.Type == "Programmed" && c.Status == "True" && c.ObservedGeneration == l.meta.Generation
			}) {
				continue
			}
		}
		l.secrets = append(l.secrets, ref)
	}
}

// stored returns the stored conditions of a listener, nil if it has none.
func (p *plan) stored(l *listener) []object.Condition {
	list := p.gateway.Status.Listeners
	if l.set != nil {
		list = l.set.object.Status.Listeners
	}
	if at := slices.IndexFunc(list, func(s object.ListenerStatus) bool { return s.Name == l.spec.Name }); at >= 0 {
		return list[at].Conditions
	}
	return nil
}

// conflicts marks the listeners of one port that cannot be distinguished by hostname or protocol. If they belong to the same Gateway or ListenerSet,
// all are conflicted. Otherwise the one with the highest precedence is not.
func (p *plan) conflicts() {
	ports := map[string][]*listener{}
	for _, l := range p.listeners {
		if l.layer4 != "" {
			ports[l.port] = append(ports[l.port], l)
		}
	}
	for _, all := range ports {
		for _, l := range all { // in the order of precedence
			for _, other := range all {
				if other.rank < l.rank && !other.conflicted.is || other != l && other.rank == l.rank && !meetsEarlier(other, all) {
					l.meet(other)
				}
			}
		}
	}
}

// meetsEarlier reports whether a listener conflicts with another one that has a higher precedence and is not itself conflicted. all holds the
// listeners of the port.
func meetsEarlier(l *listener, all []*listener) bool {
	return slices.ContainsFunc(all, func(other *listener) bool {
		reason, _ := l.conflictWith(other)
		return other.rank < l.rank && !other.conflicted.is && reason != ""
	})
}

// meet marks the listener as conflicted, and not accepted, if it conflicts with another one of its port.
func (l *listener) meet(other *listener) {
	if reason, why := l.conflictWith(other); reason != "" && !l.conflicted.is {
		l.conflicted = yes("Conflicted", reason, why)
		l.accepted = no("Accepted", reason, why)
	}
}

// conflictWith returns the reason and message of a conflict between two listeners of one port, "" if they have none.
func (l *listener) conflictWith(other *listener) (reason, why string) {
	by := other.String()
	switch {
	case l.isNamed() && other.isNamed() || l.spec.Protocol == other.spec.Protocol && l.spec.Protocol == object.ProtocolHTTP:
		if l.hostname() != other.hostname() {
			return "", ""
		}
		return "HostnameConflict", fmt.Sprintf("%s has port %d with the same hostname", by, l.spec.Port)
	case l.spec.Protocol == other.spec.Protocol:
		return "ProtocolConflict", fmt.Sprintf("%s has port %d/%s as well", by, l.spec.Port, l.layer4)
	}
	return "ProtocolConflict", fmt.Sprintf("%s has port %d with protocol %s: one port cannot serve both", by, l.spec.Port, other.spec.Protocol)
}

// intersect returns the hostname that matches exactly the names that match both a and b. "" stands for any name. It returns false if no name matches
// both.
func intersect(a, b string) (string, bool) {
	switch {
	case covers(a, b):
		return b, true
	case covers(b, a):
		return a, true
	}
	return "", false
}

// covers reports whether a hostname matches all that another one, name, matches. "*." stands for one label or more, "" for any name.
func covers(hostname, name string) bool {
	suffix, wild := strings.CutPrefix(hostname, "*")
	return hostname == "" || hostname == name || wild && strings.HasSuffix(strings.TrimPrefix(name, "*"), suffix)
}
