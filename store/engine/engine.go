package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
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
	// would survive a power failure. ErrConflict says that the comparison failed and
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

// A Sum is a checksum of a key with its value and revision: as long as it is the same, they are. Zero: there is no such
// key. Another engine has others.
type Sum = [sha256.Size]byte

// SumOf is a Sum of a pair, for engines that keep none.
func SumOf(pair Pair) Sum {
	return Sum(checksumOf([]byte(pair.Key), append(binary.BigEndian.AppendUint64(nil, pair.Revision), pair.Value...)))
}

// ScanPairs is Engine.Scan of pairs that are in memory.
func ScanPairs(pairs []Pair, want func(key string, sum Sum) bool, use func([]Pair) error) error {
	if want != nil {
		pairs = slices.DeleteFunc(pairs, func(pair Pair) bool { return !want(pair.Key, SumOf(pair)) })
	}
	return use(pairs)
}

// Transaction has the pairs that are committed together, if the pair at CompareKey was last
// written at CompareRevision (0: there is no such pair).
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
