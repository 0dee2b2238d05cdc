package sources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/watch"
)

const (
	// GenerationFile is the name of a file in a source directory that has the generation of its content, a number that rises with each change. The
	// program that updates the directory writes it, for example with `git rev-list --count HEAD`.
	GenerationFile = ".svcctl-generation"
	// lookEvery is the interval at which a box compares its copy of a source with the stored one if another box reads the source.
	lookEvery = 2 * time.Second
	// retry is the delay before a failed commit is tried again.
	retry = time.Second
)

// Dir is the directory of a source, with the name of the source.
type Dir struct{ Name, Path string }

// Turn is the state of the lease for reading a source: which box holds it.
type Turn struct {
	Holder string
	Mine   bool
	Vacant time.Time // since when no box holds it; zero if one does
}

// Turns gives the lease for reading a source to one box of the fleet at a time.
type Turns interface {
	// Want sets the sources whose lease this box competes for (true) or only observes (false).
	Want(willing map[string]bool)
	Turn(source string) Turn
	// Changed returns a channel that is closed when the holder of a lease may have changed.
	Changed() <-chan struct{}
}

// Config configures a Reader.
type Config struct {
	Dirs []Dir
	// Box is the name of this box, Instance the ID of its data directory.
	Box, Instance string
	Store         *store.Store
	Turns         Turns
	// Guard decides which objects may be removed. Failed is called when the commit that followed a decision failed.
	Guard  store.RemovalGuard
	Failed func()
	// Wake is called when Problems or States may have changed.
	Wake func()
	Log  *slog.Logger
}

// Reader stores the manifests of the sources that this box reads for its fleet. It is created with New; Run must be called once.
type Reader struct {
	cfg  Config
	wake chan struct{}

	mu       sync.Mutex
	snapshot *watch.Snapshot // the newest snapshot; empty before the first Sync
	again    bool            // Sync was called: store the snapshot even if it is unchanged
	after    []func()
	states   []State

	// Only Run uses what follows.
	seen    *watch.Snapshot // the snapshot that judge has processed
	files   manifest.Files  // the files of seen, by the paths that all boxes share
	judged  []judgement     // one for each of cfg.Dirs
	changed uint64          // Store.SourcesChanged at the time of judged
	held    map[string]bool // the sources that the last commit stored
	failed  bool            // the last commit failed and must be repeated
}

// judgement is the decision whether this box may read a source, with the reason if not.
type judgement struct {
	turn    store.SourceTurn
	verdict store.SourceVerdict
	unread  bool // the directory is unavailable, or empty and never read by any box
}

// New returns a Reader.
func New(cfg Config) *Reader {
	return &Reader{cfg: cfg, wake: make(chan struct{}, 1), snapshot: &watch.Snapshot{}}
}

// Sync sets the newest snapshot, which Run stores even if it is unchanged. It does not wait and never fails: Problems returns what prevents files
// from being stored.
func (r *Reader) Sync(s *watch.Snapshot) error {
	r.mu.Lock()
	r.snapshot, r.again = s, true
	r.mu.Unlock()
	task.Wake(r.wake)
	return nil
}

// After makes Run call done when the snapshot of the last Sync is stored, or need not be stored because other boxes read its sources.
func (r *Reader) After(done func()) {
	r.mu.Lock()
	r.after = append(r.after, done)
	r.mu.Unlock()
	task.Wake(r.wake)
}

// States returns the states of this box's sources, in the order of the configuration.
func (r *Reader) States() []State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.states
}

