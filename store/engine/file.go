package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"svcctl.io/svcctl/store/parallel"
)

const (
	// fileName is the name of the database in the data directory.
	fileName = "state.db"
	// formatVersion is the format version of a new file, sealedVersion that of a file with encrypted values, which
	// programs without encryption refuse. sealedVersion is the newest version that this program reads.
	formatVersion = 1
	sealedVersion = 2
	// boltLockWait bounds the wait for bbolt's own lock, which only a foreign tool
	// that has the file open can hold.
	boltLockWait = 100 * time.Millisecond
	// mappedBytes is the address space that is reserved for mapping the file, in bytes. When the file outgrows it, bbolt has to map the file again
	// and copy all pages of the open transaction.
	mappedBytes = 256 << 20
	// growBytes is the minimum number of bytes by which the file grows. Each growth takes an fsync.
	growBytes = 256 << 10
	// keptBuffer is the maximum size, in bytes, of a buffer that is kept for the next commit. Small commits need buffers of similar size, and
	// allocating one each time would be a large part of their cost.
	keptBuffer = 256 << 10
)

// The buckets of the file, and the keys in metaBucket.
var (
	pairsBucket = []byte("pairs")
	metaBucket  = []byte("meta")
	versionKey  = []byte("format")
	digestKey   = []byte("digest")
)

// File is an Engine in one bbolt file of a data directory. Every value has a checksum, and
// the file a digest over all of them, which every commit updates: damaged, lost and stale
// pairs are detected when they are read. An error of a commit other than ErrConflict and
// ErrNoSpace is final: the content of the disk is unknown then, and all later commits fail
// with the same error until the file is opened again.
type File struct {
	path string
	lock *os.File
	key  *Key // encrypts values; nil if values are stored in plain text

	mu     sync.Mutex
	db     *bbolt.DB
	broken error
	// verified is set once all pairs were checked against the digest.
	verified bool
	sealed   bool                  // whether values are encrypted with key
	commit   func(*bbolt.Tx) error // (*bbolt.Tx).Commit; tests make it fail
	buffer   []byte                // buffer that is reused between commits, see room
	lent     []byte                // large buffer of the current commit, which giveBack puts into largeBuffers
}

// OpenFile opens a data directory, which it creates (mode 0700) if it does not exist. It
// checks the whole file, and locks the directory until Close. On a read-only file system
// it opens an existing file for reading, and commits fail. The key is for encryption at rest: a file that is not encrypted yet is encrypted first.
// A nil key means no encryption, and an encrypted file is refused.
func OpenFile(dir string, key *Key) (*File, error) {
	if err := prepareDirectory(dir); err != nil {
		return nil, err
	}
	lock, err := lockDirectory(dir)
	if err != nil {
		return nil, err
	}
	f := &File{path: filepath.Join(dir, fileName), lock: lock, key: key, commit: (*bbolt.Tx).Commit}
	if err := f.open(); err != nil {
		_ = unlockDirectory(lock)
		return nil, err
	}
	return f, nil
}

func (f *File) open() error {
	_, err := os.Lstat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = createFile(f.path)
	}
	if err != nil {
		return fmt.Errorf("open data file %s: %w", f.path, err)
	}
	wrong, err := checkDataFile(f.path)
	if err != nil {
		return fmt.Errorf("open data file %s: %w", f.path, err)
	}
	if wrong != nil {
		return damaged(f.path, wrong)
	}
	f.db, err = openBolt(f.path, false)
	if errors.Is(err, syscall.EROFS) {
		f.broken = &DiskError{fmt.Errorf("%s lies on a read-only file system: mount it for writing and restart", f.path)}
		f.db, err = openBolt(f.path, true)
	}
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("%s is open in another program: close that one first", f.path)
	}
	if err != nil {
		return fmt.Errorf("open data file %s: %w", f.path, err)
	}
	if err := f.checkVersion(); err != nil {
		f.db.Close()
		return err
	}
	if err := f.unlock(); err != nil {
		f.db.Close()
		return err
	}
	if f.broken != nil {
		return nil
	}
	if err := f.compact(); err != nil {
		return fmt.Errorf("open data file %s: %w", f.path, err)
	}
	return nil
}

