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
	Stdin io.Reader // standard input, which is read for the path "-" (the constant Stdin)
	// Flat leaves out subdirectories.
	Flat bool
	// Bytes is the maximum size of a file in bytes; 0 means the default of manifest.Limits.
	Bytes int
}

// Each calls f for every file at the paths: with its content, or with the problem because of which it is not read. The files of a directory come in
// the order of their names. Each returns the first error of f, and an error for a path that does not exist or cannot be read, and for a directory
// without manifests.
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

// readSeen reads a file of the source. If the file was replaced since it was in the state seen, the new file is read. A file that is replaced again
// and again is an error.
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

// A RefusedError means that a file exists, but is not read. Why is the reason.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return e.Why }

// ReadNamed is ReadFile, except that it puts the path before the message of a *RefusedError.
func ReadNamed(path string, most int) ([]byte, error) {
	data, err := ReadFile(path, most)
	if refused, is := errors.AsType[*RefusedError](err); is {
		return nil, fmt.Errorf("%s: %w", path, refused)
	}
	return data, err
}

// ReadFile reads a file that the user named. It does not block on a path that is not a regular file. A descriptor of this process (/dev/stdin, or
// /dev/fd/63 as a shell passes for `<(command)`) may be a pipe. Errors: *RefusedError for a file that has more than most bytes or is not regular;
// else those of the operating system.
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

// git holds DIR/.git/index.lock while it changes a work tree. It first removes all files that are moved and then writes the new ones, which takes
// long on a slow disk. So no change in a work tree is used while the lock exists, and all changes of one git command appear in one snapshot.
const (
	// gitPoll is the interval at which a lock is checked while changes wait for its end.
	gitPoll = 50 * time.Millisecond
	// A lock is ignored after gitQuiet without a change in the tree, and after gitMost in any case: a git process that was killed leaves its lock
	// behind.
	gitQuiet = 30 * time.Second
	gitMost  = 10 * time.Minute
	// gitFileMost is the maximum number of bytes that are read from a file named .git.
	gitFileMost = 4096
)

// gitLocks has the git locks of one source. Changes of the source wait while git holds one of them.
type gitLocks struct {
	locks    []gitLock
	locked   bool      // changes wait for a lock
	unlocked time.Time // when changes last ceased to wait
}

// A gitLock is the lock of a git repository that contains a source, or that lies in a source.
type gitLock struct {
	path  string
	id    identity  // of the lock file; zero if it does not exist
	first time.Time // when it was seen first
	// stale is set when the lock is ignored because git left it behind. mtime is then the modification time of the lock file.
	stale bool
	mtime int64
}

// findGitLocks sets s.git.locks to the locks of the git work trees that contain the source or lie in it. inside has the directories in the source
// that have an entry named .git.
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

// heldByGit reports whether changes of a source have to wait, because git holds a lock, or released it less than Config.Settle ago. When git has
// released the last lock, heldByGit scans the source.
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

// lookAtLock updates the state of a lock, and reports whether changes have to wait for it.
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

// gitSources returns the sources with changes that wait for git.
func (w *Watcher) gitSources(now time.Time) map[*source]bool {
	held := map[*source]bool{}
	for _, s := range w.tree.sources {
		if len(s.git.locks) > 0 && w.heldByGit(s, now) {
			held[s] = true
		}
	}
	return held
}

// gitProblems returns a warning for each lock that git left behind.
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
