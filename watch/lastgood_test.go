package watch

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
)

// counted is a LastGood that counts.
type counted struct {
	*Memory
	flushes atomic.Int64
}

func (c *counted) Flush() error {
	c.flushes.Add(1)
	return c.Memory.Flush()
}

// A file that changes all the time is flushed now and then, and in the end as it is.
func TestFlushesAreCoalesced(t *testing.T) {
	to := &counted{Memory: NewMemory()}
	bubble(t, nil, func(h *harness) {
		h.within(0, 3*time.Second)
		last := ""
		for i := range 20 {
			last = services(fmt.Sprint("web", i))
			h.write("a.yaml", "# "+strings.Repeat("x", i)+"\n"+services("web"))
			h.send("a.yaml", fsnotify.Write)
			h.next()
		}
		if n := to.flushes.Load(); n < 2 || n > 10 {
			h.Errorf("20 changes were flushed %d times", n)
		}
		before := to.flushes.Load()
		h.write("a.yaml", services("web")+"---\n"+last)
		h.send("a.yaml", fsnotify.Write)
		h.next()
		time.Sleep(2 * flushAfter)
		if to.flushes.Load() == before {
			h.Errorf("the last change was not flushed")
		}
		saved, _, _ := to.Load()
		if got := string(saved[h.path("a.yaml")]); got != services("web")+"---\n"+last {
			h.Errorf("in the end %q is saved", got)
		}
	}, lastGood(to))
}

// What is much is flushed at once: at a start all files are put one after the other.
func TestMuchIsFlushedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &counted{Memory: NewMemory()}
		s, stop, done := newSaver(to), make(chan struct{}), make(chan struct{})
		go func() { defer close(done); s.run(stop) }()
		began := time.Now()
		s.put("a.yaml", make([]byte, flushBytes/2))
		synctest.Wait()
		if n := to.flushes.Load(); n != 0 {
			t.Errorf("little was flushed %d times at once", n)
		}
		s.put("b.yaml", make([]byte, flushBytes))
		synctest.Wait()
		if n := to.flushes.Load(); n != 1 || time.Since(began) != 0 {
			t.Errorf("much was flushed %d times after %v", n, time.Since(began))
		}
		s.put("c.yaml", nil)
		time.Sleep(2 * flushAfter)
		if n := to.flushes.Load(); n != 2 {
			t.Errorf("what came later was flushed %d times", n-1)
		}
		close(stop)
		<-done
	})
}

// A content is with the LastGood when a snapshot has it, so that both can become durable
// together.
func TestContentsArePutBeforeTheSnapshot(t *testing.T) {
	to := NewMemory()
	bubble(t, map[string]string{"a.yaml": services("web")}, func(h *harness) {
		h.is(h.next(), "a.yaml: web")
		if saved, _, _ := to.Load(); string(saved[h.path("a.yaml")]) != services("web") {
			h.Errorf("%q is put", saved)
		}
	}, lastGood(to))
}
