package pending

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// Set has the stored versions that objects had before the changes of a trial or a rollout; nil for objects that did not exist.
type Set struct {
	*Head // nil if there is no trial or rollout
	Kind  Kind
	// Before has the versions before the changes. Only Put changes it.
	Before map[object.Ref]*record.Record
	slices map[string][]object.Ref // the EndpointSlices in Before, by their Service
	// Outside is set when this machine programs the versions in Before, not the changes.
	Outside bool
}

// New returns a set with a head and no versions.
func New(k Kind, head *Head) *Set {
	return &Set{Head: head, Kind: k, Before: map[object.Ref]*record.Record{}, slices: map[string][]object.Ref{}}
}

// With returns a set with another head and the same versions, which both share.
func (s *Set) With(head *Head) *Set {
	next := *s
	next.Head = head
	return &next
}

// Has reports whether an object is in the set.
func (s *Set) Has(ref object.Ref) bool { _, has := s.Before[ref]; return has }

// Put sets the version that an object had before the changes.
func (s *Set) Put(ref object.Ref, before *record.Record) {
	if ref.Kind == object.KindEndpointSlice {
		if was := s.Before[ref]; was != nil {
			key := index.ServiceKey(was.Object)
			s.slices[key] = slices.DeleteFunc(slices.Clone(s.slices[key]), func(other object.Ref) bool { return other == ref })
		}
		if before != nil {
			key := index.ServiceKey(before.Object)
			s.slices[key] = append(slices.Clone(s.slices[key]), ref)
		}
	}
	s.Before[ref] = before
}

// Change is a change of one object. Old and Next are its versions before and after, nil if there is none. Owner is the owner of Next, or of Old if
// the object is removed. By is the client that made the change; nil for a file or a controller.
type Change struct {
	Ref   object.Ref
	Old   *record.Record
	Next  object.Object
	Owner record.Owner
	By    *journal.Caller
}

// Belongs reports whether a change is part of the set. These are the writes with the set's ID, in a timed set with Files the changes of files, and in
// a staged set the EndpointSlices and Endpoints that a controller generates from an object in the set.
func (s *Set) Belongs(c *Change) bool {
	switch {
	case !s.Pending():
		return false
	case c.By != nil:
		return s.Kind.IDOf(c.By) == s.ID
	case s.Kind == Timed:
		return s.Files && c.Owner.File != ""
	case c.Ref.Kind != object.KindEndpointSlice && c.Ref.Kind != object.KindEndpoints, c.Owner.Controller == "":
		return false
	}
	for _, o := range []object.Object{record.ObjectOf(c.Old), c.Next} {
		if o == nil {
			continue
		}
		if key := index.ServiceKey(o); s.Has(object.ServiceRef(key)) || s.Has(endpointsRef(key)) && c.Ref.Kind != object.KindEndpoints {
			return true
		}
	}
	return false
}

func endpointsRef(key string) object.Ref {
	ref := object.ServiceRef(key)
	ref.Kind = object.KindEndpoints
	return ref
}

// AddBefore adds to a commit the version that an object had before the changes; nil means that it did not exist.
func (k Kind) AddBefore(ref object.Ref, before *record.Record, revision uint64, out *engine.Transaction) error {
	pair := engine.Pair{Key: k.ObjectKey(ref), Revision: revision}
	if before != nil {
		value, _, err := before.Encode()
		if err != nil {
			return err
		}
		pair.Value, pair.Entry = value[engine.EntryHeader:], value
	}
	out.Puts = append(out.Puts, pair)
	return nil
}

// AddHead adds the stored form of the head to a commit.
func (s *Set) AddHead(revision uint64, out *engine.Transaction) error {
	value, err := json.Marshal(s.Head)
	if err != nil {
		return fmt.Errorf("encode the %s: %w", s.Kind, err)
	}
	out.Puts = append(out.Puts, engine.Pair{Key: s.Kind.HeadKey(), Value: value, Revision: revision})
	return nil
}

// Clone returns a copy of the set that can be changed independently.
func (s *Set) Clone() *Set {
	next := *s
	next.Before, next.slices = maps.Clone(s.Before), maps.Clone(s.slices)
	return &next
}

// AddEnd adds the end of the set to a commit: the versions are deleted, and the given head replaces that of the set; nil deletes it.
func (s *Set) AddEnd(head *Head, revision uint64, out *engine.Transaction) error {
	for ref := range s.Before {
		out.Deletes = append(out.Deletes, s.Kind.ObjectKey(ref))
	}
	if head == nil {
		out.Deletes = append(out.Deletes, s.Kind.HeadKey())
		return nil
	}
	return s.With(head).AddHead(revision, out)
}

