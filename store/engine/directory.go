package engine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// lockName is the file whose lock (flock) is the right to use a data directory.
const lockName = "lock"

// prepareDirectory makes the data directory, or checks that no other user can write to one that
// exists. Others may list it: its files are readable by their owner only.
func prepareDirectory(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("make data directory %s: %w; run as root, or choose another one with --data-dir", dir, err)
	case err != nil:
		return fmt.Errorf("make data directory %s: %w; choose another one with --data-dir", dir, err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return checkDirectory(dir, info)
}

// checkDirectory validates the type, mode and owner of an existing data directory.
func checkDirectory(dir string, info fs.FileInfo) error {
	if !info.IsDir() {
		return fmt.Errorf("data directory %s is not a directory: choose another one with --data-dir", dir)
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("data directory %s can be written by others (mode %04o): run `chmod 700 %s`", dir, mode, dir)
	}
	if !ownedByUs(info) {
		return fmt.Errorf("data directory %s belongs to another user: run as that user, or choose another one with --data-dir", dir)
	}
	return nil
}

func ownedByUs(info fs.FileInfo) bool {
	status, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(status.Uid) == os.Geteuid()
}

// lockDirectory keeps other processes out of the directory until unlockDirectory, or the process ends however it ends.
func lockDirectory(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, syscall.EROFS) {
		lock, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	}
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("data directory %s has no state, and its file system is read-only: mount it writable, or choose another one with --data-dir", dir)
	case errors.Is(err, syscall.ENOSPC):
		return nil, fmt.Errorf("lock data directory: %w: free space there, or choose another one with --data-dir", err)
	default:
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		// The process id is for the error of the next process: nothing depends on it, and a full
		// disk must not stop us here.
		_ = lock.Truncate(0)
		_, _ = lock.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
		return lock, nil
	}
	defer lock.Close()
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	holder := ""
	if text, err := io.ReadAll(io.LimitReader(lock, 20)); err == nil && len(text) > 0 {
		holder = fmt.Sprintf(" (process %s)", strings.TrimSpace(string(text)))
	}
	return nil, fmt.Errorf("another svcctl uses the data directory %s%s: stop that one first, or give this one its own with --data-dir", dir, holder)
}

// unlockDirectory lets other processes use the directory. Closing alone does not at once: a child process has the file too
// from its fork until it executes its program.
func unlockDirectory(lock *os.File) error {
	return errors.Join(syscall.Flock(int(lock.Fd()), syscall.LOCK_UN), lock.Close())
}

// syncDirectory makes a rename in the directory durable.
func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// AsOwner runs do as the user and group of a data directory, where this process is root's and the directory is another
// user's: what do makes there is that user's, and it may do no more than that user. The whole process is that
// user meanwhile. For a directory that does not exist, do runs as it is.
func AsOwner(dir string, do func() error) (err error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return do()
	}
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 || owner.Uid == 0 {
		return do()
	}
	group := os.Getegid()
	// The group first, and back last: only root may change it.
	if err := syscall.Setresgid(-1, int(owner.Gid), -1); err != nil {
		return fmt.Errorf("act as group %d, whose data directory %s is: %w", owner.Gid, dir, err)
	}
	defer func() { err = errors.Join(err, syscall.Setresgid(-1, group, -1)) }()
	if err := syscall.Setresuid(-1, int(owner.Uid), -1); err != nil {
		return fmt.Errorf("act as user %d, whose data directory %s is: %w", owner.Uid, dir, err)
	}
	defer func() { err = errors.Join(err, syscall.Setresuid(-1, 0, -1)) }()
	return do()
}
