package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/bbolt"
)

// fill commits some pairs one after the other, so that the file has free pages too.
func fill(t testing.TB, f *File, commits, pairs int) {
	t.Helper()
	for revision := range uint64(commits) {
		tx := Transaction{CompareKey: "head", CompareRevision: revision, Puts: []Pair{{Key: "head", Revision: revision + 1}}}
		for i := range pairs {
			tx.Puts = append(tx.Puts, Pair{
				Key: fmt.Sprintf("object/Service/default/svc-%d", i), Revision: revision + 1,
				Value: []byte(strings.Repeat("v", 50) + fmt.Sprint(revision, i)),
			})
		}
		if err := f.Commit(tx); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever byte of the file changes: it is refused, or what is read is what was written
// and can be written to. Unless SVCCTL_SEEDS is "all", it is a quarter of the bytes, at random.
func TestEveryFlippedByteIsFoundOrHarmless(t *testing.T) {
	if testing.Short() {
		t.Skip("opens a file thousands of times")
	}
	for _, test := range []struct {
		name           string
		commits, pairs int
		flips          int // 0: all bytes that are in use, and a part of the others
	}{{"small", 4, 3, 0}, {"with branch pages", 3, 400, 600}} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			f := mustOpenFile(t, dir)
			fill(t, f, test.commits, test.pairs)
			want := dump(t, f)
			f.Close()
			path := filepath.Join(dir, fileName)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			refused := 0
			flip := func(at int, mask byte) {
				if !survives(t, dir, at, data[at]^mask, want) {
					refused++
				}
				patch(t, path, at, data[at])
			}
			random, all := rand.New(rand.NewPCG(7, 8)), os.Getenv("SVCCTL_SEEDS") == "all"
			if test.flips == 0 {
				for at := range data {
					if (data[at] != 0 || at%64 == 0 || at%4096 < 96) && (all || random.IntN(4) == 0) {
						flip(at, 1<<(at%8))
					}
				}
			}
			for i := range test.flips {
				if at, mask := random.IntN(len(data)), byte(1+random.IntN(255)); all || i%4 == 0 {
					flip(at, mask)
				}
			}
			if refused == 0 {
				t.Error("no flipped byte was found")
			}
			t.Logf("%d flips were refused", refused)
			if got := dump(t, mustOpenFile(t, dir)); got != want {
				t.Error("the file itself has changed")
			}
		})
	}
}

func patch(t *testing.T, path string, at int, value byte) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt([]byte{value}, int64(at)); err != nil {
		t.Fatal(err)
	}
}

// survives reports whether a file with another byte in it opens; then it must hold what
// is wanted.
func survives(t *testing.T, dir string, at int, value byte, want string) bool {
	t.Helper()
	patch(t, filepath.Join(dir, fileName), at, value)
	f, err := OpenFile(dir, nil)
	if err == nil {
		defer f.Close()
		var pairs []Pair
		if pairs, err = f.Load(""); err == nil {
			got := ""
			for _, pair := range pairs {
				got += fmt.Sprintf("%s@%d=%s\n", pair.Key, pair.Revision, pair.Value)
			}
			if got != want {
				t.Errorf("byte %d as %#02x is not found, and other pairs are read", at, value)
			}
			return true
		}
	}
	if text := err.Error(); !strings.Contains(text, "is damaged") && !strings.Contains(text, "newer svcctl") {
		t.Errorf("byte %d as %#02x: the error does not say what to do: %v", at, value, err)
	}
	return false
}

func TestTruncatedFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	f := mustOpenFile(t, dir)
	fill(t, f, 3, 100)
	f.Close()
	path := filepath.Join(dir, fileName)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, err := readMeta(data, 0)
	if err != nil {
		t.Fatal(err)
	}
	other, err := readMeta(data, head.pageSize)
	if err != nil {
		t.Fatal(err)
	}
	// What is behind the pages in use is room to grow.
	for size := int64(max(head.pages, other.pages)*head.pageSize) - 1; ; size /= 2 {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenFile(dir, nil); err == nil || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("cut to %d bytes: %v", size, err)
		}
		if size == 0 {
			return
		}
	}
}

