package convert

import (
	"fmt"
	"strings"
	"testing"
)

// saysWhat is an imported configuration in short: a line for each Service with its annotations, servers and weights, and
// one for each loss.
func saysWhat(imported *Imported) string {
	var out strings.Builder
	for _, v := range imported.Virtuals {
		fmt.Fprintf(&out, "service %s:", v.Name)
		for _, key := range []string{
			"health-check-healthy-threshold", "health-check", "health-check-host", "health-check-timeout", "health-check-unhealthy-threshold", "idle-timeout", "proxy-protocol",
		} {
			if value := v.Annotations["svcctl.io/"+key]; value != "" {
				fmt.Fprintf(&out, " %s=%s", key, value)
			}
		}
		for _, s := range v.Servers {
			fmt.Fprintf(&out, " %s*%d", s.Addr, s.Weight)
			if s.Priority > 0 {
				fmt.Fprintf(&out, "/%d", s.Priority)
			}
		}
		out.WriteByte('\n')
	}
	for _, loss := range imported.AllLosses() {
		fmt.Fprintf(&out, "loss %s\n", loss)
	}
	return out.String()
}

// expects imports texts and looks for what has to be said of them, and for what must not be.
func expects(t *testing.T, source Source, prefix string, tests []struct{ name, text, want, not string }) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			imported, err := source(prefix+tt.text, Options{})
			if err != nil {
				t.Fatal(err)
			}
			got := saysWhat(imported)
			for want := range strings.Lines(tt.want) {
				if !strings.Contains(got, strings.TrimSpace(want)) {
					t.Errorf("%q is missing in:\n%s", want, got)
				}
			}
			if tt.not != "" && strings.Contains(got, tt.not) {
				t.Errorf("%q is said in:\n%s", tt.not, got)
			}
		})
	}
}

// Configurations as people publish them, each reduced to the statement that it is about.

