package prober

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/netip"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/health"
)

// sessions are resumed for some time: that takes a quarter of the CPU off a handshake. After it the
// server's certificate is verified again.
type sessions struct {
	mu    *sync.Mutex
	known map[sessionKey]session
}

// sessionKey names the server of a session. Checks that verify certificates do not resume the
// sessions of those that do not.
type sessionKey struct {
	addr   netip.AddrPort
	host   string
	verify bool
}

type session struct {
	state *tls.ClientSessionState
	until time.Time
}

const (
	// maxSessions bounds the sessions that are kept; each is some KiB. sessionLife is the time for
	// which one is kept.
	maxSessions = 2048
	sessionLife = 10 * time.Minute
)

// cache is the tls.ClientSessionCache of one handshake.
type cache struct {
	sessions
	key sessionKey
}

func (c cache) Get(string) (*tls.ClientSessionState, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, there := c.known[c.key]
	if there && time.Now().After(s.until) {
		delete(c.known, c.key)
		return nil, false
	}
	return s.state, there
}

func (c cache) Put(_ string, state *tls.ClientSessionState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == nil {
		delete(c.known, c.key)
		return
	}
	s := session{state, time.Now().Add(sessionLife)}
	if before, there := c.known[c.key]; there {
		s.until = before.until // a resumed session does not show the certificate
	} else if len(c.known) >= maxSessions {
		for one := range c.known {
			delete(c.known, one)
			break
		}
	}
	c.known[c.key] = s
}

// handshake begins TLS on a connection. It returns the end of the server's certificate; nil: it sent none.
func (s sessions) handshake(c *conn, t *target) (*tls.Conn, *time.Time, health.Result) {
	secured := tls.Client(c, &tls.Config{
		ServerName:         cmp.Or(t.check.Host, t.addr.Addr().String()), // an address is not sent (RFC 6066), but verified
		InsecureSkipVerify: !t.check.Verify,
		MinVersion:         tls.VersionTLS12,
		// The post-quantum exchange costs more than the rest, and a check has no secret.
		CurvePreferences:   []tls.CurveID{tls.X25519, tls.CurveP256},
		ClientSessionCache: cache{s, sessionKey{t.addr, t.check.Host, t.check.Verify}},
	})
	err := secured.Handshake()
	if err != nil {
		return nil, nil, tlsFailure(err, t.check)
	}
	if shown := secured.ConnectionState().PeerCertificates; len(shown) > 0 {
		return secured, &shown[0].NotAfter, health.Result{}
	}
	return secured, nil, health.Result{}
}

// tlsFailure names what was wrong with a handshake, in words of ours.
func tlsFailure(err error, c *check) health.Result {
	var (
		invalid x509.CertificateInvalidError
		name    x509.HostnameError
		unknown x509.UnknownAuthorityError
		record  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return failed(health.Refused, "the certificate has expired or is not valid yet")
	case errors.As(err, &invalid):
		return failed(health.Refused, "the certificate is not valid")
	case errors.As(err, &name):
		return failed(health.Refused, "the certificate is for another name")
	case errors.As(err, &unknown):
		return failed(health.Refused, "the certificate is not signed by an authority that this host trusts")
	case errors.As(err, &record):
		return failed(health.Refused, "the answer is not TLS")
	}
	return broken(err, c, "a TLS handshake")
}
