package annotation

import "svcctl.io/svcctl/store/object"

const domain = "svcctl.io/"

// The annotations of svcctl that this package reads.
const (
	LoadBalancerIPs = domain + "load-balancer-ips"
	SharingKey      = domain + "allow-shared-ip"
)

var slicesAndPods = []string{object.KindEndpointSlice, object.KindEndpoints, object.KindPod}

var svcctlRows = []Row{
	{Key: LoadBalancerIPs, Of: ofSvcctl, Effect: Acts, Values: "addresses, with commas between them", Page: "allocation",
		Text: "asks for these load balancer IPs, besides spec.loadBalancerIP"},
	{Key: SharingKey, Of: ofSvcctl, Effect: Acts, Values: "any text", Page: "allocation",
		Text: "lets load balancers with the same text have one IP, as long as no port is in two of them"},
	{Key: domain + "allow-host-address", Of: ofSvcctl, Effect: Acts, Values: "true", Page: "services",
		Text: "lets the Service have an address of the box itself, of which it takes its own ports alone"},
	{Key: domain + "no-local-endpoints", Of: ofSvcctl, Effect: Acts, Values: "drop, reject", Page: "services",
		Text: "says what clients get where a policy Local leaves no endpoint"},
	{Key: domain + "drain-timeout", Of: ofSvcctl, Effect: Acts, Values: "a time, as 60s", Page: "connections",
		Text: "resets TCP connections to an endpoint that is gone when the time is over"},
	{Key: domain + "idle-timeout", Of: ofSvcctl, Effect: Acts, Values: "a time, as 60s", Page: "connections",
		Text: "ends connections over which nothing was sent for that time"},
	{Key: domain + "source-ranges-apply", Of: ofSvcctl, Effect: Acts, Values: "load-balancer, all", Page: "services",
		Text: "says whether source ranges hold for the node ports and external IPs of this Service too"},
	{Key: domain + "source-sets", Of: ofSvcctl, Effect: Acts, Values: "names, with commas between them", Page: "services",
		Text: "lets in, or keeps out, the clients of these named sets"},
	{Key: domain + "health-check", Of: ofSvcctl, Effect: Acts, Values: "a check, as http:8080/healthz or probe", Page: "health",
		Text: "has the box ask the endpoints whether they serve"},
	{Key: domain + "health-check.*", Of: ofSvcctl, Effect: Acts, Values: "a check, or none", Page: "health",
		Text: "the same for the port of that name"},
	{Key: domain + "health-check-*", Of: ofSvcctl, Effect: Acts, Values: "interval, timeout, thresholds and others", Page: "health",
		Text: "sets how it is asked, and what follows"},
	{Key: domain + "out", Of: ofSvcctl, Effect: Acts, Values: "addresses of endpoints", Page: "health",
		Text: "takes these endpoints out, as `svcctl out` does"},
	{Key: domain + "balance", Of: ofSvcctl, Effect: Acts, Values: "random, round-robin, source-hash, maglev and others", Page: "balancing",
		Text: "says how endpoints are picked"},
	{Key: domain + "weights", Of: ofSvcctl, Effect: Acts, Values: "ADDRESS=WEIGHT, with commas between them", Page: "balancing",
		Text: "gives endpoints larger or smaller shares"},
	{Key: domain + "weight", Of: ofSvcctl, Kinds: slicesAndPods, Effect: Acts, Values: "0-65535", Page: "balancing",
		Text: "gives the endpoints of the object a larger or smaller share"},
	{Key: domain + "priority", Of: ofSvcctl, Kinds: slicesAndPods, Effect: Acts, Values: "0-9", Page: "balancing",
		Text: "uses the endpoints while none of a lower number is usable"},
	named(ofSvcctl, domain+"slow-start", "has no effect yet, a new endpoint gets its whole share at once: raise svcctl.io/weights step by step instead", empty),
	{Key: domain + "retry-after", Of: ofSvcctl, Effect: Acts, Values: "a time from 1s to 30s", Page: "balancing",
		Text: "picks an endpoint anew for a client whose first one left its SYN unanswered for that time"},
	{Key: ProxyMode, Of: ofSvcctl, Effect: Acts, Values: "userspace, kernel", Page: "relay",
		Text: "`userspace` has the TCP and UDP ports relayed: endpoints in turn, and another one for a client whose first one does not accept"},
	{Key: ProxyProtocol, Of: ofSvcctl, Effect: Acts, Values: "v1, v2, none", Page: "relay",
		Text: "has the TCP ports relayed, and their endpoints told the client's address by a header of the PROXY protocol"},
	{Key: ConnectTimeout, Of: ofSvcctl, Effect: Acts, Values: "10ms-1m, 2s by default", Page: "relay",
		Text: "says how long an endpoint of a relayed port may take to accept a connection"},
	{Key: ConnectRetries, Of: ofSvcctl, Effect: Acts, Values: "0-16, 3 by default", Page: "relay",
		Text: "says how many other endpoints of a relayed port are tried"},
	{Key: TLSSecret, Of: ofSvcctl, Effect: Acts, Values: "names of Secrets, with commas between them; none", Page: "relay",
		Text: "has the TCP ports relayed and TLS of clients ended, with the certificates of these Secrets of type kubernetes.io/tls"},
	{Key: TLSSecret + ".*", Of: ofSvcctl, Effect: Acts, Values: "as above", Page: "relay", Text: "the same for the port of that name or number"},
	{Key: TLSPolicy, Of: ofSvcctl, Effect: Acts, Values: "1.2 (the default), 1.3, or a predefined policy of AWS", Page: "relay",
		Text: "says which versions of TLS and cipher suites clients get"},
	{Key: TLSALPN, Of: ofSvcctl, Effect: Acts, Values: "names of protocols, with commas between them", Page: "relay",
		Text: "says which protocols clients are offered by ALPN"},
	{Key: TLSClientCA, Of: ofSvcctl, Effect: Acts, Values: "the name of a Secret with ca.crt", Page: "relay",
		Text: "lets in only clients with a certificate of this CA"},
	{Key: TLSClientAuth, Of: ofSvcctl, Effect: Acts, Values: "require (the default), optional", Page: "relay",
		Text: "`optional` lets in clients without a certificate too"},
	{Key: TLSServices, Of: ofSvcctl, Effect: Acts, Values: "NAME=SERVICE, with commas between them", Page: "relay",
		Text: "passes clients on to the Service of the server name that they ask for, without decrypting"},
	{Key: TLSServices + ".*", Of: ofSvcctl, Effect: Acts, Values: "as above", Page: "relay", Text: "the same for the port of that name or number"},
	{Key: BackendProtocol, Of: ofSvcctl, Effect: Acts, Values: "http, https, tls, tcp", Page: "relay",
		Text: "says what endpoints speak: http and https have requests passed on one by one, with headers that name the client; https and tls are encrypted"},
	{Key: BackendProtocol + ".*", Of: ofSvcctl, Effect: Acts, Values: "as above", Page: "relay", Text: "the same for the port of that name or number"},
	{Key: BackendCA, Of: ofSvcctl, Effect: Acts, Values: "the name of a Secret with ca.crt; none", Page: "relay",
		Text: "is the CA that certificates of endpoints have to be from; without it they are not checked, which a warning says unless it is `none`"},
	{Key: BackendName, Of: ofSvcctl, Effect: Acts, Values: "a host name, NAME.NAMESPACE.svc by default", Page: "relay",
		Text: "is the name that certificates of endpoints have to be for"},
	{Key: ResponseTimeout, Of: ofSvcctl, Effect: Acts, Values: "1s-1h, 60s by default", Page: "relay",
		Text: "says how long an endpoint may take to begin its answer to a request over HTTP"},
	named(ofSvcctl, domain+"rate-limit", "has no effect yet, new connections of the Service are not bounded: bound them in the endpoints or in front of the box", empty),
	named(ofSvcctl, domain+"client-rate-limit", "has no effect yet, new connections of a client are not bounded: bound them in the endpoints or in front of the box", empty),
	named(ofSvcctl, domain+"client-connections", "has no effect yet, connections of a client are not bounded: bound them in the endpoints or in front of the box", empty),
	named(ofSvcctl, domain+"endpoint-connections", "has no effect yet, connections of an endpoint are not bounded: bound them in the endpoint itself", empty),
	named(ofSvcctl, domain+"port-ranges", "has no effect yet, ranges of ports are not served: list each port in spec.ports", empty),
	{Key: domain + "applyset", Of: ofSvcctl, Label: true, Kinds: anyKind, Effect: Acts, Page: "apply",
		Text: "names the set that `svcctl apply --prune` looks after"},
	{Key: domain + "*", Of: ofSvcctl, Effect: Named,
		Text: "is no annotation that svcctl knows: `svcctl explain annotations` lists them"},
}

// anyKind are the kinds that users write.
var anyKind = []string{object.KindService, object.KindEndpointSlice, object.KindEndpoints, object.KindPod, object.KindNamespace}