// The two heads are written in turn: one of long ago means that a write was lost.
func TestLostHeadIsFound(t *testing.T) {
	dir := t.TempDir()
	f := mustOpenFile(t, dir)
	fill(t, f, 2, 3)
	path := filepath.Join(dir, fileName)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for revision := uint64(2); revision < 4; revision++ {
		if err := f.Commit(Transaction{CompareKey: "head", CompareRevision: revision, Puts: []Pair{{Key: "head", Revision: revision + 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := os.Getpagesize()
	first, err1 := readMeta(data, 0)
	second, err2 := readMeta(data, uint64(size))
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	older := 0
	if second.txid < first.txid {
		older = size
	}
	copy(data[older:older+size], before[older:older+size])
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(dir, nil); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("got %v", err)
	}
}

func TestFailedSyncIsFinal(t *testing.T) {
	f := mustOpenFile(t, t.TempDir())
	fill(t, f, 1, 1)
	next := Transaction{CompareKey: "head", CompareRevision: 1, Puts: []Pair{{Key: "head", Revision: 2}}}
	f.commit = func(*bbolt.Tx) error { return syscall.EIO }
	first := f.Commit(next)
	if !errors.Is(first, syscall.EIO) || !strings.Contains(first.Error(), "restart") {
		t.Fatalf("got %v", first)
	}
	f.commit = (*bbolt.Tx).Commit
	if err := f.Commit(next); err == nil || err.Error() != first.Error() {
		t.Errorf("the next commit: got %v, want the same error", err)
	}
	if _, err := f.Load(""); err != nil {
		t.Errorf("reading goes on: %v", err)
	}
}

func TestFullDiskIsNotFinal(t *testing.T) {
	f := mustOpenFile(t, t.TempDir())
	fill(t, f, 1, 1)
	next := Transaction{CompareKey: "head", CompareRevision: 1, Puts: []Pair{{Key: "head", Revision: 2}}}
	f.commit = func(*bbolt.Tx) error { return &fs.PathError{Op: "write", Path: f.path, Err: syscall.ENOSPC} }
	if err := f.Commit(next); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("got %v", err)
	}
	f.commit = (*bbolt.Tx).Commit
	if err := f.Commit(next); err != nil {
		t.Errorf("when there is room again: %v", err)
	}
}

// When a sync says that there is no space, it is unknown what was written.
func TestFullDiskInSyncIsFinal(t *testing.T) {
	f := mustOpenFile(t, t.TempDir())
	f.commit = func(*bbolt.Tx) error { return syscall.ENOSPC }
	next := Transaction{CompareKey: "head", Puts: []Pair{{Key: "head", Revision: 1}}}
	if err := f.Commit(next); errors.Is(err, ErrNoSpace) {
		t.Fatalf("got %v", err)
	}
	f.commit = (*bbolt.Tx).Commit
	if err := f.Commit(next); err == nil {
		t.Error("a commit was accepted afterwards")
	}
}

func TestPanicOfTheDatabaseIsAnError(t *testing.T) {
	f := mustOpenFile(t, t.TempDir())
	f.commit = func(*bbolt.Tx) error { panic("page 7 already freed") }
	next := Transaction{CompareKey: "head", Puts: []Pair{{Key: "head", Revision: 1}}}
	if err := f.Commit(next); err == nil || !strings.Contains(err.Error(), "page 7 already freed") {
		t.Errorf("got %v", err)
	}
}

func TestSecondInstance(t *testing.T) {
	dir := t.TempDir()
	mustOpenFile(t, dir)
	_, err := OpenFile(dir, nil)
	want := fmt.Sprintf("another svcctl uses the data directory %s (process %d): stop that one first, or give this one its own with --data-dir", dir, os.Getpid())
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// A child process has the lock's file until it executes its program, as this duplicate does.
func TestClosedWhileAChildProcessBegins(t *testing.T) {
	dir := t.TempDir()
	f := mustOpenFile(t, dir)
	fd, err := syscall.Dup(int(f.lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	mustOpenFile(t, dir)
}

func TestNewerFormatIsRefusedAndUntouched(t *testing.T) {
	dir := t.TempDir()
	f := mustOpenFile(t, dir)
	err := f.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(metaBucket).Put(versionKey, []byte("3")) })
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	path := filepath.Join(dir, fileName)
	before, _ := os.ReadFile(path)
	if _, err := OpenFile(dir, nil); err == nil || !strings.Contains(err.Error(), "was written by a newer svcctl (format 3; this one reads up to 2): start the newer svcctl") {
		t.Errorf("got %v", err)
	}
	if after, _ := os.ReadFile(path); string(after) != string(before) {
		t.Error("the file was changed")
	}
}

func TestPermissions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	mustOpenFile(t, dir).Close()
	for path, want := range map[string]fs.FileMode{dir: 0o700, filepath.Join(dir, fileName): 0o600, filepath.Join(dir, lockName): 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %04o, want %04o", path, got, want)
		}
	}
	if err := os.Chmod(dir, 0o770); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(dir, nil); err == nil || !strings.Contains(err.Error(), "run `chmod 700 "+dir+"`") {
		t.Errorf("a directory that others can write to: %v", err)
	}
}

func TestForeignThingsInTheWay(t *testing.T) {
	elsewhere := t.TempDir()
	mustOpenFile(t, elsewhere).Close()
	for name, prepare := range map[string]func(path string) error{
		"symbolic link": func(path string) error { return os.Symlink(filepath.Join(elsewhere, fileName), path) },
		"fifo":          func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"text":          func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("hello ", 5000)), 0o600) },
		"another database": func(path string) error {
			db, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				return err
			}
			return db.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := prepare(filepath.Join(dir, fileName)); err != nil {
				t.Fatal(err)
			}
			f, err := OpenFile(dir, nil)
			if err == nil {
				f.Close()
				t.Fatal("it was opened")
			}
			t.Log(err)
		})
	}
}

