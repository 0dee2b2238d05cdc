package journal

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
)

// ErrExpired means that the history does not have the revision, which is too old or in the future.
// A client has to read everything again (HTTP 410).
var ErrExpired = errors.New("too old resource version")

// A Journal holds, in memory, the entries that the engine stores: the latest changes of objects. It is not safe for concurrent changes.
type Journal struct {
	bounds Bounds
	// since is the revision before the first entry: the oldest state that the journal can reconstruct.
	since   uint64
	entries []*Entry // by revision
	bytes   int      // total size of the entries
	last    map[object.Ref]*Entry
	// stale are the keys of stored entries that Load dropped; the next commit deletes them.
	stale []string
}

// An Update is the change that one commit makes to the journal: new entries, and the number of old ones to drop.
type Update struct {
	puts    []engine.Pair
	deletes []string
	entries []*Entry // new entries
	drop    int      // number of the oldest entries to drop
	// Reset is set when all entries are dropped: the journal begins after this commit, at Revision.
	Reset    bool
	Revision uint64
}

// AddTo adds the puts and deletes of the update to the transaction of the commit.
func (u *Update) AddTo(t *engine.Transaction) {
	t.Puts = append(t.Puts, u.puts...)
	t.Deletes = append(t.Deletes, u.deletes...)
}

// Plan returns the Update for changes. previous is the revision before the first of them. If the changes exceed the bounds, the Update empties the
// journal, which then begins after them.
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

// Restart returns an Update that drops all entries: the journal begins at a revision.
func (j *Journal) Restart(revision uint64) Update {
	deletes := slices.Clone(j.stale)
	for _, e := range j.entries {
		deletes = append(deletes, Key(e.Revision))
	}
	return Update{deletes: deletes, Reset: true, Revision: revision}
}

// room returns how many of the oldest entries have to be removed to make room for a number of new entries with a total size in bytes.
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

// Apply applies an Update to the journal in memory, after its commit.
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

// Reset empties the journal in memory: it begins at a revision.
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

// Load loads the stored entries. revision is the current revision of the store. Load drops all entries that are older than the latest gap.
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

// After returns the entries after a revision. The parameter now is the current revision of the store. The error is ErrExpired if the journal begins
// later than the revision, or the revision is greater than now.
func (j *Journal) After(revision, now uint64) ([]*Entry, error) {
	if revision < j.since || revision > now {
		return nil, ErrExpired
	}
	from, _ := slices.BinarySearchFunc(j.entries, revision+1, func(e *Entry, revision uint64) int {
		return cmp.Compare(e.Revision, revision)
	})
	return j.entries[from:], nil
}

// A Version is an object as of a revision, decoded or as JSON. The zero value stands for no object.
type Version struct {
	object object.Object
	data   []byte
}

// IsKnown reports whether the object is decoded already.
func (v Version) IsKnown() bool { return v.object != nil }

// Before returns the version before the change.
func (e *Entry) Before() Version { return Version{e.recent, e.old} }

// After returns the version after the change. current is the stored object, nil if there is none.
func (e *Entry) After(current object.Object) Version {
	if e.next != nil {
		return e.next.Before()
	}
	return Version{object: current}
}

// A Decoder decodes versions of objects and caches the results. Each version is needed twice: after one change of the object and before the next.
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

// Since returns the revision before the oldest entry: the oldest state that the journal can reconstruct.
func (j *Journal) Since() uint64 { return j.since }

// Size returns the bytes of the stored entries.
func (j *Journal) Size() int { return j.bytes }

// Entries returns all entries, sorted by revision. The caller must not change them.
func (j *Journal) Entries() []*Entry { return j.entries }

// Concerns reports whether the journal has a change of an object of a kind.
func (j *Journal) Concerns(kind string) bool {
	for ref := range j.last {
		if ref.Kind == kind {
			return true
		}
	}
	return false
}

// Recent returns the revision after which the journal has exactly the given number of changes of objects for which about returns true. A nil about
// counts all changes. If there are fewer, Recent returns Since.
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

// packLeast is the length, in bytes, from which a version in the journal is compressed (gzip), so
// that a few large objects do not displace all other changes. A compressed version is recognized
// by gzip's magic number.
const packLeast = 32 << 10

// packed returns the JSON of a version, compressed if it is long.
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

// unpacked returns the JSON that packed was given.
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

// Prefix begins the engine keys of journal entries.
const Prefix = "journal/"

// Owner is the owner of an object: the file at a path, a controller that generates the object from others, or the API if both fields are empty. Only
// the owner can change the object, except that a file may take over the name of a controller's object.
type Owner struct {
	File       string `json:"file,omitempty"`
	Controller string `json:"controller,omitempty"`
}

// String returns the path of the file, a text such as "the endpoints controller", or "the API".
func (o Owner) String() string {
	switch {
	case o.File != "":
		return o.File
	case o.Controller != "":
		return "the " + o.Controller + " controller"
	}
	return "the API"
}

