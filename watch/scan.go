package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"svcctl.io/svcctl/store/manifest"
)

// rescan reads all directories, whether or not there were events.
func (w *Watcher) rescan(now time.Time) {
	before := w.tree.noEvents
	w.tree.connect()
	w.schedule.lost, w.looks.current = false, nil
	w.schedule.poll = now.Add(poll)
	hints := w.events.takeAll()
	for _, s := range w.tree.sources {
		w.scan(s, hints, now)
	}
	w.saver.retry()
	w.gitSources(now) // a lock that was left behind may have gone
	w.schedule.rescan, w.schedule.full = now.Add(w.cfg.Rescan), now.Add(lookRarely)
	if (before == nil) != (w.tree.noEvents == nil) {
		w.out.changed = true
		if w.tree.noEvents != nil {
			w.log.Warn("directories are polled", "every", poll, "err", w.tree.noEvents)
		} else {
			w.log.Info("directories are watched")
		}
	}
}

// pollSources reads the directories that send no events: those that are unavailable or were replaced, and all of them if there are no watches.
func (w *Watcher) pollSources(now time.Time) {
	w.schedule.poll = now.Add(poll)
	for _, s := range w.tree.sources {
		if s.root == nil || w.tree.noEvents != nil || s.moved() {
			w.scan(s, nil, now)
		}
	}
}

// scan reads a directory and observes its files.
func (w *Watcher) scan(s *source, hints map[string]eventHint, now time.Time) {
	w.counts.scans.Add(1)
	if w.looks.current != nil {
		w.looks.current.older[s] = true
	}
	if err := s.open(); err != nil {
		w.lose(s, err, now)
		return
	}
	wk := s.newWalk(false)
	if len(s.dirs) == 0 { // nothing of it is watched yet
		wk.begin = w.tree.begin
	}
	wk, err := wk.run()
	// What changes in a directory before it is watched would be missed: whenever there is
	// a new watch, all is read once more.
	for range maxWalks {
		if err != nil || !w.tree.watch(s, wk.dirs) {
			break
		}
		wk, err = s.walk()
	}
	if err != nil {
		w.lose(s, err, now)
		return
	}
	switch {
	case len(wk.found) > 0 || s.good == 0:
		s.trusted = true
	case !s.trusted:
		w.lose(s, errEmpty, now)
		return
	}
	if s.state == StateUnavailable {
		w.log.Info("directory is available again", "dir", s.dir)
	}
	w.out.changed = w.out.changed || s.state != StateWatching
	s.state, s.err, s.lost = StateWatching, nil, time.Time{}
	w.compare(s, wk, hints, now)
}

// compare records the states of the files that a walk has found. It records other files of the source as gone, except those in directories that the
// walk could not read.
func (w *Watcher) compare(s *source, wk *walk, hints map[string]eventHint, now time.Time) {
	for path, seen := range wk.found {
		h := hints[path]
		h.switched = len(wk.switched) > 0 && wk.switched[filepath.Dir(path)]
		w.observe(s, path, seen, h, now)
	}
	for path, f := range w.settling.files {
		if _, there := wk.found[path]; there || f.source != s {
			continue
		}
		if i := slices.IndexFunc(wk.unread, func(u unread) bool { return within(u.path, path) }); i >= 0 {
			wk.unread[i].missed = true
			continue
		}
		dir := filepath.Dir(path)
		_, linked := s.linked[dir]
		_, there := wk.dirs[dir]
		w.observe(s, path, fileState{kind: gone}, eventHint{switched: wk.switched[dir] || linked && !there}, now)
	}
	s.dirs, s.linked = wk.dirs, wk.linked
	s.findGitLocks(wk.trees)
	if problems := wk.problems(); !slices.Equal(s.problems, problems) {
		s.problems, w.out.changed = problems, true
	}
}

