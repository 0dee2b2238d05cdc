package convert

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// A Virtual is a virtual service: what clients connect to, and the servers behind it.
type Virtual struct {
	// Name and Namespace are the Service's; an empty Namespace is left out of the manifests.
	Name, Namespace string
	// Type is the Service's spec.type; empty is ClusterIP.
	Type string
	// ExternalIPs are addresses that are routed to the box.
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are the addresses to request from the pools of the appliance.
	LoadBalancerIPs []netip.Addr
	// KeepsClient preserves the client's source address: externalTrafficPolicy Local.
	KeepsClient bool
	// AffinitySeconds is the time for which a client keeps its server; 0: no affinity.
	AffinitySeconds int32
	Ports           []Port
	Servers         []Server
	// Annotations are the annotations of the Service, without the one for the weights of Servers.
	Annotations map[string]string
	// Losses are written as comments above the Service.
	Losses []Loss
	// Line is the first line of the virtual service in the source; 0 if it was not read from a source.
	Line int
}

// A Port is a port that clients connect to.
type Port struct {
	Protocol string // TCP, UDP or SCTP
	Port     uint16
	Target   uint16 // the port of servers that set none; 0 means the same as Port
}

// A Server is an endpoint.
type Server struct {
	Addr     netip.Addr
	Port     uint16 // 0: the Target of each Port
	Offset   int32  // the distance of its ports from those that clients connect to; 0 if Port or Target is set
	Weight   uint16 // 1 is the default
	Priority uint8  // servers with priority 0 are used first
}

// A Loss is a feature of the source that the manifests lack.
type Loss struct {
	Line int    // line number in the source, from 1
	Text string // what has no counterpart, and what happens instead
}

func (l Loss) String() string {
	if l.Line == 0 {
		return l.Text
	}
	return fmt.Sprintf("line %d: %s", l.Line, l.Text)
}

// Objects returns the Service of v and its EndpointSlices: one for each combination of IP family, port
// and priority of servers, and of weight where one address has several.
func (v *Virtual) Objects() []object.Object {
	svc := &object.Service{
		TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: "v1"},
		Metadata: object.ObjectMeta{Name: v.Name, Namespace: v.Namespace, Annotations: maps.Clone(v.Annotations)},
	}
	if svc.Metadata.Annotations == nil {
		svc.Metadata.Annotations = map[string]string{}
	}
	spec := &svc.Spec
	if v.Type != object.TypeClusterIP {
		spec.Type = v.Type
	}
	for _, p := range v.Ports {
		spec.Ports = append(spec.Ports, v.servicePort(p))
	}
	for _, addr := range v.ExternalIPs {
		spec.ExternalIPs = append(spec.ExternalIPs, addr.String())
	}
	if len(v.LoadBalancerIPs) == 1 {
		spec.LoadBalancerIP = v.LoadBalancerIPs[0].String()
	} else if len(v.LoadBalancerIPs) > 1 {
		svc.Metadata.Annotations[annotationLoadBalancerIPs] = strings.Join(object.Texts(v.LoadBalancerIPs, netip.Addr.String), ",")
	}
	if v.KeepsClient {
		spec.ExternalTrafficPolicy = object.PolicyLocal
	}
	if v.AffinitySeconds > 0 {
		spec.SessionAffinity = object.AffinityClientIP
		spec.SessionAffinityConfig = &object.SessionAffinityConfig{ClientIP: &object.ClientIPConfig{TimeoutSeconds: new(v.AffinitySeconds)}}
	}
	switch is4, is6 := v.families(); {
	case is4 && is6:
		spec.IPFamilyPolicy = new(object.PreferDualStack)
	case is6:
		spec.IPFamilies = []string{object.IPv6}
	}
	perAddress := v.weightsByAddress()
	if text := weightsText(perAddress); text != "" {
		svc.Metadata.Annotations[object.AnnotationWeights] = text
	}
	objects := []object.Object{svc}
	for _, slice := range v.slices(perAddress != nil) {
		objects = append(objects, slice)
	}
	return objects
}

const annotationLoadBalancerIPs = "svcctl.io/load-balancer-ips"

// families reports which IP families the Service has: those of its external IPs or, if it has none, those of its load balancer IPs and its servers.
func (v *Virtual) families() (is4, is6 bool) {
	addrs := slices.Clone(v.ExternalIPs)
	if len(addrs) == 0 {
		addrs = append(addrs, v.LoadBalancerIPs...)
		for _, s := range v.Servers {
			addrs = append(addrs, s.Addr)
		}
	}
	for _, addr := range addrs {
		is4, is6 = is4 || addr.Is4(), is6 || addr.Is6()
	}
	return is4, is6
}

// servicePort returns the entry of spec.ports for a port. Its targetPort is only informative: the ports of servers are in the EndpointSlices.
func (v *Virtual) servicePort(p Port) object.ServicePort {
	sp := object.ServicePort{Name: v.portName(p), Port: int32(p.Port)}
	if p.Protocol != object.ProtocolTCP {
		sp.Protocol = p.Protocol
	}
	targets := map[uint16]bool{}
	for _, s := range v.Servers {
		targets[s.port(p)] = true
	}
	if len(targets) == 1 && !targets[p.Port] {
		for target := range targets {
			sp.TargetPort = object.FromInt(int32(target))
		}
	}
	return sp
}

// portName returns the name that a port has in the Service and in its EndpointSlices; "" for a
// single port.
func (v *Virtual) portName(p Port) string {
	if len(v.Ports) == 1 {
		return ""
	}
	return strings.ToLower(p.Protocol) + "-" + strconv.Itoa(int(p.Port))
}

