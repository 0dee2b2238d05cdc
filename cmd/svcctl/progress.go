package main

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// progress is a line on stderr about long work that prints nothing else. It needs a terminal.
type progress struct {
	mu    sync.Mutex
	w     io.Writer // nil without a terminal
	shown bool
}

func (p *program) progress() *progress {
	if !p.stderrTTY {
		return &progress{}
	}
	return &progress{w: p.stderr}
}

// say replaces the line.
func (g *progress) say(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.w != nil {
		g.shown = true
		fmt.Fprintf(g.w, "\r"+format+" ...\x1b[K", args...)
	}
}

// end takes the line away.
func (g *progress) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shown {
		g.shown = false
		fmt.Fprint(g.w, "\r\x1b[K")
	}
}

// tick is the interval at which a line with a running time is written again.
const tick = time.Second

// waiting is a line about something that takes its time: what, for how long, and how long at most, unless that is 0.
// end removes it.
func (p *program) waiting(what func() string, atMost time.Duration) (end func()) {
	if !p.stderrTTY {
		return func() {}
	}
	g, began := p.progress(), time.Now()
	over, done := make(chan struct{}), make(chan struct{})
	say := func() {
		text := fmt.Sprintf("%s, for %s", what(), time.Since(began).Round(time.Second))
		if atMost > 0 {
			text += fmt.Sprintf(" of at most %s", atMost)
		}
		g.say("%s", text)
	}
	go func() {
		defer close(done)
		ticks := time.NewTicker(tick)
		defer ticks.Stop()
		for {
			say()
			select {
			case <-ticks.C:
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		<-done
		g.end()
	}
}

// moving shows how many bytes of something long are done.
type moving struct {
	*progress
	what  string
	bytes int64
	shown int64
}

// movingEvery is after how many bytes the progress is shown again.
const movingEvery = 1 << 20

func (p *program) moving(what string) *moving { return &moving{progress: p.progress(), what: what} }

// Write implements io.Writer.
func (m *moving) Write(b []byte) (int, error) {
	m.bytes += int64(len(b))
	if m.bytes-m.shown >= movingEvery {
		m.shown = m.bytes
		m.say("%d MiB %s", m.bytes>>20, m.what)
	}
	return len(b), nil
}

// counter counts bytes that are written.
type counter struct{ atomic.Int64 }

// Write implements io.Writer.
func (c *counter) Write(b []byte) (int, error) {
	c.Add(int64(len(b)))
	return len(b), nil
}
