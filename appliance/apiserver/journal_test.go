package apiserver

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

func TestJournal(t *testing.T) {
	objects, err := store.Open(engine.NewMemory(), store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}})
	if err != nil {
		t.Fatal(err)
	}
	cluster := control.NewClusterObjects(control.ClusterConfig{NodeName: "gw1", ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}, objects, nil)
	files := map[string]*manifest.File{}
	step := func(text string) {
		t.Helper()
		if delete(files, "web.yaml"); text != "" {
			files["web.yaml"] = manifest.Decode("web.yaml", []byte(text), manifest.DefaultLimits())
		}
		if _, err := objects.SyncFiles(manifest.FilesOf(files)); err != nil {
			t.Fatal(err)
		}
		if err := cluster.Sync(&node.Facts{}); err != nil {
			t.Fatal(err)
		}
	}
	step("")
	step(web("10.1.0.1"))
	mine := &object.ConfigMap{
		TypeMeta: object.TypeMeta{Kind: object.KindConfigMap, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Namespace: "default", Name: "mine"},
	}
	results, err := objects.Write(store.Write{Ref: object.RefOf(mine), Object: mine, Create: true, By: store.Caller{User: "root", Verb: "test"}})
	if err != nil || results[0].Err != nil {
		t.Fatal(err, results)
	}
	step(web("10.1.0.2"))
	step("")
	// Events of problems do not hide what was done.
	for i := range 5 {
		event := &object.Event{
			TypeMeta:       object.TypeMeta{Kind: object.KindEvent, APIVersion: "v1"},
			Metadata:       object.ObjectMeta{Name: fmt.Sprintf("web.%d", i), Namespace: "default"},
			InvolvedObject: object.ObjectReference{Kind: "Service", Namespace: "default", Name: "web"},
		}
		results, err := objects.Write(store.Write{Ref: object.RefOf(event), Object: event, Create: true, By: store.Caller{User: "root", Verb: "test"}})
		if err != nil || results[0].Err != nil {
			t.Fatal(err, results)
		}
	}
	read := func(limit int) string {
		t.Helper()
		entries, err := (&answers{objects: objects}).journal(wire.JournalQuery{Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for i, e := range entries {
			if i > 0 && e.Revision <= entries[i-1].Revision || e.Time.IsZero() {
				t.Errorf("entry %+v after %+v", e, entries[max(0, i-1)])
			}
			lines = append(lines, fmt.Sprintf("%s %s %s/%s by %s%s%s", e.Verb, e.Kind, e.Namespace, e.Name, e.User, e.File, e.Controller))
		}
		return strings.Join(lines, "\n")
	}
	const last = `update EndpointSlice default/web-1 by web.yaml
delete EndpointSlice default/web-1 by web.yaml
delete Service default/web by web.yaml`
	want := `create Namespace /default by namespaces
create Namespace /kube-system by namespaces
create ServiceCIDR /kubernetes by pools
create Node /gw1 by node
create EndpointSlice default/web-1 by web.yaml
create Service default/web by web.yaml
test ConfigMap default/mine by root
` + last
	if got := sortedWithin(read(1000), want); got != want {
		t.Errorf("the journal is\n%s\nwant\n%s", got, want)
	}
	if got := sortedWithin(read(3), last); got != last {
		t.Errorf("its last three entries are\n%s\nwant\n%s", got, last)
	}
	if entries, err := (&answers{objects: objects}).journal(wire.JournalQuery{Limit: 4, Events: true}); err != nil || len(entries) != 4 || entries[3].Kind != object.KindEvent || entries[3].Name != "web.4" {
		t.Errorf("with Events, the last four are %+v, %v", entries, err)
	}
	// Of a Service: its own changes, and those of its endpoints, also of objects that are gone.
	for _, tt := range []struct {
		q    wire.JournalQuery
		want int
	}{
		{wire.JournalQuery{Limit: 100, Namespace: "default", Name: "web"}, 5}, {wire.JournalQuery{Limit: 2, Namespace: "default", Name: "web"}, 2},
		{wire.JournalQuery{Limit: 100, Namespace: "default", Name: "web", Events: true}, 10}, {wire.JournalQuery{Limit: 100, Namespace: "default", Name: "we"}, 0},
		{wire.JournalQuery{Limit: 100, Namespace: "shop", Name: "web"}, 0}, {wire.JournalQuery{Limit: 100, Namespace: "default"}, 6},
		{wire.JournalQuery{Limit: 100, Namespace: "default", Since: time.Hour}, 6}, {wire.JournalQuery{Limit: 100, Since: time.Nanosecond}, 0},
	} {
		if entries, err := (&answers{objects: objects}).journal(tt.q); err != nil || len(entries) != tt.want {
			t.Errorf("%+v: %d entries, %v; want %d: %+v", tt.q, len(entries), err, tt.want, entries)
		}
	}
}

// sortedWithin is text, with two lines of one commit swapped where want has them so: in which
// order a commit numbers objects does not matter here.
func sortedWithin(text, want string) string {
	lines, wanted := strings.Split(text, "\n"), strings.Split(want, "\n")
	for i := 0; i+1 < min(len(lines), len(wanted)); i++ {
		if lines[i] == wanted[i+1] && lines[i+1] == wanted[i] {
			lines[i], lines[i+1] = lines[i+1], lines[i]
		}
	}
	return strings.Join(lines, "\n")
}

// web is a Service with one endpoint.
func web(endpoint string) string {
	return `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [` + endpoint + `]}]
`
}
