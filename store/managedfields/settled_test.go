package managedfields

import (
	"strings"
	"testing"
)

// What is settled is what an application does not change; and most of that is.
func TestSettled(t *testing.T) {
	const ports = `[{"name":"a","port":80},{"name":"b","port":443}]`
	body := strings.Replace(web, `[{"port":80,"targetPort":8080}]`, ports, 1)
	live := applied(t, nil, "svcctl", body, 0)
	// Others have added something, and defaults were set.
	other := applied(t, live, "team", `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","labels":{"team":"a"}}}`, 1)
	other["spec"].(map[string]any)["type"] = "ClusterIP"
	by := writer(t, "svcctl", clock)
	for name, c := range map[string]struct {
		body string
		want bool
	}{
		"same":           {body, true},
		"less":           {web, false},
		"more":           {strings.Replace(body, `"app":"web"}`, `"app":"web","x":"y"}`, 1), false},
		"another value":  {strings.Replace(body, "443", "444", 1), false},
		"another leaf":   {strings.Replace(body, `"name":"b"`, `"name":"c"`, 1), false},
		"another atom":   {strings.Replace(body, `"selector":{"app":"web"}`, `"selector":{"app":"db"}`, 1), false},
		"another order":  {strings.Replace(body, ports, `[{"name":"b","port":443},{"name":"a","port":80}]`, 1), false},
		"twice":          {strings.Replace(body, ports, strings.Replace(ports, "]", `,{"name":"b","port":443}]`, 1), 1), false},
		"default named":  {strings.Replace(body, `"port":80`, `"port":80,"protocol":"TCP"`, 1), false},
		"what team owns": {strings.Replace(body, `{"app":"web"}}`, `{"app":"web","team":"a"}}`, 1), false},
		"version":        {strings.Replace(body, `"name":"web"`, `"name":"web","resourceVersion":"7"`, 1), false},
	} {
		for _, before := range []map[string]any{live, other} {
			o := raw(t, before)
			if got := Settled(o, parse(t, c.body), by); got != c.want {
				t.Errorf("%s: settled is %t", name, got)
			}
			if !c.want {
				continue
			}
			after, err := Apply(o, parse(t, c.body), by, false)
			if err != nil || text(t, after) != text(t, before) {
				t.Errorf("%s: %s comes to %s (%v)", name, text(t, before), text(t, after), err)
			}
		}
	}
	for name, w := range map[string]Writer{
		"another manager":     writer(t, "curl", clock),
		"another version":     {Manager: "svcctl", APIVersion: "v2", Type: by.Type},
		"another subresource": {Manager: "svcctl", APIVersion: "v1", Subresource: "status", Type: by.Type},
	} {
		if Settled(raw(t, live), parse(t, body), w) {
			t.Errorf("%s: it is settled", name)
		}
	}
	if Settled(raw(t, live), live, by) {
		t.Error("with managedFields it is settled")
	}
}

// raw is an object as it comes from the store.
func raw(t *testing.T, o map[string]any) map[string]any {
	t.Helper()
	entries, _, err := entriesOf(o)
	if err != nil {
		t.Fatal(err)
	}
	return withEntries(o, entries)
}
