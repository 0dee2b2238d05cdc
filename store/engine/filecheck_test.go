package engine

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzCheckFile looks for a file that makes the check panic. The checksums of the heads
// are made right, or nothing behind them would ever be reached.
func FuzzCheckFile(f *testing.F) {
	dir := f.TempDir()
	file := mustOpenFile(f, dir)
	fill(f, file, 3, 30)
	data, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:2*os.Getpagesize()])
	f.Add([]byte{})
	f.Fuzz(func(_ *testing.T, input []byte) {
		data := bytes.Clone(input)
		for _, at := range []int{0, os.Getpagesize()} {
			if len(data) < at+pageHeaderSize+metaSize {
				break
			}
			meta := data[at+pageHeaderSize : at+pageHeaderSize+metaSize]
			hash := fnv.New64a()
			hash.Write(meta[:metaSize-8])
			binary.LittleEndian.PutUint64(meta[metaSize-8:], hash.Sum64())
		}
		_ = checkFile(data)
	})
}

// A page that is neither in use nor free is lost; bbolt would not notice.
func TestUnaccountedPagesAreFound(t *testing.T) {
	dir := t.TempDir()
	file := mustOpenFile(t, dir)
	fill(t, file, 3, 30)
	data, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	if err := checkFile(data); err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(data); at += os.Getpagesize() {
		if header := data[at:]; binary.LittleEndian.Uint16(header[8:]) == freelistPage && header[10] > 0 {
			header[10]--
		}
	}
	if err := checkFile(data); err == nil || !strings.Contains(err.Error(), "accounted for") {
		t.Errorf("got %v", err)
	}
}

// A page that goes bad while the file is open is found by who reads it.
func TestDamageOfAnOpenFileIsFound(t *testing.T) {
	dir := t.TempDir()
	f := mustOpenFile(t, dir)
	if err := f.Commit(Transaction{CompareKey: "head", Puts: []Pair{{Key: "object/a", Value: []byte("needle")}, {Key: "other/a"}}}); err != nil {
		t.Fatal(err)
	}
	dump(t, f)
	path := filepath.Join(dir, fileName)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	patch(t, path, bytes.Index(data, []byte("needle")), 'N')
	if _, err := f.Load("other/"); err != nil {
		t.Errorf("another entry: %v", err)
	}
	if pairs, err := f.Load("object/"); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("%v, %v", pairs, err)
	}
}
