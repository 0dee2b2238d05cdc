package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// imported is a configuration as people have it for another load balancer, of the shape of the samples of its
// project, and what clients meet once it is imported.
type imported struct {
	name, from string
	text       string
	flags      []string // of svcctl import
	losses     []string // that have to be told
	network    string
	port       uint16
	client     source // as servers see it
	servers    []*netlab.Host
	weights    []int  // of servers; nil: equal shares, or by how many connections they have
	least      bool   // by these
	at         uint16 // where they listen
}

// importedOf are ten configurations for one family; vip(n) are addresses that are routed to the box.
func importedOf(b *box, f family, vip func(n int) string) []imported {
	of := func(h *netlab.Host) string { return f.of(h).String() }
	at := func(h *netlab.Host, port int) string { return fmt.Sprintf(f.pick("%s:%d", "[%s]:%d"), of(h), port) }
	real := func(h *netlab.Host, more string) string {
		return "    real_server " + of(h) + " 80 {\n" + more + "    }\n"
	}
	return []imported{
		{
			name: "keepalived with a sorry server", from: "keepalived", network: "tcp", port: 80, client: plain, servers: []*netlab.Host{b.L1, b.R1}, weights: []int{2, 1}, at: 80,
			text: "global_defs {\n    router_id LVS_ONE\n}\nvrrp_instance VI_1 {\n    state MASTER\n    interface eth0\n    virtual_router_id 50\n    virtual_ipaddress {\n        " + vip(0) + "\n    }\n}\n" +
				"virtual_server " + vip(0) + " 80 {\n    delay_loop 30\n    lb_algo wrr\n    lb_kind NAT\n    protocol TCP\n    quorum 2\n    sorry_server " + of(b.L2) + " 80\n" +
				real(b.L1, "        weight 2\n        TCP_CHECK {\n            connect_timeout 3\n            delay_before_retry 3\n        }\n") +
				real(b.R1, "        weight 1\n        inhibit_on_failure\n        TCP_CHECK {\n            connect_timeout 3\n        }\n") + "}\n",
			losses: []string{"global_defs has no counterpart", "vrrp_instance VI_1", "quorum 2 has no counterpart", "delay_before_retry 3", "inhibit_on_failure"},
		},
		{
			name: "keepalived over UDP", from: "keepalived", network: "udp", port: 53, client: plain, servers: []*netlab.Host{b.L1, b.L2}, at: 53,
			text: "virtual_server " + vip(1) + " 53 {\n    lvs_sched rr\n    lvs_method NAT\n    ops\n    protocol UDP\n" +
				strings.ReplaceAll(real(b.L1, "        PING_CHECK {\n        }\n")+real(b.L2, "        MISC_CHECK {\n            misc_path /bin/true\n        }\n"), " 80 {", " 53 {") + "}\n",
			losses: []string{"ops has no counterpart", "MISC_CHECK of " + of(b.L2)},
		},
		{
			name: "keepalived with a group and direct routing", from: "keepalived", least: true, network: "tcp", port: 443, client: masq, servers: []*netlab.Host{b.R1, b.R2}, at: 443,
			text: "virtual_server_group G {\n    " + vip(2) + " 443\n    fwmark 7\n}\nvirtual_server group G {\n    lb_algo wlc\n    lb_kind DR\n    protocol TCP\n" +
				strings.ReplaceAll(real(b.R1, "        weight 10\n")+real(b.R2, "        weight 10\n"), " 80 {", " 443 {") + "}\n",
			losses: []string{"fwmark 7 has no counterpart", "direct routing and tunnels"},
		},
		{
			name: "IPVS", from: "ipvs", network: "tcp", port: 80, client: plain, servers: []*netlab.Host{b.L1}, at: 8080,
			text: "-A -t " + fmt.Sprintf(f.pick("%s:80", "[%s]:80"), vip(3)) + " -s lc -p 300\n-a -t " + fmt.Sprintf(f.pick("%s:80", "[%s]:80"), vip(3)) + " -r " + at(b.L1, 8080) + " -m -w 1 -x 100 -y 50\n" +
				"-A -f 9 -s rr\n-a -f 9 -r " + at(b.L2, 0) + " -g -w 1\n",
			losses: []string{"-x 100 of ", "firewall mark 9"},
		},
		{
			name: "HAProxy before API servers", from: "haproxy", network: "tcp", port: 6443, client: masq, servers: []*netlab.Host{b.L1, b.R1}, at: 8443,
			flags: []string{"--address", vip(4)},
			text: "global\n    log /dev/log local0\n    maxconn 2000\ndefaults\n    mode http\n    option httplog\n    timeout connect 5000\n    timeout client 50000\n    timeout server 50000\n" +
				"frontend monitor-in\n    bind *:33306\n    monitor-uri /monitor\nfrontend k8s-api\n    bind *:6443\n    bind 127.0.0.1:6443\n    mode tcp\n    option tcplog\n    tcp-request inspect-delay 5s\n    default_backend k8s-api\n" +
				"backend k8s-api\n    mode tcp\n    option tcp-check\n    balance roundrobin\n    default-server inter 10s downinter 5s rise 2 fall 2 slowstart 60s maxconn 250 maxqueue 256 weight 100\n" +
				"    server one " + at(b.L1, 8443) + " check\n    server two " + at(b.R1, 8443) + " check\n",
			losses: []string{"global has no counterpart and is left out: maxconn", "frontend monitor-in is left out: it has no backend", "bind 127.0.0.1:6443", "tcp-request inspect-delay 5s",
				"server one: what has no counterpart is left out: downinter 5s, maxqueue 256"},
		},
		{
			name: "HAProxy with backups", from: "haproxy", network: "tcp", port: 3306, client: masq, servers: []*netlab.Host{b.R1}, at: 9376,
			text: "defaults\n  log global\n  retries 1\n  timeout client 1h\n  timeout server 1h\nlisten master " + vip(5) + ":3306\n  mode tcp\n  option tcpka\n  option mysql-check\n" +
				"  server db1 " + at(b.R1, 9376) + " check inter 5s rise 2 fall 2 fastinter 1s\n  server db2 " + at(b.R2, 9376) + " check inter 5s rise 2 fall 2 backup\n  server db3 127.0.0.1:3306 backup\n",
			losses: []string{"defaults has no counterpart and is left out: retries", "option tcpka", "option mysql-check", "fastinter 1s", "server db3 at 127.0.0.1:3306 is the box itself"},
		},
		{
			name: "HAProxy with conditions", from: "haproxy", network: "tcp", port: 5353, client: masq, servers: []*netlab.Host{b.L2}, at: 5353,
			text: "frontend in\n  bind " + fmt.Sprintf(f.pick("%s", "[%s]"), vip(6)) + ":5353 name in maxconn 100\n  acl inside src 10.0.0.0/8\n  use_backend other if inside\n  default_backend most\n" +
				"backend most\n  balance first\n  stick-table type string len 32 size 1m\n  server a " + at(b.L2, 5353) + " weight 10 cookie a\n  server b " + at(b.L1, 5353) + " disabled\n" +
				"backend other\n  server c " + at(b.R1, 5353) + "\n",
			losses: []string{"use_backend other if inside is not followed", "acl inside src", "maxconn 100 of bind", "balance first has no counterpart", "stick-table type string", "cookie a", "server b is disabled", "backend other is left out"},
		},
		{
			name: "nftlb with a hash", from: "nftlb", network: "tcp", port: 8080, client: plain, servers: []*netlab.Host{b.L1}, at: 8080,
			text: `{"farms": [{"name": "lb01", "family": "` + strings.ToLower(f.String()) + `", "virtual-addr": "` + vip(7) + `", "virtual-ports": "8080", "mode": "dnat", "protocol": "tcp",
  "scheduler": "hash", "sched-param": "srcip srcmac", "mark": "0xdead", "helper": "ftp", "state": "up", "backends": [
  {"name": "bck0", "ip-addr": "` + of(b.L1) + `", "port": "8080", "weight": "5", "priority": "1", "state": "up"},
  {"name": "bck1", "ip-addr": "` + of(b.R1) + `", "port": "8080", "weight": "5", "priority": "1", "est-connlimit": "700", "state": "off"}]}]}`,
			losses: []string{"mark 0xdead of farm lb01", "helper ftp of farm lb01", "a hash of srcip srcmac", "est-connlimit 700 of", "backend bck1 is off"},
		},
		{
			name: "nftlb with several ports", from: "nftlb", network: "udp", port: 5353, client: masq, servers: []*netlab.Host{b.L1, b.L2}, weights: []int{2, 1}, at: 5353,
			text: `{"farms": [{"name": "dns", "mode": "snat", "protocol": "udp", "scheduler": "weight", "new-rtlimit": "10000", "addresses": [{"name": "a"}], "backends": [
  {"name": "one", "ip-addr": "` + of(b.L1) + `", "weight": "2"}, {"name": "two", "ip-addr": "` + of(b.L2) + `", "weight": "1"},
  {"name": "spare", "ip-addr": "` + of(b.R1) + `", "priority": "2"}]}], "addresses": [{"name": "a", "ip-addr": "` + vip(8) + `", "ports": "53,5350-5360", "protocol": "udp"}],
 "policies": [{"name": "black", "type": "blacklist"}]}`,
			losses: []string{"new-rtlimit 10000 is svcctl.io/rate-limit", "policy black (blacklist)"},
		},
		{
			name: "a cluster with MetalLB", from: "cluster", network: "tcp", port: 80, client: masq, servers: []*netlab.Host{b.L2, b.R2}, at: 8080,
			text: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: " + f.name("front") + ", namespace: shop, uid: 00000000-0000-4000-8000-000000000002, resourceVersion: '7'}\n" +
				"  spec: {type: LoadBalancer, clusterIP: " + f.pick("10.43.0.7", "fd00:43::7") + ", clusterIPs: ['" + f.pick("10.43.0.7", "fd00:43::7") + "'], ipFamilies: [" + f.String() + "], selector: {app: front}, ports: [{name: http, port: 80, nodePort: " + f.pick("31801", "31802") + ", targetPort: http}]}\n" +
				"  status: {loadBalancer: {ingress: [{ip: '" + f.lb(9) + "'}]}}\n" +
				"- apiVersion: discovery.k8s.io/v1\n  kind: EndpointSlice\n  metadata: {name: " + f.name("front") + ", namespace: shop, labels: {kubernetes.io/service-name: " + f.name("front") + ", endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io}}\n" +
				"  addressType: " + f.String() + "\n  ports: [{name: http, port: 8080}]\n  endpoints:\n  - {addresses: ['" + of(b.L2) + "'], conditions: {ready: true}, targetRef: {kind: Pod, name: a}}\n  - {addresses: ['" + of(b.R2) + "'], conditions: {ready: true}}\n" +
				"- apiVersion: metallb.io/v1beta1\n  kind: IPAddressPool\n  metadata: {name: " + f.name("p") + ", namespace: metallb-system}\n  spec: {addresses: ['" + f.pick("198.51.100.208/28", "2001:db8:198::d0/124") + "'], autoAssign: false}\n" +
				"- apiVersion: metallb.io/v1beta1\n  kind: ServiceL2Status\n  metadata: {name: " + f.name("seen") + ", namespace: metallb-system}\n",
			losses: []string{"spec.selector is left out", "is left out, another one is given", "the endpoint is fixed", "is not served"},
		},
	}
}

