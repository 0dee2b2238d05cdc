package rest

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/engine"
)

// Patches that name no version all get through, each once; those that fail say so.
func TestConcurrentPatches(t *testing.T) {
	w := newWorld(t)
	w.does(http.StatusCreated, "POST", configMapsPath, `{"metadata":{"name":"cm"},"data":{}}`)
	var writers sync.WaitGroup
	var mu sync.Mutex
	done := map[string]bool{}
	for i := range 16 {
		writers.Go(func() {
			for j := range 8 {
				key := fmt.Sprintf("k%d-%d", i, j)
				code := w.sends("PATCH", configMapsPath+"/cm", fmt.Sprintf(`{"data":{%q:"x"}}`, key), asMerge).Code
				if code != http.StatusOK && code != http.StatusConflict {
					t.Errorf("%s: %d", key, code)
				}
				mu.Lock()
				done[key] = code == http.StatusOK
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	data, _ := w.get(configMapsPath + "/cm")["data"].(map[string]any)
	for key, ok := range done {
		if (data[key] != nil) != ok {
			t.Errorf("%s: said %t, is %v", key, ok, data[key])
		}
	}
}

// Nothing is left behind in a namespace that goes while it is filled.
func TestConcurrentCreationAndRemovalOfNamespace(t *testing.T) {
	w := newWorld(t)
	w.does(http.StatusCreated, "POST", "/api/v1/namespaces", `{"metadata":{"name":"ns"}}`)
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			for j := range 25 {
				code := w.sends("POST", "/api/v1/namespaces/ns/configmaps", fmt.Sprintf(`{"metadata":{"name":"cm-%d-%d"}}`, i, j)).Code
				if code != http.StatusCreated && code != http.StatusNotFound {
					t.Error(code)
				}
			}
		})
	}
	w.does(http.StatusOK, "DELETE", "/api/v1/namespaces/ns", "")
	writers.Wait()
	if left := names(w.get("/api/v1/configmaps")); left != "" {
		t.Error("left behind:", left)
	}
}

// Of many who create one object, one does.
func TestConcurrentCreation(t *testing.T) {
	w := newWorld(t)
	var writers sync.WaitGroup
	var mu sync.Mutex
	codes := map[int]int{}
	for range 16 {
		writers.Go(func() {
			code := w.sends("POST", configMapsPath, `{"metadata":{"name":"cm"}}`).Code
			mu.Lock()
			codes[code]++
			mu.Unlock()
		})
	}
	writers.Wait()
	if codes[http.StatusCreated] != 1 || codes[http.StatusConflict] != 15 {
		t.Error(codes)
	}
}

// When the disk fails, nothing has changed, and the client is told to try again.
func TestBrokenEngine(t *testing.T) {
	w := newWorld(t)
	w.does(http.StatusCreated, "POST", configMapsPath, `{"metadata":{"name":"cm"}}`)
	w.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Refuse })
	before := w.store.Revision()
	for _, c := range [][3]string{
		{"POST", configMapsPath, `{"metadata":{"name":"other"}}`},
		{"PUT", configMapsPath + "/cm", `{"metadata":{"name":"cm"},"data":{"a":"b"}}`},
		{"DELETE", configMapsPath + "/cm", ""},
		{"DELETE", configMapsPath, ""},
	} {
		answer := w.sends(c[0], c[1], c[2])
		if answer.Code != http.StatusServiceUnavailable || answer.Header().Get("Retry-After") == "" {
			t.Errorf("%s %s: %d %s", c[0], c[1], answer.Code, answer.Body)
		}
	}
	if got := outcomes(w.batch(batchPath, applied1("a", "a")+applied1("B", "b"), typeLines)); got != "refused(503) refused(503)" {
		t.Error(got)
	}
	if w.store.Revision() != before {
		t.Error("something has changed")
	}
	w.engine.Inject(nil)
	w.does(http.StatusOK, "DELETE", configMapsPath+"/cm", "")
}

// Of those who apply the same at the same time, one makes it, and the others find it made.
func TestConcurrentBatches(t *testing.T) {
	w := newWorld(t)
	const count = 50
	var body strings.Builder
	for i := range count {
		body.WriteString(applied1(fmt.Sprintf("s%d", i), "x"))
	}
	var clients sync.WaitGroup
	var made atomic.Int64
	for range 4 {
		clients.Go(func() {
			for _, line := range w.batch(batchPath, body.String(), typeLines) {
				switch line["result"] {
				case "created":
					made.Add(1)
				case "unchanged":
				default:
					t.Errorf("%v", line)
				}
			}
		})
	}
	clients.Wait()
	if made.Load() != count {
		t.Errorf("%d were made, of %d", made.Load(), count)
	}
}
