package store

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
)

// ErrExpired says that the history does not reach back so far, or not so far ahead: a client
// has to look at everything (HTTP 410).
var ErrExpired = errors.New("too old resource version")

// Event is one change of one object.
type Event struct {
	Revision uint64
	At       time.Time
	Ref      object.Ref
	// Old is nil when the object came, New when it went.
	Old, New object.Object
	By       Caller
	Owner    Owner
}

// history is what the journal in the engine says, in memory. Only the writer changes it,
// under Store.mu.
type history struct {
	bounds bounds
	// since is the revision before the first entry: the state that is known furthest back.
	since   uint64
	entries []*entry // by revision
	bytes   int      // their sizes
	last    map[object.Ref]*entry
	// stale are the keys of stored entries that are of no use, until the next commit.
	stale []string
}

// journalUpdate is what a commit does to the journal.
type journalUpdate struct {
	puts    []engine.Pair
	deletes []string
	entries []*entry // that come
	drop    int      // how many go, the oldest ones
	// reset says that the history begins after this commit, at revision.
	reset    bool
	revision uint64
}

func (u *journalUpdate) addTo(t *engine.Transaction) {
	t.Puts = append(t.Puts, u.puts...)
	t.Deletes = append(t.Deletes, u.deletes...)
}

// plan is what changes that follow on a revision do to the journal. When they do not fit
// into the bounds it begins anew.
func (h *history) plan(changes []*change, previous uint64, at time.Time) (journalUpdate, error) {
	u := journalUpdate{deletes: h.stale}
	numbered := 0
	for _, c := range changes {
		if c.revision != 0 {
			numbered++
			u.revision = max(u.revision, c.revision)
		}
	}
	size := 0
	for _, c := range changes {
		if c.revision == 0 {
			continue
		}
		if numbered > h.bounds.entries || size > h.bounds.bytes {
			return h.begin(u), nil
		}
		e, value, err := entryOf(c, previous, at)
		if err != nil {
			return journalUpdate{}, err
		}
		previous = c.revision
		size += e.size
		u.entries = append(u.entries, e)
		u.puts = append(u.puts, engine.Pair{Key: journalKey(e.revision), Value: value, Revision: e.revision})
	}
	if size > h.bounds.bytes {
		return h.begin(u), nil
	}
	u.drop = h.room(numbered, size)
	for _, e := range h.entries[:u.drop] {
		u.deletes = append(u.deletes, journalKey(e.revision))
	}
	return u, nil
}

// begin drops everything that is known.
func (h *history) begin(u journalUpdate) journalUpdate {
	deletes := slices.Clone(h.stale)
	for _, e := range h.entries {
		deletes = append(deletes, journalKey(e.revision))
	}
	return journalUpdate{deletes: deletes, reset: true, revision: u.revision}
}

// room is how many of the oldest entries have to go so that some more of a size fit in.
func (h *history) room(entries, size int) int {
	if len(h.entries)+entries <= h.bounds.entries && h.bytes+size <= h.bounds.bytes {
		return 0
	}
	most := bounds{entries: h.bounds.entries - h.bounds.entries/slack, bytes: h.bounds.bytes - h.bounds.bytes/slack}
	drop, bytes := 0, h.bytes+size
	for drop < len(h.entries) && (len(h.entries)-drop+entries > most.entries || bytes > most.bytes) {
		bytes -= h.entries[drop].size
		drop++
	}
	return drop
}

// apply does what has been committed.
func (h *history) apply(u journalUpdate) {
	h.stale = nil
	if u.reset {
		h.reset(u.revision)
		return
	}
	if u.drop > 0 {
		for _, e := range h.entries[:u.drop] {
			h.since = e.revision
			h.bytes -= e.size
			if h.last[e.ref] == e {
				delete(h.last, e.ref)
			}
		}
		h.entries = slices.Clone(h.entries[u.drop:])
	}
	for _, e := range u.entries {
		h.add(e)
	}
}

// reset makes the history begin at a revision.
func (h *history) reset(since uint64) {
	*h = history{bounds: h.bounds, since: since, last: map[object.Ref]*entry{}}
}

