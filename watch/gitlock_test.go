package watch

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// TestCheckout: git removes what it moves long before it writes it again, and that is one change.
func TestCheckout(t *testing.T) {
	for name, place := range map[string]struct{ git, dir, link string }{
		"in the directory":     {git: "repo/.git", dir: "repo"},
		"in a parent":          {git: "repo/.git", dir: "repo/deploy/box1"},
		"in a directory below": {git: "all/repo/.git", dir: "all"},
		"a work tree":          {git: "main/.git/worktrees/tree", dir: "tree/deploy", link: "tree/.git"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			git, dir := filepath.Join(root, place.git), filepath.Join(root, place.dir)
			must(t, os.MkdirAll(git, 0o755))
			tree := dir
			if place.dir == "all" {
				tree = filepath.Join(dir, "repo")
			}
			put(t, tree, map[string]string{"a.yaml": services("a"), "b.yaml": services("b")})
			if place.link != "" {
				must(t, os.WriteFile(filepath.Join(root, place.link), []byte("gitdir: "+git+"\n"), 0o644))
			}
			lock := filepath.Join(git, "index.lock")
			synctest.Test(t, func(t *testing.T) {
				h := start(t, dir, newSilent())
				defer h.stop()
				h.is(h.next(), "a.yaml: a, b.yaml: b")
				h.dir = tree
				must(t, os.WriteFile(lock, nil, 0o644))
				h.remove("a.yaml")
				h.remove("b.yaml")
				h.none(5 * time.Second)
				h.write("c.yaml", services("b"))
				h.none(gitQuiet - time.Second) // the tree is not quiet for that long
				h.write("d.yaml", services("a"))
				h.none(20 * time.Second)
				must(t, os.Remove(lock))
				h.is(h.within(0, time.Second), "c.yaml: b, d.yaml: a")
				// Without a lock all is as before.
				h.remove("c.yaml")
				h.is(h.within(50*time.Millisecond, time.Second), "d.yaml: a")
			})
		})
	}
}

// What git did last is seen although no event has told of it.
func TestCheckoutIsReadOnceMore(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("a"), ".git/HEAD": ""}, func(h *harness) {
		h.next()
		h.write(".git/index.lock", "")
		h.remove("a.yaml")
		h.none(time.Second)
		must(h.T, os.WriteFile(h.path("b.yaml"), []byte(services("a")), 0o644)) // no event
		must(h.T, os.Remove(h.path(".git/index.lock")))
		h.is(h.within(0, time.Second), "b.yaml: a")
	})
}

// A lock that a git left behind holds nothing for ever, and is told until it goes.
func TestStaleGitLock(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("a"), "b.yaml": services("b"), ".git/HEAD": ""}, func(h *harness) {
		h.next()
		h.write(".git/index.lock", "")
		h.remove("a.yaml")
		h.none(gitQuiet - time.Second)
		h.problem(h.within(0, 2*time.Second), "index.lock", "remove the file")
		h.is(h.within(0, time.Second), "b.yaml: b")
		// It is not believed again.
		h.write("b.yaml", services("c"))
		h.is(h.within(0, 3*time.Second), "b.yaml: c")
		must(h.T, os.Remove(h.path(".git/index.lock")))
		if s := h.within(0, 11*time.Second); len(s.Problems) != 0 {
			h.Errorf("problems %v", s.Problems)
		}
		h.none(time.Minute)
	})
}

// A tree that never comes to rest under a lock is read in the end.
func TestRestlessTreeWithAGitLock(t *testing.T) {
	bubble(t, map[string]string{"a.yaml": services("a"), ".git/HEAD": ""}, func(h *harness) {
		h.next()
		h.write(".git/index.lock", "")
		for end := time.Now().Add(gitMost + time.Minute); time.Now().Before(end); {
			h.write("a.yaml", services("a", "b"))
			time.Sleep(10 * time.Second)
			h.write("a.yaml", services("a"))
			time.Sleep(10 * time.Second)
		}
		if s := h.within(0, time.Minute); len(s.Problems) == 0 {
			h.Error("nothing is said")
		}
	})
}
