package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/reread"
)

// The keys of the engine: the head, whose revision is the store's; objects under
// object/KIND/NAMESPACE/NAME; last good copies under file/PATH; what was there before a
// change under journal/REVISION; seals of files under seal/PATH.
const (
	headKey       = "head"
	objectPrefix  = "object/"
	filePrefix    = "file/"
	journalPrefix = journal.Prefix
	sealPrefix    = "seal/"
)

// Owner is the owner of an object.
type Owner = journal.Owner

// record is an accepted object. It is immutable.
type record struct {
	object object.Object
	owner  Owner
	// digest is of the stored form, to see that a new version is no other one.
	digest digest
	// created is the revision of its creation; 0 in what older versions have written. asked is
	// what it asked for later, see Since.
	created uint64
	asked   map[string]uint64
	// withheld is set when the object holds values that belong to an older one: the dataplane does not
	// get it.
	withheld bool
}

// ownerOf returns the owner of an object; the zero Owner for nil.
func ownerOf(r *record) Owner {
	if r == nil {
		return Owner{}
	}
	return r.owner
}

// objectOf is the object of a record, nil for none.
func objectOf(r *record) object.Object {
	if r == nil {
		return nil
	}
	return r.object
}

// digest is two hashes of a text, with random seeds. It means nothing outside of this process.
type digest [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func digestOf(text []byte) digest {
	return digest{maphash.Bytes(seeds[0], text), maphash.Bytes(seeds[1], text)}
}

// stored is the value of an object in the engine.
type stored struct {
	Owner   Owner             `json:"owner"`
	Created uint64            `json:"created,omitempty"`
	Asked   map[string]uint64 `json:"asked,omitempty"`
	Object  object.Object     `json:"object"`
}

func objectKey(ref object.Ref) string {
	return objectPrefix + ref.Kind + "/" + ref.Namespace + "/" + ref.Name
}

// encodings are buffers for stored forms: most are only compared, or copied to their length.
var encodings = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// encode is the stored form, behind room for the header of an entry, and its digest.
func (v *stored) encode() (entry []byte, digest digest, err error) {
	err = v.encoded(func(form []byte) {
		entry, digest = slices.Clone(form), digestOf(form[engine.EntryHeader:])
	})
	return entry, digest, err
}

// digest returns the digest of the stored form without its header.
func (v *stored) digest() (digest digest, err error) {
	err = v.encoded(func(form []byte) { digest = digestOf(form[engine.EntryHeader:]) })
	return digest, err
}

// encoded calls use with the stored form behind room for the header, which is good until use returns.
func (v *stored) encoded(use func(form []byte)) error {
	buffer := encodings.Get().(*bytes.Buffer)
	defer encodings.Put(buffer)
	buffer.Reset()
	buffer.Write(make([]byte, engine.EntryHeader))
	if err := json.NewEncoder(buffer).Encode(v); err != nil {
		return fmt.Errorf("encode %s: %w", object.RefOf(v.Object), err)
	}
	use(bytes.TrimSuffix(buffer.Bytes(), []byte("\n")))
	return nil
}

func decodeRecord(pair engine.Pair) (*record, error) {
	kind, _, _ := strings.Cut(strings.TrimPrefix(pair.Key, objectPrefix), "/")
	o, known := newOf(kind)
	if !known {
		return nil, fmt.Errorf("read stored %s: a newer version has written a kind that this one does not know: start that one", pair.Key)
	}
	if engine.IsSealed(pair.Value) {
		return nil, fmt.Errorf("read stored %s: it is sealed by the key of a fleet: open it with `svcctl fleet leave DATA-DIR --fleet-key-file FILE`, or serve with --fleet", pair.Key)
	}
	value := stored{Object: o}
	if !reread.Into(pair.Value, &value) { // what is older than a field may have others
		o, _ = newOf(kind)
		value = stored{Object: o}
		if err := json.Unmarshal(pair.Value, &value); err != nil {
			return nil, fmt.Errorf("read stored %s: %w", pair.Key, err)
		}
		if value.Object != nil {
			object.Share(value.Object)
		}
	}
	if value.Object == nil || objectKey(object.RefOf(value.Object)) != pair.Key {
		return nil, fmt.Errorf("read stored %s: %w", pair.Key, errors.New("it holds another object"))
	}
	return &record{object: value.Object, owner: value.Owner, digest: digestOf(pair.Value), created: value.Created, asked: value.Asked}, nil
}

// newOf is an empty object of a kind that is stored.
func newOf(kind string) (object.Object, bool) {
	s := object.StrategyOfKind(kind)
	if s == nil || !s.Stored() {
		return nil, false
	}
	return s.New(), true
}

// Caller is the client of a change, as the journal keeps it.
type Caller = journal.Caller

// revisionShift turns the seconds of the clock into a first revision: a million changes
// a second would have to be made for the counter to outrun the clock.
const revisionShift = 20

func createdAt(o object.Object) time.Time {
	if at := o.GetMeta().CreationTimestamp; at != nil {
		return *at
	}
	return time.Time{}
}

func compareRefs(a, b object.Ref) int {
	if a.Namespace != b.Namespace {
		return strings.Compare(a.Namespace, b.Namespace)
	}
	if a.Name != b.Name {
		return strings.Compare(a.Name, b.Name)
	}
	return strings.Compare(a.Kind, b.Kind)
}

// refOfKey is the object that a key of the engine names.
func refOfKey(key string) (object.Ref, bool) {
	parts := strings.SplitN(strings.TrimPrefix(key, objectPrefix), "/", 3)
	if !strings.HasPrefix(key, objectPrefix) || len(parts) != 3 {
		return object.Ref{}, false
	}
	return object.Ref{Kind: parts[0], Namespace: parts[1], Name: parts[2]}, true
}

// NamespacesController makes Namespaces that objects need and no file or client declares. They
// become the API's when a client changes them.
const NamespacesController = "namespaces"

// NodeController keeps the Node of this box. Clients may write to it: labels and annotations that are not
// the controller's stay, as kubectl label and cordon have it.
const NodeController = "node"

// IsNodeController reports whether an owner keeps the Node of a box: of this one, or in a fleet of any.
func IsNodeController(owner string) bool {
	return owner == NodeController || strings.HasPrefix(owner, NodeController+"/")
}

// table has the stored objects, and what is found by them. Only the writer changes it, under Store.mu.
type table struct {
	records map[object.Ref]*record
	index   *index.Index
	lists   lists
	// namespaces counts what is in which namespace.
	namespaces namespaceUse
	foreign    foreigners
	dependents dependents
	// declaredServices counts the Services that belong to files.
	declaredServices int
}

func newTable() table {
	return table{
		records: map[object.Ref]*record{}, index: index.New(), lists: lists{kinds: map[string]*kindList{}},
		namespaces: newNamespaceUse(), foreign: foreigners{}, dependents: newDependents(),
	}
}

// get returns a stored object, nil when there is none.
func (t *table) get(ref object.Ref) *record { return t.records[ref] }

// grow makes room for the objects of a first start.
func (t *table) grow(objects int) {
	if len(t.records) == 0 {
		t.records = make(map[object.Ref]*record, objects)
	}
}

// set puts an object in its place; nil removes it.
func (t *table) set(ref object.Ref, r *record) {
	old := t.records[ref]
	t.lists.touch(ref)
	t.namespaces.move(ref, old, r)
	t.foreign.move(ref, old, r)
	t.dependents.move(ref, old, r)
	if old != nil {
		t.index.Remove(old.object)
	}
	if ref.Kind == object.KindService {
		t.declaredServices += declaredBy(r) - declaredBy(old)
	}
	if r == nil {
		delete(t.records, ref)
		return
	}
	t.records[ref] = r
	if !r.withheld {
		t.index.Add(r.object)
	}
}

// declaredBy is 1 for an object of a file, else 0.
func declaredBy(r *record) int {
	if r != nil && r.owner.File != "" {
		return 1
	}
	return 0
}
