package cli

import (
	"bytes"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// A wait says for what, for how long and how many there are; what it prints is on lines of its own.
func TestProgressOfWaiting(t *testing.T) {
	for _, shows := range []bool{true, false} {
		stderr := &watched{}
		p := &Env{Err: stderr, StderrTTY: shows}
		end := p.Waiting(func() string { return "waiting until service/web is ready (1 of 2)" }, 30*time.Second)
		for shows && !strings.Contains(stderr.String(), "\rwaiting until service/web is ready (1 of 2), for ") {
			runtime.Gosched()
		}
		end()
		if shows && !strings.HasSuffix(stderr.String(), "\r\x1b[K") || !shows && stderr.String() != "" {
			t.Errorf("watched %t: %q", shows, stderr)
		}
	}
}

// Long work shows how far it is to who watches, and nothing in a pipe.
func TestProgressOfLongWork(t *testing.T) {
	for _, watched := range []bool{true, false} {
		var out bytes.Buffer
		p := &Env{Err: &out, StderrTTY: watched}
		m := p.Moving("exported")
		for range 5 {
			if _, err := m.Write(make([]byte, movingEvery/2)); err != nil {
				t.Fatal(err)
			}
		}
		m.End()
		if got := strings.Contains(out.String(), "\r2 MiB exported"); got != watched || (out.Len() > 0) != watched {
			t.Errorf("watched %t: %q", watched, out.String())
		}
	}
}

// watched is stderr, and what has come there.
type watched struct {
	mu   sync.Mutex
	text string
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text += string(b)
	return len(b), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text
}
