package engine

import (
	"strings"

	"go.etcd.io/bbolt"
)

// Load implements Engine.
func (f *File) Load(prefix string) (pairs []Pair, err error) {
	err = f.each(prefix, strings.HasPrefix, func(key string, entry []byte) error {
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

// Get is the pair of a key, if there is one.
func (f *File) Get(key string) (pair Pair, is bool, err error) {
	err = f.each(key, func(one, key string) bool { return one == key }, func(key string, entry []byte) error {
		pair, is = Pair{Key: key, Revision: entryRevision(entry)}, true
		var err error
		pair.Value, err = f.value(nil, key, entry)
		return err
	})
	if err != nil {
		return Pair{}, false, err
	}
	return pair, is, nil
}

// scanBytes bounds the values of Scan that are in memory at once, as a rule.
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
	var failed error // of use
	err := f.each(prefix, strings.HasPrefix, func(key string, entry []byte) error {
		if want != nil && !want(key, Sum(entry)) {
			return nil
		}
		size := len(entry) - EntryHeader // no more than that when it is decrypted
		if len(values)+size > cap(values) {
			if len(pairs) > 0 {
				if failed = give(); failed != nil {
					return failed
				}
			}
			if size > cap(values) {
				values = make([]byte, 0, max(size, scanBytes))
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
	if failed != nil {
		return failed
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

// value appends the value of an entry to room.
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

// each calls use for the entries from a key on while they belong to it. Entries are good until use returns. An error of
// use ends it.
func (f *File) each(from string, belongs func(key, from string) bool, use func(key string, entry []byte) error) error {
	return f.view(func(pairs *bbolt.Bucket, checked bool) error {
		cursor := pairs.Cursor()
		for key, entry := cursor.Seek([]byte(from)); key != nil && belongs(string(key), from); key, entry = cursor.Next() {
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

// view calls read with the pairs. checked is set when all of them have just been compared with their checksums.
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
