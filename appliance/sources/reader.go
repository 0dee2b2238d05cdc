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
	// GenerationFile is a file in a source directory with the number of its content, which rises with each change. The program that updates
	// the directory writes it, for example with `git rev-list --count HEAD`.
	GenerationFile = ".svcctl-generation"
	// lookEvery is the interval at which a box compares a source that another box reads.
	lookEvery = 2 * time.Second
	// retry is the wait after a failed commit.
	retry = time.Second
)

// Dir is a manifest directory with the name of its source.
type Dir struct{ Name, Path string }

// Turn is which box currently reads a source.
type Turn struct {
	Holder string
	Mine   bool
	Vacant time.Time // since when no box has it; the zero Time: one has
}

// Turns assigns each source to one box at a time, which reads it.
type Turns interface {
	// Want sets the turns that this box competes for (true) or only observes (false).
	Want(willing map[string]bool)
	Turn(source string) Turn
	// Changed returns a channel that is closed when a turn may have changed.
	Changed() <-chan struct{}
}

// Config configures a Reader.
type Config struct {
	Dirs []Dir
	// Box is the name of this box, Instance the ID of its data directory.
	Box, Instance string
	Store         *store.Store
	Turns         Turns
	// Guard decides which objects may be removed. Failed is called when the commit after its decision failed.
	Guard  store.RemovalGuard
	Failed func()
	// Wake is called when Problems or States may have changed.
	Wake func()
	Log  *slog.Logger
}

// Reader stores the manifests of those sources that this box reads for the fleet. It is created with New and started with Run, once.
type Reader struct {
	cfg  Config
	wake chan struct{}

	mu       sync.Mutex
	snapshot *watch.Snapshot // the newest; empty before the first one, and without directories
	again    bool            // it is to be stored once more
	after    []func()
	states   []State

	// Only Run uses what follows.
	seen    *watch.Snapshot // the one that was judged last
	files   manifest.Files  // its files, by the paths that all boxes have
	judged  []judgement     // in the order of Dirs
	changed uint64          // store.SourcesChanged as of then
	held    map[string]bool // the sources that were stored last
	failed  bool            // they have to be stored once more
}

// judgement is whether this box may read a source, and why not.
type judgement struct {
	turn    store.SourceTurn
	verdict store.SourceVerdict
	unread  bool // there is nothing to read
}

// New returns a Reader.
func New(cfg Config) *Reader {
	return &Reader{cfg: cfg, wake: make(chan struct{}, 1), snapshot: &watch.Snapshot{}}
}

// Sync sets the newest snapshot, which is stored again even if it is the one before. It does not wait and never fails: Problems
// has what keeps files from being stored.
func (r *Reader) Sync(s *watch.Snapshot) error {
	r.mu.Lock()
	r.snapshot, r.again = s, true
	r.mu.Unlock()
	r.awake()
	return nil
}

// After calls done when the snapshot of the last Sync is stored, or turned out to be for another box to store.
func (r *Reader) After(done func()) {
	r.mu.Lock()
	r.after = append(r.after, done)
	r.mu.Unlock()
	r.awake()
}

func (r *Reader) awake() { task.Wake(r.wake) }

// States returns the states of this box's sources, in the order of the configuration.
func (r *Reader) States() []State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.states
}

// Run stores the sources that this box reads until ctx is done.
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

// sync stores the files of the sources that this box reads, if anything has changed since the last call. looked is set when the sources of
// other boxes are to be compared, too.
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
		if _, err := r.cfg.Store.SyncSources(r.files, turns, r.cfg.Guard); err != nil {
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

// judge determines which sources this box may read, by its files and those in force.
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

// name renames the files of a snapshot from paths of this box to the paths that all boxes share.
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

// pathOf returns the path that all boxes share for a file of this box.
func (r *Reader) pathOf(path string) string {
	for _, dir := range r.cfg.Dirs {
		if relative, within := strings.CutPrefix(path, strings.TrimSuffix(dir.Path, "/")+"/"); within {
			return store.SourcePath(dir.Name, relative)
		}
	}
	return path
}

// generation returns the number in the GenerationFile of a directory, 0 if there is none or it is invalid.
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
	for _, dir := range r.cfg.Dirs {
		if !r.held[dir.Name] {
			return false
		}
	}
	return r.seen != nil
}

// patience is how long a source may be without a reader before that is a problem.
const patience = time.Minute

// The reasons of problems with sources.
const (
	ReasonDiffers  = "SourceDiffers"     // warning: the content on this box differs from that in force
	ReasonBehind   = "SourceBehind"      // warning: the content on this box is older than that in force
	ReasonNoReader = "SourceHasNoReader" // no box reads the source
)

// State is the state of a source on this box.
type State struct {
	Name, Dir string
	// Reader is the box that reads it; "" when none does, or it is not known.
	Reader string
	// Mine reports whether this box reads it.
	Mine bool
	// Verdict is why this box may not read it.
	Verdict store.SourceVerdict
	// Orphaned is set when no box has read it for patience.
	Orphaned bool
}

// updateStates updates the states of the sources, and calls Wake when they have changed.
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

// Problems returns the problems of sources whose content on this box differs from that in force, and of sources that no box reads.
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

// reader returns the name of the box that reads a source, for messages.
func reader(s State) string {
	switch {
	case s.Reader != "":
		return s.Reader
	case s.Verdict.Reader != "":
		return s.Verdict.Reader + " (away)"
	}
	return "no box"
}
