package connlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"svcctl.io/svcctl/appliance/journald"
	"svcctl.io/svcctl/appliance/logqueue"
	"svcctl.io/svcctl/appliance/task"
)

// Journal is the value of place in Open that selects the journal of systemd instead of a file.
const Journal = "journal"

// The queue holds at most maxLines lines and maxBytes bytes: about a quarter of a second at 200,000 ended connections a second.
const (
	maxLines = 1 << 16
	maxBytes = 32 << 20
)

// Line describes a connection that ended. It has more than 15 fields: they are the columns of the log.
type Line struct {
	Time      time.Time `json:"time"` // time at which the line was written; RFC 3339, UTC
	Namespace string    `json:"namespace"`
	Service   string    `json:"service"`
	Port      string    `json:"port,omitempty"`
	Protocol  string    `json:"protocol"`
	Client    string    `json:"client"`   // "203.0.113.2:43882"
	To        string    `json:"to"`       // destination of the client's packets
	Endpoint  string    `json:"endpoint"` // the endpoint that answered
	// Relayed is set for connections to the relay of this box, which opens its own connections to endpoints.
	Relayed bool `json:"relayed,omitempty"`
	// RelayedTo lists the endpoints to which the relay connected, at most 16; absent if unknown. Endpoint is then the relay.
	RelayedTo []string `json:"relayedTo,omitempty"`
	// As is the client's address as seen by the endpoint, if it differs from Client.
	As string `json:"as,omitempty"`
	// Begin is when the connection began; absent if unknown.
	Begin *time.Time `json:"begin,omitempty"`
	// End is the time of the last packet, accurate to a minute.
	End time.Time `json:"end"`
	// State is the last TCP state, as named by conntrack.
	State    string `json:"state,omitempty"`
	Answered bool   `json:"answered"`
	// BytesIn counts the bytes from the client and BytesOut those from the endpoint, including IP headers; absent if the kernel does not count
	// them.
	BytesIn  *uint64 `json:"bytesIn,omitempty"`
	BytesOut *uint64 `json:"bytesOut,omitempty"`
}

// Log writes Lines to a file or the journal through a bounded queue. Its methods may be called concurrently.
type Log struct {
	place string
	to    *target
	queue *logqueue.Queue
	lines atomic.Uint64
}

// Open returns a Log that writes to the file place, which it creates if it is missing, or to the journal if place is Journal. Failure to
// open the file is not fatal: Err returns the error, and Retry tries again.
func Open(place string) *Log {
	to := &target{path: place, changed: make(chan struct{}, 1)}
	if place == Journal {
		to.open = func() (io.WriteCloser, error) { return nopCloser{journald.NewConn(journald.Socket)}, nil }
	} else {
		to.open = func() (io.WriteCloser, error) { return openFile(place) }
	}
	l := &Log{place: place, to: to, queue: logqueue.NewSized(to, maxLines, maxBytes)}
	l.Retry()
	return l
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// openFile opens a file for appending, and creates it if it is missing. Opening a pipe without a reader fails.
func openFile(path string) (io.WriteCloser, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o640)
}

// Write queues a line. When the queue is full a line is dropped and counted by Lost.
func (l *Log) Write(line *Line) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(fmt.Sprintf("connlog: encode %T: %v", line, err)) // our own type: a bug
	}
	l.lines.Add(1)
	if l.place == Journal {
		_, _ = l.queue.Write(entry(line, text))
		return
	}
	_, _ = l.queue.Write(append(text, '\n'))
}

// entry returns line as a journal entry with fields. text is the line in JSON.
func entry(line *Line, text []byte) []byte {
	e := journald.Append(nil, "MESSAGE", string(text))
	for _, field := range [...][2]string{
		{"PRIORITY", "6"}, {"SYSLOG_IDENTIFIER", "svcctl-connections"}, {"SVCCTL_SERVICE", line.Namespace + "/" + line.Service},
		{"SVCCTL_CLIENT", line.Client}, {"SVCCTL_TO", line.To}, {"SVCCTL_ENDPOINT", line.Endpoint},
	} {
		e = journald.Append(e, field[0], field[1])
	}
	return e
}

// Lines returns how many lines were written or lost so far.
func (l *Log) Lines() uint64 { return l.lines.Load() }

// Lost returns how many lines could not be written.
func (l *Log) Lost() uint64 { return l.queue.Dropped() }

// Err returns the error of writing the last line, or nil.
func (l *Log) Err() error { return l.to.state() }

// Changed returns a channel that gets a value when the result of Err changed.
func (l *Log) Changed() <-chan struct{} { return l.to.changed }

// Retry tries to open the file or journal again after a failure. Err returns the result.
func (l *Log) Retry() { l.to.retry() }

// Flush waits until all queued lines are written, for atMost at most.
func (l *Log) Flush(atMost time.Duration) { l.queue.Flush(atMost) }

// target writes lines to the journal or to a file. It reopens the file after it was renamed (log rotation).
type target struct {
	path    string
	open    func() (io.WriteCloser, error)
	changed chan struct{}

	mu     sync.Mutex // held while a line is written
	to     io.WriteCloser
	opened os.FileInfo // identity of the open file; nil for the journal
	broken bool        // the last line was not written as a whole

	errMu sync.Mutex
	err   error
}

// Write writes a line to the file or the journal, opening it if necessary.
func (t *target) Write(line []byte) (n int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err = t.ready(); err == nil {
		if t.broken {
			line = append([]byte{'\n'}, line...) // so that the next line is one
		}
		n, err = t.to.Write(line)
		if t.broken = err != nil && (t.broken || n > 0); err != nil {
			t.close()
		}
	}
	t.tell(err)
	return n, err
}

// ready opens the file or the journal if it is not open, and reopens the file if path now refers to another file.
func (t *target) ready() error {
	if t.opened != nil {
		if named, err := os.Stat(t.path); err != nil || !os.SameFile(t.opened, named) {
			t.close()
			t.broken = false
		}
	}
	if t.to != nil {
		return nil
	}
	to, err := t.open()
	if err != nil {
		return err
	}
	t.to = to
	if f, is := to.(*os.File); is {
		if t.opened, err = f.Stat(); err != nil {
			t.close()
		}
	}
	return err
}

func (t *target) close() {
	_ = t.to.Close() // what it lost is gone
	t.to, t.opened = nil, nil
}

func (t *target) retry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.state()
	err := t.ready()
	if err == nil && errors.Is(was, syscall.ENOSPC) {
		return // opening it proves nothing: the next line shows whether it can be written
	}
	t.tell(err)
}

func (t *target) tell(err error) {
	t.errMu.Lock()
	defer t.errMu.Unlock()
	same := (err == nil) == (t.err == nil) && (err == nil || err.Error() == t.err.Error())
	if t.err = err; same {
		return
	}
	task.Wake(t.changed)
}

func (t *target) state() error {
	t.errMu.Lock()
	defer t.errMu.Unlock()
	return t.err
}
