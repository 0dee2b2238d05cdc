package auth

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	keyDirMode  = 0o700
	keyFileMode = 0o600
	// maxKeyFile bounds the size of a key file in bytes.
	maxKeyFile = 64 << 10
)

// readKeyFile reads a key file; it wraps fs.ErrNotExist if there is none. It refuses a
// file that other users can read, because its content is no secret any more.
func readKeyFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch mode := info.Mode(); {
	case !mode.IsRegular():
		return nil, fmt.Errorf("%s is no regular file: remove it, and a new one is created", path)
	case mode.Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s can be read by others (mode %04o), so its content is not secret: remove it, and a new one is created", path, mode.Perm())
	}
	return io.ReadAll(io.LimitReader(f, maxKeyFile))
}

// writeKeyFile writes a file that only its owner can read, and creates its directory if
// needed. The write is atomic and durable: after an error the file is unchanged.
func writeKeyFile(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	if err := makeKeyDir(dir); err != nil {
		return err
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, keyFileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(fresh)
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	return syncDir(dir)
}

// removeKeyFile removes a file, which need not be there, durably.
func removeKeyFile(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// makeKeyDir creates a directory below an existing one and makes it durable.
func makeKeyDir(dir string) error {
	err := os.Mkdir(dir, keyDirMode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
