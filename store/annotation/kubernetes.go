package annotation

import (
	"strings"

	"svcctl.io/svcctl/store/object"
)

const hintsText = "has no effect here: no topology hints are written by it; set spec.trafficDistribution: PreferSameZone, or write hints at the endpoints"

// hintsIdle are values of the topology annotations that ask for nothing; their case matters.
func hintsIdle(value string) bool { return value == "" || value == "Disabled" || value == "disabled" }

// Keys of Endpoints that this package reads.
const (
	skipMirror   = "endpointslice.kubernetes.io/skip-mirror"
	overCapacity = "endpoints.kubernetes.io/over-capacity"
)

var (
	ofEndpoints = []string{object.KindEndpoints, object.KindEndpointSlice}
	ofSlices    = []string{object.KindEndpointSlice}
)

var kubernetesRows = []Row{
	{Key: object.AnnotationSourceRanges, Of: ofKubernetes, Effect: Acts, Values: "prefixes, with commas between them", Page: "services",
		Text: "lets these clients alone connect to the load balancer IPs; spec.loadBalancerSourceRanges wins"},
	{Key: "service.kubernetes.io/topology-mode", Of: ofKubernetes, Effect: Named, idle: hintsIdle, Text: hintsText},
	{Key: "service.kubernetes.io/topology-aware-hints", Of: ofKubernetes, Effect: Named, idle: hintsIdle, Text: hintsText},
	{Key: "service.alpha.kubernetes.io/tolerate-unready-endpoints", Of: ofKubernetes, Effect: Named,
		idle: func(value string) bool { return value == "" || value == "false" },
		Text: "has no effect, as in Kubernetes since 1.24: set spec.publishNotReadyAddresses"},
	{Key: "service.beta.kubernetes.io/external-traffic", Of: ofKubernetes, Effect: Named, idle: empty,
		Text: "has no effect, as in Kubernetes since 1.7: set spec.externalTrafficPolicy"},
	{Key: "service.beta.kubernetes.io/healthcheck-nodeport", Of: ofKubernetes, Effect: Named, idle: empty,
		Text: "has no effect, as in Kubernetes since 1.7: set spec.healthCheckNodePort"},
	{Key: "service.kubernetes.io/service-proxy-name", Of: ofKubernetes, Label: true, Kinds: []string{object.KindService, object.KindEndpoints}, Effect: Named,
		Text: "leaves the Service to a proxy of that name in a cluster; it is served here all the same"},
	{Key: ExcludeNode, Of: ofKubernetes, Label: true, Kinds: []string{object.KindNode}, Effect: Acts, Values: "any, also none", Page: "announcing",
		Text: "on the Node of this box: it announces nothing, as after `svcctl drain`"},
	{Key: "service.kubernetes.io/headless", Of: ofKubernetes, Label: true, Kinds: append([]string{object.KindService}, ofEndpoints...), Effect: Kept,
		Text: "is written by controllers, at the endpoints of a headless Service"},
	{Key: "kubernetes.io/service-name", Of: ofKubernetes, Label: true, Kinds: ofSlices, Effect: Acts, Values: "the name of a Service", Page: "endpoints",
		Text: "makes the slice one of that Service"},
	{Key: "endpointslice.kubernetes.io/managed-by", Of: ofKubernetes, Label: true, Kinds: ofSlices, Effect: Named,
		Text: "names a controller that does not run here: the slice is served as written, and changes only when its writer changes it"},
	{Key: skipMirror, Of: ofKubernetes, Label: true, Kinds: []string{object.KindEndpoints}, Effect: Acts, Values: "true", Page: "endpoints",
		Text: "keeps Endpoints from being mirrored to slices"},
	{Key: overCapacity, Of: ofKubernetes, Kinds: ofEndpoints, Effect: Acts, Values: "truncated", Page: "endpoints",
		Text: "is written at Endpoints that have more than a thousand addresses; their slices have all"},
	{Key: "endpoints.kubernetes.io/last-change-trigger-time", Of: ofKubernetes, Kinds: ofEndpoints, Effect: Kept,
		Text: "has the time when the endpoints changed, for measurements"},
	{Key: "control-plane.alpha.kubernetes.io/leader", Of: ofKubernetes, Kinds: ofEndpoints, Effect: Kept,
		Text: "is a lock of the clients that wrote it"},
	{Key: "kubectl.kubernetes.io/last-applied-configuration", Of: ofKubernetes, Kinds: anyKind, Effect: Kept,
		Text: "is what `kubectl apply` compares with; svcctl keeps who set which field itself"},
	{Key: "kubernetes.io/description", Of: ofKubernetes, Kinds: anyKind, Effect: Kept, Text: "describes what the object is for"},
	{Key: "kubernetes.io/change-cause", Of: ofKubernetes, Kinds: anyKind, Effect: Kept, Text: "describes why it changed"},
	{Key: "app.kubernetes.io/*", Of: ofKubernetes, Label: true, Kinds: anyKind, Effect: Kept,
		Text: "are labels of the author's own, which selectors may ask for"},
	{Key: "service.beta.kubernetes.io/*", Of: ofKubernetes, Effect: Named,
		Text: "has no effect here: no annotation of this name is known; `svcctl explain annotations` lists those that are"},
	{Key: "service.kubernetes.io/*", Of: ofKubernetes, Effect: Named,
		Text: "has no effect here: no annotation of this name is known; `svcctl explain annotations` lists those that are"},
}