func openBolt(path string, readOnly bool) (*bbolt.DB, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:         boltLockWait,
		ReadOnly:        readOnly,
		FreelistType:    bbolt.FreelistMapType,
		InitialMmapSize: mappedBytes,
		OpenFile: func(path string, flags int, mode os.FileMode) (*os.File, error) {
			return os.OpenFile(path, flags|syscall.O_NOFOLLOW, mode)
		},
	})
	if err == nil {
		db.AllocSize = growBytes
	}
	return db, err
}

// createFile creates an empty database. It writes the file under another name and renames it, so that a crash cannot leave an incomplete file.
func createFile(path string) error {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := writeFile(fresh, func(db *bbolt.DB) error {
		return db.Update(func(tx *bbolt.Tx) error {
			return addBuckets(tx, formatVersion, func(*bbolt.Bucket) (sum, error) { return sum{}, nil })
		})
	})
	if err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(path))
}

func (f *File) checkVersion() error {
	return f.db.View(func(tx *bbolt.Tx) error {
		meta, pairs := tx.Bucket(metaBucket), tx.Bucket(pairsBucket)
		if (meta == nil) != (pairs == nil) {
			return damaged(f.path, errors.New("a part of it is missing"))
		}
		if meta == nil {
			return fmt.Errorf("%s was not written by svcctl: choose another data directory with --data-dir", f.path)
		}
		text := string(meta.Get(versionKey))
		version, err := strconv.Atoi(text)
		if err != nil || version < 1 {
			return damaged(f.path, fmt.Errorf("it has no format version but %q", text))
		}
		if version > sealedVersion {
			return fmt.Errorf("%s was written by a newer svcctl (format %d; this one reads up to %d): start the newer svcctl, "+
				"or put back the copy from before the upgrade; nothing was changed", f.path, version, sealedVersion)
		}
		if (version == sealedVersion) != (meta.Get(sealedKey) != nil) {
			return damaged(f.path, errors.New("it does not record whether it is encrypted"))
		}
		return nil
	})
}

// DamagedError means that a data file is damaged, encrypted with another key, or of an unknown version.
type DamagedError struct {
	Path  string
	Cause error
}

// Error implements error. The text ends with what to do next about the file on a single box.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s is damaged: %v; put a backup of the file in its place, or move the file away to start again "+
		"from the manifests (addresses and ports that were chosen automatically may change then)", e.Path, e.Cause)
}

func (e *DamagedError) Unwrap() error { return e.Cause }

func damaged(path string, err error) error { return &DamagedError{path, err} }

// largeBuffers keeps large buffers for reuse by commits in close succession, as at program start. The garbage collector empties it.
var largeBuffers sync.Pool // of *[]byte

// giveBack returns the large buffer of a finished commit to largeBuffers.
func (f *File) giveBack() {
	if lent := f.lent; lent != nil {
		f.lent = nil
		largeBuffers.Put(&lent)
	}
}

// room returns a buffer for the stored entry of each pair. The buffers are valid until the next call.
func (f *File) room(puts []Pair) [][]byte {
	size := 0
	for _, pair := range puts {
		if pair.Entry == nil {
			size += EntryHeader + len(pair.Value)
		}
	}
	buffer := f.buffer[:cap(f.buffer)]
	if size > cap(buffer) {
		buffer = nil
		if size > keptBuffer {
			if last, is := largeBuffers.Get().(*[]byte); is {
				buffer = *last
			}
		}
		if size > cap(buffer) {
			buffer = make([]byte, size)
		}
		f.lent = buffer
	}
	if size <= keptBuffer {
		f.buffer, f.lent = buffer, nil
	}
	entries := make([][]byte, len(puts))
	for i, pair := range puts {
		if entries[i] = pair.Entry; pair.Entry == nil {
			n := EntryHeader + len(pair.Value)
			entries[i], buffer = buffer[:n:n], buffer[n:]
		}
	}
	return entries
}

