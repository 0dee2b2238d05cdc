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

// SourceSets holds the named sets of client prefixes (--source-set), read from files. When the file of a set changes, the Services that use
// it are planned again.
type SourceSets struct {
	reconcile.NopPart
	files   map[string]string // file path by set name
	reader  *sourceset.Reader
	version uint64 // version of the set taken last; accessed only by take

	mu   sync.Mutex
	sets map[string]*nft.SourceSet // by name; has no entry for a set that was never read
}

// NewSourceSets returns SourceSets that have read all files once, so that the first plan has their content.
func NewSourceSets(files []sourceset.File) *SourceSets {
	s := &SourceSets{
		files: map[string]string{}, reader: sourceset.NewReader(files),
		sets: map[string]*nft.SourceSet{},
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

// content returns the last valid content of a set, nil if its file could never be read.
func (s *SourceSets) content(name string) *nft.SourceSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sets[name]
}

// take replaces the content of a set. It is called only by the reader's goroutine. It sorts the new set before it locks mu, so that the reconcile
// loop is not blocked meanwhile.
func (s *SourceSets) take(name string, prefixes []netip.Prefix) {
	s.version++
	now := nft.NewSourceSet(name, s.version, prefixes)
	s.mu.Lock()
	defer s.mu.Unlock()
	if was := s.sets[name]; was == nil || !was.Equal(now) {
		s.sets[name] = now
		s.Changed(resolve.Need{Kind: resolve.NeedSourceSet, Name: name})
	}
}

// Name implements reconcile.Part.
func (s *SourceSets) Name() string { return "source sets" }

// Run implements reconcile.Part.
func (s *SourceSets) Run(ctx context.Context) error {
	if len(s.files) == 0 {
		return s.NopPart.Run(ctx)
	}
	return s.reader.Run(ctx, s.take, func() { s.Changed() })
}

// Adopt implements reconcile.Part: a set whose file cannot be read now keeps the content that it has in the kernel.
func (s *SourceSets) Adopt(have nft.Ruleset) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.files {
		if set := nft.RecoverSourceSet(have, name); s.sets[name] == nil && set != nil {
			s.sets[name] = set
		}
	}
}

// Problems implements reconcile.Part.
func (s *SourceSets) Problems() (problems []resolve.Problem) {
	broken := s.reader.Broken()
	for _, name := range slices.Sorted(maps.Keys(broken)) {
		problems = append(problems, sourceSetProblem(name, s.files[name], broken[name], s.content(name) != nil))
	}
	return problems
}

// sourceSetProblem returns the problem of a set whose file cannot be used because of err. kept is set if the last valid content of the set stays in
// force.
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
