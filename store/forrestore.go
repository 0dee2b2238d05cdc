package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// errTrialOfFiles means that a data directory with a trial of files cannot go into a fleet.
var errTrialOfFiles = errors.New("the box has a trial of files under way, or holds files since one went back: start it once more, and run `svcctl confirm` or `svcctl confirm --back` first")

// ForRestore is the stored record of a source or a trial after the objects of a data directory have taken the place of
// those of a fleet. value is the directory's, nil for none, and now the fleet's, nil for none; nil: there is none afterwards.
//
// Sources have the files of the directory, as its objects have, and the reader of the fleet. Of trials the directory's
// is under way, with its whole time from now on.
func ForRestore(key string, value, now []byte, nodeOwner string, named func(path string) string) ([]byte, error) {
	switch {
	case key == trialKey:
		return restoreTrial(value)
	case strings.HasPrefix(key, trialFilePrefix):
		return nil, nil // of a trial of files, which trialKey refuses
	case strings.HasPrefix(key, trialObjectPrefix):
		if len(value) == 0 || engine.IsSealed(value) {
			return value, nil
		}
		return ForFleet(strings.TrimPrefix(key, trialObjectPrefix), value, nodeOwner, named)
	case isSourceKey(key) && !strings.Contains(strings.TrimPrefix(key, sourcePrefix), "/"):
		return restoreSource(value, now)
	}
	return value, nil
}

// restoreTrial has a trial end after its whole time.
func restoreTrial(value []byte) ([]byte, error) {
	if value == nil {
		return nil, nil
	}
	var head Trial
	if err := json.Unmarshal(value, &head); err != nil {
		return nil, fmt.Errorf("read the stored trial: %w", err)
	}
	if head.Files || !head.Pending() {
		return nil, errTrialOfFiles
	}
	head.Ends = deadline.After(head.Ends.Most, deadline.Now())
	return json.Marshal(&head)
}

// restoreSource is the record of a source.
func restoreSource(value, now []byte) ([]byte, error) {
	if now == nil {
		return value, nil
	}
	var restored, current Source
	err := json.Unmarshal(now, &current)
	if err == nil && value != nil {
		err = json.Unmarshal(value, &restored)
	}
	if err != nil {
		return nil, fmt.Errorf("read the stored source: %w", err)
	}
	current.Generation = restored.Generation
	return json.Marshal(&current)
}

// KnowsKey reports whether a key of the engine is of a kind that this program can read.
func KnowsKey(key string) bool {
	key = strings.TrimPrefix(strings.TrimPrefix(key, trialObjectPrefix), rolloutObjectPrefix)
	rest, isObject := strings.CutPrefix(key, objectPrefix)
	if !isObject {
		return true
	}
	kind, _, _ := strings.Cut(rest, "/")
	_, known := newOf(kind)
	return known
}

// IsSecretKey reports whether a key of the engine is of an object that is secret, or of what it was before a trial or a
// rollout: a fleet has it sealed.
func IsSecretKey(key string) bool {
	return strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(key, trialObjectPrefix), rolloutObjectPrefix), objectPrefix+object.KindSecret+"/")
}

// ForFleet is a stored object of a single box as a fleet keeps it; nil: it does not. What files declared
// becomes the source's that named gives for the path of the file, and the API's when that is none (""); the Node that the
// box made of itself stays behind.
func ForFleet(key string, value []byte, nodeOwner string, named func(path string) string) ([]byte, error) {
	r, err := decodeRecord(engine.Pair{Key: key, Value: value})
	if err != nil {
		return nil, err
	}
	switch {
	case r.owner.Controller == nodeOwner:
		return nil, nil
	case r.owner.File == "" || SourceOf(r.owner.File) != "":
		return value, nil
	}
	entry, _, err := (&stored{Owner{File: named(r.owner.File)}, r.created, r.asked, r.object}).encode()
	if err != nil {
		return nil, err
	}
	return entry[engine.EntryHeader:], nil
}
