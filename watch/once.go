package watch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/manifest"
)

// Stdin stands for standard input among the paths of Once.
const Stdin = "-"

// stdinName names standard input in problems.
const stdinName = "stdin"

// Once reads manifests a single time, as the Watcher reads them: the same files of a
// directory, the same bounds, and the same reasons to leave one out.
type Once struct {
	Stdin io.Reader // what Stdin among the paths reads
	// Flat leaves out subdirectories.
	Flat bool
	// Bytes is the most bytes of a file; 0 is the default of manifest.Limits.
	Bytes int
}

// Each calls f with the content of every file at the paths, the files of a directory in the
// order of their names, or with the problem of a file that is not read. Errors are those of f,
// of a path that does not exist or may not be read, and of a directory without manifests.
func (o *Once) Each(paths []string, f func(name string, data []byte, refused *manifest.Problem) error) error {
	for _, path := range paths {
		if err := o.each(path, f); err != nil {
			return err
		}
	}
	return nil
}

func (o *Once) each(path string, f func(string, []byte, *manifest.Problem) error) error {
	if path != Stdin {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return o.directory(path, f)
		}
	}
	name := path
	var data []byte
	var err error
	if path == Stdin {
		name = stdinName
		data, err = readStream(o.Stdin, o.bytes())
	} else {
		data, err = ReadFile(path, o.bytes())
	}
	if _, is := errors.AsType[*RefusedError](err); is {
		return f(name, nil, &manifest.Problem{File: name, Reason: ReasonUnreadable, Message: err.Error()})
	}
	if err != nil {
		return err
	}
	return f(name, data, nil)
}

func (o *Once) bytes() int {
	return mostBytes(manifest.Limits{Bytes: o.Bytes})
}

