package store

import (
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// Ahead is what a Store will say of its Services once the commit that is under way has
// succeeded.
type Ahead struct {
	index index
	since map[string]Since // by Service
}

// aheadOf is what the Services of an empty store become by some changes.
func aheadOf(changes []*change) *Ahead {
	a := &Ahead{newIndex(), map[string]Since{}}
	for _, c := range changes {
		if c.record != nil {
			a.index.add(c.record)
			if c.ref.Kind == object.KindService {
				a.since[c.ref.Key()] = c.record.since()
			}
		}
	}
	return a
}

// Service is Store.Service.
func (a *Ahead) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	return a.index.service(key)
}

// Since is Store.Since.
func (a *Ahead) Since(key string) Since { return a.since[key] }

// ServiceKeys is Store.ServiceKeys.
func (a *Ahead) ServiceKeys() []string { return sortedOnce(a.index.keys()) }

// SyncFilesAhead is SyncFiles for who has much to do with its outcome. If there are no
// Services yet, nor anything for them, ahead is called while the commit is under way, and
// SyncFilesAhead returns when both are over; otherwise it is not called. It may read from the
// Store, which says nothing of this yet, and not write to it. After an error nothing of what
// ahead was given has become true.
func (s *Store) SyncFilesAhead(files manifest.Files, ahead func(*Ahead)) (SyncResult, error) {
	return s.syncFiles(files, ahead)
}