func Test660_haproxy_as_it_is_written(t *testing.T) {
	const two = " server a 10.1.2.11:80 check inter 2s\n server b 10.1.2.12:80 check inter 2s\n"
	const backends = "backend one\n server a 10.1.2.11:80\nbackend two\n server b 10.1.2.12:80\n"
	expects(t, HAProxy, "defaults\n mode tcp\n", []struct{ name, text, want, not string }{
		{"use_backend without a condition leads there", "frontend f\n bind 192.0.2.1:80\n use_backend two\n default_backend one\n" + backends, "service f: 10.1.2.12*1", ""},
		{"it is not reached behind another one", "frontend f\n bind 192.0.2.1:80\n use_backend two\n use_backend one if { src 10.0.0.0/8 }\n" + backends,
			"service f: 10.1.2.12*1\nuse_backend one if { src 10.0.0.0/8 } is never reached", ""},
		{"a name that is computed is a condition", "frontend f\n bind 192.0.2.1:80\n use_backend %[req_ssl_sni,lower]\n default_backend one\n" + backends,
			"service f: 10.1.2.11*1\nuse_backend %[req_ssl_sni,lower] is not followed: all connections go to one", ""},
		{"a listen that leads elsewhere", "listen l\n bind 192.0.2.1:80\n default_backend two\n" + backends, "service l: 10.1.2.12*1", ""},
		{"a listen with a condition", "listen l\n bind 192.0.2.1:80\n use_backend two if { src 10.0.0.0/8 }\n" + two + backends,
			"service l: health-check=tcp 10.1.2.11*1 10.1.2.12*1\nuse_backend two if { src 10.0.0.0/8 } is not followed", ""},
		{"http-check send keeps the path of option httpchk", "listen l\n bind 192.0.2.1:80\n option httpchk GET /healthz\n http-check send hdr Host api.example\n" + two,
			"health-check=http/healthz health-check-host=api.example", "not with"},
		{"and wins where both say it", "listen l\n bind 192.0.2.1:80\n http-check send meth GET uri /ready\n option httpchk HEAD /\n" + two, "health-check=http/ready ", "not with"},
		{"header lines behind the version", "listen l\n bind 192.0.2.1:80\n option httpchk GET /up HTTP/1.1\\r\\nHost:\\ www.example.com\\r\\nX-Why:\\ check\n" + two,
			"health-check=http/up health-check-host=www.example.com\nthe header X-Why of checks is left out", "Host of checks"},
		{"http-check connect has port and TLS", "listen l\n bind 192.0.2.1:80\n option httpchk GET /up\n http-check connect port 8008 ssl sni x\n" + two,
			"health-check=https:8008/up\nloss line 6: sni x of checks", ""},
		{"tcp-check connect, too", "listen l\n bind 192.0.2.1:80\n option tcp-check\n tcp-check connect port 6443 ssl\n tcp-check connect port 6444\n" + two,
			"health-check=tls:6443\ntcp-check connect port 6444 has no counterpart: a check is one connection", ""},
		{"option tcp-check is instead of ssl-hello-chk", "listen l\n bind 192.0.2.1:80\n option ssl-hello-chk\n option tcp-check\n" + two, "health-check=tcp ", ""},
		{"without timeout check a check takes inter", "listen l\n bind 192.0.2.1:80\n server a 10.1.2.11:80 check inter 10s\n", "health-check=tcp health-check-timeout=10s", ""},
		{"with one it takes that", "listen l\n bind 192.0.2.1:80\n timeout check 3s\n server a 10.1.2.11:80 check inter 10s\n", "health-check=tcp health-check-timeout=3s", ""},
		{"verify none is as here", "listen l\n bind 192.0.2.1:80\n server a 10.1.2.11:80 check check-ssl verify none\n", "health-check=tls", "verify"},
		{"timeout tunnel is instead of the others", "listen l\n bind 192.0.2.1:80\n timeout client 50s\n timeout server 50s\n timeout tunnel 1h\n" + two, "idle-timeout=1h ", "tunnel"},
		{"a backend's own timeout is instead of that of defaults", " timeout client 10s\n timeout server 1h\nlisten l\n bind 192.0.2.1:80\n timeout server 30s\n" + two, "idle-timeout=30s", ""},
		{"the timeout of clients is the frontend's", " timeout client 1h\n timeout server 10s\nfrontend f\n bind 192.0.2.1:80\n timeout client 20s\n default_backend one\n" + backends,
			"idle-timeout=20s", ""},
		{"no-backup, no-check-ssl, no-ssl and no-send-proxy undo", "listen l\n bind 192.0.2.1:80\n default-server backup check check-ssl ssl send-proxy\n" +
			" server a 10.1.2.11:80 no-backup no-check-ssl no-ssl no-send-proxy\n", "service l: health-check=tcp 10.1.2.11*1\n", "proxy-protocol"},
		{"checks of servers that want the PROXY header", "listen l\n bind 192.0.2.1:80\n option httpchk GET /up\n server a 10.1.2.11:80 check send-proxy\n",
			"health-check=tcp proxy-protocol=v1\nchecks send no header of the PROXY protocol, which server 10.1.2.11 waits for", ""},
		{"and at a port of their own", "listen l\n bind 192.0.2.1:80\n option httpchk GET /up\n server a 10.1.2.11:80 check port 8008 send-proxy\n", "health-check=http:8008/up proxy-protocol=v1", "checks send no header"},
		{"one server without the PROXY header", "listen l\n bind 192.0.2.1:80\n server a 10.1.2.11:80 send-proxy-v2\n server b 10.1.2.12:80\n",
			"proxy-protocol=v2 10.1.2.11*1 10.1.2.12*1\nserver b wants no header of the PROXY protocol: it gets v2", ""},
		{"one server with it", "listen l\n bind 192.0.2.1:80\n server b 10.1.2.12:80\n server a 10.1.2.11:80 send-proxy\n",
			"server a wants the header of the PROXY protocol (v1)", "proxy-protocol="},
	})
}

