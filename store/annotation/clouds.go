package annotation

const (
	azure         = "service.beta.kubernetes.io/azure-"
	openStack     = "loadbalancer.openstack.org/"
	ibm           = "service.kubernetes.io/ibm-load-balancer-cloud-provider-"
	oracle        = "service.beta.kubernetes.io/oci-load-balancer-"
	oracleNetwork = "oci-network-load-balancer.oraclecloud.com/"
	alibaba       = "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-"
	alibabaOld    = "service.beta.kubernetes.io/alicloud-loadbalancer-"
	tencent       = "service.kubernetes.io/qcloud-loadbalancer-"
	tencentCloud  = "service.cloud.tencent.com/"
	baidu         = "service.beta.kubernetes.io/cce-load-balancer-"
	digitalOcean  = "service.beta.kubernetes.io/do-loadbalancer-"
	hetzner       = "load-balancer.hetzner.cloud/"
	scaleway      = "service.beta.kubernetes.io/scw-loadbalancer-"
	linode        = "service.beta.kubernetes.io/linode-loadbalancer-"
	vultr         = "service.beta.kubernetes.io/vultr-loadbalancer-"
	huawei        = "kubernetes.io/elb."
)

var azureRows = []Row{
	balancing(ofAzure, azure+"load-balancer-internal", "true, false", "services", internally),
	balancing(ofAzure, azure+"load-balancer-ipv4", "an address", "allocation", ipsText),
	balancing(ofAzure, azure+"load-balancer-ipv6", "an address", "allocation", ipsText),
	balancing(ofAzure, azure+"allowed-ip-ranges", "prefixes, with commas between them", "services",
		"lets these clients alone connect to the load balancer IPs; spec.loadBalancerSourceRanges wins"),
	unread(ofAzure, azure+"allowed-service-tags", "names, with commas between them"),
	named(ofAzure, azure+"deny-all-except-load-balancer-source-ranges", "has no effect: use --source-ranges-apply all, for node ports and external IPs too", off),
	named(ofAzure, azure+"disable-load-balancer-floating-ip", "has no effect: endpoints are reached at their own address", off),
	named(ofAzure, azure+"load-balancer-internal-subnet", noPools, empty),
	named(ofAzure, azure+"load-balancer-tcp-idle-timeout", "has no effect: write svcctl.io/idle-timeout", empty),
	named(ofAzure, azure+"load-balancer-health-probe-*", noChecks, empty),
	named(ofAzure, "service.beta.kubernetes.io/port_*", noChecks, empty),
	named(ofAzure, azure+"pip-*", noPools, empty),
	named(ofAzure, azure+"dns-label-name", "has no effect: the names of Services are answered by --dns-listen", empty),
	named(ofAzure, azure+"load-balancer-mode", noCloud, empty),
	named(ofAzure, azure+"load-balancer-resource-group", noCloud, empty),
	named(ofAzure, azure+"shared-securityrule", noCloud, off),
	named(ofAzure, azure+"load-balancer-enable-high-availability-ports", "has no effect: the ports of spec.ports are served, and no others", off),
	rest(ofAzure, azure),
}

var openStackRows = []Row{
	balancing(ofOpenStack, "service.beta.kubernetes.io/openstack-internal-load-balancer", "true, false", "services", internally),
	balancing(ofOpenStack, openStack+"load-balancer-address", "an address", "allocation", ipsText),
	refused(ofOpenStack, openStack+"default-tls-container-ref", "the name of a certificate", noTLS, nil),
	named(ofOpenStack, openStack+"proxy-protocol", noProxy, off),
	named(ofOpenStack, openStack+"x-forwarded-for", noProtocol, off),
	named(ofOpenStack, openStack+"enable-health-monitor", noChecks, off),
	named(ofOpenStack, openStack+"health-monitor-*", noChecks, empty),
	named(ofOpenStack, openStack+"timeout-*", "has no effect: write svcctl.io/idle-timeout", empty),
	named(ofOpenStack, openStack+"connection-limit", noQoS, anyOf("", "-1")),
	named(ofOpenStack, openStack+"keep-floatingip", "has no effect: addresses come from --load-balancer-pool", off),
	rest(ofOpenStack, openStack),
}

