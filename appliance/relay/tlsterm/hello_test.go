package tlsterm

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// recorded returns the first bytes of a client.
func recorded(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	r := &recorder{}
	if err := tls.Client(r, config).Handshake(); err == nil {
		t.Fatal("a handshake with nobody")
	}
	return r.sent.Bytes()
}

type recorder struct{ sent bytes.Buffer }

func (r *recorder) Write(b []byte) (int, error)      { return r.sent.Write(b) }
func (r *recorder) Read([]byte) (int, error)         { return 0, io.EOF }
func (r *recorder) Close() error                     { return nil }
func (r *recorder) LocalAddr() net.Addr              { return nil }
func (r *recorder) RemoteAddr() net.Addr             { return nil }
func (r *recorder) SetDeadline(time.Time) error      { return nil }
func (r *recorder) SetReadDeadline(time.Time) error  { return nil }
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }

// cut cuts the message of one record into records of so many bytes.
func cut(hello []byte, size int) (all []byte) {
	for message := hello[recordSize:]; len(message) > 0; {
		n := min(size, len(message))
		all = append(all, 22, 3, 1, byte(n>>8), byte(n))
		all = append(all, message[:n]...)
		message = message[n:]
	}
	return all
}

func TestReadHello(t *testing.T) {
	named := recorded(t, &tls.Config{ServerName: "WWW.Example.com"})
	old := recorded(t, &tls.Config{ServerName: "www.example.com", MaxVersion: tls.VersionTLS12})
	unnamed := recorded(t, &tls.Config{InsecureSkipVerify: true})
	for name, tt := range map[string]struct {
		sent []byte
		want string
	}{
		"named": {named, "www.example.com"}, "TLS 1.2": {old, "www.example.com"}, "unnamed": {unnamed, ""},
		"in pieces": {cut(named, 100), "www.example.com"}, "in tiny ones": {cut(old, 7), "www.example.com"},
	} {
		got, read, err := ReadHello(bytes.NewReader(append(bytes.Clone(tt.sent), "more"...)))
		if got != tt.want || err != nil || !bytes.Equal(read, tt.sent) {
			t.Errorf("%s: %q, %v, %d bytes read of %d, want %q", name, got, err, len(read), len(tt.sent), tt.want)
		}
	}
	for name, sent := range map[string][]byte{
		"HTTP": []byte("GET / HTTP/1.1\r\n\r\n"), "SSH": []byte("SSH-2.0-OpenSSH\r\n"), "an alert": {21, 3, 1, 0, 2, 1, 0}, "no record": {22, 3, 1, 0, 0},
		"another message": {22, 3, 1, 0, 4, 2, 0, 0, 0}, "a large one": {22, 3, 1, 0, 4, 1, 1, 0, 0}, "too many records": cut(append(make([]byte, recordSize), append([]byte{1, 0, 0x20, 0}, make([]byte, 0x2000)...)...), 16),
	} {
		if got, _, err := ReadHello(bytes.NewReader(sent)); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
	for n := range named {
		if _, read, err := ReadHello(bytes.NewReader(named[:n])); err == nil || len(read) != n {
			t.Fatalf("%d of %d bytes: %v, %d read", n, len(named), err, len(read))
		}
	}
}

// twoNames has a second server name.
func twoNames(t testing.TB, hello []byte, inOne bool) []byte {
	t.Helper()
	body := bytes.Clone(hello[recordSize+messageSize:])
	name := func(text string) []byte { return append([]byte{0, 0, byte(len(text))}, text...) }
	list := func(names []byte) []byte {
		return append([]byte{0, 0, 0, byte(len(names) + 2), 0, byte(len(names))}, names...)
	}
	extra := append(list(name("a.example.com")), list(name("b.example.com"))...)
	if inOne {
		extra = list(append(name("a.example.com"), name("b.example.com")...))
	}
	// version, random, no session, one suite, one compression
	return append(append(bytes.Clone(body[:34]), 0, 0, 2, 0x13, 1, 1, 0, byte(len(extra)>>8), byte(len(extra))), extra...)
}

// inRecord is the body of a ClientHello as a client sends it.
func inRecord(body []byte) []byte {
	n := len(body)
	return append([]byte{22, 3, 1, byte((n + messageSize) >> 8), byte(n + messageSize), 1, byte(n >> 16), byte(n >> 8), byte(n)}, body...)
}

func TestTwoServerNamesAreRefused(t *testing.T) {
	hello := recorded(t, &tls.Config{InsecureSkipVerify: true})
	for _, inOne := range []bool{true, false} {
		if name, err := ServerName(twoNames(t, hello, inOne)); err == nil || !strings.Contains(err.Error(), "two") {
			t.Errorf("in one extension %t: %q, %v", inOne, name, err)
		}
		if name, _, err := ReadHello(bytes.NewReader(inRecord(twoNames(t, hello, inOne)))); err == nil || !strings.Contains(err.Error(), "two") {
			t.Errorf("in one extension %t, as sent: %q, %v", inOne, name, err)
		}
	}
}

// FuzzServerName holds the parser against crypto/tls: where that takes a ClientHello, both have the same name, and
// nothing panics or reads further than there is.
func FuzzServerName(f *testing.F) {
	for _, name := range []string{"a", "www.example.com", ""} {
		f.Add(recorded(f, &tls.Config{ServerName: name, InsecureSkipVerify: true}))
		f.Add(recorded(f, &tls.Config{ServerName: name, InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}))
	}
	f.Add([]byte{22, 3, 1, 0, 4, 1, 0, 0, 0})
	named := recorded(f, &tls.Config{ServerName: "www.example.com"})
	f.Add(cut(named, 100))
	f.Add(named[:len(named)/2])
	for _, inOne := range []bool{true, false} {
		f.Add(inRecord(twoNames(f, named, inOne)))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		name, read, err := ReadHello(bytes.NewReader(sent))
		if len(read) > len(sent) || !bytes.Equal(read, sent[:len(read)]) {
			t.Fatalf("read %d bytes of %d, or others", len(read), len(sent))
		}
		theirs, taken := asked(sent)
		if taken && err == nil && !strings.EqualFold(strings.TrimSuffix(name, "."), strings.TrimSuffix(theirs, ".")) {
			t.Fatalf("the name is %q, and %q for crypto/tls", name, theirs)
		}
		if err == nil && (name != strings.ToLower(name) || len(name) > 255) {
			t.Fatalf("the name is %q", name)
		}
	})
}

// asked is the server name as crypto/tls reads it.
func asked(sent []byte) (name string, taken bool) {
	stop := errors.New("enough")
	_ = tls.Server(&replay{bytes.NewReader(sent)}, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name, taken = h.ServerName, true
		return nil, stop
	}}).Handshake()
	return name, taken
}

type replay struct{ *bytes.Reader }

func (replay) Write(b []byte) (int, error)      { return len(b), nil }
func (replay) WriteTo(io.Writer) (int64, error) { return 0, io.EOF }
func (replay) Close() error                     { return nil }
func (replay) LocalAddr() net.Addr              { return nil }
func (replay) RemoteAddr() net.Addr             { return nil }
func (replay) SetDeadline(time.Time) error      { return nil }
func (replay) SetReadDeadline(time.Time) error  { return nil }
func (replay) SetWriteDeadline(time.Time) error { return nil }
