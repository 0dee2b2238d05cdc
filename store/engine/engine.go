package engine

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"
)

// Engine stores the pairs of a Store: in a file on this machine, in memory, or in a database that
// several machines share. Keys are text with slashes; values are bytes that mean nothing to the
// engine. An Engine is safe for concurrent use.
type Engine interface {
	// Load returns all pairs whose key begins with prefix, sorted by key. Damaged data is an error,
	// never a part of the pairs.
	Load(prefix string) ([]Pair, error)
	// Scan calls use with pairs whose key begins with prefix, sorted by key, some at a time: those
	// that want reports to be wanted, all if it is nil. Their values are good until use returns.
	// Neither function may use the engine. An error of use ends it.
	Scan(prefix string, want func(key string, sum Sum) bool, use func([]Pair) error) error
	// Sums gives the Sum of each key.
	Sums(keys []string) ([]Sum, error)
	// Commit applies a whole transaction or nothing of it, and returns only when it
	// would survive a power failure. ErrConflict means that the comparison failed and
	// nothing was changed; after any other error the outcome is unknown until the
	// engine is opened again, unless the error is ErrNoSpace.
	Commit(t Transaction) error
	// Close releases the data for the next process that opens it.
	Close() error
}

// Pair is a key with its value and the revision of the commit that wrote it.
type Pair struct {
	Key      string
	Value    []byte
	Revision uint64

	// Entry, unless nil, ends in Value and has EntryHeader bytes of room in front of it, which
	// spares File a copy of the Value.
	Entry []byte
}

// A Sum is a checksum of a key, its value and its revision: equal Sums mean that all three are equal. The zero Sum stands
// for an absent key. Sums of different kinds of Engine cannot be compared.
type Sum = [sha256.Size]byte

// SumOf computes the Sum of a pair, for engines that store none.
func SumOf(pair Pair) Sum {
	return Sum(checksumOf([]byte(pair.Key), append(binary.BigEndian.AppendUint64(nil, pair.Revision), pair.Value...)))
}

// ScanPairs implements Engine.Scan for pairs in memory.
func ScanPairs(pairs []Pair, want func(key string, sum Sum) bool, use func([]Pair) error) error {
	if want != nil {
		pairs = slices.DeleteFunc(pairs, func(pair Pair) bool { return !want(pair.Key, SumOf(pair)) })
	}
	return use(pairs)
}

// Transaction has the pairs to be committed together. The commit fails with ErrConflict unless
// the pair at CompareKey was last written at CompareRevision (0: there is no such pair).
// Deletes come before Puts; of Puts with one key the last one counts.
type Transaction struct {
	CompareKey      string
	CompareRevision uint64
	Puts            []Pair
	Deletes         []string
}

var (
	// ErrConflict means that another writer has changed the data since it was read.
	ErrConflict = errors.New("the stored data was changed by another writer")
	// ErrNoSpace means that a commit found no space and changed nothing; it may be tried again when there is space.
	ErrNoSpace = errors.New("no space left for the stored data")
	// ErrClosed means that the engine was closed.
	ErrClosed = errors.New("the data directory is closed")
)

// sum is the checksum of an entry, or the XOR of the checksums of all entries.
type sum [sha256.Size]byte

func (s *sum) toggle(other sum) {
	for i := range s {
		s[i] ^= other[i]
	}
}

// toggleEntry adds the checksum of a stored entry to the XOR, or removes it; nil stands for no entry.
func (s *sum) toggleEntry(entry []byte) {
	if len(entry) >= EntryHeader {
		s.toggle(sum(entry[:sha256.Size]))
	}
}

// EntryHeader is the size of the checksum and the revision in front of a stored value, in bytes.
const EntryHeader = sha256.Size + 8

// encodeEntry writes the stored form of a pair to entry, which must have its length: checksum, revision, value.
func encodeEntry(entry []byte, pair Pair) {
	binary.BigEndian.PutUint64(entry[sha256.Size:], pair.Revision)
	if pair.Entry == nil {
		copy(entry[EntryHeader:], pair.Value)
	}
	checksum := checksumOf([]byte(pair.Key), entry[sha256.Size:])
	copy(entry, checksum[:])
}

// checkEntry returns the checksum of a stored entry, and an error if it does not match the content.
func checkEntry(key, entry []byte) (sum, error) {
	if len(entry) < EntryHeader {
		return sum{}, fmt.Errorf("entry %q is cut short", key)
	}
	checksum := sum(entry[:sha256.Size])
	if checksumOf(key, entry[sha256.Size:]) != checksum {
		return sum{}, fmt.Errorf("entry %q does not match its checksum", key)
	}
	return checksum, nil
}

// entryRevision returns the revision in a stored entry; 0 if entry is nil.
func entryRevision(entry []byte) uint64 {
	if len(entry) < EntryHeader {
		return 0
	}
	return binary.BigEndian.Uint64(entry[sha256.Size:])
}

func checksumOf(key, revisionAndValue []byte) sum {
	hash := sha256.New()
	head := binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(key)), uint64(len(key)))
	hash.Write(append(head, key...)) // writes to a hash never fail
	hash.Write(revisionAndValue)
	return sum(hash.Sum(head[:0]))
}

// sealMark is the prefix of a value that was encrypted by Keys. The ID of the key, a line feed and the ciphertext follow.
const sealMark = "svcctl-sealed "

// IsSealed reports whether a value was encrypted by Keys.
func IsSealed(value []byte) bool { return bytes.HasPrefix(value, []byte(sealMark)) }

