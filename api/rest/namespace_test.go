package rest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

var nilObjects []object.Object

func ownerOf(w *world, namespace string) string {
	_, owner := w.store.Get(namespaceRef(namespace))
	return owner.String()
}

func TestDeleteNamespace(t *testing.T) {
	w := newWorld(t)
	w.does(http.StatusCreated, "POST", "/api/v1/namespaces", `{"metadata":{"name":"ns"}}`)
	w.does(http.StatusCreated, "POST", "/api/v1/namespaces/ns/services", service("web", ""))
	w.does(http.StatusCreated, "POST", "/api/v1/namespaces/ns/configmaps", `{"metadata":{"name":"cm"}}`)
	w.does(http.StatusOK, "DELETE", "/api/v1/namespaces/ns?dryRun=All", "")
	if w.ask("GET", "/api/v1/namespaces/ns/services/web").Code != http.StatusOK {
		t.Fatal("a dry run has removed something")
	}
	o := w.does(http.StatusOK, "DELETE", "/api/v1/namespaces/ns", `{"propagationPolicy":"Background"}`)
	if at(o, "status", "phase") != "Terminating" {
		t.Error(o)
	}
	for _, path := range []string{"/api/v1/namespaces/ns", "/api/v1/namespaces/ns/services/web", "/api/v1/namespaces/ns/configmaps/cm"} {
		if got := w.ask("GET", path).Code; got != http.StatusNotFound {
			t.Errorf("%s is still there: %d", path, got)
		}
	}
	w.does(http.StatusNotFound, "DELETE", "/api/v1/namespaces/ns", "")
	status := w.does(http.StatusForbidden, "DELETE", "/api/v1/namespaces/default", "")
	if status["message"] != `namespaces "default" is forbidden: this namespace may not be deleted` {
		t.Error(status)
	}
	w.does(http.StatusMethodNotAllowed, "DELETE", "/api/v1/namespaces", "")
}

func TestDeleteNamespaceWithFinalizers(t *testing.T) {
	w := newWorld(t)
	cm := "/api/v1/namespaces/ns/configmaps/cm"
	w.does(http.StatusCreated, "POST", "/api/v1/namespaces", `{"metadata":{"name":"ns"}}`)
	w.does(http.StatusCreated, "POST", "/api/v1/namespaces/ns/configmaps", `{"metadata":{"name":"cm","finalizers":["example.com/f"]}}`)
	w.does(http.StatusOK, "DELETE", "/api/v1/namespaces/ns", "")
	w.does(http.StatusOK, "DELETE", "/api/v1/namespaces/ns", "")
	if o := w.get("/api/v1/namespaces/ns"); at(o, "status", "phase") != "Terminating" || at(o, "metadata", "deletionTimestamp") == nil {
		t.Error(o)
	}
	status := w.does(http.StatusForbidden, "POST", "/api/v1/namespaces/ns/configmaps", `{"metadata":{"name":"other"}}`)
	if !strings.Contains(fmt.Sprint(status["message"]), "unable to create new content in namespace ns because it is being terminated") {
		t.Error(status)
	}
	if w.ask("GET", "/api/v1/namespaces/ns").Code != http.StatusOK {
		t.Fatal("the namespace went before its content")
	}
	w.does(http.StatusOK, "PATCH", cm, `{"metadata":{"finalizers":null}}`, asMerge)
	if got := w.ask("GET", "/api/v1/namespaces/ns").Code; got != http.StatusNotFound {
		t.Error("still there:", got)
	}
}

// What was not removed with its namespace goes later.
func TestEmptyNamespaces(t *testing.T) {
	w := newWorld(t)
	w.does(http.StatusCreated, "POST", "/api/v1/namespaces", `{"metadata":{"name":"ns"}}`)
	w.does(http.StatusCreated, "POST", "/api/v1/namespaces/ns/configmaps", `{"metadata":{"name":"cm"}}`)
	w.write(store.Write{Ref: namespaceRef("ns"), Delete: true})
	if o := w.get("/api/v1/namespaces/ns"); at(o, "status", "phase") != "Terminating" {
		t.Fatal(o)
	}
	if err := w.server.emptyNamespaces(); err != nil {
		t.Fatal(err)
	}
	if got := w.ask("GET", "/api/v1/namespaces/ns").Code; got != http.StatusNotFound {
		t.Error("still there:", got)
	}
}

func TestDeleteNamespaceOfFiles(t *testing.T) {
	w := newWorld(t)
	w.does(http.StatusCreated, "POST", "/api/v1/namespaces", `{"metadata":{"name":"ns"}}`)
	w.does(http.StatusCreated, "POST", "/api/v1/namespaces/ns/configmaps", `{"metadata":{"name":"cm"}}`)
	w.files(map[string]string{"web.yaml": strings.Replace(webFile, "  name: web", "  name: web\n  namespace: ns", 1)})
	status := w.does(http.StatusConflict, "DELETE", "/api/v1/namespaces/ns", "")
	if !strings.Contains(fmt.Sprint(status["message"]), "Service ns/web in it belongs to the file web.yaml:1: remove it there first") {
		t.Error(status)
	}
	if w.ask("GET", "/api/v1/namespaces/ns/configmaps/cm").Code != http.StatusOK {
		t.Error("a refusal has removed something")
	}
}

func TestNamespaceKeepsItsSpec(t *testing.T) {
	w := newWorld(t)
	w.does(http.StatusCreated, "POST", "/api/v1/namespaces", `{"metadata":{"name":"ns"},"spec":{"finalizers":["x"]},"status":{"phase":"Bogus"}}`)
	o := w.does(http.StatusOK, "PUT", "/api/v1/namespaces/ns", `{"metadata":{"name":"ns"},"spec":{"finalizers":["y"]}}`)
	if fmt.Sprint(at(o, "spec", "finalizers")) != "[kubernetes]" || at(o, "status", "phase") != "Active" || at(o, "metadata", "labels", object.LabelNamespaceName) != "ns" {
		t.Error(o)
	}
}

// stuckClient takes nothing of its answer until it is released.
type stuckClient struct {
	header   http.Header
	begun    chan struct{}
	released chan struct{}
}

func (c *stuckClient) Header() http.Header { return c.header }
func (c *stuckClient) WriteHeader(int)     { close(c.begun); <-c.released }

func (c *stuckClient) Write(p []byte) (int, error) { return len(p), nil }

// TestSlowDeleterHoldsNobody: others write while the answer to a DELETE of a namespace waits
// for its client.
func TestSlowDeleterHoldsNobody(t *testing.T) {
	w := newWorld(t)
	w.does(http.StatusCreated, "POST", "/api/v1/namespaces", `{"metadata":{"name":"ns"}}`)
	c := &stuckClient{http.Header{}, make(chan struct{}), make(chan struct{})}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		w.handler.ServeHTTP(c, httptest.NewRequest("DELETE", "/api/v1/namespaces/ns", nil))
	}()
	<-c.begun
	written := make(chan struct{})
	go func() {
		defer close(written)
		w.send("POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"cm"}}`)
	}()
	select {
	case <-written:
	case <-time.After(time.Minute):
		t.Error("a write waits for the client of another one")
	}
	close(c.released)
	<-answered
	<-written
}
