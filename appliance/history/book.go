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
	// mostLines bounds the bytes of appended lines in a file; a new file follows it.
	mostLines = 512 << 10
	// mostOpen bounds the number of open problems. The begin of further ones is not kept over a restart.
	mostOpen = 8192
	// mostRead bounds the bytes that are read of a file. It exceeds mostOpen lines and mostLines bytes.
	mostRead = 16 << 20
	// mostPast bounds the number of transitions in memory.
	mostPast = 8192
	// mostServices bounds the number of Services of a transition, mostWhy the bytes of its reason.
	mostServices = 64
	mostWhy      = 400
	// claimFor is the time after a start within which a problem of the previous process may occur again and keep its begin. Endpoints that
	// are down, for example, are found to be down only when their checks fail again.
	claimFor = 5 * time.Minute
)

// The kinds of transitions, by the object whose state changes.
const (
	KindProblem   = "problem"
	KindEndpoint  = "endpoint"
	KindCondition = "condition"
	// KindAnnouncement is a change of an announced address: Object is the address, What the place.
	KindAnnouncement = "announcement"
	// kindBegin is the first line of a file: its Object is the name of the box.
	kindBegin = "begin"
)

// Key identifies what has a state: a problem, an endpoint, a condition or an announcement.
type Key struct {
	Kind   string `json:"kind"`
	Object string `json:"object,omitempty"` // "Service shop/web"
	What   string `json:"what,omitempty"`
}

// Transition is a change of the state of a Key, and a line of the file in JSON.
type Transition struct {
	At time.Time `json:"at"`
	Key
	// State is the state that begins, such as "down"; "": the previous one is over.
	State string `json:"state,omitempty"`
	Why   string `json:"why,omitempty"`
	// Services are the first of the affected Services, "namespace/name", unless Object names the only one.
	Services []string `json:"services,omitempty"`
	// Lasted is the time in seconds that the previous state lasted, if the transition ends one.
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
	open   map[Key]Transition // the keys whose present State is not ""
	before map[Key]Transition // the last transitions of earlier processes, of keys without one in this process
	latest time.Time          // the last transition, or the start
	queue  []byte             // lines that are not written yet
	renew  bool               // the file lacks lines: a new one is to be written
	past   []Transition       // the newest transitions, of this process and earlier ones, the oldest first

	writing sync.Mutex
	disk    disk
}

// disk is the file of a Book.
type disk struct {
	dir    string
	file   *os.File // nil: not open
	lines  int      // bytes of new lines in it
	begun  bool     // this box has written it
	failed bool     // it cannot be written
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

// From returns the time since which transitions are recorded; now for a nil Book.
func (b *Book) From(now time.Time) time.Time {
	if b == nil {
		return now
	}
	return b.from
}

// Last returns the last transition of a key; false if there is none on record.
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

// Before returns those transitions of a kind from previous processes whose keys have had no transition in this one.
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

// Note records the state of a key, "" for its end, and returns the time at which that state began, which may be before this process.
// services are the affected ones, where the key names none.
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

// Add records a transition of a key whose present state is not tracked.
func (b *Book) Add(t Transition) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.write(bounded(t))
}

// bounded returns a transition within the bounds of a line: time in UTC, reason and Services truncated.
func bounded(t Transition) Transition {
	t.At = t.At.UTC().Round(0)
	t.Why, t.Services = strings.ToValidUTF8(t.Why[:min(len(t.Why), mostWhy)], ""), t.Services[:min(len(t.Services), mostServices)]
	return t
}

// ends completes a transition from the state that it ends: with the time which that lasted, its Services if the transition has none and, if there is
// no new state, its reason.
func (t *Transition) ends(was Transition) {
	t.Lasted = max(0, int(t.At.Sub(was.At)/time.Second))
	if t.State == "" {
		t.Why = was.Why
	}
	if len(t.Services) == 0 {
		t.Services = was.Services
	}
}

// Transitions returns the transitions since a time, the oldest first. from is the time before which none are on record.
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

// Settle ends the problems of the previous process for whose keys over returns true.
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

// whole returns the first lines of a new file: the one of kindBegin, and those of the states that are not over. The caller holds mu.
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

// put appends lines to the file, or with renew replaces the file by a new one with them.
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

// begin starts a new file with these lines. The previous file gets the old name.
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
