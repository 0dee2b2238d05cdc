package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// DirectoryState is the state of a data directory.
type DirectoryState string

// The states of a data directory.
const (
	DirectoryAbsent DirectoryState = "absent" // there is none, or nothing in it yet
	DirectoryInUse  DirectoryState = "in use" // a process has it open
	DirectorySound  DirectoryState = "sound"  // no process has it open, and its file is whole
)

// Inspect looks at a data directory and changes nothing in it. The error says what keeps
// a store from being opened there.
func Inspect(dir string) (DirectoryState, error) {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return DirectoryAbsent, nil
	case err != nil:
		return "", fmt.Errorf("data directory: %w", err)
	}
	if err := checkDirectory(dir, info); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err == nil {
		defer func() { _ = unlockDirectory(lock) }()
		if errors.Is(syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
			return DirectoryInUse, nil
		}
	}
	path := filepath.Join(dir, fileName)
	wrong, err := checkDataFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return DirectoryAbsent, nil
	case err != nil:
		return "", fmt.Errorf("open data file %s: %w", path, err)
	}
	if wrong != nil {
		return "", damaged(path, wrong)
	}
	return DirectorySound, nil
}