var ibmRows = []Row{
	balancing(ofIBM, ibm+"ip-type", "public, private", "services", internally),
	named(ofIBM, ibm+"enable-features", "has no effect: neither ipvs settings nor the PROXY protocol of IBM Cloud exist here; the client's address is kept with externalTrafficPolicy: Local", empty),
	named(ofIBM, ibm+"ipvs-scheduler", noQoS, empty),
	named(ofIBM, ibm+"vlan", noPools, empty),
	named(ofIBM, ibm+"zone", noCloud, empty),
	named(ofIBM, ibm+"vpc-subnets", noPools, empty),
	named(ofIBM, ibm+"vpc-health-check-*", noChecks, empty),
	rest(ofIBM, ibm),
	rest(ofIBM, "service.kubernetes.io/ibm-load-balancer-"),
}

var oracleRows = []Row{
	balancing(ofOracle, oracle+"internal", "true, false", "services", internally),
	balancing(ofOracle, oracleNetwork+"internal", "true, false", "services", internally),
	refused(ofOracle, oracle+"ssl-ports", "ports, with commas between them", noTLS, empty),
	refused(ofOracle, oracle+"tls-secret", "the name of a Secret", noTLS, nil),
	named(ofOracle, oracle+"tls-backendset-secret", noTLSPart, empty),
	named(ofOracle, oracle+"backend-protocol", noProtocol, anyOf("", "tcp")),
	named(ofOracle, oracle+"connection-proxy-protocol-version", noProxy, empty),
	named(ofOracle, oracleNetwork+"is-ppv2-enabled", noProxy, off),
	named(ofOracle, oracle+"connection-idle-timeout", "has no effect: write svcctl.io/idle-timeout", empty),
	named(ofOracle, oracle+"health-check-*", noChecks, empty),
	named(ofOracle, oracleNetwork+"health-check-*", noChecks, empty),
	named(ofOracle, oracle+"security-list-management-mode", noCloud, empty),
	unread(ofOracle, "oci.oraclecloud.com/oci-network-security-groups", "names, with commas between them"),
	unread(ofOracle, oracleNetwork+"oci-network-security-groups", "names, with commas between them"),
	named(ofOracle, oracle+"shape*", noCloud, empty),
	named(ofOracle, oracle+"subnet*", noPools, empty),
	named(ofOracle, "oci.oraclecloud.com/load-balancer-type", noCloud, empty),
	rest(ofOracle, oracle),
	rest(ofOracle, oracleNetwork),
	rest(ofOracle, "oci.oraclecloud.com/"),
}

var alibabaRows = []Row{
	balancing(ofAlibaba, alibaba+"address-type", "internet, intranet", "services", internally),
	balancing(ofAlibaba, alibabaOld+"address-type", "internet, intranet", "services", internally),
	refused(ofAlibaba, alibaba+"cert-id", "the name of a certificate", noTLS, nil),
	refused(ofAlibaba, alibaba+"protocol-port", "PROTOCOL:PORT, with commas between them", noTLS, noTLSPorts),
	refused(ofAlibaba, alibabaOld+"cert-id", "the name of a certificate", noTLS, nil),
	refused(ofAlibaba, alibabaOld+"protocol-port", "PROTOCOL:PORT, with commas between them", noTLS, noTLSPorts),
	unread(ofAlibaba, alibaba+"acl-id", "the name of a list"),
	named(ofAlibaba, alibaba+"acl-status", "has no effect by itself: "+alibaba+"acl-id names the list", off),
	named(ofAlibaba, alibaba+"acl-type", "has no effect by itself: "+alibaba+"acl-id names the list", empty),
	named(ofAlibaba, alibaba+"proxy-protocol", noProxy, off),
	named(ofAlibaba, alibaba+"health-check-*", noChecks, empty),
	named(ofAlibaba, alibaba+"persistence-timeout", "has no effect: set spec.sessionAffinity: ClientIP with spec.sessionAffinityConfig", empty),
	named(ofAlibaba, alibaba+"sticky-session*", noProtocol, off),
	named(ofAlibaba, alibaba+"scheduler", noQoS, empty),
	named(ofAlibaba, alibaba+"connection-drain*", "has no effect: write svcctl.io/drain-timeout", off),
	named(ofAlibaba, alibaba+"id", noCloud, empty),
	named(ofAlibaba, alibaba+"spec", noCloud, empty),
	rest(ofAlibaba, alibaba),
	rest(ofAlibaba, alibabaOld),
}

