package journal

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"io"
	"slices"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
)

// ErrExpired means that the history does not have the revision, which is too old or in the future.
// A client has to read everything again (HTTP 410).
var ErrExpired = errors.New("too old resource version")

// A Journal has the entries of the engine in memory. It may be changed by one at a time.
type Journal struct {
	bounds Bounds
	// since is the revision before the first entry: the state that is known furthest back.
	since   uint64
	entries []*Entry // by revision
	bytes   int      // their sizes
	last    map[object.Ref]*Entry
	// stale are the keys of stored entries that are of no use, until the next commit.
	stale []string
}

// An Update is the change of the journal by a commit.
type Update struct {
	puts    []engine.Pair
	deletes []string
	entries []*Entry // that come
	drop    int      // how many go, the oldest ones
	// Reset is set when the journal begins after this commit, at Revision.
	Reset    bool
	Revision uint64
}

// AddTo adds it to the transaction of the commit.
func (u *Update) AddTo(t *engine.Transaction) {
	t.Puts = append(t.Puts, u.puts...)
	t.Deletes = append(t.Deletes, u.deletes...)
}

// Plan returns what changes that follow on a revision do to the journal. When they do not fit
// into the bounds the journal is emptied.
func (j *Journal) Plan(changes []Change, previous uint64, at time.Time) (Update, error) {
	u := Update{deletes: j.stale}
	for i := range changes {
		u.Revision = max(u.Revision, changes[i].Revision)
	}
	size := 0
	for i := range changes {
		c := &changes[i]
		if len(changes) > j.bounds.Entries || size > j.bounds.Bytes {
			return j.Restart(u.Revision), nil
		}
		e, value, err := entryOf(c, previous, at)
		if err != nil {
			return Update{}, err
		}
		previous = c.Revision
		size += e.size
		u.entries = append(u.entries, e)
		u.puts = append(u.puts, engine.Pair{Key: Key(e.Revision), Value: value, Revision: e.Revision})
	}
	if size > j.bounds.Bytes {
		return j.Restart(u.Revision), nil
	}
	u.drop = j.room(len(changes), size)
	for _, e := range j.entries[:u.drop] {
		u.deletes = append(u.deletes, Key(e.Revision))
	}
	return u, nil
}

// Restart drops everything that is known: the journal begins at a revision.
func (j *Journal) Restart(revision uint64) Update {
	deletes := slices.Clone(j.stale)
	for _, e := range j.entries {
		deletes = append(deletes, Key(e.Revision))
	}
	return Update{deletes: deletes, Reset: true, Revision: revision}
}

// room returns the number of the oldest entries to drop, so that the given number and bytes of new
// ones fit in.
func (j *Journal) room(entries, size int) int {
	if len(j.entries)+entries <= j.bounds.Entries && j.bytes+size <= j.bounds.Bytes {
		return 0
	}
	most := Bounds{Entries: j.bounds.Entries - j.bounds.Entries/slack, Bytes: j.bounds.Bytes - j.bounds.Bytes/slack}
	drop, bytes := 0, j.bytes+size
	for drop < len(j.entries) && (len(j.entries)-drop+entries > most.Entries || bytes > most.Bytes) {
		bytes -= j.entries[drop].size
		drop++
	}
	return drop
}

// Apply does what has been committed.
func (j *Journal) Apply(u Update) {
	j.stale = nil
	if u.Reset {
		j.Reset(u.Revision)
		return
	}
	if u.drop > 0 {
		for _, e := range j.entries[:u.drop] {
			j.since = e.Revision
			j.bytes -= e.size
			if j.last[e.Ref] == e {
				delete(j.last, e.Ref)
			}
		}
		j.entries = slices.Clone(j.entries[u.drop:])
	}
	for _, e := range u.entries {
		j.add(e)
	}
}

// Reset makes the journal begin at a revision.
func (j *Journal) Reset(since uint64) {
	*j = Journal{bounds: j.bounds, since: since, last: map[object.Ref]*Entry{}}
}

func (j *Journal) add(e *Entry) {
	if before := j.last[e.Ref]; before != nil {
		before.next = e
	}
	j.last[e.Ref] = e
	j.entries = append(j.entries, e)
	j.bytes += e.size
	if cold := len(j.entries) - 1 - j.bounds.Recent; cold >= 0 {
		j.entries[cold].recent = nil
	}
}

