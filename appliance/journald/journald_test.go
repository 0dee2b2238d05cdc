package journald

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// journal is a socket that takes entries as the journal does.
type journal struct {
	path string
	conn *net.UnixConn
}

func listen(t *testing.T) *journal {
	j := &journal{path: filepath.Join(t.TempDir(), "socket")}
	var err error
	if j.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: j.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.conn.Close() })
	return j
}

// entry reads the next entry, a datagram or a file.
func (j *journal) entry(t *testing.T) map[string]string {
	t.Helper()
	datagram, rights := make([]byte, 1<<20), make([]byte, 64)
	n, rn, _, _, err := j.conn.ReadMsgUnix(datagram, rights)
	if err != nil {
		t.Fatal(err)
	}
	entry := datagram[:n]
	if rn > 0 {
		messages, err := unix.ParseSocketControlMessage(rights[:rn])
		if err != nil {
			t.Fatal(err)
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fds[0]), "entry")
		defer f.Close()
		if _, err := f.Write([]byte("more")); !errors.Is(err, unix.EPERM) {
			t.Errorf("the file of an entry can be written: %v", err)
		}
		if entry, err = io.ReadAll(io.NewSectionReader(f, 0, 1<<30)); err != nil {
			t.Fatal(err)
		}
	}
	return parse(t, entry)
}

// parse reads an entry as systemd.io/JOURNAL_NATIVE_PROTOCOL has it.
func parse(t *testing.T, b []byte) map[string]string {
	t.Helper()
	fields := map[string]string{}
	for len(b) > 0 {
		end := bytes.IndexByte(b, '\n')
		if end < 0 {
			t.Fatalf("a field without an end: %q", b)
		}
		name, value, simple := strings.Cut(string(b[:end]), "=")
		b = b[end+1:]
		if !simple {
			n := binary.LittleEndian.Uint64(b)
			value, b = string(b[8:8+n]), b[8+n+1:]
		}
		fields[name] = value
	}
	return fields
}

func TestEntries(t *testing.T) {
	j := listen(t)
	log := slog.New(NewHandler(NewConn(j.path), slog.LevelInfo)).With("box", "gw1")
	log.Debug("nobody wants to know")
	log.Warn("refused", "svc", "default/web", "err", errors.New("two\nlines"), "at", 3)
	got := j.entry(t)
	want := map[string]string{
		"MESSAGE": "refused box=gw1 svc=default/web err=\"two\\nlines\" at=3", "PRIORITY": "4", "SYSLOG_IDENTIFIER": "svcctl",
		"SVCCTL_SERVICE": "default/web", "SVCCTL_ERROR": "two\nlines", "SVCCTL_AT": "3", "SVCCTL_BOX": "gw1",
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %q, want %q", name, got[name], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	log.Warn("problem", "object", "Service default/web")
	if got := j.entry(t); got["SVCCTL_SERVICE"] != "default/web" || got["SVCCTL_OBJECT"] != "Service default/web" {
		t.Errorf("got %v", got)
	}
	log.WithGroup("disk").Info("full", slog.Group("of", "file", "a b"))
	if got := j.entry(t); got["MESSAGE"] != `full box=gw1 disk.of.file="a b"` || got["SVCCTL_DISK_OF_FILE"] != "a b" || got["PRIORITY"] != "6" {
		t.Errorf("got %v", got)
	}
}

// A value cannot make fields of its own.
func TestValuesMakeNoFields(t *testing.T) {
	got := parse(t, Append(nil, "SVCCTL_NAME", "web\nPRIORITY=0\nMESSAGE=everything is fine"))
	if len(got) != 1 || !strings.Contains(got["SVCCTL_NAME"], "PRIORITY=0") {
		t.Errorf("got %v", got)
	}
}

func TestLongEntries(t *testing.T) {
	j := listen(t)
	long := strings.Repeat("x", 4<<20)
	c := NewConn(j.path)
	go func() {
		if _, err := c.Write(Append(nil, "SVCCTL_TEXT", long)); err != nil {
			t.Error(err)
			_ = j.conn.Close()
		}
	}()
	if got := j.entry(t); got["SVCCTL_TEXT"] != long {
		t.Errorf("%d bytes of %d came", len(got["SVCCTL_TEXT"]), len(long))
	}
}

// A journal that is started anew gets what is written after that.
func TestJournalRestarts(t *testing.T) {
	j := listen(t)
	c := NewConn(j.path)
	write := func() error { _, err := c.Write(Append(nil, "MESSAGE", "x")); return err }
	if err := write(); err != nil {
		t.Fatal(err)
	}
	_ = j.conn.Close()
	if err := write(); err == nil {
		t.Error("nobody listens and no error is told")
	}
	_ = os.Remove(j.path)
	again, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: j.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := write(); err != nil {
		t.Error(err)
	}
}

func TestStderrIsNoJournal(t *testing.T) {
	t.Setenv("JOURNAL_STREAM", "1:2")
	if IsStderr() {
		t.Error("another file is taken for stderr")
	}
}
