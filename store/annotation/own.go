package annotation

import "svcctl.io/svcctl/store/object"

const (
	domain  = "svcctl.io/"
	weights = object.AnnotationWeights
)

// The annotations of svcctl that this package reads.
const (
	LoadBalancerIPs = domain + "load-balancer-ips"
	SharingKey      = domain + "allow-shared-ip"
	// Announce, MED and Prepend are of L2Advertisements and BGPAdvertisements, TTLSecurity of BGPPeers, InternalPool
	// of IPAddressPools.
	Announce     = domain + "announce"
	MED          = domain + "med"
	Prepend      = domain + "prepend"
	TTLSecurity  = domain + "ttl-security"
	InternalPool = domain + "internal-pool"
	// ExcludeNode is a label of Nodes, of Kubernetes: none of them is to get traffic of load balancers.
	ExcludeNode = "node.kubernetes.io/exclude-from-external-load-balancers"
)

var slicesAndPods = []string{object.KindEndpointSlice, object.KindEndpoints, object.KindPod}

var svcctlRows = []Row{
	{Key: LoadBalancerIPs, Of: ofSvcctl, Effect: Acts, Values: "addresses, with commas between them", Page: "allocation",
		Text: "asks for these load balancer IPs, besides spec.loadBalancerIP", balancer: true},
	{Key: SharingKey, Of: ofSvcctl, Effect: Acts, Values: "any text", Page: "allocation",
		Text: "lets load balancers with the same text have one IP, as long as no port is in two of them", balancer: true},
	{Key: domain + "allow-host-address", Of: ofSvcctl, Effect: Acts, Values: "true", Page: "services",
		Text: "lets the Service have an address of the box itself, of which it takes its own ports alone"},
	{Key: domain + "no-local-endpoints", Of: ofSvcctl, Effect: Acts, Values: "drop, reject", Page: "services",
		Text: "sets what clients get where a policy Local leaves no endpoint"},
	{Key: domain + "drain-timeout", Of: ofSvcctl, Effect: Acts, Values: "a time, as 60s", Page: "connections",
		Text: "resets TCP connections to an endpoint that is gone when the time is over"},
	{Key: domain + "idle-timeout", Of: ofSvcctl, Effect: Acts, Values: "a time, as 60s", Page: "connections",
		Text: "ends connections over which nothing was sent for that time"},
	{Key: domain + "source-ranges-apply", Of: ofSvcctl, Effect: Acts, Values: "load-balancer, all", Page: "services",
		Text: "sets whether source ranges hold for the node ports and external IPs of this Service too"},
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
	{Key: domain + "balance", Of: ofSvcctl, Effect: Acts, Values: "random, round-robin, least-connection, source-hash, maglev and others", Page: "balancing",
		Text: "sets how endpoints are picked"},
	{Key: domain + "weights", Of: ofSvcctl, Effect: Acts, Values: "ADDRESS=WEIGHT, with commas between them", Page: "balancing",
		Text: "gives endpoints larger or smaller shares"},
	{Key: domain + "weight", Of: ofSvcctl, Kinds: slicesAndPods, Effect: Acts, Values: "0-65535", Page: "balancing",
		Text: "gives the endpoints of the object a larger or smaller share", instead: weights},
	{Key: domain + "priority", Of: ofSvcctl, Kinds: slicesAndPods, Effect: Acts, Values: "0-9", Page: "balancing",
		Text: "uses the endpoints while none of a lower number is usable"},
	{Key: domain + "slow-start", Of: ofSvcctl, Effect: Acts, Values: "a time from 1s to 15m", Page: "balancing",
		Text: "has a new endpoint, or one that is up again, take that time until it gets its whole share"},
	{Key: domain + "affinity-scope", Of: ofSvcctl, Effect: Acts, Values: "port, service", Page: "affinity",
		Text: "`service` has session affinity send a client to one endpoint on all ports of the Service"},
	{Key: domain + "affinity-prefix", Of: ofSvcctl, Effect: Acts, Values: "prefix lengths of IPv4 and IPv6, as 24,64", Page: "affinity",
		Text: "has session affinity take all clients of a prefix for one"},
	{Key: domain + "affinity-refresh", Of: ofSvcctl, Effect: Acts, Values: "connections, packets", Page: "affinity",
		Text: "`packets` starts the time of session affinity anew with every answer, not with new connections only"},
	{Key: domain + "retry-after", Of: ofSvcctl, Effect: Acts, Values: "a time from 1s to 30s", Page: "balancing",
		Text: "picks an endpoint anew for a client whose first one left its SYN unanswered for that time"},
	{Key: domain + "eject", Of: ofSvcctl, Effect: Acts, Values: "true, false", Page: "health",
		Text: "takes an endpoint without a health check out while it accepts no connection, after clients' connections to it failed"},
	{Key: domain + "adopt-connections", Of: ofSvcctl, Effect: Acts, Values: "true, false", Page: "announcing",
		Text: "keeps TCP connections to load balancer IPs and external IPs when another box takes over"},
	{Key: ConnectionLog, Of: ofSvcctl, Effect: Acts, Values: "true, false", Page: "top",
		Text: "has a line written for each connection that ends, to --connection-log of the box"},
	{Key: ProxyMode, Of: ofSvcctl, Effect: Acts, Values: "userspace, kernel", Page: "relay",
		Text: "`userspace` has the TCP and UDP ports relayed: endpoints in turn unless svcctl.io/balance is set, and another one for a client whose first one does not accept"},
	{Key: ProxyProtocol, Of: ofSvcctl, Effect: Acts, Values: "v1, v2, none", Page: "relay",
		Text: "has the TCP ports relayed, with the client's address for endpoints in a header of the PROXY protocol"},
	{Key: ProxyFrom, Of: ofSvcctl, Effect: Acts, Values: "addresses and prefixes, with commas between them", Page: "relay",
		Text: "has the TCP ports relayed, and the client's address taken from the header of the PROXY protocol that connections from these balancers begin with"},
	{Key: Transparent, Of: ofSvcctl, Effect: Acts, Values: "true, false", Page: "relay",
		Text: "has TCP endpoints of relayed ports see clients at their own addresses, where the box routes the answers to the relay"},
	{Key: ConnectTimeout, Of: ofSvcctl, Effect: Acts, Values: "10ms-1m, 2s by default", Page: "relay",
		Text: "sets how long an endpoint of a relayed port may take to accept a connection"},
	{Key: ConnectRetries, Of: ofSvcctl, Effect: Acts, Values: "0-16, 3 by default", Page: "relay",
		Text: "sets how many other endpoints of a relayed port are tried"},
	{Key: domain + "rate-limit", Of: ofSvcctl, Effect: Acts, Values: "a rate, as 100/s or 600/m", Page: "limits",
		Text: "bounds the new connections of each port of the Service"},
	{Key: domain + "client-rate-limit", Of: ofSvcctl, Effect: Acts, Values: "a rate, as 10/s or 60/m; also for each prefix of clients, as 60/m per 32,64", Page: "limits",
		Text: "bounds the new connections of each client"},
	{Key: domain + "client-connections", Of: ofSvcctl, Effect: Acts, Values: "1-65535; also for each prefix of clients, as 20 per 32,64", Page: "limits",
		Text: "bounds the open connections of each client"},
	{Key: domain + "endpoint-connections", Of: ofSvcctl, Effect: Acts, Values: "1-65535", Page: "limits",
		Text: "keeps new connections from an endpoint that has so many open ones"},
	{Key: domain + "port-ranges", Of: ofSvcctl, Effect: Acts, Values: "NAME=FIRST-LAST/PROTOCOL, * for all, with commas between them", Page: "port-ranges",
		Text: "has the Service answer on ranges of ports, or on all of its addresses' ports"},
	{Key: Announce, Of: ofSvcctl, Kinds: []string{object.KindL2Advertisement, object.KindBGPAdvertisement}, Effect: Acts, Values: "when-ready, always", Page: "announcing",
		Text: "sets whether addresses are announced while no client is served at them"},
	{Key: MED, Of: ofSvcctl, Kinds: []string{object.KindBGPAdvertisement}, Effect: Acts, Values: "0-4294967295", Page: "announcing",
		Text: "is the metric (MULTI_EXIT_DISC) of the routes"},
	{Key: Prepend, Of: ofSvcctl, Kinds: []string{object.KindBGPAdvertisement}, Effect: Acts, Values: "0-10", Page: "announcing",
		Text: "is how many times more our AS is in the path of the routes to external peers"},
	{Key: TTLSecurity, Of: ofSvcctl, Kinds: []string{object.KindBGPPeer}, Effect: Acts, Values: "1", Page: "announcing",
		Text: "takes packets of the peer with a TTL of 255 alone (RFC 5082)"},
	{Key: InternalPool, Of: ofSvcctl, Kinds: []string{object.KindIPAddressPool}, Effect: Acts, Values: "true", Page: "announcing",
		Text: "gives the addresses to internal load balancers, as --load-balancer-internal-pool does"},
	{Key: TLSSecret, Of: ofSvcctl, Effect: Acts, Values: "names of Secrets, with commas between them; none", Page: "relay",
		Text: "has the TCP ports relayed and TLS of clients terminated, with the certificates of these Secrets of type kubernetes.io/tls"},
	{Key: TLSSecret + ".*", Of: ofSvcctl, Effect: Acts, Values: "as above", Page: "relay", Text: "the same for the port of that name or number"},
	{Key: TLSPolicy, Of: ofSvcctl, Effect: Acts, Values: "1.2 (the default), 1.3, or a predefined policy of AWS", Page: "relay",
		Text: "selects the versions of TLS and cipher suites clients get"},
	{Key: TLSALPN, Of: ofSvcctl, Effect: Acts, Values: "names of protocols, with commas between them", Page: "relay",
		Text: "sets the protocols that clients are offered by ALPN"},
	{Key: TLSClientCA, Of: ofSvcctl, Effect: Acts, Values: "the name of a Secret with ca.crt", Page: "relay",
		Text: "lets in only clients with a certificate of this CA"},
	{Key: TLSClientAuth, Of: ofSvcctl, Effect: Acts, Values: "require (the default), optional", Page: "relay",
		Text: "`optional` lets in clients without a certificate too"},
	{Key: domain + "tls-ocsp", Of: ofSvcctl, Effect: Named, idle: anyOf("", none), Page: "relay",
		Text: "has no effect: OCSP responses are not stapled, as the public CAs issue none any more; remove it"},
	{Key: TLSServices, Of: ofSvcctl, Effect: Acts, Values: "NAME=SERVICE, with commas between them", Page: "relay",
		Text: "passes clients on to the Service of the server name that they ask for, without decrypting"},
	{Key: TLSServices + ".*", Of: ofSvcctl, Effect: Acts, Values: "as above", Page: "relay", Text: "the same for the port of that name or number"},
	{Key: BackendProtocol, Of: ofSvcctl, Effect: Acts, Values: "http, h2c, https, tls, tcp; with TLS by `appProtocol` by default", Page: "relay",
		Text: "sets the protocol of endpoints: http, h2c (HTTP/2 without TLS, as for gRPC) and https have requests passed on one by one, with headers that name the client; https and tls are encrypted"},
	{Key: BackendProtocol + ".*", Of: ofSvcctl, Effect: Acts, Values: "as above", Page: "relay", Text: "the same for the port of that name or number"},
	{Key: BackendCA, Of: ofSvcctl, Effect: Acts, Values: "the name of a Secret with ca.crt; none", Page: "relay",
		Text: "is the CA that certificates of endpoints have to be from; without it they are not checked, with a warning unless it is `none`"},
	{Key: BackendName, Of: ofSvcctl, Effect: Acts, Values: "a host name, NAME.NAMESPACE.svc by default", Page: "relay",
		Text: "is the name that certificates of endpoints have to be for"},
	{Key: ResponseTimeout, Of: ofSvcctl, Effect: Acts, Values: "1s-1h, 60s by default", Page: "relay",
		Text: "sets how long an endpoint may take to begin its answer to a request over HTTP"},
	{Key: domain + "applyset", Of: ofSvcctl, Label: true, Kinds: anyKind, Effect: Acts, Page: "apply",
		Text: "names the set that `svcctl apply --prune` looks after"},
	{Key: domain + "*", Of: ofSvcctl, Effect: Named,
		Text: "is an unknown annotation: `svcctl explain annotations` lists the known ones"},
}

// anyKind are the kinds that users write.
var anyKind = []string{object.KindService, object.KindEndpointSlice, object.KindEndpoints, object.KindPod, object.KindNamespace}