// Run stores the files of the sources that this box reads whenever they change, until ctx is done.
func (r *Reader) Run(ctx context.Context) error {
	logged, look := "", time.NewTicker(lookEvery)
	defer look.Stop()
	for looked := true; ctx.Err() == nil; {
		published, turned := r.cfg.Store.Published(), r.cfg.Turns.Changed()
		err := r.sync(looked)
		looked = false
		if errors.Is(err, engine.ErrConflict) {
			continue // the store has the other commit by now
		}
		if err != nil {
			if err.Error() != logged {
				logged = err.Error()
				r.cfg.Log.Warn("files of this box are not stored yet", "err", err)
			}
			task.Sleep(ctx, retry) // what changes meanwhile is no reason to try sooner
			continue
		}
		logged = ""
		select {
		case <-ctx.Done():
		case <-published:
		case <-turned:
		case <-r.wake:
		case <-look.C:
			looked = true
		}
	}
	return nil
}

// sync stores the files of the sources that this box reads, if anything has changed since the last call. If looked is set, it also compares the
// sources that other boxes read.
func (r *Reader) sync(looked bool) error {
	r.mu.Lock()
	snapshot, again, after := r.snapshot, r.again, r.after
	r.again, r.after = false, nil
	r.mu.Unlock()
	changed := r.cfg.Store.SourcesChanged()
	again = again || r.failed || changed != r.changed
	if again || snapshot != r.seen || looked && !r.readsAll() {
		r.judge(snapshot)
		r.changed = changed
	}
	willing, held := map[string]bool{}, map[string]bool{}
	for _, j := range r.judged {
		willing[j.turn.Name] = !j.unread && j.verdict.OK()
	}
	r.cfg.Turns.Want(willing)
	var turns []store.SourceTurn
	for _, j := range r.judged {
		if willing[j.turn.Name] && r.cfg.Turns.Turn(j.turn.Name).Mine {
			turns, held[j.turn.Name] = append(turns, j.turn), true
		}
	}
	r.updateStates()
	if (again || !maps.Equal(held, r.held)) && len(held)+len(r.held) > 0 {
		if err := r.cfg.Store.SyncSources(r.files, turns, r.cfg.Guard); err != nil {
			r.cfg.Failed()
			r.failed = true
			r.mu.Lock()
			r.after = append(after, r.after...)
			r.mu.Unlock()
			return err
		}
		r.held = held
		r.cfg.Wake()
	}
	r.failed = false
	for _, done := range after {
		done()
	}
	return nil
}

// judge decides for each source whether this box may read it, by comparing the files of this box with the stored ones.
func (r *Reader) judge(snapshot *watch.Snapshot) {
	if snapshot != r.seen {
		r.name(snapshot)
		r.seen = snapshot
	}
	judged := make([]judgement, len(r.cfg.Dirs))
	for i, dir := range r.cfg.Dirs {
		j := judgement{turn: store.SourceTurn{Name: dir.Name, Box: r.cfg.Box, Instance: r.cfg.Instance}, unread: snapshot == nil || i >= len(snapshot.Sources) || snapshot.Sources[i].State == watch.StateUnavailable}
		if !j.unread {
			j.turn.Generation = generation(dir.Path)
			j.verdict = r.cfg.Store.JudgeSource(j.turn, r.files)
			// A directory that no box has read yet does not begin empty: it may not be mounted, or not filled.
			j.unread = j.verdict.Reader == "" && snapshot.Sources[i].Files == 0
		}
		judged[i] = j
	}
	r.judged = judged
}

// name updates r.files from a snapshot. It replaces the local paths of files by the paths that all boxes share.
func (r *Reader) name(snapshot *watch.Snapshot) {
	renamed := map[string]*manifest.File{}
	snapshot.Files.Changes(cmp.Or(r.seen, &watch.Snapshot{}).Files, func(was, is *manifest.File) {
		path := r.pathOf(cmp.Or(is, was).Path)
		if renamed[path] = nil; is != nil {
			renamed[path] = is.Renamed(path)
		}
	})
	r.files = r.files.Updated(renamed)
}

// pathOf returns the path shared by all boxes for the local path of a file.
func (r *Reader) pathOf(path string) string {
	for _, dir := range r.cfg.Dirs {
		if relative, within := strings.CutPrefix(path, strings.TrimSuffix(dir.Path, "/")+"/"); within {
			return store.SourcePath(dir.Name, relative)
		}
	}
	return path
}