// Follow returns the set as it is after f, a commit of another machine or the content loaded at a start. If f does not change the set, next is s
// itself. headed reports whether f contains a head of the set.
func (s *Set) Follow(f *engine.Followed) (next *Set, headed bool, err error) {
	ours := func(key string) bool { return strings.HasPrefix(key, s.Kind.Prefix()) }
	if !slices.ContainsFunc(f.Deletes, ours) && !slices.ContainsFunc(f.Puts, func(p engine.Pair) bool { return ours(p.Key) }) {
		return s, false, nil
	}
	next = s.Clone()
	for _, key := range f.Deletes {
		object, isObject := strings.CutPrefix(key, s.Kind.objectPrefix())
		if ref, is := record.RefOfKey(object); is && isObject {
			next.Put(ref, nil)
			delete(next.Before, ref)
		} else if key == s.Kind.HeadKey() {
			next.Head = nil
		}
	}
	for _, pair := range f.Puts {
		if pair.Key == s.Kind.HeadKey() {
			next.Head, headed = &Head{}, true
			if err := json.Unmarshal(pair.Value, next.Head); err != nil {
				return nil, false, fmt.Errorf("read stored %s: %w", pair.Key, err)
			}
		} else if key, is := strings.CutPrefix(pair.Key, s.Kind.objectPrefix()); is {
			ref, before, err := decodeBefore(key, pair)
			if err != nil {
				return nil, false, err
			}
			next.Put(ref, before)
		}
	}
	return next, headed, nil
}

// decodeBefore decodes the stored version that an object had before the changes; nil if the object did not exist.
func decodeBefore(key string, pair engine.Pair) (object.Ref, *record.Record, error) {
	ref, is := record.RefOfKey(key)
	if !is {
		return object.Ref{}, nil, fmt.Errorf("read stored %s: it is not the key of an object", pair.Key)
	}
	if len(pair.Value) == 0 {
		return ref, nil, nil
	}
	before, err := record.Decode(engine.Pair{Key: key, Value: pair.Value, Revision: pair.Revision})
	return ref, before, err
}

// Service replaces the given objects of a Service by their versions before the changes, as far as they are in the set.
func (s *Set) Service(key string, svc *object.Service, list []*object.EndpointSlice, endpoints *object.Endpoints) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	if before, has := s.Before[object.ServiceRef(key)]; has {
		svc = nil
		if before != nil && !before.Withheld {
			svc = before.Object.(*object.Service)
		}
	}
	if before, has := s.Before[endpointsRef(key)]; has {
		endpoints, _ = record.ObjectOf(before).(*object.Endpoints)
	}
	isIn := func(slice *object.EndpointSlice) bool { return s.Has(object.RefOf(slice)) }
	if had := s.slices[key]; len(had) > 0 || slices.ContainsFunc(list, isIn) {
		list = slices.DeleteFunc(slices.Clone(list), isIn)
		for _, ref := range had {
			list = append(list, s.Before[ref].Object.(*object.EndpointSlice))
		}
		slices.SortFunc(list, func(a, b *object.EndpointSlice) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	}
	return svc, list, endpoints
}

// Kind is a kind of set: Timed for trials, Staged for rollouts. There is at most one set of each kind at a time.
type Kind int

// The kinds of sets.
const (
	Timed  Kind = iota // a trial: it is rolled back at its end unless it is confirmed
	Staged             // a rollout: some machines program it before others
)

// Kinds are all kinds.
var Kinds = []Kind{Timed, Staged}

// String returns "trial" or "rollout", which also begins the engine keys of the kind.
func (k Kind) String() string { return [...]string{"trial", "rollout"}[k] }

// Prefix returns the prefix of the engine keys of a kind.
func (k Kind) Prefix() string { return k.String() + "/" }

// HeadKey returns the engine key of the head.
func (k Kind) HeadKey() string { return k.Prefix() + "head" }

// FilePrefix returns the prefix of the engine keys of files in a set.
func (k Kind) FilePrefix() string { return k.Prefix() + "file/" }

func (k Kind) objectPrefix() string { return k.Prefix() + "object/" }

// ObjectKey returns the engine key for the version of an object before the changes.
func (k Kind) ObjectKey(ref object.Ref) string { return k.objectPrefix() + record.Key(ref) }

