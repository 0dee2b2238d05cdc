package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Root looks at the directory of another user, and writes into it, as that user.
func TestAsOwner(t *testing.T) {
	requireRoot(t)
	const user, group = 65534, 65533
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	if err := AsOwner(data, func() error { return os.Mkdir(data, 0o700) }); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(data, user, group); err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect(data); err == nil || !strings.Contains(err.Error(), "another user") {
		t.Errorf("as root: %v", err)
	}
	err := AsOwner(data, func() error {
		e, err := OpenFile(data, nil)
		if err != nil {
			return err
		}
		if err := e.Commit(Transaction{Puts: []Pair{{Key: "a", Value: []byte("1")}}}); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "outside"), nil, 0o600); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("outside: %v", err)
		}
		return e.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{fileName, lockName} {
		info, err := os.Stat(filepath.Join(data, name))
		if err != nil {
			t.Fatal(err)
		}
		if owner := info.Sys().(*syscall.Stat_t); owner.Uid != user || owner.Gid != group {
			t.Errorf("%s is of user %d, group %d", name, owner.Uid, owner.Gid)
		}
	}
	if os.Geteuid() != 0 || os.Getegid() != 0 {
		t.Errorf("the process is user %d, group %d", os.Geteuid(), os.Getegid())
	}
	failed := errors.New("failed")
	if err := AsOwner(data, func() error { return failed }); !errors.Is(err, failed) || os.Geteuid() != 0 {
		t.Errorf("%v, user %d", err, os.Geteuid())
	}
}
