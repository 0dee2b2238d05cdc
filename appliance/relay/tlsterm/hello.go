package tlsterm

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Limits for a ClientHello, which has about 2 KiB with post-quantum keys.
const (
	maxHello    = 16 << 10
	maxRecords  = 64 // maximum number of records that a ClientHello may be split into
	recordSize  = 5  // size of a record header (RFC 8446, 5.1)
	messageSize = 4  // size of a handshake message header (RFC 8446, 4)
)

// errNoHello means that a client did not send a TLS ClientHello.
var errNoHello = errors.New("what the client sends is no ClientHello of TLS")

// ReadHello reads the ClientHello of a client and returns the server name in it in lower case, or "" if it contains none. read holds all bytes that
// were read from the client, even after an error.
func ReadHello(client io.Reader) (name string, read []byte, err error) {
	var message []byte
	for range maxRecords {
		header := make([]byte, recordSize)
		n, err := io.ReadFull(client, header)
		read = append(read, header[:n]...)
		if err != nil {
			return "", read, err
		}
		size := int(binary.BigEndian.Uint16(header[3:]))
		if header[0] != 22 || header[1] != 3 || size == 0 || len(message)+size > maxHello+messageSize {
			return "", read, errNoHello
		}
		at := len(read)
		read = append(read, make([]byte, size)...)
		n, err = io.ReadFull(client, read[at:])
		if read = read[:at+n]; err != nil {
			return "", read, err
		}
		message = append(message, read[at:]...)
		if len(message) < messageSize {
			continue
		}
		switch whole := int(message[1])<<16 | int(message[2])<<8 | int(message[3]); {
		case message[0] != 1 || whole > maxHello:
			return "", read, errNoHello
		case len(message) >= messageSize+whole:
			name, err := ServerName(message[messageSize : messageSize+whole])
			return name, read, err
		}
	}
	return "", read, errNoHello
}

// unrecognizedName is a TLS record with the fatal alert unrecognized_name (RFC 6066, 3; RFC 8446, 6).
var unrecognizedName = []byte{21, 3, 3, 0, 2, 2, 112}

// RefuseName sends the TLS alert unrecognized_name to a client, and closes its connection. It is for clients whose ClientHello was read but not
// answered.
func RefuseName(client net.Conn) {
	_, _ = client.Write(unrecognizedName) // the client may be gone
	_ = client.Close()
}

// ServerName returns the host name in the body of a ClientHello (RFC 8446, 4.1.2; RFC 6066, 3) in lower case, or "" if there is none. If there are
// two names, it returns an error, since other programs might use the other one.
func ServerName(hello []byte) (string, error) {
	p := &parser{rest: hello}
	p.take(2 + 32)          // version, random
	p.take(p.number(1))     // session
	p.take(p.number(2))     // cipher suites
	p.take(p.number(1))     // compression
	if p.bad || p.empty() { // a client of TLS 1.2 may have no extensions
		return "", p.err("the fields before the extensions")
	}
	extensions := p.part(2)
	if p.bad || !p.empty() {
		return "", errors.New("ClientHello: more than its extensions, or less")
	}
	name, found := "", false
	for !extensions.empty() {
		kind := extensions.number(2)
		content := extensions.part(2)
		if extensions.bad {
			return "", extensions.err("an extension")
		}
		if kind != 0 {
			continue
		}
		if found {
			return "", errors.New("ClientHello: two extensions with server names")
		}
		found = true
		var err error
		if name, err = hostName(content); err != nil {
			return "", err
		}
	}
	return name, nil
}

// hostName returns the host name in the content of a server_name extension, or "" if there is none.
func hostName(content *parser) (name string, err error) {
	list := content.part(2)
	if content.bad || !content.empty() || list.empty() {
		return "", errors.New("ClientHello: no list of server names where one is announced")
	}
	found := false
	for !list.empty() {
		kind := list.number(1)
		text := list.take(list.number(2))
		switch {
		case list.bad:
			return "", list.err("a server name")
		case kind != 0:
			continue
		case found:
			return "", errors.New("ClientHello: two host names")
		case len(text) == 0 || len(text) > 255:
			return "", fmt.Errorf("ClientHello: a host name of %d bytes", len(text))
		}
		for _, c := range text {
			if c <= ' ' || c >= 0x7f {
				return "", errors.New("ClientHello: a host name with other characters than those of names")
			}
		}
		name, found = strings.ToLower(string(text)), true
	}
	return name, nil
}

// parser reads fields from a byte slice. After a truncated field, bad is set and all further fields are empty.
type parser struct {
	rest []byte
	bad  bool
}

func (p *parser) empty() bool { return len(p.rest) == 0 }

func (p *parser) err(what string) error {
	if p.bad {
		return fmt.Errorf("ClientHello: it ends within %s", what)
	}
	return nil
}

// take reads n bytes.
func (p *parser) take(n int) []byte {
	if p.bad || n > len(p.rest) {
		p.bad, p.rest = true, nil
		return nil
	}
	taken := p.rest[:n]
	p.rest = p.rest[n:]
	return taken
}

// number reads a big-endian number of size bytes.
func (p *parser) number(size int) (n int) {
	for _, b := range p.take(size) {
		n = n<<8 | int(b)
	}
	return n
}

// part reads a vector that is preceded by its length, a number of size bytes. It returns a parser for the content of the vector.
func (p *parser) part(size int) *parser { return &parser{rest: p.take(p.number(size)), bad: p.bad} }

