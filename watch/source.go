package watch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/store/manifest"
)

// maxLevels is the maximum nesting depth of directories in a source.
const maxLevels = 32

// A source is the state of one watched directory.
type source struct {
	dir string
	// root is the directory that was opened last: every access goes through it, so that
	// no link leads out of it. It is nil while the directory is unavailable.
	root *os.Root
	id   identity
	// trusted is set once files were found in this very directory, not in one that replaced it: if it is empty later, its files were deleted.
	trusted bool

	good  int       // number of its files that are in force
	state State     // "" before the first reading
	err   error     // why the directory is unavailable
	lost  time.Time // since when the directory cannot be read; zero if it can

	git    gitLocks
	active time.Time // when a file last changed after the first snapshot

	// The fields below have the results of the last reading.
	dirs     map[string]identity // directories that were read
	linked   map[string]identity // the entries of dirs that are reached by a symbolic link
	parent   string              // the parent of dir if dir is a symbolic link, else ""
	problems []manifest.Problem  // problems of subdirectories
}

// errEmpty is the error of a directory that became empty, which may be an unmounted one.
var errEmpty = errors.New("it is empty and had files when it was last read, as if a volume were not mounted; if that is meant, put an empty file none.yaml into it")

// open sets root to the directory that dir now leads to, and opens it unless it is open already.
func (s *source) open() error {
	info, err := os.Stat(s.dir)
	if err != nil {
		return err
	}
	if id := versionOf(info).identity; s.root != nil && id == s.id {
		return nil
	}
	s.close()
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return err
	}
	info, err = root.Stat(".")
	if err != nil {
		_ = root.Close()
		return err
	}
	s.root, s.id, s.trusted = root, versionOf(info).identity, false
	return nil
}

// moved reports whether dir no longer leads to the directory that is open as root.
func (s *source) moved() bool {
	info, err := os.Stat(s.dir)
	return err != nil || versionOf(info).identity != s.id
}

// isLocal reports whether all directories of the source are watched, still exist, and lie on one filesystem that only this kernel changes. watched
// has the watched directories, sorted.
func (s *source) isLocal(watched []string) bool {
	var of unix.Statfs_t
	if err := unix.Statfs(s.dir, &of); err != nil || !slices.Contains(localFilesystems, of.Type) {
		return false
	}
	for path, id := range s.dirs {
		info, err := os.Stat(path)
		if _, live := slices.BinarySearch(watched, path); !live || err != nil || versionOf(info).identity != id || id.dev != s.id.dev {
			return false
		}
	}
	return true
}

// localFilesystems has the magic numbers of filesystems that only this kernel changes (statfs(2)).
var localFilesystems = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.RAMFS_MAGIC}

func (s *source) close() {
	if s.root != nil {
		_ = s.root.Close()
		s.root = nil
	}
}

func (s *source) rel(path string) string {
	rel, err := filepath.Rel(s.dir, path)
	if err != nil {
		return "."
	}
	return rel
}

// look returns the state of a path. ok is false if the change concerns more than one file, so that the directory has to be read.
func (s *source) look(path string) (seen fileState, ok bool) {
	_, known := s.dirs[filepath.Dir(path)]
	_, isDir := s.dirs[path]
	if s.root == nil || !s.lost.IsZero() || isDir || !known {
		return fileState{}, false
	}
	info, err := s.root.Lstat(s.rel(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fileState{kind: gone}, true
	case err != nil:
		return fileState{}, false
	case info.IsDir() || info.Mode()&fs.ModeSymlink != 0:
		return fileState{}, false
	}
	return fileStateOf(info, false), true
}

func versionOf(info fs.FileInfo) version {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return version{size: info.Size(), mtime: info.ModTime().UnixNano()}
	}
	return version{identity{uint64(st.Dev), st.Ino}, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
}

func fileStateOf(info fs.FileInfo, linked bool) fileState {
	if !info.Mode().IsRegular() {
		return fileState{kind: unusable, linked: linked, why: "not a file but " + typeName(info.Mode()) + "; skipped"}
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return fileState{kind: regular, version: versionOf(info), linked: linked, shared: linked || ok && st.Nlink > 1}
}

func typeName(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "something else (" + mode.Type().String() + ")"
}

// read reads a file that was seen as a regular one, and returns its content and its state after the reading; see readOpen. It never
// blocks, even if the path is something else by now (openFlags). The content may use the memory of room.
func read(root *os.Root, rel string, seen fileState, most int, room []byte) ([]byte, fileState, error) {
	if root == nil {
		return nil, fileState{}, fs.ErrNotExist
	}
	f, err := root.OpenFile(rel, openFlags, 0)
	if err != nil {
		return nil, fileState{}, err
	}
	defer f.Close()
	return readOpen(f, seen, most, room)
}

// openFlags are the flags for a file that may have been replaced: opening a FIFO does not wait for a writer, and a terminal does not become
// the controlling one.
const openFlags = os.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY

// readOpen reads an open file, into room if that is large enough. If it is not the one that was seen, the content is nil. A file of more than most
// bytes is an error. If the file grows meanwhile, the content may have most+1 bytes.
func readOpen(f *os.File, seen fileState, most int, room []byte) ([]byte, fileState, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fileState{}, err
	}
	if now := fileStateOf(info, seen.linked); now.kind != regular || now.version.identity != seen.version.identity {
		return nil, now, nil
	}
	if info.Size() > int64(most) {
		return nil, fileState{}, tooLarge(info.Size(), most)
	}
	data := room[:0]
	if data == nil || int64(cap(data)) < info.Size() {
		data = make([]byte, info.Size())
	}
	data = data[:info.Size()]
	n, err := io.ReadFull(f, data)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		data, err = data[:n], nil
	}
	if err != nil {
		return nil, fileState{}, err
	}
	if info, err = f.Stat(); err != nil {
		return nil, fileState{}, err
	}
	if info.Size() != int64(n) { // it has grown, or has no size
		more, err := io.ReadAll(io.LimitReader(f, int64(most-n)+1))
		if err != nil {
			return nil, fileState{}, err
		}
		data = append(data, more...)
		if info, err = f.Stat(); err != nil {
			return nil, fileState{}, err
		}
	}
	return data, fileStateOf(info, seen.linked), nil
}

