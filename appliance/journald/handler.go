package journald

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// identifier is the SYSLOG_IDENTIFIER of all entries.
const identifier = "svcctl"

// prefix is the prefix of the journal fields that log attributes become.
const prefix = "SVCCTL_"

// fields maps the keys of some attributes to the names of their journal fields, without prefix. Other names follow from the key.
var fields = map[string]string{"svc": "SERVICE", "err": "ERROR"}

// Handler is a slog.Handler that writes each record as a journal entry. MESSAGE is its message followed by the attributes as text. Each
// attribute is a field too: SVCCTL_SERVICE for svc, SVCCTL_FILE for file, and so on. An attribute "object" that is a Service also sets
// SVCCTL_SERVICE.
type Handler struct {
	w      io.Writer
	level  slog.Leveler
	fields []byte // encoded fields of the attributes set by WithAttrs
	text   string
	group  string // prefix of keys from WithGroup, with a dot at its end
}

// NewHandler returns a Handler that writes records of at least a level to w, one call of Write for each entry.
func NewHandler(w io.Writer, level slog.Leveler) *Handler { return &Handler{w: w, level: level} }

// Enabled implements slog.Handler.
func (h *Handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level.Level() }

// priority converts a level to a priority of syslog(3), as a digit.
func priority(level slog.Level) string {
	switch {
	case level >= slog.LevelError:
		return "3"
	case level >= slog.LevelWarn:
		return "4"
	case level >= slog.LevelInfo:
		return "6"
	}
	return "7"
}

// Handle implements slog.Handler.
func (h *Handler) Handle(_ context.Context, r slog.Record) error {
	more, text := h.fields[:len(h.fields):len(h.fields)], h.text
	r.Attrs(func(a slog.Attr) bool {
		more, text = h.add(more, text, h.group, a)
		return true
	})
	entry := Append(nil, "MESSAGE", r.Message+text)
	entry = Append(entry, "PRIORITY", priority(r.Level))
	entry = Append(entry, "SYSLOG_IDENTIFIER", identifier)
	_, err := h.w.Write(append(entry, more...))
	return err
}

// add appends an attribute to the fields of an entry and to its text.
func (h *Handler) add(entry []byte, text, group string, a slog.Attr) ([]byte, string) {
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		if a.Key != "" {
			group += a.Key + "."
		}
		for _, inner := range value.Group() {
			entry, text = h.add(entry, text, group, inner)
		}
		return entry, text
	}
	if a.Equal(slog.Attr{}) {
		return entry, text
	}
	key, shown := group+a.Key, value.String()
	text += " " + key + "="
	if shown == "" || strings.ContainsFunc(shown, func(r rune) bool { return r <= ' ' || r == '"' || r == '=' || !strconv.IsPrint(r) }) {
		text += strconv.Quote(shown)
	} else {
		text += shown
	}
	if service, is := strings.CutPrefix(shown, "Service "); is && key == "object" {
		entry = Append(entry, prefix+fields["svc"], service)
	}
	return Append(entry, fieldName(key), shown), text
}

// fieldName returns the name of the journal field for the key of an attribute.
func fieldName(key string) string {
	if name := fields[key]; name != "" {
		return prefix + name
	}
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		}
		return '_'
	}, key)
	const longest = 64 // of a field's name
	return prefix + name[:min(len(name), longest-len(prefix))]
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.fields = with.fields[:len(with.fields):len(with.fields)]
	for _, a := range attrs {
		with.fields, with.text = h.add(with.fields, with.text, h.group, a)
	}
	return &with
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	with := *h
	if name != "" {
		with.group += name + "."
	}
	return &with
}

// Socket is the path of the journal's socket for entries.
const Socket = "/run/systemd/journal/socket"

// IsStderr reports whether stderr is connected to the journal, so that structured entries can be sent there (JOURNAL_STREAM,
// systemd.exec(5)).
func IsStderr() bool {
	var stat unix.Stat_t
	if err := unix.Fstat(2, &stat); err != nil {
		return false
	}
	return os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}

// Append appends a field to an entry, and returns the entry. Names consist of capital letters, digits and underscores.
func Append(entry []byte, name, value string) []byte {
	entry = append(entry, name...)
	if !strings.Contains(value, "\n") {
		entry = append(entry, '=')
		entry = append(entry, value...)
	} else {
		entry = append(entry, '\n')
		entry = binary.LittleEndian.AppendUint64(entry, uint64(len(value)))
		entry = append(entry, value...)
	}
	return append(entry, '\n')
}

// patience is the longest wait while the journal does not read its socket, for example during a restart. After that the entry is dropped.
const patience = 10 * time.Second

// Conn sends entries to the journal. Its methods may be called concurrently.
type Conn struct {
	path string
	mu   sync.Mutex
	conn *net.UnixConn // nil: not connected
}

// NewConn returns a Conn to the socket at path. The first Write connects it.
func NewConn(path string) *Conn { return &Conn{path: path} }

// Write sends one entry, as built by Append.
func (c *Conn) Write(entry []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		if c.conn, err = net.DialUnix("unixgram", nil, &net.UnixAddr{Name: c.path, Net: "unixgram"}); err != nil {
			return 0, fmt.Errorf("connect to the journal: %w", err)
		}
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(patience))
	_, err = c.conn.Write(entry)
	if errors.Is(err, syscall.EMSGSIZE) || errors.Is(err, syscall.ENOBUFS) {
		err = c.sendFile(entry)
	}
	if err != nil {
		_ = c.conn.Close() // the journal may have been restarted
		c.conn = nil
		return 0, fmt.Errorf("write to the journal: %w", err)
	}
	return len(entry), nil
}

// sendFile sends an entry that is too long for a datagram in a sealed memfd.
func (c *Conn) sendFile(entry []byte) error {
	fd, err := unix.MemfdCreate("journal-entry", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "journal-entry")
	defer f.Close()
	if _, err := f.Write(entry); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE); err != nil {
		return err
	}
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return err
	}
	rights := unix.UnixRights(int(f.Fd()))
	outer := raw.Write(func(fd uintptr) bool {
		err = unix.Sendmsg(int(fd), nil, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		return !errors.Is(err, unix.EAGAIN)
	})
	return errors.Join(outer, err)
}
