package store

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// maxLog is how many changes are remembered. Who asks about older ones is told to look
// at everything, which costs no more at that point.
const maxLog = 100_000

// maxLogged is how many changes of one transaction are remembered: after more of them, which
// is a start or much of everything, all is to be looked at.
const maxLogged = maxLog / 4

// changeLog remembers which Services, Pods and Secrets were touched by which revision.
type changeLog struct {
	// since is the last revision that is forgotten.
	since   uint64
	entries []logEntry // by revision
}

type logEntry struct {
	revision uint64
	key      string // "namespace/name"
	of       logKind
}

// logKind says what a logEntry is about.
type logKind uint8

const (
	ofService logKind = iota
	ofPod
	ofSecret
)

// reset forgets all up to a revision.
func (l *changeLog) reset(revision uint64) { *l = changeLog{since: revision} }

// addService notes that a Service was touched, if it is one.
func (l *changeLog) addService(revision uint64, key string) {
	if key != "" {
		l.add(logEntry{revision: revision, key: key})
	}
}

func (l *changeLog) addPod(revision uint64, key string) {
	l.add(logEntry{revision: revision, key: key, of: ofPod})
}

func (l *changeLog) addSecret(revision uint64, key string) {
	l.add(logEntry{revision: revision, key: key, of: ofSecret})
}

func (l *changeLog) add(entry logEntry) {
	if entry.revision <= l.since {
		return // forgotten before it is told
	}
	if len(l.entries) >= maxLog {
		half := len(l.entries) / 2
		l.since = l.entries[half-1].revision
		l.entries = slices.Clone(l.entries[half:])
	}
	l.entries = append(l.entries, entry)
}

// ChangeSet is what has changed after a revision.
type ChangeSet struct {
	// Revision is the one to ask about next.
	Revision uint64
	// All says that it is not known what has changed: look at all Services, Pods and Secrets.
	All bool
	// Services are the "namespace/name" of the Services that changed, came, went, or
	// whose EndpointSlices or Endpoints did; sorted. Empty when All is set.
	Services []string
	// Pods are the "namespace/name" of the Pods that changed, came or went; sorted. Empty
	// when All is set.
	Pods []string
	// Secrets are the same of Secrets.
	Secrets []string
}

// Revision is that of the last change.
func (s *Store) Revision() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.revision
}

// Revisions are that of the last change, and that of the last one which whoever follows
// Changed has to look at: what came after it is only for clients to talk to each other.
func (s *Store) Revisions() (accepted, concerning uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.revision, s.concerning
}

// Changed has a value when something was published since the last one was taken out that
// Revisions tells of. It is for one reader.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// Changes is what has changed after a revision, which a former ChangeSet gave. For 0, a
// revision that is too long ago, or one that is not there yet, it is everything.
func (s *Store) Changes(since uint64) ChangeSet {
	s.mu.RLock()
	defer s.mu.RUnlock()
	set := ChangeSet{Revision: s.revision}
	if since < s.log.since || since > s.revision || since == 0 {
		set.All = true
		return set
	}
	from, _ := slices.BinarySearchFunc(s.log.entries, since+1, func(e logEntry, revision uint64) int {
		return cmp.Compare(e.revision, revision)
	})
	for _, entry := range s.log.entries[from:] {
		switch entry.of {
		case ofPod:
			set.Pods = append(set.Pods, entry.key)
		case ofSecret:
			set.Secrets = append(set.Secrets, entry.key)
		case ofService:
			set.Services = append(set.Services, entry.key)
		}
	}
	set.Services, set.Pods, set.Secrets = sortedOnce(set.Services), sortedOnce(set.Pods), sortedOnce(set.Secrets)
	return set
}

func sortedOnce(keys []string) []string {
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Service is what is to be programmed for a "namespace/name": the Service, nil when there
// is none or it is withheld (see Open), its EndpointSlices by name and its Endpoints, nil
// when there is none. Nothing of it may be changed.
func (s *Store) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.service(key)
}

// Services are the "namespace/name" of all Services that may be programmed, as of the
// moment of the call, with the Services; sorted.
func (s *Store) Services() iter.Seq2[string, *object.Service] {
	s.mu.RLock()
	services := maps.Clone(s.index.services)
	s.mu.RUnlock()
	return func(yield func(string, *object.Service) bool) {
		for _, key := range slices.Sorted(maps.Keys(services)) {
			if !yield(key, services[key]) {
				return
			}
		}
	}
}

// ServiceKeys are the "namespace/name" of all that Service answers something for: also of
// Services that are not there, or withheld, while something is there for them.
func (s *Store) ServiceKeys() []string {
	s.mu.RLock()
	keys := s.index.keys()
	s.mu.RUnlock()
	return sortedOnce(keys)
}

// Pod is the Pod of a "namespace/name", nil when there is none. It may not be changed.
func (s *Store) Pod(key string) *object.Pod {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.pods[key]
}

// Secret is the Secret of a "namespace/name", nil when there is none. It may not be changed.
func (s *Store) Secret(key string) *object.Secret {
	namespace, name, _ := strings.Cut(key, "/")
	o, _ := s.Get(object.Ref{Kind: object.KindSecret, Namespace: namespace, Name: name})
	secret, _ := o.(*object.Secret)
	return secret
}

// Pods are the "namespace/name" of all Pods; sorted.
func (s *Store) Pods() []string {
	s.mu.RLock()
	keys := slices.AppendSeq(make([]string, 0, len(s.index.pods)), maps.Keys(s.index.pods))
	s.mu.RUnlock()
	slices.Sort(keys)
	return keys
}

// Selected are the Pods of a namespace that have all labels of a selector, by name; none
// for an empty selector. Its cost is that of the label that the fewest Pods have.
func (s *Store) Selected(namespace string, selector map[string]string) []*object.Pod {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.selected(namespace, selector)
}

// Selecting are the "namespace/name" of the Services whose selector a Pod with these
// labels matches; sorted.
func (s *Store) Selecting(namespace string, labels map[string]string) []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index.selecting(namespace, labels)
}

// Get is an object, nil when there is none, and who it belongs to. It may not be changed.
func (s *Store) Get(ref object.Ref) (object.Object, Owner) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.records[ref]
	if r == nil {
		return nil, Owner{}
	}
	return r.object, r.owner
}

// Document is the document of the file that an object belongs to, which may not be
// changed, and where it is. Without a file there is no path; while the file has not been
// read since the start, or cannot be read, there is no document.
func (s *Store) Document(ref object.Ref) (o object.Object, path string, line int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.records[ref]
	if r == nil {
		return nil, "", 0
	}
	for _, c := range s.claims[ref] {
		if c.path == r.owner.File && c.document >= 0 {
			if d := s.files.Get(c.path).Document(c.document); d != nil {
				return d.Object, c.path, d.Line
			}
		}
	}
	return nil, r.owner.File, 0
}

// Location is the file that an object comes from, and the line where it starts there: 0
// while the file has not been read since the start. Of a source, another machine may have read it. The path of an object of the API
// is empty.
func (s *Store) Location(ref object.Ref) (path string, line int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.records[ref]
	if r == nil {
		return "", 0
	}
	line, _ = s.position(ref, r.owner.File, "")
	return r.owner.File, line
}