func tooLarge(size int64, most int) error {
	return fmt.Errorf("the file has %d bytes, more than the limit of %d; split it", size, most)
}

// reason returns the cause of an error of package os, without the operation and the path.
func reason(err error) string {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err.Error()
	}
	return err.Error()
}

// A Notifier sends events about changes in directories.
type Notifier interface {
	Events() <-chan fsnotify.Event
	Errors() <-chan error
	Add(dir string) error
	Remove(dir string) error
	// WatchList returns the directories that still send events: the kernel drops those that are deleted, moved or unmounted.
	WatchList() []string
	// Complete reports whether every change in a directory of a local filesystem sends an event, or an error.
	Complete() bool
	Close() error
}

// eventBuffer is the number of events that may wait for the loop in this process. More of them wait in the queue of the kernel, which has room for
// 16,384 (fs.inotify.max_queued_events).
const eventBuffer = 1024

// inotify is the Notifier that uses inotify(7).
type inotify struct{ *fsnotify.Watcher }

func openInotify() (Notifier, error) {
	w, err := fsnotify.NewBufferedWatcher(eventBuffer)
	if err != nil {
		return nil, err
	}
	return inotify{w}, nil
}

func (n inotify) Events() <-chan fsnotify.Event { return n.Watcher.Events }
func (n inotify) Errors() <-chan error          { return n.Watcher.Errors }
func (n inotify) Complete() bool                { return true }

// A tree has the sources, and the notifier of events in them.
type tree struct {
	sources []*source
	// open is Config.Notifier.
	open     func() (Notifier, error)
	notify   Notifier            // nil when there is none
	noEvents error               // why directories are polled; nil if they are watched
	watching map[string]identity // the watched directories
}

// sourceOf returns the source that a path belongs to, or nil.
func (t *tree) sourceOf(path string) *source {
	for _, s := range t.sources {
		if within(s.dir, path) {
			return s
		}
	}
	return nil
}

// channels returns the channels of the notifier; nil when there is none.
func (t *tree) channels() (<-chan fsnotify.Event, <-chan error) {
	if t.notify == nil {
		return nil, nil
	}
	return t.notify.Events(), t.notify.Errors()
}

// connect opens the notifier if it is not open.
func (t *tree) connect() {
	t.noEvents = nil
	if t.notify != nil {
		return
	}
	n, err := t.open()
	if err != nil {
		t.noEvents = fmt.Errorf("no file events: %w", err)
		return
	}
	t.notify = n
}

// disconnect closes the notifier.
func (t *tree) disconnect() {
	if t.notify != nil {
		_ = t.notify.Close()
		t.notify = nil
	}
	clear(t.watching)
}

// watch sets the directories that are watched: dirs, which were read for s, those of the other sources, and the parents of links. It reports whether
// it added a watch.
//
// Watches that are no longer wanted are removed first. The kernel has one watch for an inode, and fsnotify one name for that watch. So a renamed
// directory cannot be watched under its new name before the watch under its old name is removed.
func (t *tree) watch(s *source, dirs map[string]identity) (more bool) {
	if t.notify == nil || t.noEvents != nil {
		return false
	}
	wanted := maps.Clone(dirs)
	for _, other := range t.sources {
		if other != s {
			maps.Copy(wanted, other.dirs)
		}
		if info, err := os.Stat(other.parent); err == nil {
			wanted[other.parent] = versionOf(info).identity
		}
	}
	live := map[string]bool{}
	for _, dir := range t.notify.WatchList() {
		live[dir] = true
	}
	for dir, id := range t.watching {
		if wanted[dir] != id || !live[dir] {
			_ = t.notify.Remove(dir)
			delete(t.watching, dir)
		}
	}
	for dir, id := range wanted {
		if _, ok := t.watching[dir]; ok {
			continue
		}
		switch err := t.notify.Add(dir); {
		case err == nil:
			t.watching[dir], more = id, true
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENOMEM):
			t.noEvents = fmt.Errorf("watch %s: %w", dir, err)
			return false
		}
		// Any other error is the directory's, and reading it has the same.
	}
	return more
}

// begin watches a directory before it is read for the first time, so that it need not be read again after watch. If
// another directory takes its place meanwhile, the parent, which is watched already, sends an event. Errors are left
// to watch, which tries again.
func (t *tree) begin(dir string, id identity) {
	if t.notify == nil || t.noEvents != nil {
		return
	}
	if _, watched := t.watching[dir]; !watched && t.notify.Add(dir) == nil {
		t.watching[dir] = id
	}
}

// close closes the notifier and all open directories.
func (t *tree) close() {
	t.disconnect()
	for _, s := range t.sources {
		s.close()
	}
}