// Test440_imported_configurations_serve imports ten configurations of other load balancers and of a cluster: each
// serves its clients by its servers, and each feature that is lost is named.
func Test440_imported_configurations_serve(t *testing.T) {
	b := newBox(t, flags{"external-ip-range": {"198.51.100.64/26", "2001:db8:198::40/122"}})
	type wanted struct {
		imported
		f  family
		to string
	}
	var all []wanted
	dir := t.TempDir()
	for _, f := range families {
		vip := func(n int) string { return fmt.Sprintf(f.pick("198.51.100.%d", "2001:db8:198::%x"), 70+n) }
		for n, one := range importedOf(b, f, vip) {
			path := filepath.Join(dir, fmt.Sprintf("%s-%d", f, n))
			if err := os.WriteFile(path, []byte(one.text), 0o600); err != nil {
				t.Fatal(err)
			}
			out, errOut, err := b.GW1.Run(binary, append([]string{"import", one.from, path}, one.flags...)...)
			if err != nil {
				t.Errorf("%s, %s: %v\n%s", one.name, f, err, errOut)
				continue
			}
			// Names are those of the source, or of addresses: make them the family's own.
			out = strings.NewReplacer("name: lb01", "name: lb01"+f.name(""), "name: dns", "name: dns"+f.name(""), "name: master", "name: master"+f.name(""), "name: k8s-api", "name: k8s-api"+f.name(""), "name: in\n", "name: in"+f.name("")+"\n", "name: in-", "name: in"+f.name("")+"-").Replace(out)
			b.svcctl.Manifests.Write(fmt.Sprintf("%s-%d.yaml", f, n), out)
			for _, loss := range one.losses {
				if !strings.Contains(errOut, loss) {
					t.Errorf("%s, %s: nothing is told of %q:\n%s", one.name, f, loss, errOut)
				}
				if comments := strings.ReplaceAll(out, "\n#  ", ""); !strings.Contains(comments, loss) {
					t.Errorf("%s, %s: no comment has %q:\n%s", one.name, f, loss, out)
				}
			}
			to := vip(n)
			if one.from == "cluster" {
				to = f.lb(9)
			}
			all = append(all, wanted{one, f, to})
		}
	}
	b.svcctl.Start()
	for _, w := range all {
		if w.weights != nil {
			weights := map[netip.AddrPort]int{}
			for i, at := range w.f.on(w.at, w.servers...) {
				weights[at] = w.weights[i]
			}
			b.shares(t, b.EXT, w.network, w.f.at(w.to, w.port), weights)
			continue
		}
		off := 0.25
		if w.least { // looks that come meanwhile move shares
			off = 1
		}
		if err := b.tryShares(b.EXT, w.network, w.f.at(w.to, w.port), w.client, off, w.f.on(w.at, w.servers...)...); err != nil {
			t.Errorf("%s: %v", w.name, err)
		}
	}
	if problems := b.status().Problems; t.Failed() {
		t.Log(list(problems))
	}
}

