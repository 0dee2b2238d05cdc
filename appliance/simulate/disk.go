package simulate

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"syscall"
	"unsafe"

	"go.etcd.io/bbolt"

	"svcctl.io/svcctl/store/engine"
)

// disk is the data directory, which outlives processes: a real data file, with faults in the middle of its commits.
type disk struct {
	dir  string
	seed uint64
	key  *engine.Key // after the first process all encrypt; nil: none does

	mu      sync.Mutex
	file    *engine.File   // of the process, nil after close
	opened  []byte         // the content when the process opened it, if commits are not synced
	torn    []byte         // what the next process finds, nil: what was written last
	faults  map[int]string // by the number of the commit
	starved bool           // each commit finds the disk full
	commits int            // calls
	tears   int            // crashes between a write and its sync
}

func newDisk(dir string, seed uint64) *disk {
	d := &disk{dir: dir, seed: seed, faults: map[int]string{}}
	if newerOf(seed).encrypted {
		var err error
		if d.key, err = engine.NewKey(bytes.Repeat([]byte{7}, 32)); err != nil {
			panic(err)
		}
	}
	return d
}

// fault has the nth commit from now on fail.
func (d *disk) fault(how string, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults[d.commits+n] = how
}

func (d *disk) calm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults, d.starved = map[int]string{}, false
}

// starve has the disk full from now on.
func (d *disk) starve() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.starved = true
}

// next counts a commit and returns its fault.
func (d *disk) next() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.commits++
	if d.starved {
		return "full"
	}
	return d.faults[d.commits]
}

func (d *disk) path() string { return filepath.Join(d.dir, "state.db") }

// open returns the engine for a process.
func (d *disk) open(l *life) (engine.Engine, error) {
	var key *engine.Key
	if _, err := os.Stat(d.path()); err == nil {
		key = d.key
	}
	file, err := engine.OpenFile(d.dir, key)
	if err != nil {
		return nil, err
	}
	var content []byte
	if (*hookOf[*bbolt.DB](file, "db")).NoSync {
		if content, err = os.ReadFile(d.path()); err != nil {
			return nil, errors.Join(err, file.Close())
		}
	}
	d.mu.Lock()
	d.file, d.opened, d.torn = file, content, nil
	d.mu.Unlock()
	*hookOf[func(*bbolt.Tx) error](file, "commit") = func(tx *bbolt.Tx) error { return d.commit(l, tx) }
	return file, nil
}

// hookOf returns an unexported field of a struct, which only tests of its own package set.
func hookOf[T, S any](of *S, name string) *T {
	field := reflect.ValueOf(of).Elem().FieldByName(name)
	if field.Type() != reflect.TypeFor[T]() {
		panic(fmt.Sprintf("%T.%s is a %v", *of, name, field.Type()))
	}
	return (*T)(unsafe.Pointer(field.UnsafeAddr()))
}

// commit is a commit of the data file, with its fault.
func (d *disk) commit(l *life, tx *bbolt.Tx) error {
	if l.dead.Load() {
		return errDead
	}
	switch fault := d.next(); fault {
	case "full":
		return &fs.PathError{Op: "write", Path: d.path(), Err: syscall.ENOSPC}
	case "failed":
		l.broken.Store(true)
		return &fs.PathError{Op: "sync", Path: d.path(), Err: syscall.EIO}
	case "before":
		l.kill()
		return errDead
	case "torn":
		l.kill()
		return errors.Join(d.tear(tx), errDead)
	case "after":
		l.kill()
		return errors.Join(tx.Commit(), errDead)
	}
	return tx.Commit()
}

// tear commits, and leaves to the next process what a crash between the write of the pages and the sync leaves on a disk: the
// head of before, and each other page as before or as after. Without a sync each page may be as it was when the file was opened.
func (d *disk) tear(tx *bbolt.Tx) error {
	unsynced := tx.DB().NoSync
	before, err := os.ReadFile(d.path())
	if err != nil {
		return err
	}
	size := tx.DB().Info().PageSize
	if err := tx.Commit(); err != nil {
		return err
	}
	after, err := os.ReadFile(d.path())
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if unsynced {
		before = d.opened
	}
	d.tears++
	d.torn = tornPages(before, after, size, unsynced, rand.New(rand.NewPCG(d.seed, uint64(d.commits))))
	return nil
}

// tornPages mixes the pages of two contents of a data file. The first two are its heads.
func tornPages(before, after []byte, size int, heads bool, r *rand.Rand) []byte {
	torn := make([]byte, len(after))
	share := r.IntN(5) // from no page to all of them
	for at := 0; at < len(after); at += size {
		end := min(at+size, len(after))
		isNew := r.IntN(4) < share
		if at < 2*size && !heads {
			isNew = false
		}
		if isNew {
			copy(torn[at:end], after[at:end])
		} else if at < len(before) {
			copy(torn[at:end], before[at:min(end, len(before))])
		}
	}
	return torn
}

// close ends the use by a process. The next one finds what the disk has.
func (d *disk) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file == nil {
		return nil
	}
	err := d.file.Close()
	d.file = nil
	if d.torn != nil {
		if now, _ := os.ReadFile(d.path()); !bytes.Equal(now, d.torn) {
			err = errors.Join(err, os.WriteFile(d.path(), d.torn, 0o600))
		}
	}
	return err
}