// handshakeTimeout is the timeout of a TLS handshake with a client or an endpoint.
const handshakeTimeout = 10 * time.Second

// Server holds the TLS settings of a port for its clients.
type Server struct {
	// Pairs are the certificates. A client gets the first one that is valid for the server name it requests, and otherwise the first of all.
	Pairs    []*Pair
	Min, Max uint16 // minimum and maximum TLS version, as numbered in crypto/tls
	// Suites are the permitted cipher suites of TLS 1.2. If nil, the defaults of crypto/tls are used.
	Suites []uint16
	ALPN   []string
	// Clients is the CA that must have issued the certificates of clients. If nil, clients are not asked for one. Optional permits clients without a
	// certificate.
	Clients  *Authority
	Optional bool
}

// Equal reports whether two settings are equal, so that a tls.Config need not be replaced.
func (s *Server) Equal(o *Server) bool {
	return slices.Equal(s.Pairs, o.Pairs) && s.Min == o.Min && s.Max == o.Max && slices.Equal(s.Suites, o.Suites) &&
		slices.Equal(s.ALPN, o.ALPN) && s.Clients == o.Clients && s.Optional == o.Optional
}

// Config returns the TLS configuration for clients. Each Config has its own session ticket keys, which crypto/tls changes daily and accepts for a
// week. Therefore tickets of an earlier Config are not accepted.
func (s *Server) Config() *tls.Config {
	c := &tls.Config{MinVersion: s.Min, MaxVersion: s.Max, CipherSuites: s.Suites, NextProtos: s.ALPN}
	pairs := slices.Clone(s.Pairs)
	c.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		for _, p := range pairs {
			if len(pairs) == 1 || hello.SupportsCertificate(&p.certificate) == nil {
				return &p.certificate, nil
			}
		}
		if len(pairs) == 0 {
			return nil, errors.New("there is no certificate")
		}
		return &pairs[0].certificate, nil
	}
	if s.Clients != nil {
		c.ClientCAs, c.ClientAuth = s.Clients.pool, tls.RequireAndVerifyClientCert
		if s.Optional {
			c.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	return c
}

// ClientConfig returns the TLS configuration for endpoints. The certificate of an endpoint must be issued by ca and valid for name. If ca is nil, the
// certificate is not verified.
func ClientConfig(ca *Authority, name string) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name, ClientSessionCache: tls.NewLRUClientSessionCache(0)}
	if ca == nil {
		c.InsecureSkipVerify = true
		return c
	}
	c.RootCAs = ca.pool
	return c
}

// Conn is a connection whose directions can be closed separately.
type Conn interface {
	net.Conn
	CloseWrite() error
}

// Secure is a TLS connection. Its Read returns io.EOF only after the peer sent close_notify (RFC 8446, 6.1). The Read of crypto/tls also returns
// io.EOF for a connection that was cut between two records.
type Secure struct {
	*tls.Conn
	raw *cutConn
}

// Read implements net.Conn. It returns io.ErrUnexpectedEOF if the connection ended without close_notify.
func (s *Secure) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if errors.Is(err, io.EOF) && s.raw.cut.Load() {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// cutConn is a net.Conn that records whether the peer has sent a FIN.
type cutConn struct {
	net.Conn
	cut atomic.Bool
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if errors.Is(err, io.EOF) {
		c.cut.Store(true)
	}
	return n, err
}

// Accept performs the TLS handshake with a client as the server. If it returns an error, it has sent an alert to the client where possible.
func Accept(ctx context.Context, client net.Conn, config *tls.Config) (*Secure, error) {
	raw := &cutConn{Conn: client}
	return shake(ctx, tls.Server(raw, config), raw)
}

// Connect performs the TLS handshake with an endpoint as the client.
func Connect(ctx context.Context, endpoint net.Conn, config *tls.Config) (*Secure, error) {
	raw := &cutConn{Conn: endpoint}
	return shake(ctx, tls.Client(raw, config), raw)
}

func shake(ctx context.Context, c *tls.Conn, raw *cutConn) (*Secure, error) {
	ctx, stop := context.WithTimeout(ctx, handshakeTimeout)
	defer stop()
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return &Secure{c, raw}, nil
}

// Buffer sizes for one direction of a connection, in bytes. A direction uses a small buffer while idle, and a large one while busy.
const (
	smallBuffer = 2 << 10
	largeBuffer = 32 << 10 // two TLS records (RFC 8446, 5.1)
)

var largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

// Join copies data in both directions until both have ended. When one side ends its direction, Join calls CloseWrite on the other side. After an
// error in one direction, such as the end of a TLS connection without close_notify, it calls reset, which must terminate both connections.
func Join(a, b Conn, reset func()) {
	var back sync.WaitGroup
	back.Go(func() { pass(a, b, reset) })
	pass(b, a, reset)
	back.Wait()
}

func pass(to, from Conn, reset func()) {
	err := copyAll(to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		reset()
	}
}

// copyAll copies all bytes of from to the writer to, until from returns io.EOF.
func copyAll(to io.Writer, from io.Reader) error {
	small := make([]byte, smallBuffer)
	buffer := small
	var large *[largeBuffer]byte
	release := func() {
		if large != nil {
			largeBuffers.Put(large)
			large, buffer = nil, small
		}
	}
	defer release()
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case large == nil && n == smallBuffer:
			large = largeBuffers.Get().(*[largeBuffer]byte)
			buffer = large[:]
		case large != nil && n < smallBuffer:
			release()
		}
	}
}