// A crash while the file is made leaves another name behind, nothing else.
func TestHalfMadeFileIsReplaced(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fileName+".new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	fill(t, mustOpenFile(t, dir), 1, 1)
}

// A copy of the file, taken while it is open, is a backup.
func TestCopiedFileOpens(t *testing.T) {
	dir, copied := t.TempDir(), t.TempDir()
	f := mustOpenFile(t, dir)
	fill(t, f, 5, 50)
	data, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(copied, fileName), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := dump(t, mustOpenFile(t, copied)), dump(t, f); got != want {
		t.Error("the copy holds something else")
	}
}

// requireRoot skips a test that needs root, or fails it where that must not happen.
func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
		t.Fatal("this test needs root, and SVCCTL_REQUIRE_PRIVILEGED=1 forbids to skip it")
	}
	t.Skip("SKIPPED: this test needs root")
}

func TestInspect(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	expect := func(when string, want DirectoryState) {
		t.Helper()
		if got, err := Inspect(dir); got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", when, got, err, want)
		}
	}
	expect("without a directory", DirectoryAbsent)
	f, err := OpenFile(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	expect("while it is open", DirectoryInUse)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	expect("closed", DirectorySound)
	path := filepath.Join(dir, fileName)
	if err := os.Truncate(path, 5000); err != nil {
		t.Fatal(err)
	}
	if got, err := Inspect(dir); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("damaged: %q, %v", got, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("without a file", DirectoryAbsent)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if got, err := Inspect(dir); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("writable by others: %q, %v", got, err)
	}
}