// Keys encrypt single values with the keys in a file, one a line as for ReadKey: the first key encrypts, all of them
// decrypt. The file is read again when it has changed. A nil *Keys has no keys. It is safe for concurrent use.
type Keys struct {
	path string

	mu   sync.Mutex
	info os.FileInfo // of the file that keys are of
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

// current returns the keys in the file, the one that encrypts first. After an error of reading it returns the earlier keys, too.
func (k *Keys) current() ([]*Key, error) {
	if k == nil {
		return nil, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.read()
	return k.keys, err
}

// SealsBy returns the ID of the key that encrypts; "" if there is none.
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

// Shared is an Engine whose objects other machines change, too. It keeps a position in the commits of all machines, which only Follow
// and Commit advance: a Commit succeeds only if no other machine has committed since that position. Otherwise it fails with
// ErrConflict, as soon as Follow has the other commit. Follow, Published and Commits that put the head must not run concurrently.
// During such a Commit others may call Keep, and Commit pairs that belong to this machine alone.
type Shared interface {
	Engine
	// Follow gives what others have committed since the last call, in order. It does not wait.
	Follow() []Followed
	// Arrived has a value when Follow may have something.
	Arrived() <-chan struct{}
	// Published makes everything that Follow returned and Commit accepted visible to readers.
	Published()
	// Refuse reports a change from Follow that cannot be read: nothing more is followed or committed
	// until a newer program starts.
	Refuse(why error)
	// Keep writes pairs that belong to this machine alone, within a second.
	Keep(t Transaction)
	// Sealing is why pairs that are secret cannot be committed; nil: they can.
	Sealing() error
	// Tries is why there can be no trials; nil: there can.
	Tries() error
	// Rolls is why there can be no rollouts; nil: there can.
	Rolls() error
	// Fresh returns when readers see all that any machine committed before the call.
	Fresh(ctx context.Context) error
}

// Alone is a Shared in memory without other machines: for a copy of a store, and for tests.
type Alone struct{ *Memory }

// Follow implements Shared; so do the other methods.
func (Alone) Follow() []Followed          { return nil }
func (Alone) Arrived() <-chan struct{}    { return nil }
func (Alone) Published()                  {}
func (Alone) Refuse(error)                {}
func (Alone) Keep(Transaction)            {}
func (Alone) Sealing() error              { return nil }
func (Alone) Tries() error                { return nil }
func (Alone) Rolls() error                { return nil }
func (Alone) Fresh(context.Context) error { return nil }

// Followed is a commit of another machine, in the form in which Shared.Follow returns it.
type Followed struct {
	// Revision is the revision of the head afterwards, Note the value that the head was put with.
	Revision uint64
	Note     []byte
	Puts     []Pair
	Deletes  []string
	// Reload is set for the difference to a state that was read as a whole: the commits in between are
	// not known, and Note is empty.
	Reload bool
	// Again is set when nothing has changed, and files are to be tried again for values that they were
	// refused.
	Again bool
}

// AwayError means that a commit or a read was not sent, or was refused. Nothing was changed.
type AwayError struct {
	Why   string
	Since time.Time // the zero Time: now
}

// Error implements error.
func (e *AwayError) Error() string {
	if e.Since.IsZero() {
		return e.Why
	}
	return fmt.Sprintf("%s, since %s", e.Why, e.Since.UTC().Format(time.RFC3339))
}

// ErrUnsettled means that the outcome of a commit is unknown. If it took place, Follow returns it
// later.
var ErrUnsettled = errors.New("no answer came in time, and the change may have been made or not: look before you try again")

// sealedKey is a key of metaBucket that exists if all values of the file are encrypted. Its value is sealedText,
// encrypted, by which the right key is recognized.
var (
	sealedKey  = []byte("sealed")
	sealedText = []byte("svcctl")
)

// sealedSuffix is the suffix of the name of the encrypted file while it is written.
const sealedSuffix = ".sealed"

// keyBytes is the length of a Key: AES-256.
const keyBytes = 32

// Key encrypts values at rest by AES-256-GCM, each with a random nonce and bound to the key of its pair. These keys, with the
// names of objects, are not encrypted.
type Key struct {
	aead cipher.AEAD
	id   string
}

// ID returns eight hexadecimal digits of a hash of the key.
func (k *Key) ID() string { return k.id }

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

// unlock determines whether the file is encrypted, and checks the key. A file in plain text is encrypted if there is a key.
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

// sealAll rewrites the file with all values encrypted. After a crash the file is the old or the new one.
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
	to, err := openBolt(path, false)
	if err != nil {
		return err
	}
	defer to.Close()
	err = to.Update(func(tx *bbolt.Tx) error {
		pairs, err := tx.CreateBucket(pairsBucket)
		if err != nil {
			return err
		}
		meta, err := tx.CreateBucket(metaBucket)
		if err != nil {
			return err
		}
		var digest sum
		err = f.db.View(func(from *bbolt.Tx) error {
			if err := verify(from); err != nil {
				return err
			}
			return from.Bucket(pairsBucket).ForEach(func(key, entry []byte) error {
				value := f.key.seal(string(key), entry[EntryHeader:])
				sealed := make([]byte, EntryHeader+len(value))
				encodeEntry(sealed, Pair{Key: string(key), Revision: entryRevision(entry), Value: value})
				digest.toggleEntry(sealed)
				return pairs.Put(key, sealed)
			})
		})
		if err != nil {
			return err
		}
		if err := meta.Put(digestKey, digest[:]); err != nil {
			return err
		}
		if err := meta.Put(sealedKey, f.key.seal(string(sealedKey), sealedText)); err != nil {
			return err
		}
		return meta.Put(versionKey, []byte(strconv.Itoa(sealedVersion)))
	})
	if err != nil {
		return err
	}
	if err := to.Sync(); err != nil {
		return err
	}
	return to.View(verify)
}
