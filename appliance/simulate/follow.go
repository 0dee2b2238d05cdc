package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing/iotest"
	"time"
)

// follower is a client with a watch on the Services, which outlives processes: it goes on at the revision it had, and lists
// again when it is answered 410 Gone.
type follower struct {
	mu     sync.Mutex
	seen   map[string]uint64 // revisions by namespace/name
	at     uint64            // the revision of the last event; 0: it has to list
	listed bool
}

// meta is what the follower reads of an object.
type meta struct {
	Metadata struct {
		Namespace, Name string
		ResourceVersion string
	} `json:"metadata"`
	Code int `json:"code"`
}

func (m *meta) revision() uint64 {
	n, _ := strconv.ParseUint(m.Metadata.ResourceVersion, 10, 64)
	return n
}

// follow lists and watches until the process ends. What it receives wrongly is a violated invariant.
func (b *box) follow(ctx context.Context, l *life) {
	f := &b.follower
	for ctx.Err() == nil {
		if f.at == 0 {
			if items, at, ok := l.list(ctx); ok {
				f.mu.Lock()
				f.seen, f.at, f.listed = items, at, true
				f.mu.Unlock()
			}
		}
		if f.at != 0 {
			b.watch(ctx, l)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// list returns the Services as a client sees them.
func (l *life) list(ctx context.Context) (items map[string]uint64, at uint64, ok bool) {
	answer := httptest.NewRecorder()
	l.handler.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, "GET", "/api/v1/services", nil))
	var list struct {
		meta
		Items []meta `json:"items"`
	}
	if answer.Code != http.StatusOK || json.Unmarshal(answer.Body.Bytes(), &list) != nil {
		return nil, 0, false
	}
	items = map[string]uint64{}
	for _, i := range list.Items {
		items[i.Metadata.Namespace+"/"+i.Metadata.Name] = i.revision()
	}
	return items, list.revision(), true
}

// watch takes events until the watch ends.
func (b *box) watch(ctx context.Context, l *life) {
	f := &b.follower
	from, to := io.Pipe()
	var served sync.WaitGroup
	defer served.Wait()
	defer func() { _ = from.Close() }()
	served.Go(func() {
		path := fmt.Sprintf("/api/v1/services?watch=1&allowWatchBookmarks=true&resourceVersion=%d", f.at)
		l.handler.ServeHTTP(&streamWriter{header: http.Header{}, w: to}, httptest.NewRequestWithContext(ctx, "GET", path, nil))
		_ = to.Close()
	})
	for decoder := json.NewDecoder(from); ; {
		var event struct {
			Type   string
			Object meta
		}
		if decoder.Decode(&event) != nil || ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		key, at := event.Object.Metadata.Namespace+"/"+event.Object.Metadata.Name, event.Object.revision()
		_, has := f.seen[key]
		if b.logTo != nil {
			fmt.Fprintf(b.logTo, "watch: %s %s at %d after %d\n", event.Type, key, at, f.at)
		}
		switch {
		case event.Type == "ERROR" || event.Type == "": // an error before the watch began is a Status
			if event.Object.Code != http.StatusGone && event.Type == "ERROR" {
				b.tables.violated("a watch ended with code %d", event.Object.Code)
			}
			f.at = 0
			f.mu.Unlock()
			return
		case event.Type == "MODIFIED" && has && at == f.seen[key]: // another status, which is not stored
		case at < f.at || at == f.at && event.Type != "BOOKMARK":
			b.tables.violated("a watch went from revision %d to %d (%s %s)", f.at, at, event.Type, key)
		case event.Type == "ADDED" && has, event.Type != "ADDED" && event.Type != "BOOKMARK" && !has:
			b.tables.violated("a watch has %s of %s, which it has had: %t", event.Type, key, has)
		}
		f.at = max(f.at, at)
		switch event.Type {
		case "DELETED":
			delete(f.seen, key)
		case "ADDED", "MODIFIED":
			f.seen[key] = at
		}
		f.mu.Unlock()
	}
}

// watchEqualsList compares what the events amount to with a list.
func (b *box) watchEqualsList() error {
	items, _, ok := b.life.list(context.Background())
	if !ok {
		return errors.New("list the Services at rest: no answer")
	}
	f := &b.follower
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.listed || maps.Equal(f.seen, items) {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(items)) {
		if f.seen[key] != items[key] {
			return fmt.Errorf("a watch has %s with revision %d, a list with %d", key, f.seen[key], items[key])
		}
	}
	return fmt.Errorf("a watch has %d Services, a list %d", len(f.seen), len(items))
}

// streamWriter is a ResponseWriter whose body is read as it comes.
type streamWriter struct {
	header http.Header
	w      io.Writer
}

func (s *streamWriter) Header() http.Header         { return s.header }
func (s *streamWriter) WriteHeader(int)             {}
func (s *streamWriter) Write(p []byte) (int, error) { return s.w.Write(p) }
func (s *streamWriter) Flush()                      {}

// halfOf is a body whose client breaks off in the middle.
func halfOf(text string) io.Reader {
	return io.MultiReader(iotest.HalfReader(io.LimitReader(strings.NewReader(text), int64(len(text)/2))), iotest.ErrReader(io.ErrUnexpectedEOF))
}

// leaving is a body whose client is gone once it was read.
func leaving(text string, leave func()) io.Reader {
	return io.MultiReader(strings.NewReader(text), readerFunc(func([]byte) (int, error) { leave(); return 0, io.EOF }))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