// Holder returns the name under which the allocator reserves the values that Services gave up in a set. No Service has this name.
func (k Kind) Holder() string {
	return [...]string{"(on trial: it goes back unless confirmed)", "(in a rollout: some boxes serve it until that is done)"}[k]
}

// IDOf returns the ID of the set that a client's writes belong to, from its Caller; "" if they belong to none.
func (k Kind) IDOf(by *journal.Caller) string {
	switch {
	case by == nil:
		return ""
	case k == Timed:
		return by.Trial
	}
	return by.Rollout
}

// CallerOf returns a copy of by for writes that belong to the set with the given ID.
func (k Kind) CallerOf(by journal.Caller, id string) journal.Caller {
	if k == Timed {
		by.Trial = id
	} else {
		by.Rollout = id
	}
	return by
}

// ObjectOfKey returns, for the key of a version before the changes, the engine key of the object itself. It returns any other key
// unchanged.
func ObjectOfKey(key string) string {
	for _, k := range Kinds {
		if rest, is := strings.CutPrefix(key, k.objectPrefix()); is {
			return rest
		}
	}
	return key
}

// IsKey reports whether an engine key belongs to a set.
func IsKey(key string) bool {
	return slices.ContainsFunc(Kinds, func(k Kind) bool { return strings.HasPrefix(key, k.Prefix()) })
}

// Phase is the phase of a staged set (rollout).
type Phase string

// The phases of a staged set.
const (
	Gathering   Phase = "Gathering"   // the client writes its changes, which no machine programs yet
	Programming Phase = "Programming" // the machines in Boxes are programming the changes
	Baking      Phase = "Baking"      // all machines in Boxes have programmed the changes, and are being watched
	Stopped     Phase = "Stopped"     // it waits for resume or undo
	Done        Phase = "Done"
	Undone      Phase = "Undone"
)

// Head describes a set, without the versions in it. It has more than 15 fields: all that another machine needs to continue it.
type Head struct {
	ID    string    `json:"id"`
	Began time.Time `json:"began"`
	// Ends is the time at which a timed set is rolled back, or at which the phase of a staged set ends. Each machine measures it with its own clocks,
	// from the moment at which it receives the head.
	Ends deadline.Deadline `json:"ends"`
	User string            `json:"user,omitempty"` // author of the set
	// Files is set when a timed set covers all changes of files.
	Files bool `json:"files,omitempty"`
	// Back is the time at which a timed set was rolled back, if files are still held since then; else nil.
	Back *time.Time `json:"back,omitempty"`

	// The fields below are set in staged sets only.
	Phase Phase `json:"phase,omitempty"`
	// Turn counts the changes of the head. If two machines replace the head with the same Turn, the second is refused (ErrMoved).
	Turn uint64 `json:"turn,omitempty"`
	// Boxes are the machines that program the changes, sorted by name. With Everyone, all other machines do so too, as soon as they are connected.
	Boxes    []string `json:"boxes,omitempty"`
	Everyone bool     `json:"everyone,omitempty"`
	// Revision is the revision that the Boxes must have programmed.
	Revision uint64 `json:"revision,omitempty"`
	// Since is the time at which the phase began. Why is the reason for the phases Stopped and Undone.
	Since time.Time `json:"since,omitzero"`
	Why   string    `json:"why,omitempty"`

	// Plan is a JSON object with fields that the caller of the store adds. They are stored in the same JSON object as the other fields.
	Plan json.RawMessage `json:"-"`
}

// plainHead is Head without its methods, for encoding/json.
type plainHead Head

// MarshalJSON implements json.Marshaler. The fields of Plan are put into the same JSON object as the other fields.
func (h Head) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(plainHead(h))
	if err != nil || len(h.Plan) <= len("{}") {
		return text, err
	}
	return slices.Concat(text[:len(text)-1], []byte(","), h.Plan[1:]), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (h *Head) UnmarshalJSON(text []byte) error {
	var own, all map[string]json.RawMessage
	err := errors.Join(json.Unmarshal(text, (*plainHead)(h)), json.Unmarshal(text, &all))
	if err != nil {
		return err
	}
	// Every field of the head is in the JSON of a full one.
	full, err := json.Marshal(plainHead{User: "-", Files: true, Back: &time.Time{}, Phase: "-", Turn: 1, Boxes: []string{"-"}, Everyone: true, Revision: 1, Since: time.Unix(1, 0), Why: "-"})
	if err == nil {
		err = json.Unmarshal(full, &own)
	}
	maps.DeleteFunc(all, func(name string, _ json.RawMessage) bool { _, is := own[name]; return is })
	if err != nil || len(all) == 0 {
		return err
	}
	h.Plan, err = json.Marshal(all)
	return err
}

