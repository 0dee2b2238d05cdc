package engine

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"go.etcd.io/bbolt"
)

// sealMark is the prefix of a value that Keys encrypted. It is followed by the ID of the key, a line feed and the ciphertext.
const sealMark = "svcctl-sealed "

// IsSealed reports whether a value was encrypted by Keys.
func IsSealed(value []byte) bool { return bytes.HasPrefix(value, []byte(sealMark)) }

// Keys encrypt single values with the keys in a file, one a line as for ReadKey: the first key encrypts, all of them
// decrypt. The file is read again when it has changed. A nil *Keys has no keys. It is safe for concurrent use.
type Keys struct {
	path string

	mu   sync.Mutex
	info os.FileInfo // information about the file when the keys were read
	keys []*Key
}

// ReadKeys reads the keys in a file, which only its owner may be able to read.
func ReadKeys(path string) (*Keys, error) {
	k := &Keys{path: path}
	return k, k.read()
}

// read reads the file if it has changed since the last call. After an error the keys stay as they were.
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

// current returns the keys in the file; the first one encrypts. If the file cannot be read, it returns the previous keys with the error.
func (k *Keys) current() ([]*Key, error) {
	if k == nil {
		return nil, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.read()
	return k.keys, err
}

// SealsBy returns the ID of the key that encrypts new values; "" if there is no key.
func (k *Keys) SealsBy() string {
	keys, _ := k.current() // those of before, if the file cannot be read
	if len(keys) == 0 {
		return ""
	}
	return keys[0].id
}

// Sealed reports whether a value was encrypted with the key that encrypts now.
func (k *Keys) Sealed(value []byte) bool {
	by := k.SealsBy()
	return by != "" && bytes.HasPrefix(value, []byte(sealMark+by+"\n"))
}

// Seal encrypts a value with AES-256-GCM and binds it to a name, which Open must be given.
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

// Open decrypts a value that Seal returned for the same name.
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

// sealedKey is a key of metaBucket that exists if all values of the file are encrypted. Its value is sealedText in encrypted form, which shows
// whether a key is the right one.
var (
	sealedKey  = []byte("sealed")
	sealedText = []byte("svcctl")
)

// sealedSuffix is the suffix of the name of the encrypted file while it is written.
const sealedSuffix = ".sealed"

// keyBytes is the length of a Key: AES-256.
const keyBytes = 32

// Key encrypts values at rest by AES-256-GCM, each with a random nonce and bound to the key of its pair. The keys of pairs,
// which contain the names of objects, are not encrypted.
type Key struct {
	aead cipher.AEAD
	id   string // eight hexadecimal digits of a hash of the key
}

// NewKey returns a Key of 32 secret bytes.
func NewKey(secret []byte) (*Key, error) {
	if len(secret) != keyBytes {
		return nil, fmt.Errorf("it has %d bytes, and needs %d", len(secret), keyBytes)
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	id := sha256.Sum256(append([]byte("svcctl key id\x00"), secret...))
	return &Key{aead, hex.EncodeToString(id[:4])}, err
}

// ReadKey reads a Key from a file that its owner alone can read: 32 bytes in base64 (RFC 4648), as `openssl rand -base64 32`
// prints them.
func ReadKey(path string) (*Key, error) {
	keys, err := readKeys(path)
	if err == nil && len(keys) != 1 {
		err = fmt.Errorf("it has %d keys, and needs one", len(keys))
	}
	if err != nil {
		return nil, fmt.Errorf("key of the data file %s: %w", path, err)
	}
	return keys[0], nil
}

// readKeys reads the Keys in a file, one a line.
func readKeys(path string) (keys []*Key, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	// systemd gives credentials to a user by an access list, which shows as the group's.
	if mode := info.Mode().Perm(); mode&0o037 != 0 {
		return nil, fmt.Errorf("others may read or change it (mode %04o): run `chmod 600 %s`, and make another one if it is no secret any more", mode, path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(strings.TrimSpace(string(text)) + "\n") {
		secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
		if err != nil {
			return nil, errors.New("it is not base64: make one with `openssl rand -base64 32`")
		}
		key, err := NewKey(secret)
		if err != nil {
			return nil, fmt.Errorf("%w: make one with `openssl rand -base64 32`", err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// seal encrypts a value and binds it to the key of its pair.
func (k *Key) seal(key string, value []byte) []byte {
	return k.aead.Seal(nil, nil, value, []byte(key))
}

// unseal decrypts a value that seal encrypted for the same key of a pair.
func (k *Key) unseal(key string, sealed []byte) ([]byte, error) {
	value, err := k.aead.Open(nil, nil, sealed, []byte(key))
	if err != nil {
		return nil, fmt.Errorf("entry %q cannot be decrypted", key)
	}
	return value, nil
}

// unlock determines whether the file is encrypted, and checks that f.key can decrypt it. If there is a key and the file is in plain text, unlock
// encrypts the file.
func (f *File) unlock() error {
	var check []byte
	err := f.db.View(func(tx *bbolt.Tx) error {
		check = append(check, tx.Bucket(metaBucket).Get(sealedKey)...)
		return nil
	})
	switch {
	case err != nil:
		return err
	case len(check) == 0 && (f.key == nil || f.broken != nil):
		return nil
	case len(check) == 0:
		return f.sealAll()
	case f.key == nil:
		return fmt.Errorf("%s is encrypted: give the key of it with --data-key-file; if it is lost, move the file away and "+
			"restore an export, or start again from the manifests; nothing was changed", f.path)
	}
	if text, err := f.key.unseal(string(sealedKey), check); err != nil || string(text) != string(sealedText) {
		return fmt.Errorf("%s was encrypted by another key than that of --data-key-file; nothing was changed", f.path)
	}
	f.sealed = true
	return nil
}

// sealAll rewrites the file with all values encrypted. A crash leaves either the old or the new file.
func (f *File) sealAll() error {
	fresh := f.path + sealedSuffix
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	err := f.sealTo(fresh)
	if err == nil {
		err = f.db.Close()
	}
	if err == nil {
		err = os.Rename(fresh, f.path)
	}
	if err != nil {
		_ = os.Remove(fresh)
		return fmt.Errorf("encrypt %s: %w; it is as it was", f.path, err)
	}
	if err := syncDirectory(filepath.Dir(f.path)); err != nil {
		return err
	}
	f.sealed = true
	f.db, err = openBolt(f.path, false)
	return err
}

// sealTo writes an encrypted copy of the file.
func (f *File) sealTo(path string) error {
	return writeFile(path, func(to *bbolt.DB) error {
		return to.Update(func(tx *bbolt.Tx) error {
			if err := addBuckets(tx, sealedVersion, f.sealPairs); err != nil {
				return err
			}
			return tx.Bucket(metaBucket).Put(sealedKey, f.key.seal(string(sealedKey), sealedText))
		})
	})
}

// sealPairs puts all pairs of the file, encrypted, into the bucket of another file, and returns their digest.
func (f *File) sealPairs(to *bbolt.Bucket) (digest sum, err error) {
	err = f.db.View(func(from *bbolt.Tx) error {
		if err := verify(from); err != nil {
			return err
		}
		return from.Bucket(pairsBucket).ForEach(func(key, entry []byte) error {
			value := f.key.seal(string(key), entry[EntryHeader:])
			sealed := make([]byte, EntryHeader+len(value))
			encodeEntry(sealed, Pair{Key: string(key), Revision: entryRevision(entry), Value: value})
			digest.toggleEntry(sealed)
			return to.Put(key, sealed)
		})
	})
	return digest, err
}
