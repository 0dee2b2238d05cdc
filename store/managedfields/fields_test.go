package managedfields

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// clock is the time of the first write of a test.
var clock = time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)

func writer(t testing.TB, manager string, child time.Time) Writer {
	t.Helper()
	k, ok := kind.ByName("v1", "Service")
	if !ok {
		t.Fatal("no Service")
	}
	return Writer{Manager: manager, APIVersion: "v1", Type: schema.Of(k), Now: child}
}

func parse(t testing.TB, body string) map[string]any {
	t.Helper()
	o, fieldWarnings, err := schema.Decode([]byte(body), writer(t, "", clock).Type)
	if err != nil || len(fieldWarnings) > 0 {
		t.Fatalf("%s: %q %v", body, fieldWarnings, err)
	}
	return o
}

func text(t testing.TB, o any) string {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// owners are the entries of an object, each in a line: manager operation subresource
// seconds fields.
func owners(t testing.TB, o map[string]any) []string {
	t.Helper()
	entries, _, err := entriesOf(o)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, e := range entries {
		since := "-"
		if e.Time != nil {
			since = fmt.Sprint(int(e.Time.Sub(clock.Truncate(time.Second)).Seconds()))
		}
		lines = append(lines, strings.Join(strings.Fields(fmt.Sprintln(e.Manager, e.Operation, e.Subresource, since, string(e.FieldsV1))), " "))
	}
	return lines
}

func wantOwners(t testing.TB, o map[string]any, want ...string) {
	t.Helper()
	if got := owners(t, o); !slices.Equal(got, want) {
		t.Errorf("owners are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// content is an object without its entries.
func content(t testing.TB, o map[string]any) string { return text(t, withoutEntries(o)) }

func applied(t testing.TB, live map[string]any, manager, body string, child int) map[string]any {
	t.Helper()
	o, err := Apply(live, parse(t, body), writer(t, manager, clock.Add(time.Duration(child)*time.Second)), false)
	if err != nil {
		t.Fatalf("apply as %s: %v", manager, err)
	}
	return o
}

const web = `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","labels":{"app":"web"}},"spec":{"selector":{"app":"web"},"ports":[{"port":80,"targetPort":8080}]}}`

func TestCreatorOwnsWhatItWrites(t *testing.T) {
	o := Update(nil, parse(t, web), writer(t, "curl", clock))
	wantOwners(t, o, `curl Update 0 {"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{},"f:targetPort":{}}},"f:selector":{}}}`)
	if got := content(t, o); got != content(t, parse(t, web)) {
		t.Errorf("%s", got)
	}
	// Another write takes what it changes, and nothing else.
	changed := parse(t, strings.ReplaceAll(web, "8080", "9090"))
	changed["metadata"].(map[string]any)["annotations"] = map[string]any{"a": "b"}
	o = Update(o, changed, writer(t, "", clock.Add(time.Second)))
	wantOwners(t, o,
		`curl Update 0 {"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}},"f:selector":{}}}`,
		`unknown Update 1 {"f:metadata":{"f:annotations":{".":{},"f:a":{}}},"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{"f:targetPort":{}}}}}`)
	// One that changes nothing owns nothing, and what is removed has no owner.
	same := Update(o, withoutEntries(o), writer(t, "third", clock.Add(time.Minute)))
	wantOwners(t, same, owners(t, o)...)
	o = Update(o, parse(t, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web"}}`), writer(t, "third", clock.Add(time.Minute)))
	wantOwners(t, o)
}

func TestApplierOwnsWhatItNames(t *testing.T) {
	o := applied(t, nil, "gitops", web, 0)
	wantOwners(t, o, `gitops Apply 0 {"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{},"f:targetPort":{}}},"f:selector":{}}}`)

	// Labels and annotations that it does not mention are free.
	labeled := parse(t, web)
	labeled["metadata"].(map[string]any)["labels"] = map[string]any{"app": "web", "team": "a"}
	o = Update(o, labeled, writer(t, "kubectl-label", clock.Add(time.Second)))
	wantOwners(t, o,
		`gitops Apply 0 {"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{},"f:targetPort":{}}},"f:selector":{}}}`,
		`kubectl-label Update 1 {"f:metadata":{"f:labels":{"f:team":{}}}}`)

	// What it no longer names goes; what others own stays.
	o = applied(t, o, "gitops", `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web"},"spec":{"ports":[{"port":443,"name":"tls"}]}}`, 2)
	if got := content(t, o); got != `{"apiVersion":"v1","kind":"Service","metadata":{"labels":{"team":"a"},"name":"web"},"spec":{"ports":[{"name":"tls","port":443}]}}` {
		t.Errorf("%s", got)
	}
	wantOwners(t, o, `gitops Apply 2 {"f:spec":{"f:ports":{"k:{\"port\":443,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{}}}}}`,
		`kubectl-label Update 1 {"f:metadata":{"f:labels":{"f:team":{}}}}`)
}

func TestApplyThatChangesNothing(t *testing.T) {
	o := applied(t, nil, "gitops", web, 0)
	again := applied(t, o, "gitops", web, 100)
	if text(t, again) != text(t, o) {
		t.Errorf("%s\n%s", text(t, again), text(t, o))
	}
	// Equal values are shared, and only go when the last owner drops them.
	o = applied(t, o, "other", `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","labels":{"app":"web"}}}`, 1)
	o = applied(t, o, "gitops", `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web"},"spec":{"type":"ClusterIP"}}`, 2)
	if got := content(t, o); got != `{"apiVersion":"v1","kind":"Service","metadata":{"labels":{"app":"web"},"name":"web"},"spec":{"type":"ClusterIP"}}` {
		t.Errorf("%s", got)
	}
	o = applied(t, o, "other", `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web"}}`, 3)
	if got := content(t, o); got != `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"type":"ClusterIP"}}` {
		t.Errorf("%s", got)
	}
	wantOwners(t, o, `gitops Apply 2 {"f:spec":{"f:type":{}}}`)
}

func TestConflict(t *testing.T) {
	o := applied(t, nil, "kubectl", web, 0)
	other := strings.ReplaceAll(web, "8080", "9090")
	_, err := Apply(o, parse(t, other), writer(t, "other", clock), false)
	var conflict *ConflictError
	if !errors.As(err, &conflict) || len(conflict.Conflicts) != 1 {
		t.Fatalf("%v", err)
	}
	if got := err.Error(); got != `Apply failed with 1 conflict: conflict with "kubectl": .spec.ports[port=80,protocol="TCP"].targetPort` {
		t.Errorf("%s", got)
	}
	c := conflict.Conflicts[0]
	if c.Message() != `conflict with "kubectl"` || c.Field != `.spec.ports[port=80,protocol="TCP"].targetPort` || c.Name != "kubectl" {
		t.Errorf("%+v", c)
	}
	forced, err := Apply(o, parse(t, other), writer(t, "other", clock.Add(time.Second)), true)
	if err != nil {
		t.Fatal(err)
	}
	wantOwners(t, forced,
		`kubectl Apply 0 {"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}},"f:selector":{}}}`,
		`other Apply 1 {"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{},"f:targetPort":{}}},"f:selector":{}}}`)
}

func TestConflictsWithSeveral(t *testing.T) {
	o := applied(t, nil, "gitops", web, 0)
	status := writer(t, "lb", clock)
	status.Subresource = "status"
	changed := parse(t, web)
	changed["metadata"].(map[string]any)["finalizers"] = []any{"a/b"}
	changed["status"] = map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": "10.0.0.1"}}}}
	o = Update(o, changed, status)
	_, err := Apply(o, parse(t, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web","labels":{"app":"x"}},"spec":{"selector":{"app":"x"}},"status":{"loadBalancer":{"ingress":[]}}}`), writer(t, "me", clock), false)
	want := "Apply failed with 3 conflicts: conflicts with \"gitops\":\n- .metadata.labels.app\n- .spec.selector\nconflicts with \"lb\" with subresource \"status\" using v1:\n- .status.loadBalancer.ingress"
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	// Through the object itself, the status is not what is written.
	by := writer(t, "me", clock)
	by.Ignored = []string{"status"}
	_, err = Apply(o, parse(t, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web"},"status":{"loadBalancer":{"ingress":[]}}}`), by, false)
	if err != nil {
		t.Error(err)
	}
}

func TestApplyRefusals(t *testing.T) {
	for _, test := range []struct{ applied, want string }{
		{`{"metadata":{"managedFields":[{"manager":"a"}]}}`, "metadata.managedFields must be nil"},
		{`{"metadata":{"managedFields":[]}}`, "metadata.managedFields must be nil"},
		{`{"spec":{"ports":[{"port":80},{"port":80,"protocol":"TCP"}]}}`, `.spec.ports: duplicate entries for key [port=80,protocol="TCP"]`},
		{`{"metadata":{"finalizers":["a","a"]}}`, `.metadata.finalizers: duplicate entries for key [="a"]`},
		{`{"metadata":{"ownerReferences":[{"name":"a"}]}}`, `.metadata.ownerReferences: element 0: associative list with keys has an element that omits all key fields ["uid"] (and doesn't have default values for any key fields)`},
	} {
		_, err := Apply(nil, parse(t, test.applied), writer(t, "a", clock), true)
		var invalid *InvalidError
		if !errors.As(err, &invalid) || err.Error() != test.want {
			t.Errorf("%s: %v, want %s", test.applied, err, test.want)
		}
	}
	live := parse(t, `{"metadata":{"managedFields":[{"manager":"a","operation":"Jump"}]}}`)
	if _, err := Apply(live, parse(t, web), writer(t, "a", clock), true); err == nil || !strings.Contains(err.Error(), "operation must be `Apply` or `Update`") {
		t.Errorf("%v", err)
	}
}

// What an object had before anybody applied to it stays, and belongs to a manager of its
// own.
func TestFirstApply(t *testing.T) {
	live := parse(t, web)
	live["metadata"].(map[string]any)["uid"] = "u"
	if o := Update(live, parse(t, strings.ReplaceAll(web, "8080", "1")), writer(t, "a", clock)); owners(t, o) != nil {
		t.Errorf("an object without managers has %q", owners(t, o))
	}
	o := applied(t, live, "gitops", `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web"},"spec":{"type":"NodePort"}}`, 1)
	wantOwners(t, o, `gitops Apply 1 {"f:spec":{"f:type":{}}}`,
		`before-first-apply Update 1 {"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{},"f:targetPort":{}}},"f:selector":{}}}`)
}

// kubectl's two ways to apply take turns without conflicts.
func TestKubectlTakesOverFromItself(t *testing.T) {
	older := func(port string) map[string]any {
		o := parse(t, strings.ReplaceAll(web, "8080", port))
		o["metadata"].(map[string]any)["annotations"] = map[string]any{object.AnnotationLastApplied: strings.ReplaceAll(web, "8080", port)}
		return o
	}
	o := Update(nil, older("8080"), writer(t, "kubectl-client-side-apply", clock))
	newer := strings.ReplaceAll(web, "8080", "9090")
	if _, err := Apply(o, parse(t, newer), writer(t, "other", clock), false); err == nil {
		t.Error("another manager has no conflict")
	}
	o = applied(t, o, "kubectl", newer, 1)
	record, _ := annotationsOf(o)[object.AnnotationLastApplied].(string)
	if record != text(t, parse(t, newer))+"\n" {
		t.Errorf("the record is %s", record)
	}
	// What was changed since is a conflict.
	edited := schema.Clone(o).(map[string]any)
	edited["spec"].(map[string]any)["selector"] = map[string]any{"app": "edited"}
	o = Update(o, edited, writer(t, "kubectl-edit", clock.Add(2*time.Second)))
	_, err := Apply(o, parse(t, newer), writer(t, "kubectl", clock), false)
	if err == nil || err.Error() != `Apply failed with 1 conflict: conflict with "kubectl-edit" using v1: .spec.selector` {
		t.Errorf("%v", err)
	}
}

func TestRecordIsNotKeptWhenTooLarge(t *testing.T) {
	o := parse(t, web)
	o["metadata"].(map[string]any)["annotations"] = map[string]any{object.AnnotationLastApplied: "x", "large": strings.Repeat("x", maxAnnotations-200)}
	o = applied(t, o, "kubectl", web, 0)
	if _, there := annotationsOf(o)[object.AnnotationLastApplied]; there || len(annotationsOf(o)) != 1 {
		t.Errorf("%d annotations", len(annotationsOf(o)))
	}
}

func TestManagersAreCapped(t *testing.T) {
	o := Update(nil, parse(t, web), writer(t, "m00", clock))
	for i := 1; i <= 13; i++ {
		changed := schema.Clone(withoutEntries(o)).(map[string]any)
		changed["metadata"].(map[string]any)["labels"].(map[string]any)[fmt.Sprintf("l%02d", i)] = "x"
		o = Update(o, changed, writer(t, fmt.Sprintf("m%02d", i), clock.Add(time.Duration(i)*time.Second)))
	}
	got := owners(t, o)
	if len(got) != maxUpdaters {
		t.Fatalf("%d managers: %q", len(got), got)
	}
	if !strings.HasPrefix(got[0], "ancient-changes Update 4 ") || !strings.Contains(got[0], `"f:l04"`) || !strings.Contains(got[0], `"f:app"`) || !strings.HasPrefix(got[1], "m05 Update 5") {
		t.Errorf("%q", got)
	}
}

func TestManagedFieldsCanBeWritten(t *testing.T) {
	o := applied(t, nil, "gitops", web, 0)
	for _, test := range []struct {
		name, entries string
		want          []string
	}{
		{"nothing takes them away", `[]`, nil},
		{"an empty entry too", `[{}]`, nil},
		{"nonsense does not", `[{"manager":"a","operation":"Jump"}]`, owners(t, o)},
		{"others take their place", `[{"manager":"a","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:selector":{}}}}]`, []string{`a Apply - {"f:spec":{"f:selector":{}}}`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			written := schema.Clone(o).(map[string]any)
			written["metadata"].(map[string]any)["uid"] = "u"
			live := schema.Clone(written).(map[string]any)
			written["metadata"].(map[string]any)["managedFields"], _, _ = schema.Parse([]byte(test.entries))
			wantOwners(t, Update(live, written, writer(t, "kubectl", clock)), test.want...)
			status := writer(t, "kubectl", clock)
			status.Subresource = "status"
			wantOwners(t, Update(live, written, status), owners(t, o)...)
		})
	}
}

func TestSame(t *testing.T) {
	a := []object.ManagedFieldsEntry{
		{Manager: "a", Operation: "Apply", APIVersion: "v1", Time: &clock, FieldsType: fieldsType, FieldsV1: json.RawMessage(`{"f:a":{},"f:b":{"k:{\"x\":1,\"y\":2}":{}}}`)},
		{Manager: "b", Operation: "Update", APIVersion: "v1", FieldsType: fieldsType, FieldsV1: json.RawMessage(`{"f:c":{}}`)},
	}
	b := []object.ManagedFieldsEntry{a[1], a[0]}
	b[1].Time, b[1].FieldsV1 = nil, json.RawMessage(` { "f:b":{"k:{ \"y\":2,\"x\":1}":{}}, "f:a":{}}`)
	if !Same(a, b) || !Same(nil, nil) {
		t.Error("the same entries differ")
	}
	b[0].Subresource = "status"
	if Same(a, b) || Same(a, a[:1]) {
		t.Error("other entries are the same")
	}
	b = slices.Clone(a)
	b[1].FieldsV1 = json.RawMessage(`{"f:c":{".":{},"f:d":{}}}`)
	if Same(a, b) {
		t.Error("other fields are the same")
	}
}

func TestTaken(t *testing.T) {
	o := applied(t, nil, "gitops", web, 0)
	written := schema.Clone(o).(map[string]any)
	written["metadata"].(map[string]any)["labels"] = map[string]any{"team": "a"}
	written["spec"].(map[string]any)["ports"].([]any)[0].(map[string]any)["targetPort"] = json.Number("1")
	written["spec"].(map[string]any)["type"] = "NodePort"
	var got []string
	for _, c := range Taken(o, written, writer(t, "me", clock), "gitops") {
		got = append(got, c.Message()+": "+c.Field)
	}
	want := []string{`conflict with "gitops": .metadata.labels.app`, `conflict with "gitops": .spec.ports[port=80,protocol="TCP"].targetPort`}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if taken := Taken(o, written, writer(t, "me", clock), "other"); taken != nil {
		t.Errorf("%v", taken)
	}
	by := writer(t, "me", clock)
	by.Ignored = []string{"spec", "metadata"}
	if taken := Taken(o, written, by, "gitops"); taken != nil {
		t.Errorf("%v", taken)
	}
}

func BenchmarkApplyAgain(b *testing.B) {
	o := applied(b, nil, "gitops", web, 0)
	again, by := parse(b, web), writer(b, "gitops", clock)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Apply(o, again, by, false); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpdate(b *testing.B) {
	o := applied(b, nil, "gitops", web, 0)
	changed := parse(b, strings.ReplaceAll(web, "8080", "9090"))
	by := writer(b, "curl", clock)
	b.ReportAllocs()
	for b.Loop() {
		Update(o, changed, by)
	}
}