func Test661_keepalived_and_IPVS_as_they_are_written(t *testing.T) {
	const servers = " real_server 10.1.2.11 80 {\n  weight 3\n }\n real_server 10.1.2.12 80 {\n  weight 0\n }\n"
	expects(t, Keepalived, "", []struct{ name, text, want, not string }{
		{"rr counts no weights", "virtual_server 192.0.2.1 80 {\n lb_algo rr\n" + servers + "}\n", "10.1.2.11*1 10.1.2.12*0\nthe scheduler rr counts no weights: server 10.1.2.11", ""},
		{"wrr does", "virtual_server 192.0.2.1 80 {\n lb_algo wrr\n" + servers + "}\n", "10.1.2.11*3 10.1.2.12*0", "counts no weights"},
		{"an old mask is no error", "virtual_server 192.0.2.1 80 {\n nat_mask 255.255.255.0\n" + servers + "}\n", "10.1.2.11*3\nnat_mask 255.255.255.0 has no counterpart", ""},
		{"protocols in small letters", "virtual_server 192.0.2.1 80{\n protocol tcp\n" + servers + "}\n", "service v-192-0-2-1-80-tcp: 10.1.2.11*3", ""},
		{"all ports are lost, and the others stay", "virtual_server 192.0.2.9 0 {\n" + servers + "}\nvirtual_server 192.0.2.8 {\n}\nvirtual_server 192.0.2.1 80 {\n" + servers + "}\n",
			"service v-192-0-2-1-80-tcp: 10.1.2.11*3\nthe service of all ports of 192.0.2.9\nthe service of all ports of 192.0.2.8", ""},
		{"what holds for all servers", "virtual_server 192.0.2.1 80 {\n weight 5\n connect_timeout 4\n retry 2\n virtualhost all\n real_server 10.1.2.11 80 {\n  HTTP_GET {\n   url {\n    path /\n   }\n  }\n }\n}\n",
			"health-check=http health-check-host=all health-check-timeout=4s health-check-unhealthy-threshold=3 10.1.2.11*5", "loss"},
		{"what a server says for its check", "virtual_server 192.0.2.1 80 {\n retry 2\n real_server 10.1.2.11 80 {\n  connect_timeout 1\n  retry 4\n  TCP_CHECK {\n  }\n }\n}\n",
			"health-check=tcp health-check-timeout=1s health-check-unhealthy-threshold=5 10.1.2.11*1", "loss"},
	})
	expects(t, IPVS, "", []struct{ name, text, want, not string }{
		{"rr counts no weights", "-A -t 192.0.2.1:80 -s rr\n-a -t 192.0.2.1:80 -r 10.1.2.11:80 -m -w 3\n", "10.1.2.11*1\nthe scheduler rr counts no weights", ""},
		{"no server", "-A -t 192.0.2.1:80 -s rr\n", "no server is left: clients are refused", "family"},
	})
}

// clusterWith has a load balancer as MetalLB leaves it, which asks for a pool, and more.
func clusterWith(more string) string {
	return `apiVersion: v1
kind: Service
metadata:
  name: web
  annotations: {metallb.io/address-pool: prod}
spec:
  type: LoadBalancer
  ports: [{port: 80}]
status: {loadBalancer: {ingress: [{ip: 192.0.2.10}]}}
` + more
}