// Load makes the stored entries the journal, as far as they go back without a gap from the
// revision of the store.
func (j *Journal) Load(pairs []engine.Pair, revision uint64) {
	j.Reset(revision)
	decoded, errs := make([]*Entry, len(pairs)), make([]error, len(pairs))
	parallel.Do(len(pairs), parallel.Share, func(i int) { decoded[i], errs[i] = decode(pairs[i]) })
	var entries []*Entry
	for i, e := range slices.Backward(decoded) {
		if errs[i] != nil || e.Revision != j.since {
			// A version of this program wrote here that keeps no journal, or another one.
			for _, pair := range pairs[:i+1] {
				j.stale = append(j.stale, pair.Key)
			}
			break
		}
		j.since = e.Previous
		entries = append(entries, e)
	}
	for _, e := range slices.Backward(entries) {
		j.add(e)
	}
}

// After returns the entries after a revision; ErrExpired when some of them are not known, or the
// revision is not there yet.
func (j *Journal) After(revision, now uint64) ([]*Entry, error) {
	if revision < j.since || revision > now {
		return nil, ErrExpired
	}
	from, _ := slices.BinarySearchFunc(j.entries, revision+1, func(e *Entry, revision uint64) int {
		return cmp.Compare(e.Revision, revision)
	})
	return j.entries[from:], nil
}

// A Version is an object as it was at some time: known, or as JSON. The zero value is none.
type Version struct {
	object object.Object
	data   []byte
}

// IsKnown reports whether the object need not be read.
func (v Version) IsKnown() bool { return v.object != nil }

// Before returns what was there before the change.
func (e *Entry) Before() Version { return Version{e.recent, e.old} }

// After returns the version after the change; current is the stored one, nil for none.
func (e *Entry) After(current object.Object) Version {
	if e.next != nil {
		return e.next.Before()
	}
	return Version{object: current}
}

// A Decoder reads versions, each once: what came of a change is what was there before the next.
type Decoder map[*byte]object.Object

// Decode returns the object of a version, nil for none.
func (d Decoder) Decode(ref object.Ref, v Version) (object.Object, error) {
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

// New returns an empty journal.
func New(bounds Bounds) *Journal { return &Journal{bounds: bounds, last: map[object.Ref]*Entry{}} }

// Bounds returns the limits of the journal.
func (j *Journal) Bounds() Bounds { return j.bounds }

// Since returns the revision before the first entry: the state that is known furthest back.
func (j *Journal) Since() uint64 { return j.since }

// Size returns the bytes of the stored entries.
func (j *Journal) Size() int { return j.bytes }

// Entries returns all of them by revision. They may not be changed.
func (j *Journal) Entries() []*Entry { return j.entries }

// Concerns reports whether a change of a kind is known.
func (j *Journal) Concerns(kind string) bool {
	for ref := range j.last {
		if ref.Kind == kind {
			return true
		}
	}
	return false
}

// Recent returns the revision that the newest changes follow on, so many of those that are about
// some objects, or all that are known. A nil about counts all.
func (j *Journal) Recent(changes int, about func(object.Ref) bool) (after uint64) {
	for _, e := range slices.Backward(j.entries) {
		if about != nil && !about(e.Ref) {
			continue
		}
		if changes--; changes < 0 {
			return e.Revision
		}
	}
	return j.since
}

// packLeast is the length from which on a version in the journal is packed (gzip): a few large
// objects would push all other changes out of it. JSON of an object begins otherwise than gzip.
const packLeast = 32 << 10

// packed is a version as the journal keeps it.
func packed(data []byte) []byte {
	if len(data) < packLeast {
		return data
	}
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed) // the level is one that there is
	_, _ = w.Write(data)                              // memory takes everything
	if w.Close() != nil || out.Len() >= len(data) {
		return data
	}
	return out.Bytes()
}

// unpacked is the JSON of what packed made.
func unpacked(data []byte) ([]byte, error) {
	if len(data) < 2 || data[0] != 0x1f || data[1] != 0x8b { // RFC 1952, 2.3.1
		return data, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}
