package cli

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Progress is a line on stderr about long work that prints nothing else. It needs a terminal.
type Progress struct {
	mu    sync.Mutex
	w     io.Writer // nil without a terminal
	shown bool
}

func (env *Env) Progress() *Progress {
	if !env.StderrTTY {
		return &Progress{}
	}
	return &Progress{w: env.Err}
}

// Say replaces the line.
func (g *Progress) Say(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.w != nil {
		g.shown = true
		fmt.Fprintf(g.w, "\r"+format+" ...\x1b[K", args...)
	}
}

// End takes the line away.
func (g *Progress) End() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shown {
		g.shown = false
		fmt.Fprint(g.w, "\r\x1b[K")
	}
}

// tick is the interval at which a line with a running time is written again.
const tick = time.Second

// Waiting is a line about something that takes its time: what, for how long, and how long at most, unless that is 0.
// end removes it.
func (env *Env) Waiting(what func() string, atMost time.Duration) (end func()) {
	if !env.StderrTTY {
		return func() {}
	}
	g, began := env.Progress(), time.Now()
	over, done := make(chan struct{}), make(chan struct{})
	say := func() {
		text := fmt.Sprintf("%s, for %s", what(), time.Since(began).Round(time.Second))
		if atMost > 0 {
			text += fmt.Sprintf(" of at most %s", atMost)
		}
		g.Say("%s", text)
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
		g.End()
	}
}

// moving shows how many bytes of something long are done.
type moving struct {
	*Progress
	what  string
	bytes int64
	shown int64
}

// movingEvery is after how many bytes the progress is shown again.
const movingEvery = 1 << 20

func (env *Env) Moving(what string) *moving { return &moving{Progress: env.Progress(), what: what} }

// Write implements io.Writer.
func (m *moving) Write(b []byte) (int, error) {
	m.bytes += int64(len(b))
	if m.bytes-m.shown >= movingEvery {
		m.shown = m.bytes
		m.Say("%d MiB %s", m.bytes>>20, m.what)
	}
	return len(b), nil
}

// Counter counts bytes that are written.
type Counter struct{ atomic.Int64 }

// Write implements io.Writer.
func (c *Counter) Write(b []byte) (int, error) {
	c.Add(int64(len(b)))
	return len(b), nil
}