// generation returns the number in the GenerationFile of a directory, 0 if the file is missing or invalid.
func generation(dir string) uint64 {
	text, err := os.ReadFile(filepath.Join(dir, GenerationFile))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// readsAll reports whether this box currently reads all of its sources.
func (r *Reader) readsAll() bool {
	return r.seen != nil && !slices.ContainsFunc(r.cfg.Dirs, func(dir Dir) bool { return !r.held[dir.Name] })
}

// patience is the time after which a source that no box reads is a problem.
const patience = time.Minute

// The reasons of problems with sources.
const (
	ReasonDiffers  = "SourceDiffers"     // warning: the content on this box differs from the stored content
	ReasonBehind   = "SourceBehind"      // warning: the content on this box is older than the stored content
	ReasonNoReader = "SourceHasNoReader" // error: no box reads the source
)

// State is the state of a source on this box.
type State struct {
	Name, Dir string
	// Reader is the box that reads the source; "" if there is none or it is unknown.
	Reader string
	// Mine is set when this box reads the source.
	Mine bool
	// Verdict is the comparison of this box's content with the stored content: it gives the reason if this box may not read the source.
	Verdict store.SourceVerdict
	// Orphaned is set when no box has read the source for longer than patience.
	Orphaned bool
}

// updateStates updates the states of the sources from the leases and judged, and calls Wake if they have changed.
func (r *Reader) updateStates() {
	states := make([]State, 0, len(r.judged))
	for i, j := range r.judged {
		turn := r.cfg.Turns.Turn(j.turn.Name)
		states = append(states, State{
			Name: j.turn.Name, Dir: r.cfg.Dirs[i].Path, Reader: turn.Holder, Mine: turn.Mine, Verdict: j.verdict,
			Orphaned: !turn.Vacant.IsZero() && time.Since(turn.Vacant) > patience,
		})
	}
	r.mu.Lock()
	same := slices.Equal(states, r.states)
	r.states = states
	r.mu.Unlock()
	if !same {
		r.cfg.Wake()
	}
}

// Problems returns a problem for each source whose content on this box differs from the stored content, and for each source that no box reads.
func (r *Reader) Problems() (problems []manifest.Problem) {
	for _, s := range r.States() {
		switch take := fmt.Sprintf("`svcctl fleet source take %s --box %s` puts in force what this box has", s.Name, r.cfg.Box); {
		case s.Orphaned:
			p := manifest.Problem{File: s.Dir, Reason: ReasonNoReader, Message: fmt.Sprintf("no box reads source %s, and its last content stays in force", s.Name)}
			if first := s.Verdict.Differs; first != "" {
				p.Message += fmt.Sprintf(": this box has %s otherwise than it is in force; bring the directory up to date, or %s", first, take)
			}
			if s.Verdict.Given {
				p.Message += fmt.Sprintf("; it was given to %s, which is to read it: see there, or %s", s.Verdict.Reader, take)
			}
			problems = append(problems, p)
		case s.Verdict.Behind:
			problems = append(problems, manifest.Problem{File: s.Dir, Reason: ReasonBehind, Warning: true, Message: fmt.Sprintf(
				"this box has an older generation of source %s than is in force (%s differs), and reads nothing of it: bring the directory up to date", s.Name, s.Verdict.Differs)})
		case s.Verdict.Differs != "":
			problems = append(problems, manifest.Problem{File: s.Dir, Reason: ReasonDiffers, Warning: true, Message: fmt.Sprintf(
				"this box has %s otherwise than it is in force, as %s reads source %s: bring the directory up to date, or %s", s.Verdict.Differs, reader(s), s.Name, take)})
		}
	}
	return problems
}

// reader returns the name of the box that reads a source, or of the last one that did, for messages.
func reader(s State) string {
	switch {
	case s.Reader != "":
		return s.Reader
	case s.Verdict.Reader != "":
		return s.Verdict.Reader + " (away)"
	}
	return "no box"
}