var tencentRows = []Row{
	balancing(ofTencent, tencent+"internal-subnetid", "the name of a subnet", "services", internally),
	refused(ofTencent, tencentCloud+"specify-protocol", "JSON of the protocols of each port", noTLS, noTLSInJSON),
	unread(ofTencent, tencentCloud+"security-groups", "names, with commas between them"),
	named(ofTencent, tencentCloud+"pass-to-target", noCloud, off),
	named(ofTencent, "service.kubernetes.io/tke-existed-lbid", noCloud, empty),
	named(ofTencent, "service.kubernetes.io/service.extensiveParameters", noCloud, empty),
	named(ofTencent, "service.kubernetes.io/service.internetChargeType", noCloud, empty),
	named(ofTencent, "service.kubernetes.io/service.internetMaxBandwidthOut", noCloud, empty),
	named(ofTencent, "service.kubernetes.io/local-svc-*", noQoS, off),
	kept(ofTencent, "service.kubernetes.io/loadbalance-id", "is written by Tencent Cloud's controllers"),
	rest(ofTencent, tencent),
	rest(ofTencent, tencentCloud),
}

var baiduRows = []Row{
	balancing(ofBaidu, baidu+"internal-vpc", "true, false", "services", internally),
	rest(ofBaidu, baidu),
}

var digitalOceanRows = []Row{
	balancing(ofDigitalOcean, digitalOcean+"network", "EXTERNAL, INTERNAL", "services", internally),
	refused(ofDigitalOcean, digitalOcean+"certificate-id", "the name of a certificate", noTLS, nil),
	refused(ofDigitalOcean, digitalOcean+"certificate-name", "the name of a certificate", noTLS, nil),
	refused(ofDigitalOcean, digitalOcean+"tls-ports", "ports, with commas between them; with tls-passthrough they are served", noTLS, empty),
	refused(ofDigitalOcean, digitalOcean+"http2-ports", "ports, with commas between them; with tls-passthrough they are served", noTLS, empty),
	refused(ofDigitalOcean, digitalOcean+"http3-port", "a port", noTLS, empty),
	acting(ofDigitalOcean, digitalOcean+"tls-passthrough", "true, false", "services", "passes the connections of TLS ports through as they are, as all are"),
	refused(ofDigitalOcean, digitalOcean+"protocol", "tcp, udp, http; https and http2 ask for TLS", noTLS, plainOfDigitalOcean),
	unread(ofDigitalOcean, digitalOcean+"allow-rules", "cidr:PREFIX and ip:ADDRESS, with commas between them"),
	unread(ofDigitalOcean, digitalOcean+"deny-rules", "cidr:PREFIX and ip:ADDRESS, with commas between them"),
	named(ofDigitalOcean, digitalOcean+"enable-proxy-protocol", noProxy, off),
	named(ofDigitalOcean, digitalOcean+"redirect-http-to-https", noProtocol, off),
	named(ofDigitalOcean, digitalOcean+"sticky-sessions-*", noProtocol, anyOf("", "none")),
	named(ofDigitalOcean, digitalOcean+"healthcheck-*", noChecks, empty),
	named(ofDigitalOcean, digitalOcean+"http-idle-timeout-seconds", "has no effect: write svcctl.io/idle-timeout", empty),
	named(ofDigitalOcean, digitalOcean+"algorithm", noQoS, empty),
	named(ofDigitalOcean, digitalOcean+"hostname", "has no effect: the status has the IP; the names of Services are answered by --dns-listen", empty),
	named(ofDigitalOcean, digitalOcean+"size-*", noCloud, empty),
	kept(ofDigitalOcean, "kubernetes.digitalocean.com/load-balancer-id", "is written by DigitalOcean's controllers"),
	rest(ofDigitalOcean, digitalOcean),
}

