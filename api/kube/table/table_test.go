package table

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestAge(t *testing.T) {
	for _, test := range []struct {
		ago  time.Duration
		want string
	}{
		{-3 * time.Second, "<invalid>"}, {-time.Second, "0s"}, {0, "0s"}, {59 * time.Second, "59s"}, {119*time.Second + 900*time.Millisecond, "119s"},
		{2 * time.Minute, "2m"}, {2*time.Minute + 999*time.Millisecond, "2m"}, {2*time.Minute + time.Second, "2m1s"}, {10*time.Minute - time.Second, "9m59s"}, {10 * time.Minute, "10m"},
		{3*time.Hour - time.Second, "179m"}, {3 * time.Hour, "3h"}, {3*time.Hour + time.Minute, "3h1m"}, {8 * time.Hour, "8h"}, {47 * time.Hour, "47h"},
		{48 * time.Hour, "2d"}, {49 * time.Hour, "2d1h"}, {8 * day, "8d"}, {729 * day, "729d"}, {730 * day, "2y"}, {731 * day, "2y1d"}, {8 * year, "8y"}, {100 * year, "100y"},
	} {
		at := now.Add(-test.ago)
		if got := age(&at, now); got != test.want {
			t.Errorf("%v ago is %s, want %s", test.ago, got, test.want)
		}
	}
	if got := age(nil, now) + age(&time.Time{}, now); got != "<unknown><unknown>" {
		t.Errorf("%s", got)
	}
}

// objectOf is an object from its JSON, ten minutes old.
func objectOf(t *testing.T, apiVersion, name, body string) object.Object {
	t.Helper()
	k, ok := kind.ByName(apiVersion, name)
	if !ok {
		t.Fatalf("no kind %s", name)
	}
	o := k.New()
	if err := json.Unmarshal([]byte(body), o); err != nil {
		t.Fatal(err)
	}
	created := now.Add(-10 * time.Minute)
	o.GetMeta().Name, o.GetMeta().CreationTimestamp = "web", &created
	return o
}

