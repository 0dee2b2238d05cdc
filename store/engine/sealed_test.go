package engine

import (
	"bytes"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
)

const secretText = "the password of everybody"

func testKey(t *testing.T, of byte) *Key {
	t.Helper()
	key, err := NewKey(bytes.Repeat([]byte{of}, keyBytes))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// plainFile is a data directory with values that are not encrypted.
func plainFile(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	f, err := OpenFile(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	puts := []Pair{{Key: "head", Revision: 1}, {Key: "object/Secret/a", Value: []byte(secretText), Revision: 1}}
	if err := errors.Join(f.Commit(Transaction{CompareKey: "head", Puts: puts}), f.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// contents are all files of a directory, one behind the other.
func contents(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	text := ""
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text += string(b)
	}
	return text
}

// A file is encrypted when it is opened with a key; nothing of its values can be read in it then, and every commit
// goes on so.
func TestValuesAreEncrypted(t *testing.T) {
	dir, key := plainFile(t), testKey(t, 1)
	if !strings.Contains(contents(t, dir), secretText) {
		t.Fatal("the text is not looked for as it is stored")
	}
	for revision := uint64(1); revision < 4; revision++ {
		f, err := OpenFile(dir, key)
		if err != nil {
			t.Fatal(err)
		}
		pairs, err := f.Load("object/")
		if err != nil || string(pairs[0].Value) != secretText || pairs[0].Revision != 1 || len(pairs) != int(revision) {
			t.Errorf("%v, %v", pairs, err)
		}
		entry := append(make([]byte, EntryHeader), secretText...)
		more := Pair{Key: "object/Secret/" + strings.Repeat("b", int(revision)), Value: entry[EntryHeader:], Entry: entry, Revision: revision + 1}
		if err := f.Commit(Transaction{CompareKey: "head", CompareRevision: revision, Puts: []Pair{{Key: "head", Revision: revision + 1}, more}}); err != nil {
			t.Fatal(err)
		}
		pairs, err = f.Load(more.Key)
		if err != nil || len(pairs) != 1 || string(pairs[0].Value) != secretText || pairs[0].Revision != revision+1 {
			t.Errorf("%v, %v", pairs, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(contents(t, dir), secretText) {
			t.Errorf("after %d commits the text is in a file", revision)
		}
	}
}

// Without its key, with another one, and with values that were exchanged, a file is refused as it is.
func TestEncryptedFileNeedsItsKey(t *testing.T) {
	dir, key := plainFile(t), testKey(t, 1)
	f, err := OpenFile(dir, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	before := contents(t, dir)
	refused := func(key *Key, why string) {
		t.Helper()
		f, err := OpenFile(dir, key)
		if err == nil {
			_, err = f.Load("")
			_ = f.Close()
		}
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	refused(nil, "--data-key-file")
	refused(testKey(t, 2), "another key")
	if state, err := Inspect(dir); state != DirectorySound || err != nil {
		t.Errorf("doctor finds %s, %v", state, err)
	}
	if contents(t, dir) != before {
		t.Error("a refusal changed the file")
	}
	// The value of one key in the place of another, with a checksum that fits.
	db, err := openBolt(filepath.Join(dir, fileName), false)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		pairs, meta := tx.Bucket(pairsBucket), tx.Bucket(metaBucket)
		from := pairs.Get([]byte("object/Secret/a"))
		entry := make([]byte, len(from))
		encodeEntry(entry, Pair{Key: "object/Secret/z", Value: from[EntryHeader:], Revision: 1})
		var digest sum
		copy(digest[:], meta.Get(digestKey))
		digest.toggleEntry(entry)
		return errors.Join(pairs.Put([]byte("object/Secret/z"), entry), meta.Put(digestKey, digest[:]))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	refused(key, `entry "object/Secret/z" cannot be decrypted`)
}

// A crash while a file is encrypted leaves it as it was, and what was begun is begun anew.
func TestEncryptingIsBegunAnew(t *testing.T) {
	dir := plainFile(t)
	if err := os.WriteFile(filepath.Join(dir, fileName+sealedSuffix), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenFile(dir, testKey(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if pairs, err := f.Load("object/"); err != nil || len(pairs) != 1 || string(pairs[0].Value) != secretText {
		t.Errorf("%v, %v", pairs, err)
	}
}

func TestReadKey(t *testing.T) {
	good := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, keyBytes))
	for _, c := range []struct {
		text string
		mode os.FileMode
		why  string
	}{
		{good + "\n", 0o600, ""},
		{good, 0o440, ""}, // an access list of systemd's
		{good, 0o644, "chmod 600"},
		{good, 0o620, "chmod 600"},
		{"", 0o600, "it has 0 bytes"},
		{good[:20], 0o600, "needs 32"},
		{"no base64!", 0o600, "not base64"},
	} {
		path := filepath.Join(t.TempDir(), "key")
		if err := errors.Join(os.WriteFile(path, []byte(c.text), 0o600), os.Chmod(path, c.mode)); err != nil {
			t.Fatal(err)
		}
		key, err := ReadKey(path)
		if c.why == "" && (err != nil || key == nil) || c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why)) {
			t.Errorf("%q, mode %o: %v", c.text, c.mode, err)
		}
		if err != nil && len(c.text) > 12 && strings.Contains(err.Error(), c.text) {
			t.Errorf("the error has the key: %v", err)
		}
	}
	if _, err := ReadKey("/nonexistent"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
