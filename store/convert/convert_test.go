package convert

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

var update = flag.Bool("update", false, "write the golden files")

// TestSources: each configuration of testdata becomes the manifests beside it, which decode, are
// valid, and name each loss in a comment.
func TestSources(t *testing.T) {
	for file, source := range map[string]Source{
		"nat.keepalived.conf": Keepalived, "group.keepalived.conf": Keepalived, "saved.ipvs": IPVS,
		"tcp.haproxy.cfg": HAProxy, "farms.nftlb.json": NFTLB, "dump.nftlb.json": NFTLB, "list.cluster.yaml": Cluster, "bgp.metallb.yaml": Cluster, "old.metallb.yaml": Cluster, "ingress.cluster.yaml": Cluster,
		"vrrp.keepalived.conf": Keepalived, "egress.cluster.yaml": Cluster, "gateway.cluster.yaml": Cluster, "site.haproxy.cfg": HAProxy,
	} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		imported, err := source(string(text), Options{})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		got, err := imported.YAML()
		if err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata", file+".yaml")
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-golden +now; -update writes it):\n%s", file, diff)
		}
		comments := strings.Join(strings.Fields(strings.ReplaceAll(got, "\n#  ", "\n")), " ")
		for _, loss := range imported.AllLosses() {
			if !strings.Contains(comments, strings.Join(strings.Fields(loss.String()), " ")) {
				t.Errorf("%s: no comment says %q", file, loss)
			}
		}
		wellFormed(t, file, got)
	}
}

// wellFormed fails for manifests that are not decoded or not valid.
func wellFormed(t *testing.T, name, text string) {
	t.Helper()
	f := manifest.Decode(name+".yaml", []byte(text), manifest.DefaultLimits())
	f.Problems = slices.DeleteFunc(f.Problems, func(p manifest.Problem) bool { return p.Object.Kind == object.KindNamespace && p.Warning }) // apply needs them
	if f.Err != nil || len(f.Problems) > 0 || len(f.Documents) == 0 {
		t.Errorf("%s: %v %v, %d documents", name, f.Err, f.Problems, len(f.Documents))
	}
	for _, d := range f.Documents {
		o := d.Object
		object.Default(o)
		errs := object.Errors{}
		if svc, is := o.(*object.Service); is {
			errs = object.DefaultFamilies(svc, nil, []string{object.IPv4, object.IPv6})
		}
		if errs = append(errs, object.Validate(o, object.Options{})...); len(errs) > 0 {
			t.Errorf("%s:%d: %v", name, d.Line, errs)
		}
	}
}