// Cells as kubectl shows them, those of wide output too.
func TestCells(t *testing.T) {
	for _, test := range []struct{ apiVersion, kind, body, want string }{
		{"v1", "Service", `{"spec":{"type":"ClusterIP","clusterIPs":["10.96.0.1","fd00::1"],"ports":[{"port":80,"protocol":"TCP"},{"port":53,"protocol":"UDP"}],"selector":{"b":"2","a":"1"}}}`,
			"web|ClusterIP|10.96.0.1|<none>|80/TCP,53/UDP|10m|a=1,b=2"},
		{"v1", "Service", `{"spec":{"type":"NodePort","clusterIPs":["10.96.0.1"],"externalIPs":["1.1.1.1","2.2.2.2"],"ports":[{"port":80,"nodePort":30080,"protocol":"TCP"}]}}`,
			"web|NodePort|10.96.0.1|1.1.1.1,2.2.2.2|80:30080/TCP|10m|<none>"},
		{"v1", "Service", `{"spec":{"type":"LoadBalancer","ports":[{"port":80,"protocol":"TCP"}]}}`, "web|LoadBalancer|<none>|<pending>|80/TCP|10m|<none>"},
		{"v1", "Service", `{"spec":{"type":"LoadBalancer","externalIPs":["9.9.9.9"]},"status":{"loadBalancer":{"ingress":[{"ip":"2.2.2.2"},{"hostname":"a.b"},{"ip":"1.1.1.1"},{"ip":"1.1.1.1"}]}}}`,
			"web|LoadBalancer|<none>|1.1.1.1,2.2.2.2,a.b,9.9.9.9|<none>|10m|<none>"},
		{"v1", "Service", `{"spec":{"type":"ExternalName","externalName":"a.example.com"}}`, "web|ExternalName|<none>|a.example.com|<none>|10m|<none>"},
		{"v1", "Service", `{"spec":{"type":"ClusterIP","clusterIPs":["None"]}}`, "web|ClusterIP|None|<none>|<none>|10m|<none>"},
		{"v1", "Endpoints", `{}`, "web|<none>|10m"},
		{"v1", "Endpoints", `{"subsets":[{"addresses":[{"ip":"10.0.0.1"},{"ip":"10.0.0.2"}],"ports":[{"port":80},{"port":443}]},{"addresses":[{"ip":"fd00::1"}],"ports":[{"port":80}]}]}`,
			"web|10.0.0.1:80,10.0.0.2:80,10.0.0.1:443 + 2 more...|10m"},
		{"v1", "Endpoints", `{"subsets":[{"addresses":[{"ip":"10.0.0.1"}]},{"addresses":[{"ip":"fd00::1"}],"ports":[{"port":80}]}]}`, "web|10.0.0.1,[fd00::1]:80|10m"},
		{"discovery.k8s.io/v1", "EndpointSlice", `{"addressType":"IPv4","ports":[{"port":80},{"name":"x"},{}],"endpoints":[{"addresses":["10.0.0.1","10.0.0.2"]},{"addresses":["10.0.0.3"]}]}`,
			"web|IPv4|80,x,*|10.0.0.1,10.0.0.2,10.0.0.3|10m"},
		{"discovery.k8s.io/v1", "EndpointSlice", `{"addressType":"IPv6","ports":[{"port":1},{"port":2},{"port":3},{"port":4}],"endpoints":[{"addresses":["a","b","c","d"]},{"addresses":["e"]}]}`,
			"web|IPv6|1,2,3 + 1 more...|a,b,c + 2 more...|10m"},
		{"discovery.k8s.io/v1", "EndpointSlice", `{"addressType":"IPv4"}`, "web|IPv4|<unset>|<unset>|10m"},
		{"v1", "Pod", `{}`, "web|0/1|Pending|10m|<none>|<none>"},
		{"v1", "Pod", `{"status":{"podIP":"10.0.0.1"}}`, "web|1/1|Running|10m|10.0.0.1|<none>"},
		{"v1", "Pod", `{"spec":{"nodeName":"gw1","containers":[{},{}]},"status":{"phase":"Pending","podIPs":[{"ip":"fd00::1"}]}}`, "web|0/2|Pending|10m|fd00::1|gw1"},
		{"v1", "Pod", `{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"},"status":{"phase":"Running"}}`, "web|1/1|Terminating|10m|<none>|<none>"},
		{"v1", "Pod", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "web|0/1|Unknown|10m|<none>|<none>"},
		{"v1", "Node", `{}`, "web|Unknown|<none>|10m||<none>|<none>|<unknown>|<unknown>|<unknown>"},
		{"v1", "Node", `{"metadata":{"labels":{"node-role.kubernetes.io/gateway":"","kubernetes.io/role":"edge"}},"spec":{"unschedulable":true},"status":{"conditions":[{"type":"Ready","status":"True"}],"addresses":[{"type":"InternalIP","address":"192.0.2.1"}],"nodeInfo":{"kernelVersion":"6.12","architecture":"amd64","kubeletVersion":"v1","osImage":"Debian"}}}`,
			"web|Ready,SchedulingDisabled|edge,gateway|10m|v1|192.0.2.1|<none>|Debian|6.12 (amd64)|<unknown>"},
		{"v1", "Node", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "web|NotReady|<none>|10m||<none>|<none>|<unknown>|<unknown>|<unknown>"},
		{"v1", "Event", `{"involvedObject":{"kind":"Service","name":"db","fieldPath":"spec"},"reason":"Conflict","message":" taken \n","type":"Warning","source":{"component":"svcctl","host":"gw1"},"firstTimestamp":"2026-01-02T03:00:05Z","lastTimestamp":"2026-01-02T03:04:00Z","count":7}`,
			"5s|Warning|Conflict|service/db|spec|svcctl, gw1|taken|4m|7|web"},
		{"events.k8s.io/v1", "Event", `{"regarding":{"kind":"Node"},"note":"x","eventTime":"2026-01-02T03:04:04.000000Z","reportingController":"kube-proxy"}`, "1s|||node||kube-proxy|x|1s|1|web"},
		{"v1", "Event", `{"involvedObject":{"kind":"Node"},"eventTime":"2026-01-02T03:00:05Z","series":{"count":9,"lastObservedTime":"2026-01-02T03:04:03Z"}}`, "2s|||node||||4m|9|web"},
		{"v1", "Namespace", `{"status":{"phase":"Active"}}`, "web|Active|10m"},
		{"v1", "ConfigMap", `{"data":{"a":"b"},"binaryData":{"c":""}}`, "web|2|10m"},
		{"v1", "Secret", `{"type":"Opaque","data":{"a":"eA=="}}`, "web|Opaque|1|10m"},
		{"coordination.k8s.io/v1", "Lease", `{"spec":{"holderIdentity":"gw1"}}`, "web|gw1|10m"},
		{"coordination.k8s.io/v1", "Lease", `{}`, "web||10m"},
		{"gateway.networking.k8s.io/v1", "GatewayClass", `{"spec":{"controllerName":"svcctl.io/gateway","description":"d"},"status":{"conditions":[{"type":"Accepted","status":"True"}]}}`, "web|svcctl.io/gateway|True|10m|d"},
		{"gateway.networking.k8s.io/v1", "Gateway", `{"spec":{"gatewayClassName":"svcctl"},"status":{"addresses":[{"value":"192.0.2.1"},{"value":"2001:db8::1"}],"conditions":[{"type":"Accepted","status":"True"},{"type":"Programmed","status":"False"}]}}`, "web|svcctl|192.0.2.1,2001:db8::1|False|10m"},
		{"gateway.networking.k8s.io/v1", "ListenerSet", `{"status":{"conditions":[{"type":"Accepted","status":"True"}]}}`, "web|True||10m"},
		{"gateway.networking.k8s.io/v1", "TLSRoute", `{"spec":{"hostnames":["a.example","b.example","c.example","d.example"]}}`, "web|10m|a.example,b.example,c.example + 1 more..."},
		{"gateway.networking.k8s.io/v1", "TCPRoute", `{}`, "web|10m"},
		{"networking.k8s.io/v1", "ServiceCIDR", `{"spec":{"cidrs":["10.96.0.0/12","fd00::/112"]}}`, "web|10.96.0.0/12,fd00::/112|10m"},
		{"networking.k8s.io/v1", "IPAddress", `{"spec":{"parentRef":{"resource":"services","namespace":"a","name":"b"}}}`, "web|services/a/b"},
		{"networking.k8s.io/v1", "IPAddress", `{"spec":{"parentRef":{"group":"Gateway.example.com","resource":"gateways","name":"b"}}}`, "web|gateways.gateway.example.com/b"},
		{"networking.k8s.io/v1", "IPAddress", `{}`, "web|<none>"},
	} {
		var cells []string
		for _, cell := range RowOf(objectOf(t, test.apiVersion, test.kind, test.body), IncludeNone, "", now).Cells {
			cells = append(cells, fmt.Sprint(cell))
		}
		if got := strings.Join(cells, "|"); got != test.want {
			t.Errorf("%s %s\ngot  %s\nwant %s", test.kind, test.body, got, test.want)
		}
	}
}