func (h *history) add(e *entry) {
	if before := h.last[e.ref]; before != nil {
		before.next = e
	}
	h.last[e.ref] = e
	h.entries = append(h.entries, e)
	h.bytes += e.size
	if cold := len(h.entries) - 1 - h.bounds.recent; cold >= 0 {
		h.entries[cold].recent = nil
	}
}

// load makes what is stored the history, as far as it goes back without a gap from the
// revision of the store.
func (h *history) load(pairs []engine.Pair, revision uint64) {
	h.reset(revision)
	decoded, errs := make([]*entry, len(pairs)), make([]error, len(pairs))
	parallel.Do(len(pairs), parallel.Share, func(i int) { decoded[i], errs[i] = decodeJournal(pairs[i]) })
	var entries []*entry
	for i, e := range slices.Backward(decoded) {
		if errs[i] != nil || e.revision != h.since {
			// A version of this program wrote here that keeps no journal, or another one.
			for _, pair := range pairs[:i+1] {
				h.stale = append(h.stale, pair.Key)
			}
			break
		}
		h.since = e.previous
		entries = append(entries, e)
	}
	for _, e := range slices.Backward(entries) {
		h.add(e)
	}
}

// after is the entries after a revision; ErrExpired when some of them are not known, or the
// revision is not there yet.
func (h *history) after(revision, now uint64) ([]*entry, error) {
	if revision < h.since || revision > now {
		return nil, ErrExpired
	}
	from, _ := slices.BinarySearchFunc(h.entries, revision+1, func(e *entry, revision uint64) int {
		return cmp.Compare(e.revision, revision)
	})
	return h.entries[from:], nil
}

// version is an object as it was at some time: known, or as JSON.
type version struct {
	object object.Object
	data   []byte
}

func (e *entry) before() version { return version{e.recent, e.old} }

// after is what came of the change; current is what is stored.
func (e *entry) after(current *record) version {
	switch {
	case e.next != nil:
		return e.next.before()
	case current != nil:
		return version{object: current.object}
	}
	return version{}
}

// decoder reads versions, each once: what came of a change is what was there before the next.
type decoder map[*byte]object.Object

func (d decoder) decode(ref object.Ref, v version) (object.Object, error) {
	if v.object != nil || v.data == nil {
		return v.object, nil
	}
	if known, ok := d[&v.data[0]]; ok {
		return known, nil
	}
	o, err := decodeVersion(ref, v.data)
	if err == nil {
		d[&v.data[0]] = o
	}
	return o, err
}

// Events are the changes after a revision in order, at most limit (0: no limit); ErrExpired when
// not all are known any more, or the revision is not there yet. Nothing of them may be changed.
func (s *Store) Events(after uint64, limit int) ([]Event, error) {
	return s.EventsAbout(after, limit, nil)
}

// EventsAbout is Events for who only cares about some objects: the versions of all others are
// left out, which saves the work of reading them. nil means all objects.
func (s *Store) EventsAbout(after uint64, limit int, about func(object.Ref) bool) ([]Event, error) {
	s.mu.RLock()
	entries, err := s.feed.history.after(after, s.feed.revision)
	if limit > 0 && len(entries) > limit {
		entries = entries[:limit]
	}
	versions := make([][2]version, len(entries))
	for i, e := range entries {
		if about == nil || about(e.ref) {
			versions[i] = [2]version{e.before(), e.after(s.table.records[e.ref])}
		}
	}
	s.mu.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("%w: %d", err, after)
	}
	events, d := make([]Event, len(entries)), decoder{}
	for i, e := range entries {
		event := Event{Revision: e.revision, At: e.at, Ref: e.ref, By: e.by, Owner: e.owner}
		if event.Old, err = d.decode(e.ref, versions[i][0]); err != nil {
			return nil, err
		}
		if event.New, err = d.decode(e.ref, versions[i][1]); err != nil {
			return nil, err
		}
		events[i] = event
	}
	return events, nil
}

// Published is closed with the next change. Take it before looking.
func (s *Store) Published() <-chan struct{} {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.feed.published
}
