package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// sum is a checksum of an entry, or the exclusive or of those of all entries.
type sum [sha256.Size]byte

func (s *sum) toggle(other sum) {
	for i := range s {
		s[i] ^= other[i]
	}
}

// toggleEntry toggles the checksum of a stored entry; nil is none.
func (s *sum) toggleEntry(entry []byte) {
	if len(entry) >= EntryHeader {
		s.toggle(sum(entry[:sha256.Size]))
	}
}

// EntryHeader is the size of the checksum and the revision in front of a stored value, in bytes.
const EntryHeader = sha256.Size + 8

// encodeEntry writes the stored form of a pair, of which entry has the length.
func encodeEntry(entry []byte, pair Pair) {
	binary.BigEndian.PutUint64(entry[sha256.Size:], pair.Revision)
	if pair.Entry == nil {
		copy(entry[EntryHeader:], pair.Value)
	}
	checksum := checksumOf([]byte(pair.Key), entry[sha256.Size:])
	copy(entry, checksum[:])
}

// checkEntry is the checksum of a stored entry, if that is what it should be.
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

// entryRevision is the revision of a stored entry; 0 when there is none.
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