// release lets the kernel drop the first size bytes of the mapped file from the memory of the process (MADV_DONTNEED). Most of what the program reads
// or writes at its start is not read again, and the rest is in the page cache.
func (f *File) release(size int64) {
	// A failure has no other effect.
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, f.db.Info().Data, uintptr(size), syscall.MADV_DONTNEED)
}

// verify compares the digest of all pairs with the digest that the last commit stored.
func verify(tx *bbolt.Tx) error {
	var digest sum
	err := tx.Bucket(pairsBucket).ForEach(func(key, entry []byte) error {
		checksum, err := checkEntry(key, entry)
		digest.toggle(checksum)
		return err
	})
	if err != nil {
		return err
	}
	if stored := tx.Bucket(metaBucket).Get(digestKey); string(stored) != string(digest[:]) {
		return errors.New("its entries are not those that were last committed")
	}
	return nil
}

// Commit implements Engine.
func (f *File) Commit(t Transaction) (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.db == nil {
		return ErrClosed
	}
	if f.broken != nil {
		return f.broken
	}
	defer f.guard(&err)()
	tx, err := f.db.Begin(true)
	if err != nil {
		return f.fail(err)
	}
	defer f.giveBack()
	defer tx.Rollback() // after a commit it does nothing
	if err := f.apply(tx, t); err != nil {
		if errors.Is(err, ErrConflict) {
			return err
		}
		return f.fail(err)
	}
	size := tx.Size()
	if err := f.commit(tx); err != nil {
		if isNoSpace(err) {
			return &noSpaceError{filepath.Dir(f.path), err}
		}
		return f.fail(err)
	}
	if len(t.Puts) > manyPuts {
		f.release(size)
	}
	return nil
}

// noSpaceError is an ErrNoSpace with a text that describes what to do next.
type noSpaceError struct {
	dir   string
	cause error
}

func (e *noSpaceError) Error() string {
	return fmt.Sprintf("the disk of %s is full: free space there; nothing in force is lost", e.dir)
}

func (e *noSpaceError) Unwrap() []error { return []error{ErrNoSpace, e.cause} }

// DiskError means that a write to disk failed, so that nothing can be committed until the data is opened again. Its text has the reason and
// the next step.
type DiskError struct{ Err error }

func (e *DiskError) Error() string { return e.Err.Error() }
func (e *DiskError) Unwrap() error { return e.Err }

// isNoSpace reports whether a commit failed for lack of space in a write before any fsync, so that
// the file is unchanged. After a failed fsync it is unknown which pages were lost.
func isNoSpace(err error) bool {
	var write *fs.PathError
	if !errors.As(err, &write) || write.Op != "write" {
		return false
	}
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// fail makes an error final: later commits return it, too.
func (f *File) fail(err error) error {
	f.broken = &DiskError{fmt.Errorf("write %s: %w; nothing more is accepted: check the disk, then restart", f.path, err)}
	return f.broken
}

// guard turns a panic of bbolt, or an access to a page that the disk cannot read any
// more, into an error.
func (f *File) guard(err *error) func() {
	before := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(before)
		if reason := recover(); reason != nil {
			*err = f.fail(fmt.Errorf("%v", reason))
		}
	}
}

// Close implements Engine.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.db == nil {
		return nil
	}
	err := errors.Join(f.db.Close(), unlockDirectory(f.lock))
	f.db = nil
	if err != nil {
		return fmt.Errorf("close %s: %w", f.path, err)
	}
	return nil
}

// manyPuts is the number of puts from which a transaction fills its pages completely (bbolt's FillPercent 1.0). Such a bulk load happens at a first
// start, and most of its objects do not change afterwards.
const manyPuts = 1_000