// lose records that a directory cannot be read. Its files stay in force.
func (w *Watcher) lose(s *source, err error, now time.Time) {
	if s.lost.IsZero() {
		s.lost = now
		w.schedule.poll = now.Add(w.cfg.Settle) // once more before it is given up
	}
	if s.err == nil || s.err.Error() != reason(err) {
		s.err = errors.New(reason(err))
		w.out.changed = w.out.changed || s.state == StateUnavailable
	}
	s.dirs, s.problems = nil, nil
	if !errors.Is(err, errEmpty) {
		s.close()
	} else {
		// Its first file is to be noticed at once.
		s.dirs = map[string]identity{s.dir: s.id}
	}
	w.settling.drop(s)
	w.dropLost(now)
}

// dropLost marks directories as unavailable that have been missing for a while: one that is being replaced is missing for a moment only.
func (w *Watcher) dropLost(now time.Time) {
	for _, s := range w.tree.sources {
		if s.lost.IsZero() || s.state == StateUnavailable || s.state != "" && now.Before(s.lost.Add(w.cfg.Settle)) {
			continue
		}
		s.state, w.out.changed = StateUnavailable, true
		w.log.Warn("directory is unavailable", "dir", s.dir, "err", s.err)
	}
}

// maxWalks bounds how often a directory is read again because directories in it changed meanwhile.
const maxWalks = 3

// A walk is one reading of a source's directory and its subdirectories.
type walk struct {
	dir      string
	root     *os.Root            // dir, opened
	before   map[string]identity // the map linked of the previous reading
	visited  map[identity]bool   // directories read so far; none is read twice
	files    map[identity]bool   // regular files found so far; a link to one of them is ignored
	found    map[string]fileState
	dirs     map[string]identity
	linked   map[string]identity // directories that are reached by a link
	switched map[string]bool     // entries of linked that are new, or that led to another directory before
	links    []string            // relative paths of symbolic links, which are followed when everything else was read
	unread   []unread
	trees    []string // directories that have an entry .git
	byLink   bool     // dir is a link
	flat     bool     // subdirectories are not read
	// begin is called for each directory before it is read; it may be nil.
	begin func(path string, id identity)
}

// unread is a directory that could not be read; the state of its files is unknown.
type unread struct {
	path, why string
	missed    bool // the path is a directory, or files below it are in force; if false, it may be a broken link to anything
}

func (wk *walk) problems() (out []manifest.Problem) {
	for _, u := range wk.unread {
		if u.missed {
			out = append(out, manifest.Problem{File: u.path, Reason: ReasonUnreadable,
				Message: "the directory cannot be read: " + u.why + "; the last good content of its files stays in force"})
		}
	}
	return out
}

func (s *source) walk() (*walk, error) { return s.walkDirs(false) }

// walkDirs reads the directory of the source and, unless flat is set, its subdirectories.
func (s *source) walkDirs(flat bool) (*walk, error) { return s.newWalk(flat).run() }

// newWalk returns a walk for run, which may be called concurrently with the loop.
func (s *source) newWalk(flat bool) *walk {
	s.parent = linkParent(s.dir)
	return &walk{dir: s.dir, root: s.root, before: s.linked, byLink: s.parent != "", flat: flat,
		visited: map[identity]bool{}, files: make(map[identity]bool, s.good), found: make(map[string]fileState, s.good),
		dirs: map[string]identity{}, linked: map[string]identity{}, switched: map[string]bool{}}
}

// run reads the directory and its subdirectories, and then follows the links found in them.
func (wk *walk) run() (*walk, error) {
	if err := wk.directory(".", wk.byLink); err != nil {
		return nil, err
	}
	// A path that is reachable twice belongs to its own place, not to a link's.
	for len(wk.links) > 0 {
		links := wk.links
		wk.links = nil
		for _, rel := range links {
			wk.follow(rel)
		}
	}
	return wk, nil
}

// linkParent returns the parent of dir if dir is a symbolic link, else "". The parent has to be watched, since a change of the link sends
// no event for its former target.
func linkParent(dir string) string {
	if info, err := os.Lstat(dir); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return ""
	}
	return filepath.Dir(dir)
}

