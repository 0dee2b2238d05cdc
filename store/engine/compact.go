package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"go.etcd.io/bbolt"
)

// A bbolt file never becomes smaller: pages that are free are used again, and not given back.
// So at the start a file that is mostly free is rewritten.
const (
	// compactLeast is the least free space in a file that is compacted, in bytes.
	compactLeast = 8 << 20
	// compactSpare is the space that must stay free on the disk besides the new file, in bytes.
	compactSpare = 16 << 20
	// compactStep bounds the bytes that are copied in one transaction.
	compactStep = 16 << 20
	// compactSuffix ends the name of the new file until it is complete.
	compactSuffix = ".compact"
)

// compact rewrites the file if at least half of it, and compactLeast, is free, and the disk
// has room for both. The new file takes the place of the old one in one step, when it is whole
// and on disk: after a crash there is one or the other. An error leaves the file as it is,
// unless it is returned.
func (f *File) compact() error {
	fresh := f.path + compactSuffix
	_ = os.Remove(fresh) // of a crash
	info, err := os.Stat(f.path)
	if err != nil {
		return nil // reading it fails, with the reason
	}
	stats := f.db.Stats()
	free := int64(stats.FreePageN+stats.PendingPageN) * int64(f.db.Info().PageSize)
	used := info.Size() - free
	if room, _, err := Space(filepath.Dir(f.path)); free < compactLeast || free < used || err != nil || room < used+compactSpare {
		return nil
	}
	if err := f.copyTo(fresh); err != nil {
		_ = os.Remove(fresh)
		return nil
	}
	if err := f.db.Close(); err != nil {
		return err
	}
	if err := os.Rename(fresh, f.path); err != nil {
		_ = os.Remove(fresh)
	} else if err := syncDirectory(filepath.Dir(f.path)); err != nil {
		return err
	}
	f.db, err = openBolt(f.path, false)
	return err
}

// copyTo makes a copy without free pages, and checks it.
func (f *File) copyTo(path string) error {
	copied, err := openBolt(path, false)
	if err != nil {
		return err
	}
	defer copied.Close()
	if err := bbolt.Compact(copied, f.db, compactStep); err != nil {
		return err
	}
	if err := copied.Sync(); err != nil {
		return err
	}
	if err := copied.View(verify); err != nil {
		return err
	}
	wrong, err := checkDataFile(path)
	return errors.Join(wrong, err)
}

// Space returns the bytes that are free for us in the file system of a directory, and whether it is read-only.
func Space(dir string) (free int64, readOnly bool, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, false, fmt.Errorf("ask for the space of %s: %w", dir, err)
	}
	const readOnlyFlag = 1 // ST_RDONLY of statfs(2)
	return int64(s.Bavail) * s.Bsize, s.Flags&readOnlyFlag != 0, nil
}