// directory calls f for the files that a Watcher of the directory would read at its start.
func (o *Once) directory(dir string, f func(string, []byte, *manifest.Problem) error) error {
	s := &source{dir: filepath.Clean(dir)}
	if err := s.open(); err != nil {
		return err
	}
	defer s.close()
	wk, err := s.walkDirs(o.Flat)
	if err != nil {
		return err
	}
	refuse := func(path, why string) error {
		return f(path, nil, &manifest.Problem{File: path, Reason: ReasonUnreadable, Message: why})
	}
	for _, u := range wk.unread {
		if u.missed {
			if err := refuse(u.path, "the directory cannot be read: "+u.why); err != nil {
				return err
			}
		}
	}
	if len(wk.found) == 0 {
		return fmt.Errorf("%s has no *.yaml, *.yml or *.json file", dir)
	}
	for _, path := range slices.Sorted(maps.Keys(wk.found)) {
		seen := wk.found[path]
		var data []byte
		var err error
		if seen.kind == regular {
			data, seen, err = s.readSeen(path, seen, o.bytes())
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // it went while the directory was read
		case err != nil:
			err = refuse(path, reason(err))
		case seen.kind != regular:
			err = refuse(path, seen.why)
		default:
			err = f(path, data, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readSeen reads a file of the source. One that was replaced since it was seen is read as it
// is now; one that is replaced again and again is refused.
func (s *source) readSeen(path string, seen fileState, most int) ([]byte, fileState, error) {
	for range maxWalks {
		data, now, err := read(s.root, s.rel(path), seen, most, nil)
		if err != nil || data != nil || now.kind != regular {
			return data, now, err
		}
		seen = now
	}
	return nil, seen, errors.New("the file is replaced faster than it can be read; try again")
}

// RefusedError means that a file exists, and is not read for the reason Why.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return e.Why }

// ReadNamed is ReadFile with the path in errors that refuse the file.
func ReadNamed(path string, most int) ([]byte, error) {
	data, err := ReadFile(path, most)
	if refused, is := errors.AsType[*RefusedError](err); is {
		return nil, fmt.Errorf("%s: %w", path, refused)
	}
	return data, err
}

// ReadFile reads a file that the user named, of at most that many bytes, without blocking on a path
// that is no regular file. A descriptor of this process (/dev/stdin, /dev/fd/63, as a shell makes of
// `<(command)`) may be a pipe. Errors: *RefusedError for one that is too large or no file; else
// those of the system.
func ReadFile(path string, most int) ([]byte, error) {
	if isDescriptor(path) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readStream(f, most)
	}
	for range maxWalks {
		info, err := os.Stat(path)
		if at, is := errors.AsType[*fs.PathError](err); is {
			return nil, &fs.PathError{Op: "open", Path: path, Err: at.Err}
		} else if err != nil {
			return nil, err
		}
		seen := fileStateOf(info, false)
		if seen.kind != regular {
			return nil, &RefusedError{seen.why}
		}
		f, err := os.OpenFile(path, openFlags, 0)
		if err != nil {
			return nil, err
		}
		data, _, err := readOpen(f, seen, most, nil)
		_ = f.Close()
		if _, is := errors.AsType[*fs.PathError](err); is {
			return nil, err
		}
		if err != nil {
			return nil, &RefusedError{err.Error()}
		}
		if data != nil && len(data) > most {
			return nil, &RefusedError{tooLarge(int64(len(data)), most).Error()}
		}
		if data != nil {
			return data, nil
		}
	}
	return nil, &RefusedError{"the file is replaced faster than it can be read; try again"}
}

// isDescriptor reports whether a path names a descriptor that this process has open already.
func isDescriptor(path string) bool {
	path = filepath.Clean(path)
	return path == "/dev/stdin" || strings.HasPrefix(path, "/dev/fd/") || strings.HasPrefix(path, "/proc/self/fd/")
}

// readStream reads a stream, whose size is not known in advance. It refuses one of more than most bytes.
func readStream(r io.Reader, most int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	if err == nil && len(data) > most {
		err = &RefusedError{fmt.Sprintf("more than the limit of %d bytes; split it", most)}
	}
	return data, err
}

// ReasonGitLock is the reason of a warning about a lock that git left behind.
const ReasonGitLock = "GitLock"

// git holds DIR/.git/index.lock while it changes a work tree: it removes all files that are
// moved, then writes the new ones, which takes long on a slow disk. So nothing of the tree is
// taken while the lock is there, and what git did is seen at once.
const (
	// gitPoll is the interval of looks for the end of the lock, while changes wait for it.
	gitPoll = 50 * time.Millisecond
	// gitQuiet is the time without a change in the tree after which the lock is ignored, gitMost
	// the longest time for which it is respected: a git that was killed leaves it behind.
	gitQuiet = 30 * time.Second
	gitMost  = 10 * time.Minute
	// gitFileMost is the most bytes that are read of a .git file.
	gitFileMost = 4096
)

// gitLocks are the locks of git that changes of a source wait for.
type gitLocks struct {
	locks    []gitLock
	locked   bool      // changes wait for a lock
	unlocked time.Time // when changes last ceased to wait
}

// A gitLock is the lock of a repository that a source is in, or that is in a source.
type gitLock struct {
	path  string
	id    identity  // of the lock file; zero: there is none
	first time.Time // when it was seen first
	// stale is set when the lock is ignored as left behind; mtime is its modification time then.
	stale bool
	mtime int64
}

// findGitLocks sets s.git.locks to the locks of the git work trees at the directory of the source, at its
// parents, and at the directories in inside, which are in the source and have an entry named .git.
func (s *source) findGitLocks(inside []string) {
	dirs := slices.Clone(inside)
	if real, err := filepath.EvalSymlinks(s.dir); err == nil {
		for dir := real; ; dir = filepath.Dir(dir) {
			dirs = append(dirs, dir)
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	var locks []gitLock
	for _, dir := range dirs {
		path := gitDirectory(dir)
		if path == "" {
			continue
		}
		lock := gitLock{path: filepath.Join(path, "index.lock")}
		same := func(l gitLock) bool { return l.path == lock.path }
		if slices.ContainsFunc(locks, same) {
			continue
		}
		if i := slices.IndexFunc(s.git.locks, same); i >= 0 {
			lock = s.git.locks[i]
		}
		locks = append(locks, lock)
	}
	s.git.locks = locks
}

// gitDirectory returns the directory in which the repository of a work tree keeps its index: .git,
// or in a linked work tree and a submodule the one that the file .git names
// (gitrepository-layout(5)). "" when dir is no work tree.
func gitDirectory(dir string) string {
	path := filepath.Join(dir, ".git")
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	if info.IsDir() {
		return path
	}
	if !info.Mode().IsRegular() {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, gitFileMost))
	named, is := strings.CutPrefix(string(text), "gitdir: ")
	if err != nil || !is {
		return ""
	}
	named = strings.TrimRight(named, "\r\n")
	if !filepath.IsAbs(named) {
		named = filepath.Join(dir, named)
	}
	return named
}

// heldByGit reports whether changes of a source wait for git to release its lock, or for a time without changes after that.
func (w *Watcher) heldByGit(s *source, now time.Time) bool {
	held := false
	for i := range s.git.locks {
		held = w.lookAtLock(s, &s.git.locks[i], now) || held
	}
	if s.git.locked && !held {
		// Events of what git did last may be on their way.
		s.git.unlocked = now
		w.scan(s, w.events.hints, now)
	}
	s.git.locked = held
	return held || now.Before(s.git.unlocked.Add(w.cfg.Settle))
}

// lookAtLock updates the state of a lock, and reports whether git holds it.
func (w *Watcher) lookAtLock(s *source, l *gitLock, now time.Time) bool {
	info, err := os.Lstat(l.path)
	if err != nil {
		w.out.changed = w.out.changed || l.stale
		*l = gitLock{path: l.path}
		return false
	}
	v := versionOf(info)
	if v.identity != l.id || l.stale && v.mtime > l.mtime {
		w.out.changed = w.out.changed || l.stale
		*l = gitLock{path: l.path, id: v.identity, first: now}
		if written := time.Unix(0, v.mtime); written.Before(now) { // the clock may have been set back
			l.first = written
		}
	}
	if l.stale {
		return false
	}
	active := l.first
	if s.active.After(active) {
		active = s.active
	}
	if now.Before(active.Add(gitQuiet)) && now.Before(l.first.Add(gitMost)) {
		return true
	}
	l.stale, l.mtime, w.out.changed = true, v.mtime, true
	w.log.Warn("a lock of git is not waited for any more", "lock", l.path, "since", l.first)
	return false
}

// gitSources returns the sources whose changes wait for git.
func (w *Watcher) gitSources(now time.Time) map[*source]bool {
	held := map[*source]bool{}
	for _, s := range w.tree.sources {
		if len(s.git.locks) > 0 && w.heldByGit(s, now) {
			held[s] = true
		}
	}
	return held
}

// gitProblems returns problems of locks that were left behind.
func (s *source) gitProblems() (problems []manifest.Problem) {
	for _, l := range s.git.locks {
		if l.stale {
			problems = append(problems, manifest.Problem{File: l.path, Reason: ReasonGitLock, Warning: true, Message: fmt.Sprintf(
				"it is there since %s UTC and nothing in %s has changed for %v: a git that was killed leaves such a lock behind; "+
					"changes are read without waiting for git: if none runs, remove the file", l.first.UTC().Format(time.DateTime), s.dir, gitQuiet)})
		}
	}
	return problems
}
