package appliance

import (
	"fmt"
	"strings"
	"testing"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

func TestJournal(t *testing.T) {
	r := newRig(t)
	r.step()
	r.host()
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	r.client(store.Write{Object: configMap("default", "mine"), Create: true})
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.2"))
	r.step()
	r.write("web.yaml", "")
	r.step()
	// What is told about problems does not hide what was done.
	for i := range 5 {
		r.client(store.Write{Object: &object.Event{
			TypeMeta:       object.TypeMeta{Kind: object.KindEvent, APIVersion: "v1"},
			Metadata:       object.ObjectMeta{Name: fmt.Sprintf("web.%d", i), Namespace: "default"},
			InvolvedObject: object.ObjectReference{Kind: "Service", Namespace: "default", Name: "web"},
		}, Create: true})
	}
	read := func(limit int) string {
		t.Helper()
		entries, err := journal(r.store)(limit, false)
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
create EndpointSlice default/web-1 by web.yaml
create Service default/web by web.yaml
create Node /gw1 by node
test ConfigMap default/mine by root
` + last
	if got := sortedWithin(read(1000), want); got != want {
		t.Errorf("the journal is\n%s\nwant\n%s", got, want)
	}
	if got := sortedWithin(read(3), last); got != last {
		t.Errorf("its last three entries are\n%s\nwant\n%s", got, last)
	}
	if entries, err := journal(r.store)(4, true); err != nil || len(entries) != 4 || entries[3].Kind != object.KindEvent || entries[3].Name != "web.4" {
		t.Errorf("with Events, the last four are %+v, %v", entries, err)
	}
}

// sortedWithin is text, with two lines of one commit swapped where want has them so: in which
// order a commit numbers objects is nobody's business here.
func sortedWithin(text, want string) string {
	lines, wanted := strings.Split(text, "\n"), strings.Split(want, "\n")
	for i := 0; i+1 < min(len(lines), len(wanted)); i++ {
		if lines[i] == wanted[i+1] && lines[i+1] == wanted[i] {
			lines[i], lines[i+1] = lines[i+1], lines[i]
		}
	}
	return strings.Join(lines, "\n")
}
