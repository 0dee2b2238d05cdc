package logqueue

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// gate is a log that is read only while it is open.
type gate struct {
	mu     sync.Mutex
	opened *sync.Cond
	open   bool
	err    error
	got    bytes.Buffer
}

func newGate() *gate {
	g := &gate{}
	g.opened = sync.NewCond(&g.mu)
	return g
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.open {
		g.opened.Wait()
	}
	if g.err != nil {
		return 0, g.err
	}
	return g.got.Write(p)
}

func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = open
	g.opened.Broadcast()
}

func (g *gate) text() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.got.String()
}

func TestLinesComeInOrder(t *testing.T) {
	var got, want bytes.Buffer
	q := New(&got)
	for i := range 1000 {
		fmt.Fprintf(&want, "line %d\n", i)
		fmt.Fprintf(q, "line %d\n", i)
	}
	if !q.Flush(time.Minute) || got.String() != want.String() || q.Dropped() != 0 {
		t.Errorf("%d lines dropped, %d of %d bytes written", q.Dropped(), got.Len(), want.Len())
	}
	if !q.Flush(0) {
		t.Error("an empty queue is not flushed at once")
	}
}

// The caller may use the bytes of a line again, as log handlers do.
func TestLinesAreCopied(t *testing.T) {
	g := newGate()
	q := New(g)
	line := []byte("first\n")
	_, _ = q.Write(line)
	copy(line, "other")
	g.set(true)
	if !q.Flush(time.Minute) || g.text() != "first\n" {
		t.Errorf("written: %q", g.text())
	}
}

func TestLogThatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		q := New(g)
		q.OnDrop(func(lines uint64) { fmt.Fprintf(q, "dropped %d\n", lines) })
		const more = 100
		_, _ = q.Write([]byte("0\n"))
		synctest.Wait() // that line is being written, so it takes no room
		for i := range maxLines + more {
			fmt.Fprintf(q, "%d\n", i+1)
		}
		if q.Dropped() != more {
			t.Errorf("%d lines dropped, want %d", q.Dropped(), more)
		}
		began := time.Now()
		if q.Flush(time.Second) || time.Since(began) != time.Second {
			t.Errorf("flushing took %v", time.Since(began))
		}

		g.set(true)
		synctest.Wait()
		// The notice comes behind the lines that precede the gap, and once.
		lines := strings.Split(strings.TrimSpace(g.text()), "\n")
		if len(lines) != maxLines+2 || lines[maxLines] != fmt.Sprint(maxLines) || lines[maxLines+1] != fmt.Sprintf("dropped %d", more) {
			t.Errorf("%d lines are written, the last ones %q", len(lines), lines[max(0, len(lines)-2):])
		}
		_, _ = q.Write([]byte("after\n"))
		if !q.Flush(time.Second) || !strings.HasSuffix(g.text(), "dropped 100\nafter\n") {
			t.Errorf("the log goes on with %q", g.text()[len(g.text())-30:])
		}
	})
}

func TestLongLinesAreBoundedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		q := New(g)
		line := make([]byte, maxBytes/4)
		for range 6 {
			_, _ = q.Write(line)
		}
		if q.Dropped() != 2 {
			t.Errorf("%d lines dropped, want 2", q.Dropped())
		}
		g.set(true)
		synctest.Wait()
		_, _ = q.Write(line)
		if synctest.Wait(); q.Dropped() != 2 {
			t.Errorf("%d lines dropped: written ones still take room", q.Dropped())
		}
	})
}

func TestLogThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		g.open, g.err = true, errors.New("no space left on device")
		q := New(g)
		told := uint64(0)
		q.OnDrop(func(lines uint64) { told += lines })
		for range 3 {
			_, _ = q.Write([]byte("lost\n"))
		}
		synctest.Wait()
		if q.Dropped() != 3 || told != 0 {
			t.Errorf("%d lines dropped, %d of them told to a log that takes nothing", q.Dropped(), told)
		}
		g.mu.Lock()
		g.err = nil
		g.mu.Unlock()
		_, _ = q.Write([]byte("there\n"))
		synctest.Wait()
		if g.text() != "there\n" || told != 3 {
			t.Errorf("written %q, %d told", g.text(), told)
		}
	})
}

// A pipe that is full, as the log of a process is.
func TestFullPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	q := New(w)
	line := []byte(strings.Repeat("x", 1023) + "\n")
	const lines = maxBytes/1024 + 200 // what the queue takes, what the pipe takes, and more
	for range lines {
		_, _ = q.Write(line)
	}
	if q.Dropped() == 0 {
		t.Error("nothing is dropped")
	}
	dropped := q.Dropped()
	r.Close() // EPIPE from now on
	if !q.Flush(time.Minute) {
		t.Error("a pipe without a reader holds the queue up")
	}
	if q.Dropped() <= dropped {
		t.Error("lines that met a closed pipe are not counted")
	}
	w.Close()
}

func TestManyWriters(t *testing.T) {
	var got bytes.Buffer
	q := New(&got)
	var writers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			for range 200 {
				fmt.Fprintf(q, "%d\n", i)
			}
		})
	}
	writers.Wait()
	if q.Flush(time.Minute); got.Len() != 8*200*2 {
		t.Errorf("%d bytes, want %d", got.Len(), 8*200*2)
	}
}

func TestNoQueue(t *testing.T) {
	var q *Queue
	if !q.Flush(time.Second) || q.Dropped() != 0 {
		t.Error("a Queue that is not there holds lines")
	}
}
