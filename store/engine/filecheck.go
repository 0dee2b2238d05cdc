package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
)

// The parts of bbolt's file format that checkFile reads (bbolt v1.5,
// internal/common: meta.go, page.go, inode.go). Numbers are little endian here, as on
// every machine that this program supports.
const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2

	branchPage   = 0x01
	leafPage     = 0x02
	metaPage     = 0x04
	freelistPage = 0x10

	pageHeaderSize    = 16 // id 8, flags 2, count 2, overflow 4
	branchElementSize = 16 // position 4, key size 4, page 8
	leafElementSize   = 16 // flags 4, position 4, key size 4, value size 4
	bucketHeaderSize  = 16 // root page 8, sequence 8
	metaSize          = 64 // size of a meta page's content without the page header
	leafIsBucket      = 1  // flag of a leaf element that holds a bucket
	longFreelist      = 0xFFFF
	minPageSize       = 512 // smallest page size of any machine; bbolt uses the page size of the machine
)

// openDataFile opens a file for reading and returns its size. It fails if users other than that of this process can access the file.
func openDataFile(path string) (*os.File, int64, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("it is not a regular file: move it away")
	case !ownedByUs(info):
		err = errors.New("it belongs to another user: give it to the one that svcctl runs as, or move it away")
	default:
		return file, info.Size(), nil
	}
	_ = file.Close()
	return nil, 0, err
}

