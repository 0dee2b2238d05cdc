package history

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

const (
	fileName = "history.jsonl"
	oldName  = "history.old.jsonl"
	// mostLines is the number of appended bytes after which a new file is started.
	mostLines = 512 << 10
	// mostOpen is the largest number of problems that are tracked. The start time of further ones is lost at a restart.
	mostOpen = 8192
	// mostRead is the largest number of bytes that are read from a file. It exceeds the size of mostOpen lines plus mostLines bytes.
	mostRead = 16 << 20
	// mostPast bounds the number of transitions in memory.
	mostPast = 8192
	// mostServices is the largest number of Services in a transition, mostWhy the largest size of its reason in bytes.
	mostServices = 64
	mostWhy      = 400
	// claimFor is the time after a start within which a problem of the previous process may recur and keep its start time. Endpoints that are down,
	// for example, are only found to be down when their checks fail again.
	claimFor = 5 * time.Minute
)

// The kinds of transitions, by the object whose state changes.
const (
	KindProblem   = "problem"
	KindEndpoint  = "endpoint"
	KindCondition = "condition"
	// KindAnnouncement is a change of an announced address. Object names the address, What names the place of the announcement.
	KindAnnouncement = "announcement"
	// kindBegin is the first line of a file: its Object is the name of the box.
	kindBegin = "begin"
)

// Key identifies a subject with a state: a problem, an endpoint, a condition or an announcement.
type Key struct {
	Kind   string `json:"kind"`
	Object string `json:"object,omitempty"` // such as "Service shop/web"
	What   string `json:"what,omitempty"`
}

// Transition is a change of the state of a Key. In JSON it is a line of the file.
type Transition struct {
	At time.Time `json:"at"`
	Key
	// State is the state that begins, such as "down"; "" means that the previous state ended and none follows.
	State string `json:"state,omitempty"`
	Why   string `json:"why,omitempty"`
	// Services are the first mostServices affected Services, "namespace/name". It is empty if Object is the only one.
	Services []string `json:"services,omitempty"`
	// Lasted is the duration of the previous state in seconds; 0 if the transition ends no state.
	Lasted int `json:"lasted,omitempty"`
}

// Book records transitions in memory and in a file. Its methods may be called concurrently. Only Close waits for the disk. A nil Book
// records nothing.
type Book struct {
	box  string
	log  *slog.Logger
	from time.Time
	wake chan struct{}

	mu     sync.Mutex
	open   map[Key]Transition // last transition of keys with a State other than ""
	before map[Key]Transition // last transitions of keys from earlier processes, without one in this process
	latest time.Time          // time of the last transition, or of the start
	queue  []byte             // lines that are not written yet
	renew  bool               // the file is incomplete: a new one must be written
	past   []Transition       // the newest transitions, sorted by time, those of earlier processes included

	writing sync.Mutex
	disk    disk
}

// disk is the file of a Book.
type disk struct {
	dir    string
	file   *os.File // nil: not open
	lines  int      // bytes appended since the file was started
	begun  bool     // the file is one that this box has written
	failed bool     // the last write failed
}

// Open returns a Book with the transitions in the data directory dir. Those that another box wrote are dropped.
func Open(dir, box string, now time.Time, log *slog.Logger) *Book {
	seen := map[string]bool{}
	b := &Book{disk: disk{dir: dir}, box: box, log: log, from: now, latest: now, wake: make(chan struct{}, 1), open: map[Key]Transition{}, before: map[Key]Transition{}}
	for _, name := range []string{oldName, fileName} {
		f, err := os.Open(filepath.Join(dir, name))
		var content []byte
		if err == nil {
			content, err = io.ReadAll(io.LimitReader(f, mostRead))
			_ = f.Close()
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			log.Warn("it is not known when problems began that were there before this start", "file", filepath.Join(dir, name), "err", err)
		}
		b.renew = !b.take(content, seen)
		b.disk.lines = len(content)
		if len(content) > 0 && !bytes.HasSuffix(content, []byte("\n")) {
			b.queue = []byte("\n") // ends a line that was written in part
		}
	}
	if b.disk.begun = !b.renew; b.renew {
		b.queue = nil
	}
	slices.SortStableFunc(b.past, func(x, y Transition) int { return x.At.Compare(y.At) }) // a file begins with what was open before it
	b.past = b.past[max(0, len(b.past)-mostPast):]
	return b
}

