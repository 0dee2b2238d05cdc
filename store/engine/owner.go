package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

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
