package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// states returns the states of a port in the families that the Question is about.
func (d *diagnosis) states(port object.ServicePort) (list []wire.PortState) {
	if d.State == nil {
		return nil
	}
	for i := range d.State.Ports {
		if s := &d.State.Ports[i]; s.Name == port.Name && s.Protocol == port.Protocol && d.wantsFamily(s.Family) {
			list = append(list, *s)
		}
	}
	return list
}

// inUse returns the addresses of the endpoints that a port uses; if local is set, only of those on this box.
func (d *diagnosis) inUse(port object.ServicePort, local bool) map[string]bool {
	addrs := map[string]bool{}
	for _, s := range d.states(port) {
		list := s.Endpoints
		if local {
			list = s.Local
		}
		for _, text := range list {
			if at, err := netip.ParseAddrPort(text); err == nil {
				addrs[at.Addr().String()] = true
			}
		}
	}
	return addrs
}

// leftOut returns a line for each candidate endpoint that a port does not use, and the number n of them. After maxDetails lines a last line counts
// the rest.
func (d *diagnosis) leftOut(port object.ServicePort, candidates []string) (lines []string, n int) {
	used := d.inUse(port, false)
	for _, text := range candidates {
		if addr, err := netip.ParseAddr(text); err == nil && used[addr.String()] {
			continue
		}
		if n++; n <= maxDetails { // a reason takes a look at all there is
			lines = append(lines, d.whyLeftOut(text))
		}
	}
	if n > maxDetails {
		lines = append(lines, fmt.Sprintf("and %d more", n-maxDetails))
	}
	return lines, n
}

// whyLeftOut returns why an endpoint is not used; most reasons come from the problems that the
// appliance reports.
func (d *diagnosis) whyLeftOut(addr string) string {
	prefix := "endpoint " + addr + " is left out"
	for _, p := range d.related() {
		if strings.HasPrefix(p.Message, prefix) {
			return strings.TrimPrefix(p.Message, "endpoint ")
		}
	}
	if why := d.standsBy(addr); why != "" {
		return addr + " " + why
	}
	if d.hasTopology() {
		return addr + " is not used by this box: topology hints, spec.trafficDistribution or an annotation choose others"
	}
	return addr + " is not used: its address, or its port, cannot be load balanced"
}

// hasTopology reports whether traffic distribution, zones or hints choose among endpoints that are ready.
func (d *diagnosis) hasTopology() bool {
	prefersZone, _ := annotation.PrefersZone(d.Service)
	return object.Deref(d.Service.Spec.TrafficDistribution) != "" || prefersZone || slices.ContainsFunc(d.Slices, func(s *object.EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, func(e object.Endpoint) bool {
			return e.Hints != nil && len(e.Hints.ForZones)+len(e.Hints.ForNodes) > 0
		})
	})
}

// related returns the problems of the Service and of the objects that declare its endpoints.
func (d *diagnosis) related() []wire.Problem {
	about := map[string]bool{d.ref(): true}
	about[object.Ref{Kind: object.KindEndpoints, Namespace: d.Namespace, Name: d.Name}.String()] = true
	for _, s := range d.Slices {
		about[object.Ref{Kind: object.KindEndpointSlice, Namespace: d.Namespace, Name: s.Metadata.Name}.String()] = true
	}
	return slices.DeleteFunc(slices.Clone(d.Status.Problems), func(p wire.Problem) bool { return !about[p.Object] })
}

// served checks that the kernel serves the addresses and ports of the Question for this Service. It also adds a finding for each of d.Rivals.
func (d *diagnosis) served() {
	if d.State == nil || d.isNewer() {
		return // changes that are not programmed yet come last
	}
	have := map[string]bool{}
	for _, s := range d.State.Ports {
		for _, f := range s.Frontends {
			have[s.Protocol+" "+f] = true
		}
	}
	for _, rival := range d.Rivals {
		d.add(Doubt, "give one of them another address or port", "Service %s asks for the same address and port, and is not served there", rival)
	}
	refused := map[string]bool{} // ports with a finding of their own
	for _, port := range d.ports() {
		if len(d.refusal(port)) > 0 {
			refused[strconv.Itoa(int(port.Port))+"/"+port.Protocol] = true
			refused[strconv.Itoa(int(port.NodePort))+"/"+port.Protocol] = true
		}
	}
	var missing []string
	for _, want := range d.frontends() {
		if !have[want] {
			protocol, at, _ := strings.Cut(want, " ")
			if refused[at[strings.LastIndexByte(at, ':')+1:]+"/"+protocol] {
				continue
			}
			missing = append(missing, at+"/"+protocol)
		}
	}
	if len(missing) > 0 {
		add := d.add
		if d.Question.Port != 0 {
			add = d.own
		}
		add(Bad, fmt.Sprintf("see the problems above, and its holder: `svcctl explain %s`", strings.ToLower(missing[0])),
			"not served for this Service: %s: clients get no answer from it there", strings.Join(missing, ", "))
	}
}

