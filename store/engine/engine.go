package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Engine stores the pairs of a Store: in a file on this machine, in memory, or in a database that
// several machines share. Keys are text with slashes; values are bytes that mean nothing to the
// engine. An Engine is safe for concurrent use.
type Engine interface {
	// Load returns all pairs whose key begins with prefix, sorted by key. If data is damaged, it returns an error and no pairs.
	Load(prefix string) ([]Pair, error)
	// Scan calls use with the pairs whose key begins with prefix, sorted by key, some at a time. It
	// skips pairs for which want returns false; a nil want selects all. Values are valid until use
	// returns. Neither function may use the engine. An error of use ends the scan.
	Scan(prefix string, want func(key string, sum Sum) bool, use func([]Pair) error) error
	// Sums returns the Sum of each key; the zero Sum for absent keys.
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

	// Entry, unless nil, is a buffer of EntryHeader unused bytes followed by Value: File completes
	// and stores it without a copy of Value.
	Entry []byte
}

// A Sum is a checksum of a key, its value and its revision: equal Sums mean that all three are equal. The zero Sum stands
// for an absent key. Sums of different kinds of Engine cannot be compared.
type Sum = [sha256.Size]byte

// SumOf computes the Sum of a pair, for engines that store none.
func SumOf(pair Pair) Sum {
	return Sum(checksumOf([]byte(pair.Key), append(binary.BigEndian.AppendUint64(nil, pair.Revision), pair.Value...)))
}

// ScanLoaded implements Engine.Scan by the given Engine.Load, for pairs in memory.
func ScanLoaded(load func(string) ([]Pair, error), prefix string, want func(key string, sum Sum) bool, use func([]Pair) error) error {
	pairs, err := load(prefix)
	if err != nil {
		return err
	}
	if want != nil {
		pairs = slices.DeleteFunc(pairs, func(pair Pair) bool { return !want(pair.Key, SumOf(pair)) })
	}
	return use(pairs)
}

// SumsLoaded implements Engine.Sums by the given Engine.Load.
func SumsLoaded(load func(string) ([]Pair, error), keys []string) ([]Sum, error) {
	sums := make([]Sum, len(keys))
	for i, key := range keys {
		pairs, err := load(key)
		if err != nil {
			return nil, err
		}
		if len(pairs) > 0 && pairs[0].Key == key { // others may begin with it
			sums[i] = SumOf(pairs[0])
		}
	}
	return sums, nil
}

// Transaction holds the changes that are committed together. The commit fails with ErrConflict unless the pair at CompareKey was last written at
// CompareRevision (0: there is no such pair). Deletes are applied before Puts; of several Puts with the same key the last one counts.
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

// Shared is an Engine that several machines share. It keeps a position in the sequence of commits of all machines, which only Follow and Commit
// advance. A Commit succeeds only if no other machine has committed since that position; otherwise it fails with ErrConflict, once Follow can return
// the other commit. Follow, Published and Commits that put the head must not run concurrently. During such a Commit, other goroutines may call Keep,
// and may Commit pairs that only this machine uses.
type Shared interface {
	Engine
	// Follow returns the commits of other machines since the last call, in order. It does not wait.
	Follow() []Followed
	// Arrived returns a channel that has a value when Follow may return something.
	Arrived() <-chan struct{}
	// Published makes everything that Follow returned and Commit accepted visible to readers.
	Published()
	// Refuse reports a change from Follow that cannot be read: nothing more is followed or committed
	// until a newer program starts.
	Refuse(why error)
	// Keep writes pairs that only this machine uses. It returns before they are written, which takes up to a second.
	Keep(t Transaction)
	// Sealing returns the reason why secret pairs cannot be committed; nil if they can.
	Sealing() error
	// Tries returns the reason why trials (changes that are undone unless confirmed) are not possible; nil if they are.
	Tries() error
	// Rolls returns the reason why rollouts (changes that boxes apply in stages) are not possible; nil if they are.
	Rolls() error
	// Fresh waits until readers see everything that any machine committed before the call.
	Fresh(ctx context.Context) error
}

// Alone is a Shared engine in memory that no other machine uses, for copies of a store and for tests.
type Alone struct{ *Memory }

// These methods implement Shared.
func (Alone) Follow() []Followed          { return nil }
func (Alone) Arrived() <-chan struct{}    { return nil }
func (Alone) Published()                  {}
func (Alone) Refuse(error)                {}
func (Alone) Keep(Transaction)            {}
func (Alone) Sealing() error              { return nil }
func (Alone) Tries() error                { return nil }
func (Alone) Rolls() error                { return nil }
func (Alone) Fresh(context.Context) error { return nil }

// Followed is a commit of another machine, as returned by Shared.Follow.
type Followed struct {
	// Revision is the revision of the head after the commit, Note the value of the head.
	Revision uint64
	Note     []byte
	Puts     []Pair
	Deletes  []string
	// Reload is set if the whole state was read again and this is the difference to the previous state. The individual commits are then unavailable,
	// and Note is empty.
	Reload bool
	// Again is set if nothing has changed, but files have to be read again because some of their values were refused before.
	Again bool
}

// AwayError means that a commit or a read was not sent to the shared database, or was refused by it. Nothing was changed.
type AwayError struct {
	Why   string
	Since time.Time // when the cause of the error began; the zero Time means now
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
