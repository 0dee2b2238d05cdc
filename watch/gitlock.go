package watch

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/manifest"
)

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
	locked   bool      // changes wait for one
	unlocked time.Time // when they ended to
}

// A gitLock is the lock of a repository that a source is in, or that is in a source.
type gitLock struct {
	path  string
	id    identity  // zero: it is not there
	first time.Time // when it was seen first
	// stale is set when the lock is ignored as left behind; mtime is its modification time then.
	stale bool
	mtime int64
}

// findGitLocks looks for the repositories that a directory is in, which may be one of its
// parents, and adds those that were found in it: directories with an entry named .git.
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

// heldByGit reports whether changes of a source wait for git, or for quiet after it.
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

// lookAtLock reports whether git is at work.
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

// gitSources are the sources of which nothing is taken now.
func (w *Watcher) gitSources(now time.Time) map[*source]bool {
	var held map[*source]bool
	for _, s := range w.tree.sources {
		if len(s.git.locks) > 0 && w.heldByGit(s, now) {
			if held == nil {
				held = map[*source]bool{}
			}
			held[s] = true
		}
	}
	return held
}

// gitProblems are about locks that were left behind.
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
