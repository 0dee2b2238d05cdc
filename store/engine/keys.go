package engine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
)

// sealMark begins a value that Keys have sealed. The ID of the key and a line feed follow, then the encrypted value.
const sealMark = "svcctl-sealed "

// IsSealed reports whether a value was sealed by Keys.
func IsSealed(value []byte) bool { return bytes.HasPrefix(value, []byte(sealMark)) }

// Keys are the keys in a file, one a line as for ReadKey, by which values are sealed one by one: the first key seals,
// all of them open. The file is read again when it has changed. A nil *Keys has none. It may be used concurrently.
type Keys struct {
	path string

	mu   sync.Mutex
	info os.FileInfo // of the file that keys are of
	keys []*Key
}

// ReadKeys reads the keys in a file that its owner alone can read.
func ReadKeys(path string) (*Keys, error) {
	k := &Keys{path: path}
	return k, k.read()
}

// read reads the file if it is another one than before. What cannot be read leaves the keys as they are.
func (k *Keys) read() error {
	info, err := os.Stat(k.path)
	if err == nil && k.info != nil && os.SameFile(info, k.info) && info.Size() == k.info.Size() && info.ModTime().Equal(k.info.ModTime()) {
		return nil
	}
	var keys []*Key
	if err == nil {
		keys, err = readKeys(k.path)
	}
	if err != nil {
		return fmt.Errorf("read the keys in %s: %w", k.path, err)
	}
	k.info, k.keys = info, keys
	return nil
}

// current are the keys that there are now, the one that seals first.
func (k *Keys) current() ([]*Key, error) {
	if k == nil {
		return nil, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.read()
	return k.keys, err
}

// SealsBy is the ID of the key that seals; "" without one.
func (k *Keys) SealsBy() string {
	keys, _ := k.current() // those of before, if the file cannot be read
	if len(keys) == 0 {
		return ""
	}
	return keys[0].id
}

// Sealed reports whether a value is sealed by the key that seals now.
func (k *Keys) Sealed(value []byte) bool {
	by := k.SealsBy()
	return by != "" && bytes.HasPrefix(value, []byte(sealMark+by+"\n"))
}

// Seal encrypts a value, bound to its name.
func (k *Keys) Seal(name string, value []byte) ([]byte, error) {
	keys, err := k.current()
	switch {
	case err != nil:
		return nil, err // a file that is being exchanged may have another key first
	case len(keys) == 0:
		return nil, errors.New("there is no key to seal by")
	}
	return append([]byte(sealMark+keys[0].id+"\n"), keys[0].seal(name, value)...), nil
}

// Open returns what Seal was given.
func (k *Keys) Open(name string, sealed []byte) ([]byte, error) {
	id, text, cut := strings.Cut(strings.TrimPrefix(string(sealed), sealMark), "\n")
	if !IsSealed(sealed) || !cut {
		return nil, errors.New("it is not sealed")
	}
	keys, err := k.current()
	has := make([]string, len(keys))
	for i, key := range keys {
		has[i] = key.id
		if key.id == id {
			value, err := key.unseal(name, []byte(text))
			if err != nil {
				return nil, fmt.Errorf("it was sealed by key %s and changed since", id)
			}
			return value, nil
		}
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("it is sealed by key %s: %w", id, err)
	case len(keys) == 0:
		return nil, fmt.Errorf("it is sealed by key %s, and this box has none", id)
	}
	return nil, fmt.Errorf("it is sealed by key %s, and this box has %s", id, strings.Join(has, ", "))
}
