package store

import (
	"iter"
	"strings"

	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// View has the objects that this machine programs: those of the store, except objects in a rollout that this machine does not
// program yet, which are as before. They must not be changed.
type View struct{ s *Store }

// InForce returns what this machine programs. It is always of now.
func (s *Store) InForce() View { return View{s} }

// Service is Store.Service.
func (v View) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	svc, list, endpoints := v.s.table.index.Service(key)
	if !v.s.pending.staged().Outside {
		return svc, list, endpoints
	}
	return v.s.pending.staged().Service(key, svc, list, endpoints)
}

// Before returns the view of machines that do not program the changes of a rollout: the versions before it of the objects in it,
// and all others as they are.
func (s *Store) Before() Before { return Before{s} }

// Before is a view on what was in force before a rollout, see Store.Before.
type Before struct{ s *Store }

// Service is Store.Service.
func (b Before) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	b.s.mu.RLock()
	defer b.s.mu.RUnlock()
	svc, list, endpoints := b.s.table.index.Service(key)
	return b.s.pending.staged().Service(key, svc, list, endpoints)
}

// Get is Store.Get.
func (b Before) Get(ref object.Ref) (object.Object, Owner) {
	b.s.mu.RLock()
	defer b.s.mu.RUnlock()
	r, staged := b.s.pending.staged().Before[ref]
	if !staged {
		r = b.s.table.records[ref]
	}
	return record.ObjectOf(r), record.OwnerOf(r)
}

// Services is Store.Services.
func (v View) Services() iter.Seq2[string, *object.Service] {
	v.s.mu.RLock()
	services := v.s.table.index.Services()
	if v.s.pending.staged().Outside {
		for ref, before := range v.s.pending.staged().Before {
			if ref.Kind != object.KindService {
				continue
			}
			delete(services, ref.Key())
			if before != nil && !before.Withheld {
				services[ref.Key()] = before.Object.(*object.Service)
			}
		}
	}
	v.s.mu.RUnlock()
	return inOrder(services)
}

// Since is Store.Since.
func (v View) Since(key string) record.Since {
	if r := v.record(object.ServiceRef(key)); r != nil {
		return r.Since()
	}
	return record.Since{}
}

// Secret is Store.Secret.
func (v View) Secret(key string) *object.Secret {
	namespace, name, _ := strings.Cut(key, "/")
	secret, _ := record.ObjectOf(v.record(object.Ref{Kind: object.KindSecret, Namespace: namespace, Name: name})).(*object.Secret)
	return secret
}

// Pod is Store.Pod: Pods are in no rollout.
func (v View) Pod(key string) *object.Pod { return v.s.Pod(key) }

// Selecting is Store.Selecting, with the selectors of all versions.
func (v View) Selecting(namespace string, labels map[string]string) []string {
	return v.s.Selecting(namespace, labels)
}

func (v View) record(ref object.Ref) *record.Record {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	if v.s.pending.staged().Outside {
		if before, staged := v.s.pending.staged().Before[ref]; staged {
			return before
		}
	}
	return v.s.table.records[ref]
}
