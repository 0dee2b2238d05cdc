package rest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/store/schema"
)

// endless is a body of which a number of bytes come, and then nothing until the end of the test.
type endless struct {
	left    int
	read    *atomic.Int64
	stalled func()
	end     <-chan struct{}
}

func (b *endless) Read(p []byte) (int, error) {
	if b.left == 0 {
		b.stalled()
		<-b.end
		return 0, io.ErrUnexpectedEOF
	}
	n := min(len(p), b.left)
	for i := range p[:n] {
		p[i] = ' '
	}
	b.left -= n
	b.read.Add(int64(n))
	return n, nil
}

// slowly sends many requests whose bodies are almost as long as they may be and never end.
// It gives how many bytes were read and are held once all are answered or wait, and the codes
// of those that were answered by then.
func (w *world) slowly(user auth.User, method, path string) (read int64, held uint64, codes map[int]int) {
	w.Helper()
	const clients = 256
	end := make(chan struct{})
	codes = map[int]int{}
	var total atomic.Int64
	var mu sync.Mutex
	var settled, all sync.WaitGroup
	settled.Add(clients)
	all.Add(clients)
	before := inUse()
	for range clients {
		once := sync.OnceFunc(settled.Done)
		go func() {
			defer all.Done()
			defer once()
			r := httptest.NewRequest(method, path, &endless{schema.MaxBytes - 1, &total, once, end})
			r.ContentLength = -1
			answer := httptest.NewRecorder()
			w.server.Handler().ServeHTTP(answer, r.WithContext(auth.With(r.Context(), user)))
			select {
			case <-end:
			default:
				mu.Lock()
				codes[answer.Code]++
				mu.Unlock()
			}
		}()
	}
	settled.Wait()
	held = inUse() - min(before, inUse())
	read = total.Load()
	close(end)
	all.Wait()
	return read, held, codes
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A client that may only read sends bodies of reviews alone, and they are short.
func TestReviewsThatNeverEnd(t *testing.T) {
	w := newWorld(t)
	read, held, codes := w.slowly(auth.User{Name: "viewer", Role: auth.Reader}, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
	if most := int64(256 * (smallBody + 1)); read > most {
		t.Errorf("%d bytes were read, want at most %d", read, most)
	}
	if most := uint64(40 << 20); held > most {
		t.Errorf("%d bytes are held, want at most %d", held, most)
	}
	if codes[http.StatusRequestEntityTooLarge] != 256 {
		t.Errorf("answers: %v, want 256 times 413", codes)
	}
}

// Bodies of all clients together have a bound, above which the answer is to try again later.
// Small ones are read nevertheless, and what was held is given back.
func TestObjectsThatNeverEnd(t *testing.T) {
	w := newWorld(t)
	_, held, codes := w.slowly(admin, "POST", "/api/v1/namespaces/default/services")
	if most := uint64(maxBodies + 256*smallBody + 16<<20); held > most {
		t.Errorf("%d bytes are held, want at most %d", held, most)
	}
	if refused := codes[http.StatusTooManyRequests]; refused < 200 {
		t.Errorf("answers: %v, want more than 200 times 429", codes)
	}
	if left := w.server.bodies.held.Load(); left != 0 {
		t.Errorf("%d bytes still count", left)
	}
}

func TestSmallBodiesAreNeverRefused(t *testing.T) {
	w := newWorld(t)
	w.server.bodies.held.Store(maxBodies)
	small := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"small"},"data":{"a":"` + strings.Repeat("x", smallBody/2) + `"}}`
	if answer := w.sends("POST", "/api/v1/namespaces/default/configmaps", small); answer.Code != http.StatusCreated {
		t.Errorf("a small object: %d %s", answer.Code, answer.Body)
	}
	large := strings.Replace(strings.Replace(small, `"small"`, `"large"`, 1), "xxx", strings.Repeat("x", smallBody), 1)
	answer := w.sends("POST", "/api/v1/namespaces/default/configmaps", large)
	if answer.Code != http.StatusTooManyRequests || answer.Header().Get("Retry-After") != "1" {
		t.Errorf("a large object: %d %s, Retry-After %q", answer.Code, answer.Body, answer.Header().Get("Retry-After"))
	}
	w.server.bodies.held.Store(0)
	if answer := w.sends("POST", "/api/v1/namespaces/default/configmaps", large); answer.Code != http.StatusCreated {
		t.Errorf("the large object later: %d %s", answer.Code, answer.Body)
	}
}
