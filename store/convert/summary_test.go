package convert

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// TestSummary counts what a source describes and what of it is imported.
func TestSummary(t *testing.T) {
	const server = " server a 10.1.2.11:80 check\n"
	for text, want := range map[string]string{
		"listen a\n bind 192.0.2.1:80\n" + server: "1 of 1 virtual server imported",
		"listen a\n bind 192.0.2.1:80\n" + server + "listen b\n mode http\n bind 192.0.2.2:80\n http-request return status 200\n" + server + "listen c\n disabled\n bind 192.0.2.3:80\n" + server: "1 of 3 virtual servers imported; 2 need you",
	} {
		imported, err := HAProxy(text, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := imported.Summary(); got != want {
			t.Errorf("%s\n%q, want %q", text, got, want)
		}
	}
	imported, err := IPVS("-A -t 192.0.2.1:80 -s sh -b sh-port\n-a -t 192.0.2.1:80 -r 10.1.2.11:80 -m -x 9\n-A -f 7\n", Options{})
	if err != nil || imported.Summary() != "1 of 2 virtual servers imported; 1 needs you" {
		t.Fatal(imported, err)
	}
	if a := imported.Virtuals[0].Annotations; a["svcctl.io/balance"] != "maglev" || a["svcctl.io/endpoint-connections"] != "9" {
		t.Errorf("annotations %v", a)
	}
}

// TestSummaryOfACluster: a Service that clients are refused at needs its reader; of pools alone the objects are counted.
func TestSummaryOfACluster(t *testing.T) {
	service := func(name, annotations string) string {
		return "---\napiVersion: v1\nkind: Service\nmetadata: {name: " + name + ", namespace: a, annotations: {" + annotations + "}}\nspec: {type: LoadBalancer, ports: [{port: 443}]}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: " + name + "-1, namespace: a, labels: {kubernetes.io/service-name: " + name + "}}\naddressType: IPv4\nports: [{port: 443}]\nendpoints: [{addresses: [10.1.2.11]}]\n"
	}
	const (
		pool    = "---\napiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: p, namespace: a}\nspec: {addresses: [192.0.2.0/28]}\n"
		ingress = "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: i, namespace: a}\n"
		alone   = "---\napiVersion: v1\nkind: Service\nmetadata: {name: alone, namespace: a}\nspec: {ports: [{port: 80}]}\n"
		arn     = `service.beta.kubernetes.io/aws-load-balancer-ssl-cert: "arn:aws:acm:x"`
	)
	for text, want := range map[string]string{
		service("web", "") + ingress:                  "1 of 1 Service imported",
		service("web", "") + service("tls", arn):      "1 of 2 Services imported; 1 needs you",
		service("web", "") + alone + service("b", ""): "2 of 3 Services imported; 1 needs you",
		pool:           "1 of 1 object imported",
		pool + ingress: "1 of 2 objects imported; 1 needs you",
	} {
		imported, err := Cluster(text, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := imported.Summary(); got != want {
			t.Errorf("%s\n%q, want %q", text, got, want)
		}
	}
}

// TestNames: a host name is an error that names it, and an address once it is among the options.
func TestNames(t *testing.T) {
	const text = "listen api\n bind 192.0.2.1:6443\n server m1 master-1.example.com:6443 check\n server m2 10.1.2.12:6443\n"
	_, err := HAProxy(text, Options{})
	var at *Error
	if !errors.As(err, &at) || at.Name != "master-1.example.com" || at.Line != 3 {
		t.Fatalf("%+v", err)
	}
	names := map[string][]netip.Addr{"master-1.example.com": {netip.MustParseAddr("10.1.2.11"), netip.MustParseAddr("2001:db8::1")}}
	imported, err := HAProxy(text, Options{Names: names})
	if err != nil || len(imported.Virtuals) != 1 || imported.Virtuals[0].Servers[0].Addr != names["master-1.example.com"][0] {
		t.Fatal(imported, err)
	}
	if got, _ := imported.YAML(); !strings.Contains(got, "the name master-1.example.com is now 10.1.2.11") {
		t.Error(got)
	}
	names["master-1.example.com"] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	if imported, err = HAProxy(text, Options{Names: names}); err != nil || len(imported.Virtuals[0].Servers) != 1 {
		t.Errorf("a name of the box itself is a server: %v %v", imported, err)
	}
}

// TestTrailingWords: words behind those that a statement reads are named.
func TestTrailingWords(t *testing.T) {
	for text, want := range map[string]string{
		"virtual_server 192.0.2.1 80 {\n lb_kind NAT\n real_server 10.1.2.11 80 {\n  HTTP_GET {\n   url { path /a digest 0011 }\n  }\n }\n}\n": `"digest 0011" behind path /a is left out`,
		"virtual_server 192.0.2.1 80 {\n lb_kind NAT extra\n real_server 10.1.2.11 80 {\n }\n}\n":                                              `"extra" behind lb_kind NAT is left out`,
	} {
		imported, err := Keepalived(text, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := imported.YAML(); !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	imported, err := HAProxy("listen a\n mode tcp please\n bind 192.0.2.1:80\n server a 10.1.2.11:80\n", Options{})
	if got, _ := imported.YAML(); err != nil || !strings.Contains(got, `"please" behind mode tcp is left out`) {
		t.Error(got, err)
	}
}
