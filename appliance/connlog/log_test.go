package connlog

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func line(client string) *Line {
	bytes := uint64(7)
	return &Line{Namespace: "default", Service: "web", Protocol: "TCP", Client: client, To: "10.96.0.10:80", Endpoint: "10.1.2.11:8080", BytesIn: &bytes, Answered: true}
}

// clients are those of the lines of a file.
func clients(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	var list []string
	for s := bufio.NewScanner(f); s.Scan(); {
		var l Line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			list = append(list, fmt.Sprintf("%q", s.Text()))
			continue
		}
		list = append(list, l.Client)
	}
	return strings.Join(list, " ")
}

func write(l *Log, names ...string) {
	for _, name := range names {
		l.Write(line(name))
	}
	l.Flush(time.Minute)
}

func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "connections.log")
	l := Open(path)
	write(l, "a", "b")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(l, "c")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(l, "d")
	if old, now := clients(t, path+".1"), clients(t, path); old != "a b" || now != "d" || l.Lost() != 0 || l.Err() != nil {
		t.Errorf("%q, %q, %d lost, %v", old, now, l.Lost(), l.Err())
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("everybody may read the log: %v, %v", info.Mode(), err)
	}
}

func TestUnwritable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l := Open(filepath.Join(dir, "connections.log"))
	if err := l.Err(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is not there: %v", err)
	}
	<-l.Changed()
	write(l, "a", "b")
	if l.Lost() != 2 || l.Lines() != 2 {
		t.Errorf("%d of %d lost, want 2 of 2", l.Lost(), l.Lines())
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l.Retry()
	<-l.Changed()
	if l.Err() != nil {
		t.Errorf("the directory is there: %v", l.Err())
	}
	write(l, "c")
	if got := clients(t, filepath.Join(dir, "connections.log")); got != "c" || l.Lost() != 2 {
		t.Errorf("%q, %d lost", got, l.Lost())
	}
}

// disk takes so many bytes.
type disk struct {
	*os.File
	room *int
}

func (d disk) Write(b []byte) (int, error) {
	n := min(len(b), *d.room)
	*d.room -= n
	_, _ = d.File.Write(b[:n])
	if n < len(b) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

// On a disk that was full the next line is a line.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "connections.log")
	l := Open(path)
	room := 1 << 20
	l.to.open = func() (io.WriteCloser, error) {
		f, err := openFile(path)
		if err != nil {
			return nil, err
		}
		return disk{f.(*os.File), &room}, nil
	}
	l.to.close()
	write(l, "a")
	room = 10
	write(l, "b", "c")
	l.Retry()
	if !errors.Is(l.Err(), syscall.ENOSPC) || l.Lost() != 2 {
		t.Errorf("%v, %d lost", l.Err(), l.Lost())
	}
	room = 1 << 20
	write(l, "d", "e")
	if got := clients(t, path); !strings.HasPrefix(got, "a ") || !strings.HasSuffix(got, " d e") || l.Err() != nil {
		t.Errorf("%q, %v", got, l.Err())
	}
}

// Nobody waits for a reader that stalls.
func TestStalledReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	l := Open(path)
	if !errors.Is(l.Err(), syscall.ENXIO) {
		t.Errorf("a pipe that nobody reads: %v", l.Err())
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	const n = 3 * maxLines
	for range n {
		l.Write(line("a"))
	}
	if lost := l.Lost(); lost < n-maxLines-2000 || l.Lines() != n {
		t.Errorf("%d of %d lost", lost, l.Lines())
	}
	_ = reader.Close() // what waits fails
	l.Flush(time.Minute)
}
