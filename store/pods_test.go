package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

func podYAML(name, labels string) string {
	namespace := "default"
	if before, after, found := strings.Cut(name, "/"); found {
		namespace, name = before, after
	}
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s, labels: {%s}}\nstatus: {podIP: 10.0.0.1}\n", name, namespace, labels)
}

func names(pods []*object.Pod) string {
	var all []string
	for _, pod := range pods {
		all = append(all, pod.Metadata.Name)
	}
	return strings.Join(all, " ")
}

func TestPodsAreStored(t *testing.T) {
	b := newBox(t)
	revision := b.s.Revision()
	b.apply("pods.yaml", podYAML("a", "app: web")+podYAML("b", "app: web, tier: front")+podYAML("other/c", "app: web"))
	if set := b.s.Changes(revision); fmt.Sprint(set.Pods) != "[default/a default/b other/c]" || len(set.Services) != 0 {
		t.Errorf("changes %+v", set)
	}
	if got := names(b.s.Selected("default", map[string]string{"app": "web"})); got != "a b" {
		t.Errorf("selected %s", got)
	}
	if pod := b.s.Pod("default/a"); pod == nil || pod.Metadata.UID == "" || pod.Status.PodIPs[0].IP != "10.0.0.1" {
		t.Errorf("%+v", pod)
	}
	b.restart()
	if got := strings.Join(b.s.Pods(), " "); got != "default/a default/b other/c" {
		t.Errorf("after a restart: %s", got)
	}
	revision = b.s.Changes(0).Revision
	b.apply("pods.yaml", podYAML("a", "app: web")+podYAML("b", "app: dns"))
	if set := b.s.Changes(revision); fmt.Sprint(set.Pods) != "[default/b other/c]" {
		t.Errorf("changes %+v", set)
	}
	if got := names(b.s.Selected("default", map[string]string{"app": "web"})); got != "a" {
		t.Errorf("selected %s", got)
	}
	if got := b.s.Selected("default", nil); got != nil {
		t.Errorf("an empty selector selects %s", names(got))
	}
}

// It is for who runs a Pod to say that it ends.
func TestPodsKeepTheirDeletionTimestamp(t *testing.T) {
	b := newBox(t)
	b.apply("pods.yaml", strings.Replace(podYAML("a", "app: web"), "name: a,", `name: a, deletionTimestamp: "2026-01-01T00:00:00Z",`, 1))
	want := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if pod := b.s.Pod("default/a"); pod == nil || !pod.Terminating() || !pod.Metadata.DeletionTimestamp.Equal(want) {
		t.Errorf("%+v; problems:\n%s", pod, b.problems())
	}
	b.apply("pods.yaml", podYAML("a", "app: web"))
	if b.s.Pod("default/a").Terminating() {
		t.Error("it still ends")
	}
	b.apply("svc.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web, deletionTimestamp: \"2026-01-01T00:00:00Z\"}\nspec: {ports: [{port: 80}]}\n")
	if b.service("web").Metadata.DeletionTimestamp != nil {
		t.Error("a Service ends by its document")
	}
}

// The index answers as one who looks at everything does, whatever comes and goes.
func TestSelectorsFindWhatANaiveSearchFinds(t *testing.T) {
	b := newBox(t)
	r := rand.New(rand.NewPCG(1, 2))
	labels := func(n int) map[string]string {
		all := map[string]string{}
		for range n {
			all[string(rune('a'+r.IntN(3)))] = fmt.Sprint("v", r.IntN(2))
		}
		return all
	}
	text := func(labels map[string]string) string { return strings.Trim(fmt.Sprintf("%q", labels), "map[]") }
	flow := func(labels map[string]string) string {
		var parts []string
		for k, v := range labels {
			parts = append(parts, k+": "+v)
		}
		return strings.Join(parts, ", ")
	}
	for range 300 {
		n := r.IntN(12)
		switch r.IntN(4) {
		case 0:
			b.apply(fmt.Sprintf("s%d.yaml", n), fmt.Sprintf("s%d {selector: {%s}}", n, flow(labels(r.IntN(4)))))
		case 1:
			b.apply(fmt.Sprintf("s%d.yaml", n), "")
		case 2:
			b.apply(fmt.Sprintf("p%d.yaml", n), podYAML(fmt.Sprintf("p%d", n), flow(labels(r.IntN(4)))))
		case 3:
			b.apply(fmt.Sprintf("p%d.yaml", n), "")
		}
		want := labels(r.IntN(4))
		var pods, services []string
		for ref, rec := range b.s.table.records {
			switch o := record.Whole(rec.Object).(type) {
			case *object.Pod:
				if len(want) > 0 && object.HasLabels(o.Metadata.Labels, want) {
					pods = append(pods, ref.Name)
				}
			case *object.Service:
				if len(o.Spec.Selector) > 0 && object.HasLabels(want, o.Spec.Selector) {
					services = append(services, ref.Key())
				}
			}
		}
		slices.Sort(pods)
		slices.Sort(services)
		if got := names(b.s.Selected("default", want)); got != strings.Join(pods, " ") {
			t.Fatalf("%s selects %s, want %s", text(want), got, pods)
		}
		if got := b.s.Selecting("default", want); !slices.Equal(got, services) {
			t.Fatalf("%s is selected by %s, want %s", text(want), got, services)
		}
	}
	if b.s.table.served+len(b.s.table.index.Pods()) == 0 {
		t.Error("nothing was tried")
	}
}

// BenchmarkSelecting measures the change of one Pod among 50,000 and 1,000 Services, all of
// which have a label in common.
func BenchmarkSelecting(b *testing.B) {
	bx := newBox(b, wideRange)
	files := map[string]*manifest.File{}
	var text strings.Builder
	for i := range 1000 {
		text.WriteString(yamlOf(fmt.Sprintf("s%d {selector: {all: everything, app: s%d}}", i, i)))
	}
	files["services.yaml"] = manifest.Decode("services.yaml", []byte(text.String()), manifest.DefaultLimits())
	text.Reset()
	for i := range 50_000 {
		text.WriteString(podYAML(fmt.Sprintf("p%d", i), fmt.Sprintf("all: everything, app: s%d", i%1000)))
	}
	files["pods.yaml"] = manifest.Decode("pods.yaml", []byte(text.String()), manifest.DefaultLimits())
	if _, err := bx.s.SyncFiles(manifest.FilesOf(files)); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if got := bx.s.Selecting("default", map[string]string{"all": "everything", "app": "s7"}); len(got) != 1 {
			b.Fatal(got)
		}
		if got := bx.s.Selected("default", map[string]string{"all": "everything", "app": "s7"}); len(got) != 50 {
			b.Fatal(len(got))
		}
	}
}