// take adds the transitions in the content of a file, and reports whether this box wrote the file. Torn lines, and lines that are in seen,
// are skipped.
func (b *Book) take(content []byte, seen map[string]bool) bool {
	own := false
	for line := range bytes.Lines(content) {
		var t Transition
		if json.Unmarshal(line, &t) != nil || t.At.IsZero() {
			continue
		}
		if t.Kind == kindBegin {
			if own = t.Object == b.box; own && t.At.Before(b.from) {
				b.from = t.At
			}
			continue
		}
		if !own {
			continue
		}
		if t.Kind != KindAnnouncement {
			b.before[t.Key] = t
		}
		if text := string(bytes.TrimSpace(line)); !seen[text] {
			seen[text] = true
			b.past = append(b.past, t)
		}
	}
	return own
}

// From returns the time since which transitions have been recorded. It returns now for a nil Book.
func (b *Book) From(now time.Time) time.Time {
	if b == nil {
		return now
	}
	return b.from
}

// Last returns the last transition of a key. It returns false if none is recorded.
func (b *Book) Last(k Key) (Transition, bool) {
	if b == nil {
		return Transition{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if t, is := b.open[k]; is {
		return t, true
	}
	t, is := b.before[k]
	return t, is
}

// Before returns the last transition that previous processes recorded for each key of a kind. It leaves out keys that have had a transition in this
// process.
func (b *Book) Before(kind string) (list []Transition) {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, t := range b.before {
		if k.Kind == kind {
			list = append(list, t)
		}
	}
	return list
}

// Note records the state of a key, or "" for the end of its state. It returns the time at which the state began, which may be before this process.
// services are the affected Services if the key does not name one.
func (b *Book) Note(k Key, state, why string, now time.Time, services ...string) (since time.Time) {
	if b == nil {
		return now
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	was, known := b.open[k]
	if !known {
		was, known = b.before[k]
	}
	if was.State == state {
		if state != "" && len(b.open) < mostOpen {
			b.open[k] = was
			delete(b.before, k)
		}
		if known {
			return was.At
		}
		return now
	}
	t := bounded(Transition{At: now, Key: k, State: state, Why: why, Services: services})
	if was.State != "" {
		t.ends(was)
	}
	delete(b.before, k)
	if state == "" {
		delete(b.open, k)
	} else if len(b.open) < mostOpen || was.State != "" {
		b.open[k] = t
	} else {
		return now
	}
	b.write(t)
	return now
}

// Add records a transition without tracking the state of its key.
func (b *Book) Add(t Transition) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.write(bounded(t))
}

// bounded returns a transition that fits into a line: reason and Services are truncated, and the time is in UTC.
func bounded(t Transition) Transition {
	t.At = t.At.UTC().Round(0)
	t.Why, t.Services = strings.ToValidUTF8(t.Why[:min(len(t.Why), mostWhy)], ""), t.Services[:min(len(t.Services), mostServices)]
	return t
}

// ends completes the transition t, which ends the state that began with the transition was. It sets t.Lasted, and copies the Services of was if t has
// none. If no new state begins with t, it copies the reason of was too.
func (t *Transition) ends(was Transition) {
	t.Lasted = max(0, int(t.At.Sub(was.At)/time.Second))
	if t.State == "" {
		t.Why = was.Why
	}
	if len(t.Services) == 0 {
		t.Services = was.Services
	}
}

// Transitions returns the transitions since a time, the oldest first. from is the time at which the available record begins, which may be later than
// since.
func (b *Book) Transitions(since time.Time) (list []Transition, from time.Time) {
	if b == nil {
		return nil, since
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	i := sort.Search(len(b.past), func(i int) bool { return !b.past[i].At.Before(since) })
	if from = b.from; len(b.past) >= mostPast {
		from = b.past[0].At
	}
	return slices.Clone(b.past[i:]), from
}

// write adds a transition to those in memory, and queues its line for the file. The caller holds mu.
func (b *Book) write(t Transition) {
	if len(b.past) > mostPast+mostPast/8 {
		b.past = slices.Delete(b.past, 0, len(b.past)-mostPast)
	}
	// A caller's time may be earlier than that of one that came before it.
	b.past = slices.Insert(b.past, sort.Search(len(b.past), func(i int) bool { return b.past[i].At.After(t.At) }), t)
	if b.latest = t.At; len(b.queue) > mostLines {
		b.queue, b.renew = nil, true
	}
	if !b.renew {
		b.queue = append(b.queue, line(t)...)
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func line(t Transition) []byte {
	text, err := json.Marshal(t)
	if err != nil {
		return nil // a year that has five digits
	}
	return append(text, '\n')
}

// Settle ends states that previous processes recorded and this process has not noted. It ends the state of a key if over returns true for the key.
func (b *Book) Settle(now time.Time, over func(Key) bool) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, t := range b.before {
		if !over(k) {
			continue
		}
		if delete(b.before, k); t.State != "" {
			over := bounded(Transition{At: now, Key: k})
			over.ends(t)
			b.write(over)
		}
	}
}

// Run writes queued transitions to the file until ctx is done. It calls Settle once, claimFor after the start.
func (b *Book) Run(ctx context.Context) error {
	settle := time.NewTimer(claimFor)
	defer settle.Stop()
	for {
		b.flush()
		select {
		case <-ctx.Done():
			return nil
		case <-settle.C:
			b.Settle(time.Now(), func(Key) bool { return true })
		case <-b.wake:
		}
	}
}

// Close writes the queued transitions and closes the file.
func (b *Book) Close() error {
	b.flush()
	b.writing.Lock()
	defer b.writing.Unlock()
	if b.disk.file == nil {
		return nil
	}
	err := b.disk.file.Close()
	b.disk.file = nil
	return err
}

// flush writes the queued lines to the file. After a failure the next flush writes a new file.
func (b *Book) flush() {
	b.writing.Lock()
	defer b.writing.Unlock()
	b.mu.Lock()
	lines, renew := b.queue, b.renew || b.disk.lines+len(b.queue) > mostLines
	var last []byte // of the file that a new one replaces
	if b.queue = nil; renew {
		if !b.renew && b.disk.begun {
			last = lines
		}
		lines, b.renew = b.whole(), false
	}
	b.mu.Unlock()
	if len(last) > 0 {
		_ = b.disk.put(last, false) // the new file has all open problems
	}
	if len(lines) == 0 {
		return
	}
	err := b.disk.put(lines, renew)
	if err != nil {
		b.mu.Lock()
		b.renew = true
		b.mu.Unlock()
		if !b.disk.failed {
			b.log.Warn("it is not kept over a restart when problems began", "err", err)
		}
	}
	b.disk.failed, b.disk.begun = err != nil, b.disk.begun || err == nil
}

// whole returns the first lines of a new file: a line of kindBegin, and the last transition of each key with a State. The caller holds mu.
func (b *Book) whole() []byte {
	at := b.latest // earlier transitions are in the old file
	if !b.disk.begun {
		at = b.from
	}
	lines := line(Transition{At: at.UTC().Round(0), Key: Key{Kind: kindBegin, Object: b.box}})
	for _, all := range []map[Key]Transition{b.before, b.open} {
		for _, t := range all {
			if t.State != "" {
				lines = append(lines, line(t)...)
			}
		}
	}
	return lines
}

// put appends lines to the file. If renew is set, it writes them to a new file that replaces the previous one.
func (d *disk) put(lines []byte, renew bool) (err error) {
	path := filepath.Join(d.dir, fileName)
	if renew {
		if err := d.begin(path, lines); err != nil {
			return err
		}
		d.lines = 0
		return nil
	}
	if d.file == nil {
		if d.file, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0); err != nil {
			return err
		}
	}
	d.lines += len(lines)
	_, err = d.file.Write(lines)
	return err
}

// begin starts a new file with these lines. The previous file is renamed to oldName.
func (d *disk) begin(path string, lines []byte) error {
	if d.file != nil {
		_ = d.file.Close()
		d.file = nil
	}
	if err := os.WriteFile(path+".new", lines, 0o600); err != nil {
		_ = os.Remove(path + ".new")
		return err
	}
	if err := os.Rename(path, filepath.Join(d.dir, oldName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Rename(path+".new", path)
}
