package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/engine"
)

// errTrialOfFiles means that a data directory with a trial of files cannot go into a fleet.
var errTrialOfFiles = errors.New("the box has a trial of files under way, or holds files since one went back: start it once more, and say `svcctl confirm` or `svcctl confirm --back` first")

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