// reasonsOfPorts are reasons of problems that keep a port from being served, whatever its endpoints are.
var reasonsOfPorts = []string{"TLSNotTerminated", "SecretUnusable", "CertificateExpires", "InvalidAnnotation", "UnknownValue", "NotServed",
	"NotRelayed", "NoRelay", "ProtocolNotRelayed", "NotSupported", "LoopbackListenFailed"}

// refusal returns the messages of the errors that keep a port from being served, whatever its endpoints are. It returns nil if the port is planned
// for the kernel, or is relayed and has endpoints.
func (d *diagnosis) refusal(port object.ServicePort) (why []string) {
	if d.State == nil || d.isNewer() {
		return nil
	}
	if slices.ContainsFunc(d.states(port), func(s wire.PortState) bool { return s.Relay == "" || len(s.Endpoints) > 0 }) {
		return nil
	}
	for _, p := range d.problems() {
		if p.Severity == wire.SeverityError && slices.Contains(reasonsOfPorts, p.Reason) && d.concerns(p.Field, &port) {
			why = append(why, p.Message)
		}
	}
	return why
}

// concerns reports whether a problem with a field may concern a port. It does not if the field belongs to another port: spec.ports[N], or an
// annotation with the name of that port as suffix.
func (d *diagnosis) concerns(field string, port *object.ServicePort) bool {
	for i := range d.Service.Spec.Ports {
		other := &d.Service.Spec.Ports[i]
		if other.Port == port.Port && other.Protocol == port.Protocol {
			continue
		}
		if at := fmt.Sprintf("spec.ports[%d]", i); strings.HasPrefix(field+".", at+".") || other.Name != "" && strings.HasSuffix(field, "."+other.Name+"]") {
			return false
		}
	}
	return true
}

// frontends returns the addresses and ports of the Service that the Question is about.
func (d *diagnosis) frontends() (list []string) {
	q := d.Question
	nodePorts := d.Service.Spec.Type == object.TypeNodePort || d.Service.Spec.Type == object.TypeLoadBalancer
	for _, port := range d.ports() {
		for _, addr := range d.addresses() {
			if d.asksNodePort() || q.Address.IsValid() && addr != q.Address {
				continue
			}
			if q.Port != 0 && port.Port != int32(q.Port) {
				continue // it is behind a range
			}
			list = append(list, port.Protocol+" "+netip.AddrPortFrom(addr, uint16(port.Port)).String())
		}
		if nodePorts && port.NodePort > 0 && (d.asksNodePort() || !q.Address.IsValid()) {
			list = append(list, port.Protocol+" :"+strconv.Itoa(int(port.NodePort)))
		}
	}
	list = append(list, d.rangeFrontends()...)
	slices.Sort(list)
	return slices.Compact(list)
}

// addresses returns the addresses of the Service that the kernel serves. Load balancer IPs with ipMode Proxy are left out.
func (d *diagnosis) addresses() []netip.Addr {
	addrs := d.Service.VIPs()
	for _, in := range d.Service.Status.LoadBalancer.Ingress {
		if in.IPMode != nil && *in.IPMode != "VIP" {
			addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return a.String() == in.IP })
		}
	}
	return addrs
}

// neighbors adds findings about announcements, and about addresses that neighbors on the network segment, or the box itself, cannot reach.
func (d *diagnosis) neighbors() {
	if d.State == nil {
		return
	}
	d.announced()
	for _, addr := range d.State.Unrouted {
		if d.Question.Address.IsValid() && addr != d.Question.Address.String() {
			continue
		}
		d.add(Doubt, "for programs on the box, add a default route, or a route to "+addr+" through the interface towards its endpoints",
			"the box itself has no route to %s: its own programs get \"Network is unreachable\", and only clients whose packets it forwards get answers", addr)
	}
	for _, u := range d.State.Unanswered {
		if d.Question.Address.IsValid() && u.Address != d.Question.Address.String() {
			continue
		}
		d.add(Doubt, AnswerAdvice(u, d.Status.Packaged), "%s", UnansweredText(u))
	}
}