// apply applies a Transaction within a bbolt transaction.
func (f *File) apply(tx *bbolt.Tx, t Transaction) error {
	pairs, meta := tx.Bucket(pairsBucket), tx.Bucket(metaBucket)
	if entryRevision(pairs.Get([]byte(t.CompareKey))) != t.CompareRevision {
		return ErrConflict
	}
	var digest sum
	copy(digest[:], meta.Get(digestKey))
	for _, key := range t.Deletes {
		digest.toggleEntry(pairs.Get([]byte(key)))
		if err := pairs.Delete([]byte(key)); err != nil {
			return err
		}
	}
	// In the order of their keys each new pair comes behind the last one. In any other it
	// moves those behind it, which takes long when a transaction has many.
	puts := slices.Clone(t.Puts)
	slices.SortStableFunc(puts, func(a, b Pair) int { return strings.Compare(a.Key, b.Key) })
	if len(puts) > manyPuts {
		pairs.FillPercent = 1
	}
	if f.sealed {
		parallel.Do(len(puts), parallel.Share, func(i int) {
			puts[i].Value, puts[i].Entry = f.key.seal(puts[i].Key, puts[i].Value), nil
		})
	}
	entries := f.room(puts)
	parallel.Do(len(puts), parallel.Share, func(i int) { encodeEntry(entries[i], puts[i]) })
	at := pairs.Cursor() // one for all: each allocates the path to its key
	for i, entry := range entries {
		key := []byte(puts[i].Key)
		if found, before := at.Seek(key); bytes.Equal(found, key) {
			digest.toggleEntry(before)
		}
		digest.toggleEntry(entry)
		if err := pairs.Put(key, entry); err != nil {
			return err
		}
	}
	return meta.Put(digestKey, digest[:])
}

// A bbolt file never becomes smaller: pages that are free are used again, and not given back.
// So at the start a file that is mostly free is rewritten.
const (
	// compactLeast is the free space in a file, in bytes, from which it may be compacted.
	compactLeast = 8 << 20
	// compactSpare is the space that must be free on the disk in addition to that for the new file, in bytes.
	compactSpare = 16 << 20
	// compactStep is the maximum number of bytes that are copied in one transaction.
	compactStep = 16 << 20
	// compactSuffix is the suffix of the name of the new file while it is written.
	compactSuffix = ".compact"
)

// compact rewrites the file if at least half of it, and at least compactLeast, is free, and the disk has room for both files. The new file replaces
// the old one by a rename when it is complete and on disk, so a crash leaves one or the other. Failures that leave the old file usable are not
// returned.
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

// copyTo writes a copy of the file without free pages, and verifies it.
func (f *File) copyTo(path string) error {
	err := writeFile(path, func(db *bbolt.DB) error { return bbolt.Compact(db, f.db, compactStep) })
	if err != nil {
		return err
	}
	wrong, err := checkDataFile(path)
	return errors.Join(wrong, err)
}

// writeFile creates a database with the content that write puts into it, and verifies it.
func writeFile(path string, write func(*bbolt.DB) error) error {
	db, err := openBolt(path, false)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := write(db); err != nil {
		return err
	}
	if err := db.Sync(); err != nil {
		return err
	}
	return db.View(verify)
}

// addBuckets adds the buckets to a new database, with a format version, the pairs that write puts, and their digest.
func addBuckets(tx *bbolt.Tx, version int, write func(pairs *bbolt.Bucket) (digest sum, err error)) error {
	pairs, err := tx.CreateBucket(pairsBucket)
	if err != nil {
		return err
	}
	meta, err := tx.CreateBucket(metaBucket)
	if err != nil {
		return err
	}
	digest, err := write(pairs)
	if err != nil {
		return err
	}
	if err := meta.Put(digestKey, digest[:]); err != nil {
		return err
	}
	return meta.Put(versionKey, []byte(strconv.Itoa(version)))
}

// Space returns the free bytes, as available to this process, in the file system of a directory, and whether that is read-only.
func Space(dir string) (free int64, readOnly bool, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, false, fmt.Errorf("ask for the space of %s: %w", dir, err)
	}
	const readOnlyFlag = 1 // ST_RDONLY of statfs(2)
	return int64(s.Bavail) * s.Bsize, s.Flags&readOnlyFlag != 0, nil
}