// TestNotUnderstood: each is an error with its line, and nothing is imported.
func TestNotUnderstood(t *testing.T) {
	const good = "virtual_server 192.0.2.1 80 {\n lb_kind NAT\n real_server 10.1.2.11 80 {\n  weight 1\n }\n}\n"
	const tcp = "listen x\n bind 192.0.2.1:80\n server a 10.1.2.11:80 check\n"
	for _, tt := range []struct {
		source     Source
		text, want string
	}{
		{Keepalived, good + "virtual_sever 192.0.2.2 80 {\n}\n", `line 7: "virtual_sever" is not understood`},
		{Keepalived, good + "include /etc/keepalived/more.conf\n", "line 7: include: included files"},
		{Keepalived, good + "$VIP=192.0.2.9\n", "line 7: $VIP=192.0.2.9: included files"},
		{Keepalived, good + "}\n", "line 7: } closes no block"},
		{Keepalived, good + "virtual_server 192.0.2.2 80 {\n", "line 7: the block of virtual_server is not closed"},
		{Keepalived, strings.Replace(good, "weight 1", "wight 1", 1), `line 4: "wight" is not understood in real_server`},
		{Keepalived, strings.Replace(good, "weight 1", "weight 70000", 1), "line 4: the weight 70000 is more than 65535"},
		{Keepalived, strings.Replace(good, "NAT", "FAT", 1), `line 2: lb_kind "FAT" is none of NAT, DR, TUN`},
		{Keepalived, strings.Replace(good, "10.1.2.11", "web1", 1), `line 3: "web1" is no address`},
		{Keepalived, strings.Replace(good, "192.0.2.1 80", "group nobody", 1), "line 1: there is no virtual_server_group nobody"},
		{Keepalived, strings.Replace(good, "weight 1", "TCP_CHECK {\n port 8 }", 1), `line 5: "port" is not understood in TCP_CHECK`},
		{Keepalived, strings.Replace(good, "weight 1", `notify_up "/bin/x`, 1), "line 4: a quote is not closed"},
		{IPVS, "-A -t 192.0.2.1:80 -s rr\n-a -t 192.0.2.2:80 -r 10.1.2.11:80 -m\n", "line 2: the service -t 192.0.2.2:80 of this server is not there"},
		{IPVS, "-A -t web:http -s rr\n", `line 1: "web" is no address`},
		{IPVS, "-A -t 192.0.2.1:80 -z\n", `line 1: "-z" is not understood`},
		{IPVS, "-A -t 192.0.2.1:80\n-A -t 192.0.2.1:80\n", "line 2: the service -t 192.0.2.1:80 is there a second time"},
		{Keepalived, strings.Replace(good, "10.1.2.11", "0.0.0.0", 1), "line 3: 0.0.0.0 cannot be the address"},
		{IPVS, "-A -t 224.0.0.1:80 -s rr\n", "line 1: 224.0.0.1 cannot be the address"},
		{IPVS, "-C\n", `line 1: "-C" is no line of`},
		{IPVS, "ipvsadm -A -t 192.0.2.1:80\nipvsadm -C\n", `line 2: "-C" is no line of`},
		{IPVS, "-A -t\n", "line 1: -t needs a value"},
		{HAProxy, "bind :80\n" + tcp, `line 1: "bind" is not understood outside of a section`},
		{HAProxy, ".if feature(QUIC)\n" + tcp, "line 1: .if: conditions are not followed"},
		{HAProxy, strings.Replace(tcp, "10.1.2.11", "web1", 1), `line 3: server a: "web1" is no address`},
		{HAProxy, strings.Replace(tcp, "check", "chek", 1), `line 3: "chek" is not understood in a server`},
		{HAProxy, strings.Replace(tcp, "check", "check inter soon", 1), `line 3: "soon" is no time`},
		{HAProxy, strings.Replace(tcp, "check", "check weight 300", 1), `line 3: the weight "300" is no number from 0 to 256`},
		{HAProxy, strings.Replace(tcp, ":80", ":web", 1), `line 2: "web" is no port`},
		{HAProxy, strings.Replace(tcp, "11:80", "11:+65500", 1), `line 3: server a: "+65500" leads from port 80 to none`},
		{HAProxy, strings.Replace(tcp, "11:80", "11:-80", 1), `line 3: server a: "-80" leads from port 80 to none`},
		{HAProxy, strings.Replace(tcp, "11:80", "11:+x", 1), `line 3: server a: "+x" is no port`},
		{HAProxy, strings.Replace(tcp, ":80", ":80-70", 1), `line 2: "80-70" is no port`},
		{HAProxy, tcp + "listen x\n", "line 4: there is listen x in line 1 already"},
		{HAProxy, tcp + "frontend y\n bind :81\n default_backend z\n", "line 6: there is no backend z"},
		{HAProxy, tcp + "frontend \"y\n", "line 4: a quote is not closed"},
		{NFTLB, "{\"farms\": [\n{\"name\": \"a\", \"mood\": 1}]}", `line 2: "mood" is not understood in farm a`},
		{NFTLB, "{\"farms\": [{\"name\": \"a\", \"virtual-addr\": \"192.0.2.1\",\n\"virtual-ports\": \"80-x\"}]}", `line 2: "80-x" is no port`},
		{NFTLB, "{\"farms\": [{\"name\": \"a\", \"backends\": [\n{\"name\": \"b\", \"ip-addr\": \"web1\"}]}]}", `line 2: backend b: "web1" is no address`},
		{NFTLB, "{}", "line 1: there are no farms"},
		{NFTLB, "{\n", "line "},
		{Cluster, "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {prots: []}\n", "line 4: "},
		{Cluster, "a: [\n", "line "},
		{Cluster, "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports: [{port: 70000}]\n", "line 5: Service a: spec.ports[0].port: Invalid value: 70000"},
		{Cluster, "apiVersion: metallb.io/v1beta2\nkind: BGPPeer\nmetadata: {name: p}\nspec: {myASN: 1}\n", "line 4: BGPPeer p: spec.peerASN: Invalid value: 0"},
		{Cluster, "apiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: p}\nspec:\n  addresses: [nonsense]\n", "line 5: IPAddressPool p: spec.addresses[0]"},
	} {
		imported, err := tt.source(tt.text, Options{})
		if err == nil || !strings.Contains(err.Error(), tt.want) || imported != nil {
			t.Errorf("%q: %v, error %v; want %q", tt.text, imported, err, tt.want)
		}
	}
}

