package clientgo

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"svcctl.io/svcctl/api/conformance/served"
)

func TestMain(m *testing.M) { served.Main(m) }

// world is an appliance with a client of it.
type world struct {
	*served.Appliance
	config *rest.Config
	client kubernetes.Interface
}

// newWorld starts an appliance; it ends with the test.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Appliance: served.New(t)}
	w.Start()
	config, err := clientcmd.BuildConfigFromFlags("", w.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1 // no limit
	w.config = config
	if w.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	return w
}

// namespace makes a namespace.
func (w *world) namespace(t *testing.T, name string) string {
	t.Helper()
	ns := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name}}
	if _, err := w.client.CoreV1().Namespaces().Create(t.Context(), ns, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

func configMap(name, value string) *core.ConfigMap {
	return &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name}, Data: map[string]string{"v": value}}
}

// eventually waits until something is so.
func eventually(t *testing.T, within time.Duration, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after %s: %v", within, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// expect is an error unless two things are equal.
func expect[T comparable](what string, got, want T) error {
	if got != want {
		return fmt.Errorf("%s: %v, want %v", what, got, want)
	}
	return nil
}

// check fails the test with all that is wrong.
func check(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}
