package journal

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

// Prefix begins the keys of entries in the engine.
const Prefix = "journal/"

// Owner is the owner of an object: the file at a path, a controller, which generates it from other
// objects, or the API when both are empty. Only the owner can change it; but a file may take over
// the name of an object of a controller.
type Owner struct {
	File       string `json:"file,omitempty"`
	Controller string `json:"controller,omitempty"`
}

// String is the path of the file, "the endpoints controller" or "the API".
func (o Owner) String() string {
	switch {
	case o.File != "":
		return o.File
	case o.Controller != "":
		return "the " + o.Controller + " controller"
	}
	return "the API"
}

// Caller is the client of a change, as the journal keeps it. The zero Caller is the appliance
// itself, or a file.
type Caller struct {
	User    string `json:"user,omitempty"`    // "root", "uid:1000", the name of a token
	Manager string `json:"manager,omitempty"` // the field manager
	Agent   string `json:"agent,omitempty"`   // User-Agent
	Verb    string `json:"verb,omitempty"`    // create, update, patch, apply, delete
	// Trial is the ID of the Trial that the change belongs to: it goes back with it.
	Trial string `json:"trial,omitempty"`
	// Rollout is the ID of the rollout that the change belongs to: some boxes have it before others.
	Rollout string `json:"rollout,omitempty"`
}

// Bounds limits the journal, in memory and in the engine alike.
type Bounds struct {
	Entries, Bytes int
	// Recent is the number of newest entries whose old versions are kept as objects, for watches
	// that follow closely. The others have only the JSON.
	Recent int
}

// DefaultBounds hold some minutes of a busy box, and a batch of 10,000 objects.
func DefaultBounds() Bounds { return Bounds{Entries: 10_000, Bytes: 8 << 20, Recent: 1_000} }

// A Change is one change of one object.
type Change struct {
	Revision uint64
	Ref      object.Ref
	Owner    Owner         // of the object afterwards, or of the one that went
	By       *Caller       // nil: nobody of the API
	Old      object.Object // what was there before; nil: nothing
}

// slack is the part of the bounds (one in so many) that is made free at once when they are
// reached, so that the next changes need not.
const slack = 8

// An Entry is a change as the journal keeps it, with the version before. The version after is the one
// before the next change of the same object, or else the present one.
type Entry struct {
	Revision uint64
	Previous uint64 // the revision before
	At       time.Time
	Ref      object.Ref
	Owner    Owner
	By       Caller
	// old is the JSON of the version before, see packed; nil when there was none.
	old []byte
	// size is the size of the stored form, in bytes.
	size int

	// recent is the object that old encodes, while the entry is among the newest.
	recent object.Object
	// next is the next change of the same object. The lock of the Journal guards it, and recent.
	next *Entry
}

// header is the first line of a stored entry; the rest is the version before.
type header struct {
	Previous  uint64    `json:"previous"`
	At        time.Time `json:"at"`
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	Owner     Owner     `json:"owner"`
	By        Caller    `json:"by"`
}

// Key returns the key of the entry of a revision.
func Key(revision uint64) string { return fmt.Sprintf("%s%016x", Prefix, revision) }

// entryOf returns the entry of a change after a revision, and its stored form.
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

// decode reads a stored entry. The version in it is decoded on request.
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

// decodeVersion is an object of which the JSON is kept.
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
