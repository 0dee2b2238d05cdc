package parts

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/sourceset"
	"svcctl.io/svcctl/nft"
)

// SourceSets are the named sets of client prefixes (--source-set). When the file of one changes,
// the Services that name it are planned again.
type SourceSets struct {
	reconcile.NopPart
	files   map[string]string // by set
	reader  *sourceset.Reader
	version uint64 // of take alone

	mu      sync.Mutex
	sets    map[string]*nft.SourceSet // without those that were never read
	changed map[string]bool

	// What the loop alone reads: which Services name a set, and which sets a Service names.
	users map[string]map[string]bool
	names map[string][]string
}

// NewSourceSets reads all files once, so that sets have their content in the first plan.
func NewSourceSets(files []sourceset.File) *SourceSets {
	s := &SourceSets{
		files: map[string]string{}, reader: sourceset.NewReader(files),
		sets: map[string]*nft.SourceSet{}, changed: map[string]bool{},
		users: map[string]map[string]bool{}, names: map[string][]string{},
	}
	for _, f := range files {
		s.files[f.Name] = f.Path
	}
	s.reader.Start(s.take)
	return s
}

// Meet implements reconcile.Answerer.
func (s *SourceSets) Meet(_ string, d *resolve.Demand, o *resolve.Observed) {
	for _, n := range d.Needs {
		if _, configured := s.files[n.Name]; configured && n.Kind == resolve.NeedSourceSet {
			set := s.content(n.Name)
			o.Answer(n, resolve.State{Set: set, Missing: set == nil})
		}
	}
}

// content returns the last good content of a set, nil if its file could never be read.
func (s *SourceSets) content(name string) *nft.SourceSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sets[name]
}

// take takes the new content of a set. One goroutine calls it, the reader's. The loop, which looks
// sets up, does not wait while a large one is put in order.
func (s *SourceSets) take(name string, prefixes []netip.Prefix) {
	s.version++
	now := nft.NewSourceSet(name, s.version, prefixes)
	s.mu.Lock()
	defer s.mu.Unlock()
	if was := s.sets[name]; was == nil || !was.Equal(now) {
		s.sets[name], s.changed[name] = now, true
	}
}

// Name implements reconcile.Part.
func (s *SourceSets) Name() string { return "source sets" }

// Run implements reconcile.Part.
func (s *SourceSets) Run(ctx context.Context, changed func()) error {
	if len(s.files) == 0 {
		return s.NopPart.Run(ctx, changed)
	}
	return s.reader.Run(ctx, func(name string, prefixes []netip.Prefix) {
		s.take(name, prefixes)
		changed()
	}, changed)
}

// Adopt implements reconcile.Part: a set of which the file cannot be read now keeps what the
// kernel has of it.
func (s *SourceSets) Adopt(have nft.Ruleset) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.files {
		if set := nft.RecoverSourceSet(have, name); s.sets[name] == nil && set != nil {
			s.sets[name] = set
		}
	}
}

// Planned implements reconcile.Part.
func (s *SourceSets) Planned(_ *reconcile.Host, services []reconcile.Service) {
	for i := range services {
		key, names := services[i].Key, setsOf(services[i].Needs)
		if len(names)+len(s.names[key]) == 0 {
			continue
		}
		for _, name := range s.names[key] {
			if delete(s.users[name], key); len(s.users[name]) == 0 {
				delete(s.users, name)
			}
		}
		delete(s.names, key)
		for _, name := range names {
			if s.users[name] == nil {
				s.users[name] = map[string]bool{}
			}
			s.users[name][key] = true
			s.names[key] = names
		}
	}
}

func setsOf(needs []resolve.Need) (names []string) {
	for _, n := range needs {
		if n.Kind == resolve.NeedSourceSet {
			names = append(names, n.Name)
		}
	}
	return names
}

// Retry implements reconcile.Part.
func (s *SourceSets) Retry() []string {
	s.mu.Lock()
	changed := s.changed
	s.changed = map[string]bool{}
	s.mu.Unlock()
	services := map[string]bool{}
	for name := range changed {
		maps.Copy(services, s.users[name])
	}
	return slices.Collect(maps.Keys(services))
}

// Problems implements reconcile.Part.
func (s *SourceSets) Problems() (problems []resolve.Problem) {
	broken := s.reader.Broken()
	for _, name := range slices.Sorted(maps.Keys(broken)) {
		problems = append(problems, sourceSetProblem(name, s.files[name], broken[name], s.content(name) != nil))
	}
	return problems
}

// sourceSetProblem returns the problem of a set whose file is not in force, with what is in force
// instead.
func sourceSetProblem(name, path string, err error, kept bool) resolve.Problem {
	instead := "no client may connect to the Services that name it"
	if kept {
		instead = "its last good content stays in force"
	}
	return resolve.Problem{
		Reason: "SourceSet", Warning: kept,
		Message: fmt.Sprintf("the source set %s, file %s: %v; %s until the file is corrected", name, path, err, instead),
	}
}