// announced adds findings about where the addresses are announced, or why they are not.
func (d *diagnosis) announced() {
	for _, a := range d.State.Announcements {
		if d.Question.Address.IsValid() && a.Address != d.Question.Address.String() {
			continue
		}
		if a.Withheld != "" {
			d.add(Doubt, "", "%s is not announced to neighbors: %s", a.Address, a.Withheld)
		}
		if a.Nowhere != "" {
			d.add(Doubt, nowhereAdvice(&a, d.Status.Packaged), "%s is announced nowhere: %s", a.Address, a.Nowhere)
		}
		for _, p := range a.Places {
			where, segment := strings.CutPrefix(p.By, "l2 ")
			if !segment {
				d.routed(a.Address, strings.TrimPrefix(p.By, "bgp "), &p)
				continue
			}
			switch p.State {
			case "announced":
				if p.Why != "" {
					d.add(Bad, "boxes of one election need the same --vrid, and each has to receive the adverts of the others", "%s is announced on %s, and %s", a.Address, where, p.Why)
					continue
				}
				d.good("%s is announced on %s: neighbors there get answers", a.Address, where)
			case "conflict":
				d.add(Bad, "take the address from that host, or choose another one", "%s is not announced on %s: the host with the Ethernet address %s answers for it", a.Address, where, p.With)
			case "host":
				d.good("%s is the host's own: the kernel answers neighbors on %s", a.Address, where)
			case "down":
				d.add(Bad, "look at the cable, the port of the switch, and the other end", "%s is not announced on %s: %s", a.Address, where, p.Why)
			case "standby":
				d.add(Doubt, "ask there: this box answers when that one does not", "%s is not announced on %s: %s answers for it in the election", a.Address, where, cmp.Or(p.With, "another box"))
			default:
				d.add(Doubt, "", "%s is not announced on %s yet: %s", a.Address, where, p.State)
			}
		}
	}
}

// nowhereAdvice names the next step for an address that is announced nowhere.
func nowhereAdvice(a *wire.Announcement, packaged wire.Packaged) string {
	switch {
	case strings.Contains(a.Nowhere, "drained"):
		return "`svcctl announce undrain` ends that"
	case strings.Contains(a.Nowhere, "no announcer"):
		return "run " + packaged.Announce() + ", or route the address to this box"
	}
	return "name its interface with --l2, or a router with --peer, " + packaged.AnnounceFlags() + "; or route it to this box"
}

// routed adds the finding about the route to an address at one BGP peer.
func (d *diagnosis) routed(address, peer string, p *wire.Place) {
	switch p.State {
	case "announced":
		d.good("%s is announced to the BGP peer %s", address, peer)
	case "drained", "leaving":
		d.add(Doubt, "`svcctl announce undrain` ends that", "%s is not announced to the BGP peer %s: this box is drained", address, peer)
	case "unsent", "damped":
		d.add(Doubt, "", "%s is not announced to the BGP peer %s: %s", address, peer, p.Why)
	case "down":
		d.add(Bad, "`svcctl announce status` has the reason", "%s is not announced to the BGP peer %s: there is no session", address, peer)
	default:
		d.add(Doubt, "", "%s is not announced to the BGP peer %s yet: %s", address, peer, p.State)
	}
}

// UnansweredText describes an address for which neighbors get no answer.
func UnansweredText(u wire.Unanswered) string {
	asks := "ARP"
	if strings.Contains(u.Address, ":") {
		asks = "NDP"
	}
	return fmt.Sprintf("%s lies in the network %s of %s, and no interface of the box has it: neighbors there get no answer to %s, only clients that route it here reach it",
		u.Address, u.Network, u.Interface, asks)
}

// AnswerAdvice lists ways to have neighbors get an answer.
func AnswerAdvice(u wire.Unanswered, packaged wire.Packaged) string {
	if strings.Contains(u.Address, ":") {
		return fmt.Sprintf("run %s; or give it to an interface: `ip -6 address add %s/128 dev %s`; or answer by proxy: `ip -6 neighbor add proxy %s dev %s` and the sysctl net.ipv6.conf.%s.proxy_ndp=1; or have the neighbors route it to this box",
			packaged.Announce(), u.Address, u.Interface, u.Address, u.Interface, u.Interface)
	}
	// A proxy entry, or proxy_arp, is not heeded for what leaves by the interface it came in by.
	return fmt.Sprintf("run %s; or give it to an interface: `ip address add %s/32 dev %s`; or make it local by a route: `ip route add local %s dev lo`; or have the neighbors route it to this box",
		packaged.Announce(), u.Address, u.Interface, u.Address)
}

// isNewer reports whether the Service, or an object with its endpoints, has changed since the
// last commit to the kernel.
func (d *diagnosis) isNewer() bool { return d.version() > d.Status.Revision.Programmed }

// version returns the newest revision of the Service and of the objects that declare its endpoints.
func (d *diagnosis) version() (newest uint64) {
	metas := []string{d.Service.Metadata.ResourceVersion}
	for _, s := range d.Slices {
		metas = append(metas, s.Metadata.ResourceVersion)
	}
	for _, text := range metas {
		if n, err := strconv.ParseUint(text, 10, 64); err == nil {
			newest = max(newest, n)
		}
	}
	return newest
}