// otherCloudRows: what would be dangerous to overlook of the balancers of smaller clouds, as TLS and addresses for the
// inside, and what most manifests for them have.
var otherCloudRows = []Row{
	balancing(ofOtherClouds, hetzner+"disable-public-network", "true, false", "services", internally),
	refused(ofOtherClouds, hetzner+"protocol", "tcp, http; https asks for TLS", noTLS, plainOfDigitalOcean),
	refused(ofOtherClouds, hetzner+"http-certificates", "names of certificates", noTLS, nil),
	named(ofOtherClouds, hetzner+"uses-proxyprotocol", noProxy, off),
	named(ofOtherClouds, hetzner+"health-check-*", noChecks, empty),
	named(ofOtherClouds, hetzner+"algorithm-type", noQoS, anyOf("", "round_robin")),
	named(ofOtherClouds, hetzner+"http-redirect-http", noProtocol, off),
	named(ofOtherClouds, hetzner+"http-sticky-sessions", noProtocol, off),
	named(ofOtherClouds, hetzner+"use-private-ip", "has no effect: endpoints are reached at their own address", off),
	rest(ofOtherClouds, hetzner),
	balancing(ofOtherClouds, scaleway+"private", "true, false", "services", internally),
	refused(ofOtherClouds, scaleway+"certificate-ids", "names of certificates", noTLS, nil),
	named(ofOtherClouds, scaleway+"proxy-protocol-*", noProxy, off),
	named(ofOtherClouds, scaleway+"health-check-*", noChecks, empty),
	rest(ofOtherClouds, scaleway),
	refused(ofOtherClouds, linode+"default-protocol", "tcp, http; https asks for TLS", noTLS, plainOfDigitalOcean),
	refused(ofOtherClouds, linode+"port-*", "JSON of one port; the protocol https asks for TLS", noTLS, plainOfLinode),
	unread(ofOtherClouds, linode+"firewall-acl", "JSON of prefixes"),
	unread(ofOtherClouds, linode+"firewall-id", "the name of a list"),
	named(ofOtherClouds, linode+"default-proxy-protocol", noProxy, anyOf("", "none")),
	named(ofOtherClouds, linode+"check-*", noChecks, empty),
	rest(ofOtherClouds, linode),
	refused(ofOtherClouds, vultr+"ssl", "the name of a Secret", noTLS, nil),
	unread(ofOtherClouds, vultr+"firewall-rules", "PREFIX,PORT, with semicolons between them"),
	named(ofOtherClouds, vultr+"proxy-protocol", noProxy, off),
	named(ofOtherClouds, vultr+"healthcheck-*", noChecks, empty),
	rest(ofOtherClouds, vultr),
	refused(ofOtherClouds, huawei+"cert-id", "the name of a certificate", noTLS, nil),
	refused(ofOtherClouds, huawei+"tls-certificate-ids", "names of certificates", noTLS, nil),
	unread(ofOtherClouds, huawei+"acl-id", "the name of a list"),
	rest(ofOtherClouds, huawei),
	balancing(ofOtherClouds, "yandex.cloud/load-balancer-type", "internal, external", "services", internally),
	balancing(ofOtherClouds, "lb.stackit.cloud/internal-lb", "true, false", "services", internally),
	named(ofOtherClouds, "service.beta.kubernetes.io/ovh-loadbalancer-proxy-protocol", noProxy, off),
	named(ofOtherClouds, "service.alpha.kubernetes.io/app-protocols", noProtocol, empty),
}