// port returns the port on which the server receives connections that clients make to p.
func (s Server) port(p Port) uint16 {
	return cmp.Or(s.Port, p.Target, uint16(int32(p.Port)+s.Offset))
}

// weightsByAddress returns the weights of servers by address; nil if servers with one address have different weights.
func (v *Virtual) weightsByAddress() map[netip.Addr]uint16 {
	weights := map[netip.Addr]uint16{}
	for _, s := range v.Servers {
		if w, has := weights[s.Addr]; has && w != s.Weight {
			return nil
		}
		weights[s.Addr] = s.Weight
	}
	return weights
}

// weightsText returns the value of the annotation with the weights of servers; "" when all have the same weight above 0.
func weightsText(weights map[netip.Addr]uint16) string {
	var texts []string
	shares := map[uint16]bool{}
	for _, addr := range slices.SortedFunc(maps.Keys(weights), netip.Addr.Compare) {
		shares[weights[addr]] = true
		texts = append(texts, fmt.Sprintf("%s=%d", addr, weights[addr]))
	}
	if len(shares) == 1 && !shares[0] {
		return ""
	}
	return strings.Join(texts, ",")
}

// A sliceKey has the properties that all servers of one EndpointSlice have in common.
type sliceKey struct {
	family string // object.IPv4 or object.IPv6
	Server        // without Addr, and with Weight 0 if the Service has the weights
}

// slices returns the EndpointSlices, sorted by family, priority, falling weight, and port. If weighed is set, an annotation of the
// Service has the weights, so servers of different weights share a slice.
func (v *Virtual) slices(weighed bool) []*object.EndpointSlice {
	servers := map[sliceKey][]Server{}
	for _, s := range v.Servers {
		key := sliceKey{object.FamilyOf(s.Addr), s}
		if key.Addr = (netip.Addr{}); weighed {
			key.Weight = 0
		}
		if !slices.ContainsFunc(servers[key], func(o Server) bool { return o.Addr == s.Addr }) {
			servers[key] = append(servers[key], s)
		}
	}
	keys := slices.SortedFunc(maps.Keys(servers), func(a, b sliceKey) int {
		return cmp.Or(cmp.Compare(a.family, b.family), cmp.Compare(a.Priority, b.Priority), -cmp.Compare(a.Weight, b.Weight), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Offset, b.Offset))
	})
	var list []*object.EndpointSlice
	names := map[string]int{}
	for _, key := range keys {
		slice := &object.EndpointSlice{
			TypeMeta: object.TypeMeta{Kind: object.KindEndpointSlice, APIVersion: "discovery.k8s.io/v1"},
			Metadata: object.ObjectMeta{
				Name: v.Name + "-" + strings.ToLower(key.family), Namespace: v.Namespace,
				Labels:      map[string]string{object.LabelServiceName: v.Name},
				Annotations: map[string]string{},
			},
			AddressType: key.family,
		}
		names[key.family]++
		if n := names[key.family]; n > 1 {
			slice.Metadata.Name += "-" + strconv.Itoa(n)
		}
		if key.Priority > 0 {
			slice.Metadata.Annotations[object.AnnotationPriority] = strconv.Itoa(int(key.Priority))
		}
		if !weighed && key.Weight != 1 {
			slice.Metadata.Annotations[object.AnnotationWeight] = strconv.Itoa(int(key.Weight))
		}
		for _, p := range v.Ports {
			slice.Ports = append(slice.Ports, v.slicePort(p, key.Server))
		}
		for _, s := range servers[key] {
			slice.Endpoints = append(slice.Endpoints, object.Endpoint{Addresses: []string{s.Addr.String()}})
		}
		list = append(list, slice)
	}
	return list
}

func (v *Virtual) slicePort(p Port, s Server) object.EndpointPort {
	port := object.EndpointPort{Port: new(int32(s.port(p))), Protocol: new(p.Protocol)}
	if name := v.portName(p); name != "" {
		port.Name = &name
	}
	return port
}

// YAML returns the manifests of v, with the losses as comments above the Service.
func (v *Virtual) YAML() (string, error) { return yamlOf(v.Losses, v.Objects()...) }

// YAML returns the manifest, with the losses as comments above it.
func (k *Kept) YAML() (string, error) { return yamlOf(k.Losses, k.Object) }

func yamlOf(losses []Loss, objects ...object.Object) (string, error) {
	var b strings.Builder
	for _, loss := range losses {
		b.WriteString(comment(loss.String()))
	}
	for i, o := range objects {
		if i > 0 {
			b.WriteString("---\n")
		}
		text, err := manifest.EncodeYAML(o)
		if err != nil {
			return "", err
		}
		// A status is the appliance's to write.
		b.WriteString(strings.TrimSuffix(string(text), "status:\n  loadBalancer: {}\n"))
	}
	return b.String(), nil
}

// commentWidth is the width at which comments are wrapped, in characters.
const commentWidth = 100

// comment returns text as a YAML comment. It escapes characters that are not printable, since the text may come from a file.
func comment(text string) string {
	var b strings.Builder
	line := "#"
	for word := range strings.FieldsSeq(printable(text)) {
		if line != "#" && len(line)+1+len(word) > commentWidth {
			b.WriteString(line + "\n")
			line = "#  "
		}
		line += " " + word
	}
	return b.String() + line + "\n"
}

// printable returns text with all control and other unprintable characters escaped.
func printable(text string) string {
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