func (wk *walk) path(rel string) string { return filepath.Join(wk.dir, rel) }

// directory reads one directory. It returns only the error of that directory; subdirectories that cannot be read are added to wk.unread.
func (wk *walk) directory(rel string, linked bool) error {
	f, err := wk.root.Open(rel)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	id := versionOf(info).identity
	if wk.visited[id] {
		return nil
	}
	wk.visited[id] = true
	path := wk.path(rel)
	wk.dirs[path] = id
	if linked {
		wk.linked[path] = id
		// When the directory itself is a link, all is new at the start.
		before, known := wk.before[path]
		if before != id && (known || rel != ".") {
			wk.switched[path] = true
		}
	}
	if wk.begin != nil {
		wk.begin(path, id)
	}
	entries, err := f.ReadDir(-1)
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, entry := range entries {
		wk.entry(rel, path, entry, linked)
	}
	return nil
}

// entry reads the state of an entry of a directory. dir is the directory's path relative to the source, and path its whole path.
func (wk *walk) entry(dir, path string, entry fs.DirEntry, linked bool) {
	switch name := entry.Name(); {
	case name == ".git":
		wk.trees = append(wk.trees, wk.path(dir))
	case strings.HasPrefix(name, "."):
	case entry.IsDir():
		wk.below(filepath.Join(dir, name), linked)
	case entry.Type()&fs.ModeSymlink != 0:
		wk.links = append(wk.links, filepath.Join(dir, name))
	case isManifest(name):
		info, err := entry.Info() // what was seen when the directory was read
		path = strings.TrimSuffix(path, "/") + "/" + name
		if err == nil {
			wk.file(path, fileStateOf(info, false))
		} else if !errors.Is(err, fs.ErrNotExist) { // else it went while we looked
			wk.file(path, fileState{kind: unusable, why: reason(err)})
		}
	}
}

func (wk *walk) file(path string, seen fileState) {
	if seen.kind == regular {
		wk.files[seen.version.identity] = true
	}
	wk.found[path] = seen
}

// below reads a subdirectory of the source. If it cannot be read, it is added to wk.unread, and the rest of the source is read.
func (wk *walk) below(rel string, linked bool) {
	if wk.flat {
		return
	}
	err := fmt.Errorf("more than %d directories inside each other", maxLevels)
	if strings.Count(rel, string(filepath.Separator)) < maxLevels {
		err = wk.directory(rel, linked)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) && !linked {
		return
	}
	wk.unread = append(wk.unread, unread{wk.path(rel), reason(err), true})
}

// follow reads the state of a symbolic link's target.
func (wk *walk) follow(rel string) {
	info, err := wk.root.Stat(rel)
	switch manifestName := isManifest(filepath.Base(rel)); {
	case err != nil && manifestName:
		wk.file(wk.path(rel), fileState{kind: unusable, linked: true, why: linkReason(err)})
	case err != nil:
		// It may have led to a directory.
		wk.unread = append(wk.unread, unread{path: wk.path(rel), why: linkReason(err)})
	case info.IsDir():
		wk.below(rel, true)
	case manifestName:
		if seen := fileStateOf(info, true); seen.kind != regular || !wk.files[seen.version.identity] {
			wk.file(wk.path(rel), seen)
		}
	}
}

// linkReason describes why a link cannot be followed.
func linkReason(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "the link leads nowhere"
	case errors.Is(err, syscall.ELOOP):
		return "the link leads to itself"
	case strings.Contains(err.Error(), "escapes"):
		return "the link leads out of the watched directory; links must be relative and stay inside"
	}
	return "the link cannot be followed: " + reason(err)
}

// A look is a periodic reading of all directories, in case events were lost. It takes 5 µs for each file, and runs in a goroutine so that the loop
// can handle changes meanwhile.
type look struct {
	walks []*walk          // one for each source, in the order of the sources; nil if the directory could not be read
	older map[*source]bool // sources that were scanned after the look began
}

