package tlsterm

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// handshakeTimeout bounds a handshake, with a client and with an endpoint.
const handshakeTimeout = 10 * time.Second

// Server has the settings of TLS towards clients of a port.
type Server struct {
	// Pairs are the certificates; the first one is for clients that name no server, or one that none is for.
	Pairs    []*Pair
	Min, Max uint16 // versions of crypto/tls
	// Suites has the cipher suites of TLS 1.2.
	Suites []uint16
	ALPN   []string
	// Clients is the CA that clients' certificates are from; nil: none is asked for. Optional lets in
	// clients without one.
	Clients  *Authority
	Optional bool
}

// Equal reports whether clients get the same.
func (s *Server) Equal(o *Server) bool {
	return slices.Equal(s.Pairs, o.Pairs) && s.Min == o.Min && s.Max == o.Max && slices.Equal(s.Suites, o.Suites) &&
		slices.Equal(s.ALPN, o.ALPN) && s.Clients == o.Clients && s.Optional == o.Optional
}

// Config is the configuration for clients. It has keys of its own for session tickets, which change every
// day and are good for a week (crypto/tls): a new Config takes no tickets of the one before.
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

// ClientConfig is the configuration for endpoints: their certificate has to be from the CA, for the name;
// without a CA it is not checked.
func ClientConfig(ca *Authority, name string) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name, ClientSessionCache: tls.NewLRUClientSessionCache(0)}
	if ca == nil {
		c.InsecureSkipVerify = true
		return c
	}
	c.RootCAs = ca.pool
	return c
}

// Conn is a connection whose directions end one by one.
type Conn interface {
	net.Conn
	CloseWrite() error
}

// Secure is a connection with TLS. It returns io.EOF only after close_notify; crypto/tls returns it also for a
// connection that was cut between two records (RFC 8446, 6.1).
type Secure struct {
	*tls.Conn
	raw *cutConn
}

// Read implements net.Conn.
func (s *Secure) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if errors.Is(err, io.EOF) && s.raw.cut.Load() {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// cutConn notes that the other end has sent a FIN.
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

// Accept ends the TLS of a client. After an error an alert was sent, if the client could take one.
func Accept(ctx context.Context, client net.Conn, config *tls.Config) (*Secure, error) {
	raw := &cutConn{Conn: client}
	return shake(ctx, tls.Server(raw, config), raw)
}

// Connect begins TLS with an endpoint.
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

// The buffers of a direction. A connection that is idle has the small one: of the large ones there are as
// many as directions that are busy.
const (
	smallBuffer = 2 << 10
	largeBuffer = 32 << 10 // two records of TLS (RFC 8446, 5.1)
)

var largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

// Join copies both directions until both have ended. What one end closes is closed towards the other end. After an
// error in one direction, an end of TLS without a close_notify among them, reset is called, which has to
// end both.
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

// copyAll copies until from ends.
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
