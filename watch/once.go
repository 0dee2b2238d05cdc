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
	"strings"

	"svcctl.io/svcctl/store/manifest"
)

// Stdin stands for standard input among the paths of Once.
const Stdin = "-"

// stdinName names standard input in problems.
const stdinName = "stdin"

// Once reads manifests a single time, as the Watcher reads them: the same files of a
// directory, the same bounds, and the same reasons to leave one out.
type Once struct {
	Stdin io.Reader // what Stdin among the paths reads
	// Flat leaves out the directories in a directory.
	Flat bool
	// Bytes is the most bytes of a file; 0 is the default of manifest.Limits.
	Bytes int
}

// Each calls f with the content of every file at the paths, the files of a directory in the
// order of their names, or with the problem of a file that is not read. Errors are those of f,
// of a path that does not exist or may not be read, and of a directory without manifests.
func (o *Once) Each(paths []string, f func(name string, data []byte, refused *manifest.Problem) error) error {
	for _, path := range paths {
		if err := o.each(path, f); err != nil {
			return err
		}
	}
	return nil
}

func (o *Once) each(path string, f func(string, []byte, *manifest.Problem) error) error {
	if path != Stdin {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return o.directory(path, f)
		}
	}
	name := path
	var data []byte
	var err error
	if path == Stdin {
		name = stdinName
		data, err = readStream(o.Stdin, o.bytes())
	} else {
		data, err = ReadFile(path, o.bytes())
	}
	if _, is := errors.AsType[*RefusedError](err); is {
		return f(name, nil, &manifest.Problem{File: name, Reason: ReasonUnreadable, Message: err.Error()})
	}
	if err != nil {
		return err
	}
	return f(name, data, nil)
}

func (o *Once) bytes() int {
	return mostBytes(manifest.Limits{Bytes: o.Bytes})
}

// directory reads what a Watcher of the directory would read at its start.
func (o *Once) directory(dir string, f func(string, []byte, *manifest.Problem) error) error {
	s := &source{dir: filepath.Clean(dir)}
	if err := s.open(); err != nil {
		return err
	}
	defer s.close()
	wk, err := s.walkDirs(o.Flat)
	if err != nil {
		return err
	}
	refuse := func(path, why string) error {
		return f(path, nil, &manifest.Problem{File: path, Reason: ReasonUnreadable, Message: why})
	}
	for _, u := range wk.unread {
		if u.missed {
			if err := refuse(u.path, "the directory cannot be read: "+u.why); err != nil {
				return err
			}
		}
	}
	if len(wk.found) == 0 {
		return fmt.Errorf("%s has no *.yaml, *.yml or *.json file", dir)
	}
	for _, path := range slices.Sorted(maps.Keys(wk.found)) {
		seen := wk.found[path]
		var data []byte
		var err error
		if seen.kind == regular {
			data, seen, err = s.readSeen(path, seen, o.bytes())
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // it went while the directory was read
		case err != nil:
			err = refuse(path, reason(err))
		case seen.kind != regular:
			err = refuse(path, seen.why)
		default:
			err = f(path, data, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readSeen reads a file of the source. One that was replaced since it was seen is read as it
// is now; one that is replaced again and again is refused.
func (s *source) readSeen(path string, seen fileState, most int) ([]byte, fileState, error) {
	for range maxWalks {
		data, now, err := read(s.root, s.rel(path), seen, most, nil)
		if err != nil || data != nil || now.kind != regular {
			return data, now, err
		}
		seen = now
	}
	return nil, seen, errors.New("the file is replaced faster than it can be read; try again")
}

// RefusedError means that a file exists, and is not read for the reason Why.
type RefusedError struct{ Why string }

func (e *RefusedError) Error() string { return e.Why }

// ReadFile reads a file that the user named, of at most that many bytes, without blocking on a path
// that is no regular file. A descriptor of this process (/dev/stdin, /dev/fd/63, as a shell makes of
// `<(command)`) may be a pipe. Errors: *RefusedError for one that is too large or no file; else
// those of the system.
func ReadFile(path string, most int) ([]byte, error) {
	if isDescriptor(path) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readStream(f, most)
	}
	for range maxWalks {
		info, err := os.Stat(path)
		if at, is := errors.AsType[*fs.PathError](err); is {
			return nil, &fs.PathError{Op: "open", Path: path, Err: at.Err}
		} else if err != nil {
			return nil, err
		}
		seen := fileStateOf(info, false)
		if seen.kind != regular {
			return nil, &RefusedError{seen.why}
		}
		f, err := os.OpenFile(path, openFlags, 0)
		if err != nil {
			return nil, err
		}
		data, _, err := readOpen(f, seen, most, nil)
		_ = f.Close()
		if _, is := errors.AsType[*fs.PathError](err); is {
			return nil, err
		}
		if err != nil {
			return nil, &RefusedError{err.Error()}
		}
		if data != nil && len(data) > most {
			return nil, &RefusedError{tooLarge(int64(len(data)), most).Error()}
		}
		if data != nil {
			return data, nil
		}
	}
	return nil, &RefusedError{"the file is replaced faster than it can be read; try again"}
}

// isDescriptor reports whether a path names a descriptor that this process has open already.
func isDescriptor(path string) bool {
	path = filepath.Clean(path)
	return path == "/dev/stdin" || strings.HasPrefix(path, "/dev/fd/") || strings.HasPrefix(path, "/proc/self/fd/")
}

// readStream reads what has no size to look at first.
func readStream(r io.Reader, most int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	if err == nil && len(data) > most {
		err = &RefusedError{fmt.Sprintf("more than the limit of %d bytes; split it", most)}
	}
	return data, err
}