// Test880_import_of_a_cluster_answers: what a cluster prints of a Service with externalTrafficPolicy Local, whose endpoints
// are on nodes of the cluster, is applied as it is imported, and clients get answers with their own addresses.
func Test880_import_of_a_cluster_answers(t *testing.T) {
	b := newBox(t, flags{"load-balancer-pool": {"198.51.100.0/28"}})
	b.svcctl.Start()
	name := file(t, fmt.Sprintf(`apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: ingress, namespace: ingress-nginx, uid: 3f0c1d5e-0000-4000-8000-000000000001, resourceVersion: "7"}
  spec:
    type: LoadBalancer
    externalTrafficPolicy: Local
    clusterIP: 10.96.12.1
    clusterIPs: [10.96.12.1]
    selector: {app: ingress}
    ports: [{name: http, port: 80, targetPort: http}]
  status: {loadBalancer: {ingress: [{ip: 198.51.100.5}]}}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: ingress-x7k2p, namespace: ingress-nginx, labels: {kubernetes.io/service-name: ingress}}
  addressType: IPv4
  ports: [{name: http, port: 80, protocol: TCP}]
  endpoints: [{addresses: ["%s"], nodeName: worker-1, conditions: {ready: true}, targetRef: {kind: Pod, name: ingress-0, namespace: ingress-nginx}}]
`, ipv4.of(b.L1)))
	out, errOut, err := b.GW1.Run(binary, "import", "cluster", name)
	if err != nil || !strings.Contains(errOut, "nodeName of the endpoint is left out") || !strings.HasSuffix(errOut, name+": 1 of 1 Service imported\n") {
		t.Fatalf("%v: %s", err, errOut)
	}
	if out, errOut, code := b.svcctl.Svcctl("apply", "--wait", "-f", file(t, out)); code != 0 {
		t.Fatalf("apply: exit code %d: %s%s", code, out, errOut)
	}
	b.reaches(t, b.EXT, "tcp", netip.MustParseAddrPort("198.51.100.5:80"), plain, ipv4.on(80, b.L1)...)
}