// Every kind has a described column for each of its cells.
func TestColumnsFitCells(t *testing.T) {
	for _, k := range kind.All() {
		columns := Columns(k)
		if cells := RowOf(k.New(), IncludeNone, "", now).Cells; len(cells) != len(columns) {
			t.Errorf("%s has %d cells and %d columns", k.Name, len(cells), len(columns))
		}
		for _, c := range columns {
			if c.Description == "" || c.Type != "string" {
				t.Errorf("%s: %+v", k.Name, c)
			}
		}
	}
}

func TestTableOfServices(t *testing.T) {
	k, _ := kind.ByName("v1", "Service")
	service := objectOf(t, "v1", "Service", `{"spec":{"type":"ClusterIP"}}`)
	table := New(k, "meta.k8s.io/v1", ListMeta{ResourceVersion: "7", Continue: "c"})
	for _, include := range []Include{IncludeNone, IncludeMetadata, IncludeObject} {
		table.Rows = append(table.Rows, RowOf(service, include, "meta.k8s.io/v1", now))
	}
	for i := range table.ColumnDefinitions {
		table.ColumnDefinitions[i].Description = "-"
	}
	b, err := json.Marshal(table)
	if err != nil {
		t.Fatal(err)
	}
	column := func(name, format string, priority int) string {
		return fmt.Sprintf(`{"name":%q,"type":"string","format":%q,"description":"-","priority":%d}`, name, format, priority)
	}
	cells := `{"cells":["web","ClusterIP","\u003cnone\u003e","\u003cnone\u003e","\u003cnone\u003e","10m","\u003cnone\u003e"]`
	metadata := `"metadata":{"name":"web","creationTimestamp":"2026-01-02T02:54:05Z"}`
	want := `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7","continue":"c"},"columnDefinitions":[` +
		strings.Join([]string{column("Name", "name", 0), column("Type", "", 0), column("Cluster-IP", "", 0), column("External-IP", "", 0),
			column("Port(s)", "", 0), column("Age", "", 0), column("Selector", "", 1)}, ",") + `],"rows":[` + cells + `},` +
		cells + `,"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1",` + metadata + `}},` +
		cells + `,"object":{"kind":"Service","apiVersion":"v1",` + metadata + `,"spec":{"type":"ClusterIP"},"status":{"loadBalancer":{}}}}]}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
}

func TestParseInclude(t *testing.T) {
	for s, want := range map[string]Include{"": IncludeMetadata, "None": IncludeNone, "Metadata": IncludeMetadata, "Object": IncludeObject} {
		if got, err := ParseInclude(s); err != nil || got != want {
			t.Errorf("%q is %q, %v", s, got, err)
		}
	}
	if _, err := ParseInclude("object"); err == nil || err.Error() != `unrecognized includeObject value: "object"` {
		t.Errorf("%v", err)
	}
}