func Test666_cluster_as_it_is_printed(t *testing.T) {
	const pool = "---\napiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: prod}\nspec: {addresses: [192.0.2.0/28]}\nstatus: {assignedIPv4: 1, assignedIPv6: 0, availableIPv4: 9, availableIPv6: 0}\n"
	for _, tt := range []struct{ name, text, want, not string }{
		{"without its pool a Service asks for none", clusterWith(""), "svcctl.io/load-balancer-ips: 192.0.2.10", "\n    metallb.io/address-pool"},
		{"that is told", clusterWith(""), "no IPAddressPool prod is among the objects", ""},
		{"with it it does", clusterWith(pool), "\n    metallb.io/address-pool: prod", "no IPAddressPool"},
		{"a status without fields", "apiVersion: metallb.io/v1beta2\nkind: BGPPeer\nmetadata: {name: p}\nspec: {myASN: 1, peerASN: 2, peerAddress: 192.0.2.1}\nstatus: {}\n", "kind: BGPPeer", "status"},
		{"one with", clusterWith(pool), "kind: IPAddressPool", "status"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			imported, err := Cluster(tt.text, Options{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := imported.YAML()
			if err != nil {
				t.Fatal(err)
			}
			if joined := strings.ReplaceAll(got, "\n#   ", " "); !strings.Contains(joined, tt.want) || tt.not != "" && strings.Contains(joined, tt.not) {
				t.Errorf("want %q and not %q in:\n%s", tt.want, tt.not, got)
			}
			wellFormed(t, tt.name, got)
		})
	}
}

// A check without connect_timeout and retry has the defaults of keepalived.conf(5), and a server serves again after one success.
func Test1151_checks_have_the_defaults_of_keepalived(t *testing.T) {
	with := func(check string) string {
		return "virtual_server 192.0.2.1 80 {\n real_server 10.1.2.11 80 {\n  " + check + "\n }\n}\n"
	}
	expects(t, Keepalived, "", []struct{ name, text, want, not string }{
		{"TCP", with("TCP_CHECK {\n  }"), "health-check-healthy-threshold=1 health-check=tcp health-check-timeout=5s health-check-unhealthy-threshold=2 ", "loss"},
		{"HTTP", with("HTTP_GET {\n   url {\n    path /up\n   }\n   nb_get_retry 0\n  }"),
			"health-check-healthy-threshold=1 health-check=http/up health-check-timeout=5s health-check-unhealthy-threshold=1 ", "loss"},
		{"DNS", with("DNS_CHECK {\n  }"), "health-check-healthy-threshold=1 health-check=dns/. health-check-timeout=5s health-check-unhealthy-threshold=4 ", "loss"},
		{"DNS with a name", with("DNS_CHECK {\n   name example.com\n   connect_timeout 1\n  }"), "health-check=dns/example.com health-check-timeout=1s ", "loss"},
	})
}

// Messages that haproxy prints when it starts are no conditions, and no loss repeats what may be a password.
func Test1152_messages_and_passwords_of_haproxy(t *testing.T) {
	const listen = "listen l\n bind 192.0.2.1:80\n"
	const server = " server a 10.1.2.11:80 check\n"
	expects(t, HAProxy, "defaults\n mode tcp\n", []struct{ name, text, want, not string }{
		{"messages", ".diag \"a\"\n.notice \"b c\"\n" + listen + ".warning \"d\"\n" + server, "service l: health-check=tcp 10.1.2.11*1", "left out"},
		{"statistics", listen + " stats uri /stats\n stats auth admin:secret\n" + server, "stats uri /stats has no counterpart\nstats auth has no counterpart", "secret"},
		{"dialog", listen + " option tcp-check\n tcp-check send AUTH\\ secret\\r\\n\n tcp-check send-binary 736563726574\n tcp-check expect string +OK\n" + server,
			"line 6: tcp-check send has no counterpart\nline 7: tcp-check send-binary has no counterpart\ntcp-check expect string +OK has no counterpart", "secret"},
	})
}

// An address of a farm without an IP address is left out, as an empty virtual-addr is, and the other farms stay.
func Test1162_address_of_a_farm_without_an_IP_address(t *testing.T) {
	farm := func(name, address string) string {
		return `{"name": "` + name + `", "mode": "snat", "addresses": [{"name": "` + name + `-addr", "family": "ipv4", "ip-addr": "` + address + `", "ports": "80", "protocol": "tcp"}],
"backends": [{"name": "b", "ip-addr": "10.1.2.11", "port": "80"}]}`
	}
	expects(t, NFTLB, "", []struct{ name, text, want, not string }{
		{"one of two", `{"farms": [` + farm("a", "") + `,` + farm("b", "192.0.2.1") + `]}`,
			"service b: 10.1.2.11*1\nthe address \"\" is left out\nfarm a is left out: no address of it has a counterpart", "service a"},
	})
}

// Of a key that is in an object twice the last value counts, as in nftlb, and the loss says so.
func TestNFTLBKeyTwice(t *testing.T) {
	m, err := NFTLB(`{"farms":[{"name":"web","virtual-addr":"192.0.2.1","virtual-ports":"80",
"virtual-ports":"81","backends":[{"name":"a","ip-addr":"10.0.0.1"}]}]}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if port := m.Virtuals[0].Ports[0].Port; port != 81 {
		t.Errorf("the port is %d", port)
	}
	if got, want := m.Losses[0].String(), "line 2: farms[0].virtual-ports is there twice: the last one counts"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
