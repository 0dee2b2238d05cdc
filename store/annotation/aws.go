package annotation

import "strings"

const aws = "service.beta.kubernetes.io/aws-load-balancer-"

// The annotations of AWS that this package reads.
const (
	awsType       = aws + "type"
	awsCrossZone  = aws + "cross-zone-load-balancing-enabled"
	awsAttributes = aws + "attributes"
	awsCert       = aws + "ssl-cert"
	awsSSLPorts   = aws + "ssl-ports"
)

// attributeCrossZone names the only attribute in awsAttributes with an effect.
const attributeCrossZone = "load_balancing.cross_zone.enabled"

// awsRows: the in-tree provider (kubernetes 1.26, aws.go) and the AWS Load Balancer Controller
// (its guide of Service annotations).
var awsRows = []Row{
	balancing(ofAWS, awsType, "nlb, nlb-ip, external", "services", "asks for a balancer of connections, which this is; source ranges hold for its node ports too, unless svcctl.io/source-ranges-apply is set"),
	balancing(ofAWS, aws+"internal", "true, false, or a prefix of permitted clients", "services", internally),
	balancing(ofAWS, aws+"scheme", "internal, internet-facing", "services", internally),
	balancing(ofAWS, awsCrossZone, "true, false", "services", "`false` prefers endpoints of the box's zone, as spec.trafficDistribution: PreferSameZone does, which wins").unless("", "true"),
	{Key: awsAttributes, Of: ofAWS, Effect: Named, Values: attributeCrossZone + "=true|false", idle: onlyCrossZone,
		Text: "has an effect by " + attributeCrossZone + " alone (false prefers endpoints of the box's zone): nothing else is done here that it asks for"},
	acting(ofAWS, aws+"connection-draining-enabled", "true, false", "connections", "resets TCP connections to an endpoint that is gone when the time is over; svcctl.io/drain-timeout wins"),
	acting(ofAWS, aws+"connection-draining-timeout", "seconds", "connections", "is that time"),
	balancing(ofAWS, aws+"connection-idle-timeout", "seconds", "connections", "ends connections over which nothing was sent for that time").or(domain + "idle-timeout"),
	balancing(ofAWS, aws+"extra-security-groups", "names, with commas between them", "services", "lets in, or keeps out, the clients of these named sets").or(domain + "source-sets"),
	balancing(ofAWS, aws+"healthcheck-*", "healthy-threshold, unhealthy-threshold, interval, timeout, protocol, port, path, success-codes", "health",
		"has the box ask the endpoints whether they serve; svcctl.io/health-check wins").or(domain + "health-check"),
	balancing(ofAWS, aws+"private-ipv4-addresses", "addresses, with commas between them", "allocation", ipsText),
	balancing(ofAWS, aws+"ipv6-addresses", "addresses, with commas between them", "allocation", ipsText),
	refused(ofAWS, awsCert, "secret:NAME of Secrets of type kubernetes.io/tls, with commas between them; an ARN", noTLS+". secret:NAME acts as it does", onlyLocalSecrets),
	acting(ofAWS, awsSSLPorts, "numbers and names of ports, with commas between them", "relay", "selects which ports ask for TLS, all TCP ports without it. Without a certificate they are not served; nor are, while an entry is no TCP port, those that it may mean"),
	acting(ofAWS, awsPolicy, "predefined policies without TLS 1.0 and 1.1", "relay", "selects the versions of TLS and cipher suites clients get; svcctl.io/tls-policy wins. Ports are not served with an obsolete policy"),
	acting(ofAWS, awsALPN, "HTTP1Only, HTTP2Only, HTTP2Optional, HTTP2Preferred, None", "relay", "sets the protocols that clients are offered by ALPN; svcctl.io/tls-alpn wins"),
	acting(ofAWS, awsBackend, "http, https, ssl, tcp", "relay", "sets the protocol of endpoints of ports with TLS; http concerns the other TCP ports too. svcctl.io/backend-protocol wins"),
	balancing(ofAWS, awsProxy, "*", "relay", "has the TCP ports relayed, with the client's address for endpoints in a header of the PROXY protocol, version 1; svcctl.io/proxy-protocol wins").or(ProxyProtocol),
	balancing(ofAWS, aws+"security-groups", "names, with commas between them", "services", "lets in the clients of these named sets alone, instead of those of source ranges").or(domain + "source-sets"),
	named(ofAWS, aws+"manage-backend-security-group-rules", noCloud, off),
	balancing(ofAWS, awsLog, "true, false", "top", "has a line written for each connection that ends, to --connection-log of the box; svcctl.io/connection-log wins").or(ConnectionLog),
	acting(ofAWS, awsLogInterval, "5, 60", "top", "is checked, and does nothing: a line is written when a connection is over"),
	{Key: awsLogBucket, Of: ofAWS, Effect: Named, idle: told, Text: noBucket},
	{Key: awsLogBucketUnder, Of: ofAWS, Effect: Named, idle: told, Text: noBucket},
	named(ofAWS, aws+"additional-resource-tags", "has no effect: nothing of a cloud is made that could carry tags; label the Service", empty),
	named(ofAWS, aws+"eip-allocations", "has no effect: ask for an address with spec.loadBalancerIP or "+LoadBalancerIPs, empty),
	named(ofAWS, aws+"subnets", "has no effect: addresses come from --load-balancer-pool; ask for one with spec.loadBalancerIP or "+LoadBalancerIPs, empty),
	named(ofAWS, aws+"target-node-labels", "has no effect: endpoints are reached directly, and with externalTrafficPolicy: Local those whose nodeName is this box", empty),
	named(ofAWS, aws+"nlb-target-type", "has no effect: endpoints are reached directly, as with ip", anyOf("", "ip")),
	named(ofAWS, aws+"ip-address-type", "has no effect: set spec.ipFamilies and spec.ipFamilyPolicy", empty),
	named(ofAWS, aws+"target-group-attributes", "has no effect: write svcctl.io/drain-timeout for deregistration_delay, spec.sessionAffinity for stickiness, spec.externalTrafficPolicy: Local for the client's address", empty),
	named(ofAWS, aws+"name", noCloud, empty),
	rest(ofAWS, aws),
}