// What endpoints of a cluster with kube-vip began leaves with the address that it left with there, to the same networks: by the manifests
// and the settings that the import prints. A Service of which less left than here is not converted.
func Test1147_import_of_kube_vip_egress(t *testing.T) {
	t.Parallel()
	s := netlab.NewStandard(t)
	s.RTR.Route("10.180.0.0/15", netlab.BoxAddr4)
	service := func(name, ip, annotations string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\n  namespace: default\n  annotations: {kube-vip.io/egress: 'true', kube-vip.io/egress-internal: 'true', kube-vip.io/loadbalancerIPs: %s, kube-vip.io/vipHost: w1%s}\n"+
			"spec: {type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: mail}, ports: [{port: 25, targetPort: 80}]}\n", name, ip, annotations)
	}
	slice := func(name string, h *netlab.Host) string {
		return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-x, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}\naddressType: IPv4\nports: [{port: 80}]\nendpoints: [{addresses: [%s], nodeName: w1}]\n", name, ipv4.of(h))
	}
	source := strings.Join([]string{
		service("mail", ipv4.lb(4), fmt.Sprintf(", kube-vip.io/egress-allowed-networks: '%s/32,%s/32', kube-vip.io/egress-denied-networks: %[2]s/32", ipv4.of(s.EXT), ipv4.of(s.IN))), slice("mail", s.L1),
		service("phones", ipv4.lb(5), ", kube-vip.io/egress-destination-ports: 'udp:5060,tcp:5060'"), slice("phones", s.L2),
	}, "---\n")
	manifests, errOut, err := s.GW1.Run(binary, "import", "cluster", file(t, source))
	if err != nil || !strings.Contains(errOut, "kube-vip.io/egress-destination-ports: connections to all ports leave with the address, or none") {
		t.Fatalf("%v: %s", err, errOut)
	}
	f := standardFlags()
	f["cluster-cidr"], f["load-balancer-pool"] = nil, nil
	for line := range strings.Lines(manifests) {
		settings, is := strings.CutPrefix(line, "# settings: svcctl serve --")
		if !is {
			continue
		}
		setting, comment, _ := strings.Cut(settings, " # ")
		for _, one := range strings.Split(strings.TrimSpace(setting), " --") {
			flag, value, _ := strings.Cut(one, " ")
			if name, _, is := strings.Cut(value, "="); is {
				_, lines, _ := strings.Cut(strings.TrimSpace(comment), ": ")
				value = name + "=" + file(t, strings.ReplaceAll(lines, " ", "\n")+"\n")
			}
			f[flag] = append(f[flag], value)
		}
	}
	b := &box{Standard: s, svcctl: s.GW1.Appliance(binary, f.args()...), t: t, flags: f}
	b.svcctl.Manifests.Write("shop.yaml", manifests)
	for _, host := range []*netlab.Host{b.EXT, b.BLK, b.IN} {
		host.Serve("tcp", 7000)
	}
	b.svcctl.Start()
	to := func(h *netlab.Host) netip.AddrPort { return ipv4.at(ipv4.of(h).String(), 7000) }
	b.leavesAs(t, "tcp", b.L1, to(b.EXT), ipv4.lb(4))
	for _, other := range []*netlab.Host{b.BLK, b.IN} {
		b.leavesAs(t, "tcp", b.L1, to(other), ipv4.of(b.L1).String())
	}
	b.leavesAs(t, "tcp", b.L2, to(b.EXT), ipv4.of(b.L2).String())
	b.reaches(t, b.EXT, "tcp", ipv4.at(ipv4.lb(4), 25), plain, ipv4.on(80, b.L1)...)
	for _, p := range b.status().Problems {
		t.Errorf("unexpected problem: %s", p)
	}
}