// Caller identifies the client that made a change. The zero Caller stands for the appliance
// itself, or a file.
type Caller struct {
	User    string `json:"user,omitempty"`    // "root", "uid:1000", the name of a token
	Manager string `json:"manager,omitempty"` // the field manager
	Agent   string `json:"agent,omitempty"`   // the User-Agent of the HTTP request
	Verb    string `json:"verb,omitempty"`    // "create", "update", "patch", "apply" or "delete"
	// Trial is the ID of the Trial that the change belongs to: undoing the Trial undoes the change.
	Trial string `json:"trial,omitempty"`
	// Rollout is the ID of the rollout that the change belongs to: boxes apply the change in stages.
	Rollout string `json:"rollout,omitempty"`
}

// Bounds limits the journal, both in memory and in the engine.
type Bounds struct {
	Entries, Bytes int
	// Recent is the number of newest entries for which the old versions are kept as decoded objects, for watches that are nearly up to date. Other
	// entries have only the JSON.
	Recent int
}

// DefaultBounds returns bounds that are sufficient for some minutes of a busy box, and for a batch of 10,000 objects.
func DefaultBounds() Bounds { return Bounds{Entries: 10_000, Bytes: 8 << 20, Recent: 1_000} }

// A Change is one change of one object.
type Change struct {
	Revision uint64
	Ref      object.Ref
	Owner    Owner         // of the object after the change, or of the deleted object
	By       *Caller       // client that made the change; nil if it was not made through the API
	Old      object.Object // object before the change; nil if there was none
}

// slack is the denominator of the fraction of the bounds that is freed when they are reached (1/slack), so that not every change has to remove
// entries.
const slack = 8

// Entry is a change in the journal, with the version of the object before it. The version after it is found in the next change of the same object or,
// without a later change, is the current object.
type Entry struct {
	Revision uint64
	Previous uint64 // revision of the previous entry
	At       time.Time
	Ref      object.Ref
	Owner    Owner
	By       Caller
	// old is the JSON of the version before the change, possibly compressed (see packed); nil if the object did not exist.
	old []byte
	// size is the size of the stored form, in bytes.
	size int

	// recent is the decoded form of old, which is kept for the newest entries.
	recent object.Object
	// next is the next change of the same object. The lock of the Journal guards it, and recent.
	next *Entry
}

// header is the first line of a stored entry, as JSON; the version before the change follows.
type header struct {
	Previous  uint64    `json:"previous"`
	At        time.Time `json:"at"`
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	Owner     Owner     `json:"owner"`
	By        Caller    `json:"by"`
}

// Key returns the engine key of the entry with a revision.
func Key(revision uint64) string { return fmt.Sprintf("%s%016x", Prefix, revision) }

// entryOf returns the journal entry of a change, and its stored form. previous is the revision of the change before it.
func entryOf(c *Change, previous uint64, at time.Time) (*Entry, []byte, error) {
	e := &Entry{Revision: c.Revision, Previous: previous, At: at, Ref: c.Ref, Owner: c.Owner}
	if c.By != nil {
		e.By = *c.By
	}
	value, err := json.Marshal(header{
		Previous: previous, At: at, Kind: c.Ref.Kind, Namespace: c.Ref.Namespace, Name: c.Ref.Name, Owner: e.Owner, By: e.By,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("encode the journal of %s: %w", c.Ref, err)
	}
	value = append(value, '\n')
	if c.Old != nil {
		start := len(value)
		old, err := json.Marshal(c.Old)
		if err != nil {
			return nil, nil, fmt.Errorf("encode the journal of %s: %w", c.Ref, err)
		}
		value = append(value, packed(old)...)
		e.old, e.recent = value[start:], c.Old
	}
	e.size = len(value)
	return e, value, nil
}

// decode decodes a stored entry, except the version in it, which is decoded on request.
func decode(pair engine.Pair) (*Entry, error) {
	text, found := strings.CutPrefix(pair.Key, Prefix)
	revision, err := strconv.ParseUint(text, 16, 64)
	if !found || err != nil || pair.Key != Key(revision) {
		return nil, fmt.Errorf("read journal: %q is not the key of an entry", pair.Key)
	}
	line, old, found := bytes.Cut(pair.Value, []byte{'\n'})
	var h header
	if !found {
		return nil, fmt.Errorf("read %s: it is cut short", pair.Key)
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return nil, fmt.Errorf("read %s: %w", pair.Key, err)
	}
	e := &Entry{
		Revision: revision, Previous: h.Previous, At: h.At, Owner: h.Owner, By: h.By, size: len(pair.Value),
		Ref: object.Ref{Kind: h.Kind, Namespace: h.Namespace, Name: h.Name},
	}
	if len(old) > 0 {
		e.old = old
	}
	if object.StrategyOfKind(e.Ref.Kind) == nil || e.Ref.Name == "" || e.Previous >= e.Revision {
		return nil, fmt.Errorf("read %s: it has no change of an object that is kept", pair.Key)
	}
	return e, nil
}

// decodeVersion decodes the JSON of an object.
func decodeVersion(ref object.Ref, data []byte) (object.Object, error) {
	o := object.StrategyOfKind(ref.Kind).New()
	data, err := unpacked(data)
	if err != nil {
		return nil, fmt.Errorf("read the journal of %s: %w", ref, err)
	}
	if err := json.Unmarshal(data, o); err != nil {
		return nil, fmt.Errorf("read the journal of %s: %w", ref, err)
	}
	if object.RefOf(o) != ref {
		return nil, fmt.Errorf("read the journal of %s: it has a version of %s", ref, object.RefOf(o))
	}
	return o, nil
}
