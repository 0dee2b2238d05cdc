package engine

import (
	"bytes"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/bbolt"
)

// Load implements Engine.
func (f *File) Load(prefix string) (pairs []Pair, err error) {
	err = f.each(prefix, func(key string, entry []byte) error {
		pair := Pair{Key: key, Revision: entryRevision(entry)}
		var err error
		if pair.Value, err = f.value(nil, key, entry); err == nil {
			pairs = append(pairs, pair)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return pairs, nil
}

// scanBytes is the total size of values, in bytes, that Scan passes in one call of use; a single larger value is passed alone.
const scanBytes = 1 << 20

// Scan implements Engine.
func (f *File) Scan(prefix string, want func(key string, sum Sum) bool, use func([]Pair) error) error {
	var pairs []Pair
	var values []byte // of the pairs
	give := func() error {
		err := use(pairs)
		clear(pairs)
		pairs, values = pairs[:0], values[:0]
		return err
	}
	err := f.each(prefix, func(key string, entry []byte) error {
		if want != nil && !want(key, Sum(entry)) {
			return nil
		}
		size := len(entry) - EntryHeader // no more than that when it is decrypted
		if len(values)+size > cap(values) {
			if len(pairs) > 0 {
				if err := give(); err != nil {
					return err
				}
			}
			if cap(values) < max(size, scanBytes) { // a small file does not take as much
				values = make([]byte, 0, max(size, min(scanBytes, 8<<10+4*cap(values))))
			}
		}
		start := len(values)
		var err error
		if values, err = f.value(values, key, entry); err == nil {
			pairs = append(pairs, Pair{Key: key, Revision: entryRevision(entry), Value: values[start:len(values):len(values)]})
		}
		return err
	})
	if err == nil && len(pairs) > 0 {
		return give()
	}
	return err
}

// Sums implements Engine.
func (f *File) Sums(keys []string) (sums []Sum, err error) {
	err = f.view(func(pairs *bbolt.Bucket, _ bool) error {
		for _, key := range keys {
			var sum Sum
			copy(sum[:], pairs.Get([]byte(key)))
			sums = append(sums, sum)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return sums, nil
}

// value appends the value in a stored entry to room, decrypted if the file is encrypted.
func (f *File) value(room []byte, key string, entry []byte) ([]byte, error) {
	if !f.sealed {
		return append(room, entry[EntryHeader:]...), nil
	}
	value, err := f.key.unseal(key, entry[EntryHeader:])
	if err != nil {
		return room, damaged(f.path, err)
	}
	return append(room, value...), nil
}

// each calls use in key order for the entries whose key begins with prefix. entry is valid until use returns. An error of use ends the loop and is
// returned.
func (f *File) each(prefix string, use func(key string, entry []byte) error) error {
	return f.view(func(pairs *bbolt.Bucket, checked bool) error {
		cursor, from := pairs.Cursor(), []byte(prefix)
		for key, entry := cursor.Seek(from); key != nil && bytes.HasPrefix(key, from); key, entry = cursor.Next() {
			if !checked {
				if _, err := checkEntry(key, entry); err != nil {
					return damaged(f.path, err)
				}
			}
			if err := use(string(key), entry); err != nil {
				return err
			}
		}
		return nil
	})
}

// view calls read with the bucket of pairs, in a read transaction. checked is set if this call has just verified all checksums.
func (f *File) view(read func(pairs *bbolt.Bucket, checked bool) error) (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.db == nil {
		return ErrClosed
	}
	defer f.guard(&err)()
	return f.db.View(func(tx *bbolt.Tx) error {
		defer f.release(tx.Size())
		checked := !f.verified
		if !f.verified {
			if err := verify(tx); err != nil {
				return damaged(f.path, err)
			}
			f.verified = true // all that is written from now on is our own
		}
		return read(tx.Bucket(pairsBucket), checked)
	})
}

// Memory is an Engine that stores nothing on disk, for a dry run. The zero value is not usable; see NewMemory.
type Memory struct {
	mu     sync.Mutex
	pairs  map[string]Pair
	closed bool
}

// NewMemory returns an empty engine.
func NewMemory() *Memory { return &Memory{pairs: map[string]Pair{}} }

// Load implements Engine.
func (m *Memory) Load(prefix string) ([]Pair, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var pairs []Pair
	for key, pair := range m.pairs {
		if strings.HasPrefix(key, prefix) {
			pair.Value = slices.Clone(pair.Value)
			pairs = append(pairs, pair)
		}
	}
	slices.SortFunc(pairs, func(a, b Pair) int { return strings.Compare(a.Key, b.Key) })
	return pairs, nil
}

// Scan implements Engine.
func (m *Memory) Scan(prefix string, want func(key string, sum Sum) bool, use func([]Pair) error) error {
	return ScanLoaded(m.Load, prefix, want, use)
}

// Sums implements Engine.
func (m *Memory) Sums(keys []string) ([]Sum, error) { return SumsLoaded(m.Load, keys) }

// Commit implements Engine.
func (m *Memory) Commit(t Transaction) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	if m.pairs[t.CompareKey].Revision != t.CompareRevision {
		return ErrConflict
	}
	for _, key := range t.Deletes {
		delete(m.pairs, key)
	}
	for _, pair := range t.Puts {
		pair.Value = slices.Clone(pair.Value)
		m.pairs[pair.Key] = pair
	}
	return nil
}

// Close implements Engine.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}