// Texts that several clouds share.
const (
	noTLS      = "asks for TLS with a certificate that svcctl cannot read: the port is not served, rather than passed through in the clear, until " + TLSSecret + " names a Secret of type kubernetes.io/tls in its place"
	noProxy    = "has no effect: write svcctl.io/proxy-protocol: v1 or v2; without that endpoints get no header, and those that wait for one answer no client"
	noProtocol = "has no effect: connections are passed through as they are, in whatever protocol, and nothing is encrypted, decrypted or added; write " + BackendProtocol + " for HTTP headers, or TLS towards endpoints"
	noTLSPart  = "has no effect: write " + TLSSecret + " and the annotations of svcctl beside it"
	noCloud    = "has no effect: there is no load balancer of a cloud here to place, size or bill"
	noBucket   = "has no effect: nothing is written to a cloud; a warning names the log of connections"
	noAccess   = "is a list of clients that svcctl cannot read: its load balancer IPs let no client in until spec.loadBalancerSourceRanges has prefixes; write them there"
	noChecks   = "has no effect: endpoints are checked by svcctl.io/health-check, or not at all"
	poolText   = "asks for an address of this IPAddressPool"
	noPools    = "has no effect: name an IPAddressPool with metallb.io/address-pool, or ask for an address with spec.loadBalancerIP or " + LoadBalancerIPs
	noQoS      = "has no effect: connections are balanced as they are, without a limit or a scheduler of the cloud's"
	internally = "gives the load balancer an IP of a --load-balancer-internal-pool, which only clients inside reach; without such a pool it gets none"
	ipsText    = "asks for these load balancer IPs, as " + LoadBalancerIPs + " does"
	shareText  = "lets load balancers with the same text have one IP, as " + SharingKey + " does"
)

// acting is a row of an annotation that means the same as here.
func acting(of, key, values, page, text string) Row {
	return Row{Key: key, Of: of, Effect: Acts, Values: values, Page: page, Text: text}
}

// balancing is a row of an annotation that means the same as here, and acts on load balancers alone.
func balancing(of, key, values, page, text string) Row {
	row := acting(of, key, values, page, text)
	row.balancer = true
	return row
}

// unless is the row with the values that ask for nothing.
func (r Row) unless(idle ...string) Row {
	r.idle = anyOf(idle...)
	return r
}

// or is the row with the annotation that has its effect where the row has none.
func (r Row) or(own string) Row {
	r.instead = own
	return r
}

// named is a row of an annotation without an effect; idle are values that ask for nothing.
func named(of, key, text string, idle func(string) bool) Row {
	return Row{Key: key, Of: of, Effect: Named, Text: text, idle: idle}
}

// kept is a row of an annotation that informs.
func kept(of, key, text string) Row { return Row{Key: key, Of: of, Effect: Kept, Text: text} }

// refused is a row of what a Service is not served with.
func refused(of, key, values, text string, idle func(string) bool) Row {
	return Row{Key: key, Of: of, Effect: Refused, Values: values, Page: "services", Text: text, idle: idle}
}

// unread is a row of a list of clients that a load balancer cannot follow.
func unread(of, key, values string) Row {
	row := refused(of, key, values, noAccess, empty)
	row.balancer = true
	return row.or(domain + "source-sets")
}

// rest is the row of all others of a cloud.
func rest(of, prefix string) Row {
	return named(of, prefix+"*", "has no effect here: it configures a load balancer"+name(of)+", and svcctl has none of its kind; `svcctl explain annotations` lists those that it has", nil)
}

// name is " of" a cloud, without what stands behind a comma.
func name(of string) string {
	if of == ofOtherClouds {
		return " of a cloud"
	}
	name, _, _ := strings.Cut(of, ",")
	return " of " + name
}