var gcpRows = []Row{
	balancing(ofGCP, "cloud.google.com/load-balancer-type", "Internal, External", "services", internally),
	balancing(ofGCP, "networking.gke.io/load-balancer-type", "Internal, External", "services", internally),
	named(ofGCP, "networking.gke.io/internal-load-balancer-allow-global-access", "has no effect: --cluster-cidr and --load-balancer-internal-from name the clients inside", off),
	named(ofGCP, "networking.gke.io/internal-load-balancer-subnet", noPools, empty),
	named(ofGCP, "networking.gke.io/load-balancer-ip-addresses", "has no effect: it names addresses of the cloud; ask for one with spec.loadBalancerIP or "+LoadBalancerIPs, empty),
	named(ofGCP, "networking.gke.io/weighted-load-balancing", noQoS, empty),
	named(ofGCP, "cloud.google.com/network-tier", noCloud, empty),
	named(ofGCP, "cloud.google.com/l4-rbs", noCloud, empty),
	named(ofGCP, "cloud.google.com/app-protocols", noProtocol, empty),
	named(ofGCP, "cloud.google.com/backend-config", "has no effect: there is no Ingress of Google Cloud here", empty),
	named(ofGCP, "beta.cloud.google.com/backend-config", "has no effect: there is no Ingress of Google Cloud here", empty),
	named(ofGCP, "cloud.google.com/neg", "has no effect: there is no Ingress of Google Cloud here", empty),
	kept(ofGCP, "cloud.google.com/neg-status", "is written by Google Cloud's controllers"),
	kept(ofGCP, "service.kubernetes.io/backend-service", "is written by Google Cloud's controllers"),
	kept(ofGCP, "service.kubernetes.io/firewall-rule*", "is written by Google Cloud's controllers"),
	kept(ofGCP, "service.kubernetes.io/healthcheck*", "is written by Google Cloud's controllers"),
	kept(ofGCP, "service.kubernetes.io/tcp-forwarding-rule*", "is written by Google Cloud's controllers"),
	kept(ofGCP, "service.kubernetes.io/udp-forwarding-rule*", "is written by Google Cloud's controllers"),
	rest(ofGCP, "cloud.google.com/"),
	rest(ofGCP, "networking.gke.io/"),
}

// onlyCrossZone reports whether attributes ask for nothing besides cross_zone.
func onlyCrossZone(value string) bool {
	for key := range pairs(value) {
		if key != attributeCrossZone {
			return false
		}
	}
	return true
}

// onlyLocalSecrets reports whether certificates are all Secrets.
func onlyLocalSecrets(value string) bool {
	if strings.TrimSpace(value) == "" {
		return false
	}
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); name != "" && !strings.HasPrefix(name, localSecret) {
			return false
		}
	}
	return true
}
