package clientgo

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// manyObjects are more than the history of changes holds.
const manyObjects = 10_500

// TestMany: lists in chunks are of one moment whatever is written meanwhile, and a watch
// that has missed too much is told so.
func TestMany(t *testing.T) {
	w := newWorld(t)
	ns := w.namespace(t, "many")
	maps := w.client.CoreV1().ConfigMaps(ns)
	before, err := maps.List(t.Context(), meta.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slow, err := maps.Watch(t.Context(), meta.ListOptions{ResourceVersion: before.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Stop()
	applyMany(t, w, ns)

	if _, err := maps.Watch(t.Context(), meta.ListOptions{ResourceVersion: before.ResourceVersion}); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("watch from before the history: %v, want 410", err)
	}
	inChunks(t, w, ns)

	// Who does not read sees all there is, in order, or that it has missed something.
	seen := map[string]bool{}
	timeout := time.After(time.Minute)
	for len(seen) < manyObjects {
		select {
		case event, open := <-slow.ResultChan():
			if !open || event.Type == watch.Error {
				t.Logf("the slow watcher was let go after %d of %d", len(seen), manyObjects)
				return
			}
			if o, is := event.Object.(meta.Object); is && event.Type == watch.Added {
				seen[o.GetName()] = true
			}
		case <-timeout:
			t.Fatalf("the slow watcher saw %d of %d, and no end", len(seen), manyObjects)
		}
	}
}

// applyMany makes the objects, with svcctl.
func applyMany(t *testing.T, w *world, ns string) {
	t.Helper()
	var docs strings.Builder
	for i := range manyObjects {
		fmt.Fprintf(&docs, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: many-%05d, namespace: %s}\n", i, ns)
	}
	file := filepath.Join(t.TempDir(), "many.yaml")
	if err := os.WriteFile(file, []byte(docs.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(w.Program, "apply", "--socket", w.Socket, "-f", file, "-o", "name").CombinedOutput(); err != nil {
		t.Fatalf("svcctl apply: %v\n%.500s", err, out)
	}
}

// inChunks lists in chunks while objects come, change and go.
func inChunks(t *testing.T, w *world, ns string) {
	t.Helper()
	maps := w.client.CoreV1().ConfigMaps(ns)
	names, options, version := map[string]int{}, meta.ListOptions{Limit: 1000}, ""
	for chunk := 0; ; chunk++ {
		list, err := maps.List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			names[list.Items[i].Name]++
			if list.Items[i].Data["changed"] != "" {
				t.Errorf("%s is of a later moment than the list", list.Items[i].Name)
			}
		}
		if version == "" {
			version = list.ResourceVersion
		}
		check(t, expect("version of a chunk", list.ResourceVersion, version))
		if list.RemainingItemCount != nil {
			check(t, expect("seen and remaining", int64(len(names))+*list.RemainingItemCount, manyObjects))
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
		last := fmt.Sprintf("many-%05d", manyObjects-1-chunk)
		if err := maps.Delete(t.Context(), last, meta.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := maps.Create(t.Context(), configMap(fmt.Sprintf("many-%05d-new", manyObjects-100-chunk), "1"), meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		changed := configMap(fmt.Sprintf("many-%05d", manyObjects-200-chunk), "1")
		changed.Data["changed"] = "yes"
		if _, err := maps.Update(t.Context(), changed, meta.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	check(t, expect("objects of all chunks", len(names), manyObjects))
	for name, n := range names {
		if n != 1 || strings.HasSuffix(name, "-new") {
			t.Errorf("%s came %d times", name, n)
		}
	}
}
