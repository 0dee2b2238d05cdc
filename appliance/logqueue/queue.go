package logqueue

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// The bounds of a Queue that New returns. They are enough for the problems of a thousand invalid files while the reader of the log gets no CPU.
const (
	maxLines = 2048
	maxBytes = 1 << 20
)

// Queue is an io.Writer that never blocks. Every call of Write is one line, which is written as a whole or dropped. Its methods may be called
// concurrently. A nil Queue is always empty.
type Queue struct {
	w                  io.Writer
	maxLines, maxBytes int

	mu         sync.Mutex
	lines      [][]byte
	bytes      int                // bytes of lines, and of the line that is being written
	dropped    uint64             // number of dropped lines since the start
	unreported uint64             // number of dropped lines not yet passed to onDrop
	onDrop     func(lines uint64) // nil: drops are only counted
	idle       chan struct{}      // closed when the writing goroutine ends; nil: there is none
}

// New returns a Queue that writes to w.
func New(w io.Writer) *Queue { return NewSized(w, maxLines, maxBytes) }

// NewSized returns a Queue that writes to w and holds at most the given number of lines and bytes.
func NewSized(w io.Writer, lines, bytes int) *Queue {
	return &Queue{w: w, maxLines: lines, maxBytes: bytes}
}

// OnDrop sets the function that reports dropped lines. f is called with the number of lines dropped since its last call, once w accepts lines again
// and at least half of the queue is free. It may write to the Queue.
func (q *Queue) OnDrop(f func(lines uint64)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.onDrop = f
}

// Write queues a line, or drops it when there is no room. It never fails: the caller could not
// react.
func (q *Queue) Write(line []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.lines) >= q.maxLines || q.bytes+len(line) > q.maxBytes {
		q.dropped++
		q.unreported++
		return len(line), nil
	}
	q.lines = append(q.lines, bytes.Clone(line))
	q.bytes += len(line)
	if q.idle == nil {
		q.idle = make(chan struct{})
		go q.drain()
	}
	return len(line), nil
}

// drain writes the queued lines to w, and returns when the queue is empty.
func (q *Queue) drain() {
	flows := false
	for {
		q.mu.Lock()
		if lines, report := q.unreported, q.onDrop; flows && lines > 0 && report != nil && len(q.lines) <= q.maxLines/2 {
			q.unreported, flows = 0, false // the next line that is written shows whether it still flows
			q.mu.Unlock()
			report(lines)
			continue
		}
		if len(q.lines) == 0 {
			close(q.idle)
			q.lines, q.idle = nil, nil
			q.mu.Unlock()
			return
		}
		line := q.lines[0]
		q.lines[0], q.lines = nil, q.lines[1:]
		q.mu.Unlock()

		_, err := q.w.Write(line)

		q.mu.Lock()
		q.bytes -= len(line)
		if flows = err == nil; !flows { // the other end is closed, or the disk is full
			q.dropped++
			q.unreported++
		}
		q.mu.Unlock()
	}
}

// Dropped returns how many lines were dropped since the start.
func (q *Queue) Dropped() uint64 {
	if q == nil {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dropped
}

// Flush waits until all queued lines are written, for at most atMost. It reports whether they are. Lines that are not written by then are still
// written while the process lives.
func (q *Queue) Flush(atMost time.Duration) bool {
	if q == nil {
		return true
	}
	q.mu.Lock()
	idle := q.idle
	q.mu.Unlock()
	if idle == nil {
		return true
	}
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
		return false
	}
}
