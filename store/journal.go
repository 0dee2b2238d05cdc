package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// bounds are those of the history, in memory and in the engine alike.
type bounds struct {
	entries, bytes int
	// recent is of how many entries the old versions are kept as objects, for those who
	// follow closely. Of the others there is only the JSON.
	recent int
}

// defaultBounds hold some minutes of a busy box, and a batch of 10,000 objects.
func defaultBounds() bounds { return bounds{entries: 10_000, bytes: 8 << 20, recent: 1_000} }

// slack is the part of the bounds (one in so many) that is made free at once when they are
// reached, so that the next changes need not.
const slack = 8

// entry is a change as the journal keeps it: what was there before. What came of it is what
// was there before the next change of the same object, or else what is there now.
type entry struct {
	revision uint64
	previous uint64 // the revision before
	at       time.Time
	ref      object.Ref
	owner    Owner
	by       Caller
	// old is the JSON of the version before, see packed; nil when there was none.
	old []byte
	// size is that of the stored form, in bytes.
	size int

	// recent is what old says, while the entry is among the newest.
	recent object.Object
	// next is the next change of the same object. It is guarded by Store.mu, as recent is.
	next *entry
}

// journalHeader is the first line of a stored entry; the rest is the version before.
type journalHeader struct {
	Previous  uint64    `json:"previous"`
	At        time.Time `json:"at"`
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	Owner     Owner     `json:"owner"`
	By        Caller    `json:"by"`
}

func journalKey(revision uint64) string { return fmt.Sprintf("%s%016x", journalPrefix, revision) }

// entryOf is the entry of a change that follows on a revision, and its stored form.
func entryOf(c *change, previous uint64, at time.Time) (*entry, []byte, error) {
	e := &entry{revision: c.revision, previous: previous, at: at, ref: c.ref, owner: c.owner}
	if c.remove {
		e.owner = c.old.owner
	}
	if c.by != nil {
		e.by = *c.by
	}
	value, err := json.Marshal(journalHeader{
		Previous: previous, At: at, Kind: c.ref.Kind, Namespace: c.ref.Namespace, Name: c.ref.Name, Owner: e.owner, By: e.by,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("encode the journal of %s: %w", c.ref, err)
	}
	value = append(value, '\n')
	if c.old != nil {
		header := len(value)
		old, err := json.Marshal(c.old.object)
		if err != nil {
			return nil, nil, fmt.Errorf("encode the journal of %s: %w", c.ref, err)
		}
		value = append(value, packed(old)...)
		e.old, e.recent = value[header:], c.old.object
	}
	e.size = len(value)
	return e, value, nil
}

// decodeJournal reads a stored entry. The version in it is looked at when somebody asks for it.
func decodeJournal(pair engine.Pair) (*entry, error) {
	text, found := strings.CutPrefix(pair.Key, journalPrefix)
	revision, err := strconv.ParseUint(text, 16, 64)
	if !found || err != nil || pair.Key != journalKey(revision) {
		return nil, fmt.Errorf("read journal: %q is not the key of an entry", pair.Key)
	}
	line, old, found := bytes.Cut(pair.Value, []byte{'\n'})
	var header journalHeader
	if !found {
		return nil, fmt.Errorf("read %s: it is cut short", pair.Key)
	}
	if err := json.Unmarshal(line, &header); err != nil {
		return nil, fmt.Errorf("read %s: %w", pair.Key, err)
	}
	e := &entry{
		revision: revision, previous: header.Previous, at: header.At, owner: header.Owner, by: header.By, size: len(pair.Value),
		ref: object.Ref{Kind: header.Kind, Namespace: header.Namespace, Name: header.Name},
	}
	if len(old) > 0 {
		e.old = old
	}
	if _, known := newOf(e.ref.Kind); !known || e.ref.Name == "" || e.previous >= e.revision {
		return nil, fmt.Errorf("read %s: it tells of no change of an object that is kept", pair.Key)
	}
	return e, nil
}

// decodeVersion is an object of which the JSON is kept.
func decodeVersion(ref object.Ref, data []byte) (object.Object, error) {
	o, _ := newOf(ref.Kind)
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
