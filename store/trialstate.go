package store

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// The keys of a trial: its head, and below the two others what was there before, of each object
// (its stored form) and each file (see trialFile).
const (
	trialPrefix       = "trial/"
	trialKey          = trialPrefix + "head"
	trialObjectPrefix = trialPrefix + "object/"
	trialFilePrefix   = trialPrefix + "file/"
)

// A Trial has changes that are rolled back unless they are confirmed: those of its Writes
// (Caller.Trial), and with Files those of files. The objects before are stored in the transaction
// of each change. After the rollback, the files that it was about are held, see GoBack.
type Trial struct {
	ID    string    `json:"id"`
	Began time.Time `json:"began"`
	// Ends is the time at which it is rolled back.
	Ends deadline.Deadline `json:"ends"`
	// User began it.
	User  string `json:"user,omitempty"`
	Files bool   `json:"files,omitempty"`
	// Back is the time at which it was rolled back; nil while it waits to be confirmed.
	Back *time.Time `json:"back,omitempty"`
}

// Pending reports whether the trial waits to be confirmed.
func (t *Trial) Pending() bool { return t != nil && t.Back == nil }

// TrialState is a Trial and what it has changed, or holds.
type TrialState struct {
	Trial
	Objects []object.Ref // by name
	Files   []string     // by path
}

var (
	// ErrFilesHeld means that files whose changes went back are held and have to be dealt with first.
	ErrFilesHeld = errors.New("changes of files were not confirmed and are held: undo them in the files, try them once more with `svcctl confirm --start 5m`, or take them with `svcctl confirm`")
	// ErrTrialInFleet means that the box belongs to a fleet, where a trial is about objects alone.
	ErrTrialInFleet = errors.New("in a fleet files are not tried: one box reads them for all; undo their changes where they are written; " +
		"`apply --confirm`, `delete --confirm` and `rollback --confirm` try changes of objects")
	// ErrNoTrial means that nothing waits to be confirmed.
	ErrNoTrial = errors.New("nothing waits to be confirmed")
	// ErrTrialOver means that a write belongs to a trial that is over.
	ErrTrialOver = errors.New("the trial that this change belongs to is over: nothing of it is changed any more")
)

// trial is the trial that is under way, or still holds files. Only the writer changes it, under mu.
type trial struct {
	*Trial // nil: there is none
	// before has what was there before, nil where nothing was.
	before map[object.Ref]*record.Record
	// files are the paths of which the content before is stored.
	files map[string]bool
	// held are the files that are not taken as they are, see GoBack.
	held map[string]heldFile
}

// addTo adds the stored form to a transaction.
func (t *Trial) addTo(out *engine.Transaction, revision uint64) error {
	value, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("encode the trial: %w", err)
	}
	out.Puts = append(out.Puts, engine.Pair{Key: trialKey, Value: value, Revision: revision})
	return nil
}

// keys returns the keys of all stored records of the trial.
func (t *trial) keys() []string {
	keys := []string{trialKey}
	for ref := range t.before {
		keys = append(keys, trialObjectPrefix+record.Key(ref))
	}
	for path := range t.files {
		keys = append(keys, trialFilePrefix+path)
	}
	for path := range t.held {
		if !t.files[path] {
			keys = append(keys, trialFilePrefix+path)
		}
	}
	return keys
}

// pairBefore is the stored form of what was there before; nil: nothing.
func pairBefore(prefix string, ref object.Ref, old *record.Record, revision uint64) (engine.Pair, error) {
	pair := engine.Pair{Key: prefix + record.Key(ref), Revision: revision}
	if old != nil {
		value, _, err := old.Encode()
		if err != nil {
			return pair, err
		}
		pair.Value, pair.Entry = value[engine.EntryHeader:], value
	}
	return pair, nil
}

// keepFiles adds to a commit the contents of files that it replaces.
func (t *trial) keepFiles(from engine.Engine, revision uint64, out *engine.Transaction) (kept []string, err error) {
	if !t.Pending() || !t.Trial.Files {
		return nil, nil
	}
	keep := func(key string) error {
		path, is := strings.CutPrefix(key, filePrefix)
		if !is || t.files[path] {
			return nil
		}
		pairs, err := from.Load(key)
		if err != nil {
			return err
		}
		var before trialFile
		if len(pairs) > 0 && pairs[0].Key == key { // others may begin with its path
			before.was, before.content = true, pairs[0].Value
		}
		out.Puts = append(out.Puts, engine.Pair{Key: trialFilePrefix + path, Value: before.encode(), Revision: revision})
		kept = append(kept, path)
		return nil
	}
	for _, p := range slices.Clone(out.Puts) {
		if err := keep(p.Key); err != nil {
			return nil, err
		}
	}
	for _, key := range out.Deletes {
		if err := keep(key); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// kept notes the paths of which keepFiles has stored the content.
func (t *trial) kept(paths []string) {
	for _, path := range paths {
		t.files[path] = true
	}
}

// decodeBefore reads what an object was before a trial or a rollout; nil: it was not there.
func decodeBefore(pair engine.Pair, prefix string) (object.Ref, *record.Record, error) {
	key := strings.TrimPrefix(pair.Key, prefix)
	ref, is := record.RefOfKey(key)
	if !is {
		return object.Ref{}, nil, fmt.Errorf("read stored %s: it is not the key of an object", pair.Key)
	}
	if len(pair.Value) == 0 {
		return ref, nil, nil
	}
	r, err := record.Decode(engine.Pair{Key: key, Value: pair.Value, Revision: pair.Revision})
	return ref, r, err
}

// holdFiles makes what the trial has found in files what is not taken. It gives the held files, and adds
// their stored forms to a transaction.
func (t *trial) holdFiles(from engine.Engine, revision uint64, found manifest.Files, out *engine.Transaction) (map[string]heldFile, error) {
	held := map[string]heldFile{}
	pairs, err := from.Load(trialFilePrefix)
	if err != nil {
		return nil, err
	}
	for _, pair := range pairs {
		path := pair.Key[len(trialFilePrefix):]
		f := decodeTrialFile(pair.Value)
		f.refused, f.is, f.hash = true, false, manifest.Hash{}
		if now := found.Get(path); now != nil {
			f.is, f.hash = true, now.Hash
		}
		if f.is == f.was && (!f.is || f.hash == sha256.Sum256(f.content)) {
			out.Deletes = append(out.Deletes, pair.Key) // it is as it was
			continue
		}
		held[path] = f.hold(path)
		out.Puts = append(out.Puts, engine.Pair{Key: pair.Key, Value: f.encode(), Revision: revision})
	}
	return held, nil
}

// effective are files with those that are held as they were before the trial. A file that is not
// what the trial found any more is held no longer: let are those.
func (t *trial) effective(files manifest.Files) (taken manifest.Files, let []string) {
	if len(t.held) == 0 {
		return files, nil
	}
	taken = slices.Clone(files)
	for path, h := range t.held {
		i, there := taken.Find(path)
		if there != h.is || there && taken[i].Hash != h.hash {
			let = append(let, path)
			continue
		}
		switch {
		case there && h.before != nil:
			taken[i] = h.before
		case there:
			taken = slices.Delete(taken, i, i+1)
		case h.before != nil:
			taken = slices.Insert(taken, i, h.before)
		}
	}
	return taken, let
}