// Pending reports whether the set is still under way, so that its changes can be undone.
func (h *Head) Pending() bool {
	return h != nil && h.Back == nil && h.Phase != Done && h.Phase != Undone
}

// Has reports whether a machine programs the changes of a staged set: all machines do after its end.
func (h *Head) Has(box string) bool {
	return !h.Pending() || h.Everyone || slices.Contains(h.Boxes, box)
}

// State is the head of a set, with the objects and files that it covers.
type State struct {
	Head
	Objects []object.Ref // sorted by name
	// Files are the paths of the files that a timed set covers, or that are held since its rollback, sorted.
	Files []string
	// Here reports whether this machine programs the changes.
	Here bool
	// Services lists the Services, as "namespace/name", that a staged set changes, or whose endpoints it changes, sorted.
	Services []string
}

// LocalEnd is the end of a set as measured by the clocks of one machine. It is stored only on that machine.
type LocalEnd struct {
	// ID (Head.EndID) and Of (Head.Ends.Wall) identify the end in the head that this is computed from.
	ID string    `json:"id"`
	Of time.Time `json:"of"`
	// Here is the end by the clocks of this machine.
	Here deadline.Deadline `json:"here"`
}

// EndKey returns the engine key of the LocalEnd of a kind.
func (k Kind) EndKey() string { return "ends/" + k.String() }

// EndID returns an identifier of the end time in Ends. For a staged set it includes Turn, because each phase has an end of its own.
func (h *Head) EndID() string {
	if h.Turn > 0 {
		return fmt.Sprint(h.ID, "/", h.Turn)
	}
	return h.ID
}

var (
	// ErrFilesHeld means that files still have changes whose trial was undone. Such files are held: their changes are not in force until they are
	// confirmed.
	ErrFilesHeld = errors.New("changes of files were not confirmed and are held: undo them in the files, try them once more with `svcctl confirm --start 5m`, or take them with `svcctl confirm`")
	// ErrFilesShared means that a trial cannot include files, because the box belongs to a fleet.
	ErrFilesShared = errors.New("in a fleet files are not tried: one box reads them for all; undo their changes where they are written; " +
		"`apply --confirm`, `delete --confirm` and `rollback --confirm` try changes of objects")
	// ErrNoTimed means that there is no trial, and no held file, to confirm or undo.
	ErrNoTimed = errors.New("nothing waits to be confirmed")
	// ErrTimedOver means that a write belongs to a trial that is over.
	ErrTimedOver = errors.New("the trial that this change belongs to is over: nothing of it is changed any more")

	// ErrAlone means that the operation needs a fleet, and the store belongs to one machine.
	ErrAlone = errors.New("a rollout changes the boxes of a fleet one after the other, and this box belongs to none: `svcctl apply --confirm DURATION` tries a change on a box of its own")
	// ErrNoStaged means that no rollout is under way.
	ErrNoStaged = errors.New("no rollout is under way")
	// ErrStagedOver means that a write belongs to a rollout that has begun, or is over.
	ErrStagedOver = errors.New("the rollout that this change belongs to is over, or has been started: nothing of it is changed any more")
	// ErrMoved means that another machine has advanced or ended the rollout first.
	ErrMoved = errors.New("the rollout has advanced in the meantime: see `svcctl fleet rollout status`")
)

// StagedError means that an object is part of a rollout, so that other writes to it are refused.
type StagedError struct {
	ID  string
	Ref object.Ref // the object; the zero Ref if the refused request was to begin another rollout
}

// Error implements error.
func (e *StagedError) Error() string {
	what := "rollout " + e.ID + " is under way"
	if e.Ref != (object.Ref{}) {
		what = fmt.Sprintf("%s is under way in rollout %s", e.Ref, e.ID)
	}
	return fmt.Sprintf("%s: wait until `svcctl fleet rollout status` shows that it is done, or end it with `svcctl fleet rollout undo`", what)
}

// TimedError means that an object is part of a trial, so that it cannot be part of a rollout.
type TimedError struct{ Ref object.Ref }

// Error implements error.
func (e *TimedError) Error() string {
	return fmt.Sprintf("%s is on trial: `svcctl confirm`, or take it back with `svcctl confirm --back`, first", e.Ref)
}
