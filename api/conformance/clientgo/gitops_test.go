package clientgo

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// gitopsSteps are enough to see each way in which a file and a client meet.
const gitopsSteps = 120

// gitops is the expected Service when a file declares it and a client changes it: a model of
// the owner of each label.
type gitops struct {
	w        *world
	services client.ServiceInterface
	random   *rand.Rand
	step     int

	file map[string]string // labels that the file declares
	mine map[string]string // labels that the client has set beside
}

// TestGitOps: whatever a file and a client do to an object in turns, what the file
// declares is so, what the client added stays, and what either takes back goes.
func TestGitOps(t *testing.T) {
	w := newWorld(t)
	ns := w.namespace(t, "gitops")
	g := &gitops{
		w: w, services: w.client.CoreV1().Services(ns), random: rand.New(rand.NewPCG(1, 2)),
		file: map[string]string{}, mine: map[string]string{},
	}
	g.write(t, ns)
	for g.step = 1; g.step <= gitopsSteps && !t.Failed(); g.step++ {
		what := ""
		switch key := fmt.Sprintf("k%d", g.random.IntN(5)); g.random.IntN(10) {
		case 0, 1, 2:
			what = "the file changes"
			g.edit(key)
			g.write(t, ns)
		case 3:
			what = "killed"
			if g.step%3 == 0 {
				w.Kill()
				w.Start()
			}
		case 4, 5:
			what = "the client takes back " + key
			g.patch(t, key, nil)
		default:
			value := "client-" + strconv.Itoa(g.step)
			what = "the client sets " + key
			g.patch(t, key, &value)
		}
		g.compare(t, what)
	}
}

// edit changes what the file will say about a label.
func (g *gitops) edit(key string) {
	if _, there := g.file[key]; there && g.random.IntN(2) == 0 {
		delete(g.file, key)
		return
	}
	g.file[key] = "file-" + strconv.Itoa(g.step)
	delete(g.mine, key) // it is the file's now
}

// write writes the file and waits until it is served: its step is in an annotation.
func (g *gitops) write(t *testing.T, ns string) {
	t.Helper()
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(g.file)) {
		labels = append(labels, key+": "+g.file[key])
	}
	document := fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  namespace: %s\n  labels: {%s}\n  annotations: {step: \"%d\"}\nspec:\n  ports: [{port: 80}]\n",
		ns, strings.Join(labels, ", "), g.step)
	temporary := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(temporary, []byte(document), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(g.w.Manifests, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func() error {
		s, err := g.services.Get(t.Context(), "web", meta.GetOptions{})
		if err != nil {
			return err
		}
		return expect("step of the file", s.Annotations["step"], strconv.Itoa(g.step))
	})
}

// patch sets or (nil) removes a label. The file's can not be had.
func (g *gitops) patch(t *testing.T, key string, value *string) {
	t.Helper()
	text := "null"
	if value != nil {
		text = strconv.Quote(*value)
	}
	_, err := g.services.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+key+`":`+text+`}}}`), meta.PatchOptions{FieldManager: "client"})
	_, files := g.file[key]
	switch {
	case files && (!apierrors.IsConflict(err) || !strings.Contains(err.Error(), "web.yaml")):
		t.Errorf("step %d: %s=%s, which the file declares: %v, want a conflict that names the file", g.step, key, text, err)
	case files:
	case err != nil:
		t.Errorf("step %d: %s=%s: %v", g.step, key, text, err)
	case value == nil:
		delete(g.mine, key)
	default:
		g.mine[key] = *value
	}
}

func (g *gitops) compare(t *testing.T, what string) {
	t.Helper()
	want := maps.Clone(g.mine)
	maps.Copy(want, g.file)
	s, err := g.services.Get(t.Context(), "web", meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := maps.Clone(s.Labels)
	if got == nil {
		got = map[string]string{}
	}
	if !maps.Equal(got, want) {
		t.Errorf("step %d, %s: labels are %v, want %v: of the file %v, of the client %v\nmanaged: %v", g.step, what, got, want, g.file, g.mine, s.ManagedFields)
	}
}