// checkDataFile runs checkFile on the file at a path. It maps the file instead of reading it, since a copy would be the largest allocation at program
// start. wrong is the defect of the file's structure, nil if there is none.
func checkDataFile(path string) (wrong, err error) {
	file, size, err := openDataFile(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if size == 0 {
		return checkFile(nil), nil
	}
	data, err := syscall.Mmap(int(file.Fd()), 0, int(size), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	defer func() { _ = syscall.Munmap(data) }() // it was mapped
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { // a page that the disk cannot read, or that is cut off meanwhile
		if reason := recover(); reason != nil {
			err = fmt.Errorf("%v", reason)
		}
	}()
	return checkFile(data), nil
}

// checkFile checks the structure of a whole bbolt file and returns the first defect. bbolt
// itself trusts its pages: with a damaged file it would crash, loop or overwrite live
// data. Values are not checked, as they have their own checksums.
func checkFile(data []byte) error {
	c := &fileCheck{data: data}
	return c.run()
}

type fileCheck struct {
	data     []byte
	pageSize uint64
	// pages is the high water mark: pages with this ID and above are not in use.
	pages uint64
	// seen marks the pages that were found to be in use, and found is their number.
	seen  []bool
	found uint64
}

// A metaBlock is one of the two meta pages of the file, which commits write alternately.
type metaBlock struct{ pageSize, root, freelist, pages, txid uint64 }

func (c *fileCheck) run() error {
	first, err := readMeta(c.data, 0)
	if err != nil {
		return err
	}
	c.pageSize = first.pageSize
	second, err := readMeta(c.data, c.pageSize)
	if err != nil {
		return err
	}
	newest, oldest := first, second
	if second.txid > first.txid {
		newest, oldest = second, first
	}
	// bbolt writes the heads in turn, so one that is missing in between was lost.
	if newest.txid != oldest.txid+1 || newest.pageSize != oldest.pageSize {
		return errors.New("its two heads do not follow each other")
	}
	c.pages = newest.pages
	if c.pages > uint64(len(c.data))/c.pageSize {
		return errors.New("it is cut short")
	}
	c.seen = make([]bool, max(c.pages, 2))
	c.account(0)
	c.account(1)
	if err := c.tree(newest.root, nil, nil); err != nil {
		return err
	}
	if err := c.freelist(newest.freelist); err != nil {
		return err
	}
	if c.found != c.pages {
		return fmt.Errorf("%d of its %d pages are accounted for", c.found, c.pages)
	}
	return nil
}

// account marks a page as used. It returns false if it is used already.
func (c *fileCheck) account(id uint64) bool {
	first := !c.seen[id]
	if first {
		c.seen[id] = true
		c.found++
	}
	return first
}

func readMeta(data []byte, at uint64) (metaBlock, error) {
	if at+pageHeaderSize+metaSize > uint64(len(data)) {
		return metaBlock{}, errors.New("it is cut short")
	}
	page, meta := data[at:at+pageHeaderSize], data[at+pageHeaderSize:at+pageHeaderSize+metaSize]
	hash := fnv.New64a()
	hash.Write(meta[:metaSize-8]) // never fails
	m := metaBlock{
		pageSize: uint64(le32(meta, 8)),
		root:     le64(meta, 16),
		freelist: le64(meta, 32),
		pages:    le64(meta, 40),
		txid:     le64(meta, 48),
	}
	switch {
	case le32(meta, 0) != boltMagic || le32(meta, 4) != boltVersion:
		return metaBlock{}, errors.New("it has no bbolt head")
	case le64(meta, metaSize-8) != hash.Sum64():
		return metaBlock{}, errors.New("the checksum of a head is wrong")
	case binary.LittleEndian.Uint16(page[8:]) != metaPage || le64(page, 0) != m.txid%2 || m.pageSize < minPageSize || (at == 0) != (m.txid%2 == 0):
		return metaBlock{}, errors.New("a head is not where it should be")
	}
	return m, nil
}

// page returns the bytes of a page including its overflow pages, its type and its number of entries. It fails unless the type is one of kinds. It
// marks these pages as used.
func (c *fileCheck) page(id uint64, kinds ...uint16) (data []byte, kind uint16, count int, err error) {
	if id < 2 || id >= c.pages {
		return nil, 0, 0, fmt.Errorf("there is no page %d", id)
	}
	header := c.data[id*c.pageSize:]
	kind = binary.LittleEndian.Uint16(header[8:])
	count = int(binary.LittleEndian.Uint16(header[10:]))
	overflow := uint64(le32(header, 12))
	known := false
	for _, k := range kinds {
		known = known || k == kind
	}
	if le64(header, 0) != id || !known || id+overflow >= c.pages {
		return nil, 0, 0, fmt.Errorf("the header of page %d is wrong", id)
	}
	for n := id; n <= id+overflow; n++ {
		if !c.account(n) {
			return nil, 0, 0, fmt.Errorf("page %d is used twice", n)
		}
	}
	return c.data[id*c.pageSize : (id+overflow+1)*c.pageSize], kind, count, nil
}

// tree checks the subtree of a page. All keys must lie in [low, high).
func (c *fileCheck) tree(id uint64, low, high []byte) error {
	data, kind, count, err := c.page(id, branchPage, leafPage)
	if err != nil {
		return err
	}
	if kind == leafPage {
		return c.leaf(id, data, count, low, high)
	}
	if count == 0 {
		return fmt.Errorf("page %d is empty", id)
	}
	keys, children := make([][]byte, count), make([]uint64, count)
	for i := range count {
		at := pageHeaderSize + i*branchElementSize
		if at+branchElementSize > len(data) {
			return fmt.Errorf("page %d holds less than its header has", id)
		}
		children[i] = le64(data, at+8)
		if keys[i], err = slice(data, at, le32(data, at), le32(data, at+4)); err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
	}
	if err := ordered(keys, low, high); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	for i, child := range children {
		end := high
		if i+1 < count {
			end = keys[i+1]
		}
		if err := c.tree(child, keys[i], end); err != nil {
			return err
		}
	}
	return nil
}

// leaf checks the entries of a leaf page and the buckets in them. data begins with a page header. The page of a bucket that is stored inline in its
// parent is not marked as used.
func (c *fileCheck) leaf(id uint64, data []byte, count int, low, high []byte) error {
	keys := make([][]byte, count)
	for i := range count {
		at := pageHeaderSize + i*leafElementSize
		if at+leafElementSize > len(data) {
			return fmt.Errorf("page %d holds less than its header has", id)
		}
		flags, position := le32(data, at), le32(data, at+4)
		keySize, valueSize := le32(data, at+8), le32(data, at+12)
		key, err := slice(data, at, position, keySize)
		if err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
		value, err := slice(data, at, position+keySize, valueSize)
		if err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
		keys[i] = key
		switch flags {
		case 0:
		case leafIsBucket:
			if err := c.bucket(id, value); err != nil {
				return err
			}
		default:
			return fmt.Errorf("page %d has an entry of no known kind", id)
		}
	}
	if err := ordered(keys, low, high); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

func (c *fileCheck) bucket(id uint64, value []byte) error {
	if len(value) < bucketHeaderSize {
		return fmt.Errorf("page %d has a bucket that is cut short", id)
	}
	if root := le64(value, 0); root != 0 {
		return c.tree(root, nil, nil)
	}
	inline := value[bucketHeaderSize:]
	if len(inline) < pageHeaderSize || binary.LittleEndian.Uint16(inline[8:]) != leafPage {
		return fmt.Errorf("page %d has a bucket of no known kind", id)
	}
	return c.leaf(id, inline, int(binary.LittleEndian.Uint16(inline[10:])), nil, nil)
}

func (c *fileCheck) freelist(id uint64) error {
	data, _, n, err := c.page(id, freelistPage)
	if err != nil {
		return err
	}
	count, ids := uint64(n), data[pageHeaderSize:]
	if n == longFreelist {
		count, ids = le64(ids, 0), ids[8:]
	}
	if count > uint64(len(ids)/8) {
		return errors.New("the list of free pages is longer than its page")
	}
	for i := range count {
		if free := le64(ids, int(i)*8); free < 2 || free >= c.pages || !c.account(free) {
			return fmt.Errorf("page %d is in the list of free pages", free)
		}
	}
	return nil
}

// slice returns size bytes of a page. position is the offset of the first one, relative to the offset of an element. It returns an error if the bytes
// reach beyond the page.
func slice(data []byte, element int, position, size uint32) ([]byte, error) {
	start := uint64(element) + uint64(position)
	end := start + uint64(size)
	if end > uint64(len(data)) {
		return nil, errors.New("an entry reaches beyond its page")
	}
	return data[start:end], nil
}

// ordered checks that keys are strictly ascending and lie in [low, high). A nil bound means no bound.
func ordered(keys [][]byte, low, high []byte) error {
	for i, key := range keys {
		switch {
		case i > 0 && bytes.Compare(keys[i-1], key) >= 0,
			i == 0 && low != nil && bytes.Compare(key, low) < 0,
			high != nil && bytes.Compare(key, high) >= 0:
			return errors.New("keys are out of order")
		}
	}
	return nil
}

func le32(data []byte, at int) uint32 { return binary.LittleEndian.Uint32(data[at:]) }
func le64(data []byte, at int) uint64 { return binary.LittleEndian.Uint64(data[at:]) }

// DirectoryState is the state of a data directory.
type DirectoryState string

// The states of a data directory.
const (
	DirectoryAbsent DirectoryState = "absent" // the directory does not exist or is empty
	DirectoryInUse  DirectoryState = "in use" // a process has it open
	DirectorySound  DirectoryState = "sound"  // no process has it open, and its file is whole
)

// Inspect returns the state of a data directory without changing it. The error is the
// reason that a store cannot be opened there.
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

// lockName is the lock file in a data directory: a process that uses the directory holds its lock (flock).
const lockName = "lock"

// prepareDirectory creates the data directory, or checks that no other user can write to an
// existing one. Other users may list it, as only the owner can read its files.
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

// lockDirectory locks the directory against other processes until unlockDirectory or the end of the process.
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

// unlockDirectory releases the lock of the directory. Closing the file is not enough: between fork and exec, a child process has it open as well and
// would keep the lock.
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

// AsOwner runs do with the user and group of the owner of a data directory, if this process is root and another user owns the directory. Files that
// do creates then belong to that owner. Meanwhile all threads of the process run as that user. If the directory does not exist, do runs as the
// current user.
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