var metalLBRows = []Row{
	balancing(ofMetalLB, "metallb.io/loadBalancerIPs", "addresses, with commas between them", "allocation", ipsText),
	balancing(ofMetalLB, "metallb.universe.tf/loadBalancerIPs", "addresses, with commas between them", "allocation", ipsText),
	balancing(ofMetalLB, "metallb.io/allow-shared-ip", "any text", "allocation", shareText),
	balancing(ofMetalLB, "metallb.universe.tf/allow-shared-ip", "any text", "allocation", shareText),
	balancing(ofMetalLB, "metallb.io/address-pool", "the name of an IPAddressPool", "allocation", poolText),
	balancing(ofMetalLB, "metallb.universe.tf/address-pool", "the name of an IPAddressPool", "allocation", poolText),
	kept(ofMetalLB, "metallb.io/ip-allocated-from-pool", "is written by MetalLB's controller"),
	kept(ofMetalLB, "metallb.universe.tf/ip-allocated-from-pool", "is written by MetalLB's controller"),
	rest(ofMetalLB, "metallb.io/"),
	rest(ofMetalLB, "metallb.universe.tf/"),
}

var otherRows = []Row{
	balancing(ofOthers, "lbipam.cilium.io/ips", "addresses, with commas between them", "allocation", ipsText),
	balancing(ofOthers, "io.cilium/lb-ipam-ips", "addresses, with commas between them", "allocation", ipsText),
	balancing(ofOthers, "lbipam.cilium.io/sharing-key", "any text", "allocation", shareText),
	balancing(ofOthers, "io.cilium/lb-ipam-sharing-key", "any text", "allocation", shareText),
	balancing(ofOthers, "kube-vip.io/loadbalancerIPs", "addresses, with commas between them", "allocation", ipsText),
	acting(ofOthers, "service.cilium.io/lb-algorithm", "random, maglev", "balancing", "sets how endpoints are picked; svcctl.io/balance wins"),
	{Key: "service.cilium.io/weight", Of: ofOthers, Kinds: slicesAndPods, Effect: Acts, Values: "0-65535", Page: "balancing",
		Text: "gives the endpoints of the object a larger or smaller share; svcctl.io/weight wins", instead: weights},
	named(ofOthers, "service.cilium.io/*", "has no effect here: it belongs to Cilium; `svcctl explain annotations` lists the known ones", empty),
	named(ofOthers, "lbipam.cilium.io/*", noPools, empty),
	named(ofOthers, "io.cilium/*", "has no effect here: it belongs to Cilium; `svcctl explain annotations` lists the known ones", empty),
	named(ofOthers, "kube-router.io/service.scheduler", "has no effect: write svcctl.io/balance", empty),
	named(ofOthers, "kube-router.io/service.dsr", "has no effect: packets are translated, and answers return through the box", empty),
	named(ofOthers, "kube-router.io/service.local", "has no effect: set spec.internalTrafficPolicy and spec.externalTrafficPolicy", off),
	named(ofOthers, "kube-router.io/service.*", "has no effect here: it belongs to kube-router; `svcctl explain annotations` lists the known ones", off),
	named(ofOthers, "kube-vip.io/*", "has no effect here: it belongs to kube-vip; `svcctl explain annotations` lists the known ones", empty),
	balancing(ofOthers, "purelb.io/addresses", "addresses, with commas between them", "allocation", ipsText),
	balancing(ofOthers, "loxilb.io/staticIP", "an address", "allocation", ipsText),
}
