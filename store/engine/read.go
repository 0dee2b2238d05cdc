package engine

import (
	"strings"

	"go.etcd.io/bbolt"
)

// Load implements Engine.
func (f *File) Load(prefix string) (pairs []Pair, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read(prefix, strings.HasPrefix)
}

// Get is the pair of a key, if there is one.
func (f *File) Get(key string) (pair Pair, is bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pairs, err := f.read(key, func(one, key string) bool { return one == key })
	if err != nil || len(pairs) == 0 {
		return pair, false, err
	}
	return pairs[0], true, nil
}

// read gives the pairs from a key on while they belong to it. f.mu must be held.
func (f *File) read(from string, belongs func(key, from string) bool) (pairs []Pair, err error) {
	if f.db == nil {
		return nil, ErrClosed
	}
	defer f.guard(&err)()
	err = f.db.View(func(tx *bbolt.Tx) error {
		defer f.release(tx.Size())
		if !f.verified {
			if err := verify(tx); err != nil {
				return damaged(f.path, err)
			}
			f.verified = true // all that is written from now on is our own
		}
		cursor := tx.Bucket(pairsBucket).Cursor()
		for key, entry := cursor.Seek([]byte(from)); key != nil && belongs(string(key), from); key, entry = cursor.Next() {
			if _, err := checkEntry(key, entry); err != nil {
				return damaged(f.path, err)
			}
			pair := Pair{Key: string(key), Revision: entryRevision(entry)}
			if !f.sealed {
				pair.Value = append([]byte(nil), entry[EntryHeader:]...)
			} else if pair.Value, err = f.key.unseal(pair.Key, entry[EntryHeader:]); err != nil {
				return damaged(f.path, err)
			}
			pairs = append(pairs, pair)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return pairs, nil
}