// TestServerOfTheBox: a server at a loopback address is told, and the others are imported.
func TestServerOfTheBox(t *testing.T) {
	imported, err := Keepalived("virtual_server 192.0.2.1 80 {\n lb_kind NAT\n sorry_server 127.0.0.1 80\n real_server 10.1.2.11 80 {\n }\n}\n", Options{})
	if err != nil {
		t.Fatal(err)
	}
	told := false
	for _, loss := range imported.AllLosses() {
		told = told || loss.Line == 3 && strings.Contains(loss.Text, "127.0.0.1 is the box itself")
	}
	if servers := imported.Virtuals[0].Servers; !told || len(servers) != 1 || servers[0].Addr.String() != "10.1.2.11" {
		t.Errorf("losses %v, servers %v", imported.AllLosses(), servers)
	}
}

// TestPortsByDistance: the port of a HAProxy server may be a distance from the port that the client connected to.
func TestPortsByDistance(t *testing.T) {
	imported, err := HAProxy("listen x\n mode tcp\n bind 192.0.2.1:80-82\n bind 192.0.2.1:443,192.0.2.1:9000-9999\n server a 10.1.2.11:+8000\n server b 10.1.2.12:-10\n server c 10.1.2.13\n server d [2001:db8::1]:+0\n", Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range imported.Virtuals[0].Objects() {
		if slice, is := o.(*object.EndpointSlice); is {
			text := ""
			for _, e := range slice.Endpoints {
				text += e.Addresses[0]
			}
			for _, p := range slice.Ports {
				text += fmt.Sprint(" ", *p.Name, "=", *p.Port)
			}
			got = append(got, text)
		}
	}
	want := "10.1.2.12 tcp-80=70 tcp-81=71 tcp-82=72 tcp-443=433\n10.1.2.13 tcp-80=80 tcp-81=81 tcp-82=82 tcp-443=443\n10.1.2.11 tcp-80=8080 tcp-81=8081 tcp-82=8082 tcp-443=8443\n" +
		"2001:db8::1 tcp-80=80 tcp-81=81 tcp-82=82 tcp-443=443"
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	if losses := fmt.Sprint(imported.AllLosses()); !strings.Contains(losses, "line 4: bind 192.0.2.1:9000-9999 has more than 100 ports: it is left out") {
		t.Error(losses)
	}
}

// TestScriptOfIpvsadm: a script of ipvsadm commands is read like the output of ipvsadm -S -n.
func TestScriptOfIpvsadm(t *testing.T) {
	imported, err := IPVS("#!/bin/sh\nipvsadm -C\nipvsadm -A -t 192.0.2.1:80 -s rr\n/sbin/ipvsadm -a -t 192.0.2.1:80 -r 10.1.2.11:80 -m\n  -a -t 192.0.2.1:80 -r 10.1.2.12:80 -m\n", Options{})
	if err != nil || len(imported.Virtuals) != 1 || len(imported.Virtuals[0].Servers) != 2 {
		t.Error(imported, err)
	}
}

// TestBothLoadBalancerIPs: a Service of two families keeps both load balancer IPs of its status.
func TestBothLoadBalancerIPs(t *testing.T) {
	imported, err := Cluster("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {type: LoadBalancer, ports: [{port: 80}]}\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.7}, {hostname: x}, {ip: \"2001:db8::7\"}]}}\n", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := imported.Kept[0].Object.GetMeta().Annotations[annotationLoadBalancerIPs]; got != "192.0.2.7,2001:db8::7" {
		t.Errorf("the load balancer IPs are %q", got)
	}
}

// FuzzSources: no text makes a source fall over, and what is imported is a valid manifest.
func FuzzSources(f *testing.F) {
	files, _ := filepath.Glob("testdata/*")
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.IsDir() {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for name, source := range Sources() {
			imported, err := source(text, Options{})
			if err != nil || len(imported.Virtuals)+len(imported.Kept) == 0 {
				continue
			}
			manifests, err := imported.YAML()
			if err != nil {
				t.Fatal(err)
			}
			wellFormed(t, name, manifests)
		}
	})
}

// TestOlderVersions: an EndpointSlice of discovery.k8s.io/v1beta1 is converted where it can be, what else has a version that is not served is left
// out and named, and the rest is imported.
func TestOlderVersions(t *testing.T) {
	const (
		service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: a}\nspec: {type: LoadBalancer, ports: [{port: 80}]}\n"
		head    = "---\napiVersion: discovery.k8s.io/%s\nkind: EndpointSlice\nmetadata: {name: web-%s, namespace: a, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{port: 80}]\n"
		beta    = "endpoints: [{addresses: [10.1.2.11], conditions: {ready: false}, topology: {kubernetes.io/hostname: n1, topology.kubernetes.io/zone: z1}}, {addresses: [10.1.2.12]}]\n"
		wrong   = "endpoints: [{addresses: [10.1.2.13], topology: {topology.kubernetes.io/zone: z1}, conditions: 7}]\n"
	)
	text := service + fmt.Sprintf(head, "v1beta1", "1") + beta + fmt.Sprintf(head, "v1alpha1", "2") + beta + fmt.Sprintf(head, "v1beta1", "3") + wrong + fmt.Sprintf(head, "v1", "4") + "endpoints: [{addresses: [10.1.2.14]}]\n"
	imported, err := Cluster(text, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := imported.YAML()
	if err != nil {
		t.Fatal(err)
	}
	wellFormed(t, "older", got)
	var names []string
	for _, k := range imported.Kept {
		names = append(names, k.Object.GetMeta().Name)
		if slice, is := k.Object.(*object.EndpointSlice); is && slice.Metadata.Name == "web-1" {
			e := slice.Endpoints[0]
			if len(slice.Endpoints) != 2 || e.Zone == nil || *e.Zone != "z1" || e.Conditions.Ready == nil || *e.Conditions.Ready || slice.APIVersion != "discovery.k8s.io/v1" {
				t.Errorf("the slice of v1beta1 became %+v", slice)
			}
		}
	}
	if strings.Join(names, " ") != "a web web-1 web-4" {
		t.Errorf("imported are %v", names)
	}
	for _, want := range []string{"EndpointSlice web-2 is left out: Unsupported value: \"discovery.k8s.io/v1alpha1\"", "line 20: EndpointSlice web-3 is left out: Unsupported value: \"discovery.k8s.io/v1beta1\""} {
		if all := fmt.Sprint(imported.AllLosses()); !strings.Contains(all, want) {
			t.Errorf("%q is missing in %s", want, all)
		}
	}
	if imported.Summary() != "1 of 1 Service imported" {
		t.Error(imported.Summary())
	}
}