// looks has the look that is running.
type looks struct {
	current *look      // the look that is running; nil if none is
	done    chan *look // receives the look when all directories are read
	// readDir reads a directory for a look; tests replace it.
	readDir func(*walk) (*walk, error)
}

// lookBeside handles a due rescan without blocking the loop: it starts a look, unless one is running or inotify reports every change anyway. It
// returns false if the loop has to scan all directories itself.
func (w *Watcher) lookBeside(now time.Time) bool {
	if w.schedule.lost || w.tree.notify == nil || w.tree.noEvents != nil {
		return false
	}
	for _, s := range w.tree.sources {
		if s.root == nil || !s.trusted || s.state != StateWatching || !s.lost.IsZero() || len(s.problems) > 0 || s.moved() {
			return false
		}
	}
	w.schedule.rescan = now.Add(w.cfg.Rescan)
	w.saver.retry()
	if w.looks.current != nil {
		return true // it takes longer than this; others would only slow it down
	}
	live := slices.Sorted(slices.Values(w.tree.notify.WatchList()))
	if w.tree.notify.Complete() && len(w.contents.silent) == 0 && now.Before(w.schedule.full) && !slices.ContainsFunc(w.tree.sources, func(s *source) bool { return !s.isLocal(live) }) {
		w.gitSources(now)
		return true
	}
	w.schedule.full = now.Add(lookRarely)
	l := &look{walks: make([]*walk, len(w.tree.sources)), older: map[*source]bool{}}
	for i, s := range w.tree.sources {
		w.counts.scans.Add(1)
		l.walks[i] = s.newWalk(false)
	}
	w.looks.current = l
	go func() {
		for i, wk := range l.walks {
			if _, err := w.looks.readDir(wk); err != nil {
				l.walks[i] = nil
			}
		}
		w.looks.done <- l
	}()
	return true
}

// takeLook compares the files that a look has found with the last observed states. Either may be out of date, so a difference only causes the file to
// be examined again.
func (w *Watcher) takeLook(l *look, now time.Time) {
	if w.looks.current != l {
		return // all directories were read since
	}
	w.looks.current = nil
	for i, s := range w.tree.sources {
		wk := l.walks[i]
		if l.older[s] {
			continue
		}
		if wk == nil || !w.sameDirs(s, wk) || w.tree.watch(s, wk.dirs) || !w.takeDifferences(s, wk, now) {
			w.scan(s, nil, now)
			continue
		}
		s.findGitLocks(wk.trees)
	}
	w.gitSources(now) // a lock that was left behind may have gone
}

// sameDirs reports whether a look found the same directories of a source as the last scan, all of them readable.
func (w *Watcher) sameDirs(s *source, wk *walk) bool {
	return len(wk.switched)+len(wk.unread) == 0 && (len(wk.found) > 0 || s.good == 0) && maps.Equal(wk.dirs, s.dirs) && maps.Equal(wk.linked, s.linked)
}

// takeDifferences examines each file again that differs from its last observed state, unless an event for it is pending. It returns false if a scan
// of the source is needed.
func (w *Watcher) takeDifferences(s *source, wk *walk, now time.Time) bool {
	again := func(path string) bool {
		if _, told := w.events.hints[path]; told {
			return true
		}
		seen, ok := s.look(path)
		if ok {
			w.observe(s, path, seen, eventHint{}, now)
		}
		return ok
	}
	for path, seen := range wk.found {
		if f := w.settling.files[path]; (f == nil || !f.latest().same(seen)) && !again(path) {
			return false
		}
	}
	for path, f := range w.settling.files {
		if _, there := wk.found[path]; !there && f.source == s && f.latest().kind != gone && !again(path) {
			return false
		}
	}
	return true
}

// latest returns the last observed state of the file, settled or not.
func (f *file) latest() fileState {
	if f.change != nil {
		return f.change.seen
	}
	return f.seen
}
