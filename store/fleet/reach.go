package fleet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Files holds the paths of the files of a TLS configuration, for messages; "" for a file that is not configured.
type Files struct{ CA, Cert string }

// handshakeTimeout is the timeout of the connection that Unreached makes to find the reason for an error.
const handshakeTimeout = time.Second

// Unreached returns, for each endpoint of etcd, the reason that it does not answer and the next step. Since the etcd client only
// reports a timeout, it connects to each endpoint once more, for at most a second.
func (c *Config) Unreached(ctx context.Context) string {
	whys := make([]string, len(c.Endpoints))
	var wg sync.WaitGroup
	for i, endpoint := range c.Endpoints {
		wg.Go(func() { whys[i] = c.checkReach(ctx, endpoint) })
	}
	wg.Wait()
	var texts []string
	for i, why := range whys {
		same := i
		for same+1 < len(whys) && whys[same+1] == why {
			same++
		}
		if i > 0 && whys[i-1] == why {
			continue // the text has it
		}
		texts = append(texts, strings.Join(c.Endpoints[i:same+1], ", ")+": "+why)
	}
	return strings.Join(texts, "; ")
}

// checkReach returns the reason that one endpoint does not answer.
func (c *Config) checkReach(ctx context.Context, endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return err.Error()
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return dialError(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err.Error()
	}
	if u.Scheme == "https" {
		return c.checkTLS(conn, u.Hostname())
	}
	return checkProtocol(conn)
}

// dialError returns the reason that a TCP connection fails.
func dialError(err error) string {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns):
		return fmt.Sprintf("%v: correct the name in --etcd, or the name server of this host", dns)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused: nothing listens there: start etcd, or correct --etcd"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "no answer: the machine is away, or a packet filter is in the way"
	}
	return err.Error()
}

// checkTLS tries a TLS handshake and returns a message: the reason that the handshake fails, or that it succeeds.
func (c *Config) checkTLS(conn net.Conn, host string) string {
	of := &tls.Config{}
	if c.TLS != nil {
		of = c.TLS.Clone()
	}
	asked := false
	given := of.GetClientCertificate
	of.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		asked = true
		switch {
		case given != nil:
			return given(info)
		case len(of.Certificates) > 0:
			return &of.Certificates[0], nil
		}
		return &tls.Certificate{}, nil
	}
	of.ServerName, of.NextProtos = cmp.Or(of.ServerName, host), []string{"h2"}
	secure := tls.Client(conn, of)
	// A server of TLS 1.3 verifies the certificate of the client after the handshake, and begins HTTP/2 if it is good.
	_, err := secure.Read(make([]byte, 1))
	var (
		cert    *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
		name    x509.HostnameError
		plain   tls.RecordHeaderError
		remote  *net.OpError
		timeout net.Error
	)
	switch {
	case err == nil:
		return "it answers the handshake, and not for a majority of etcd's members: `etcdctl endpoint health --cluster` says which of them are away, and their logs give the reason"
	case errors.As(err, &unknown):
		if c.Files.CA == "" {
			return fmt.Sprintf("its certificate is of no CA that this host trusts (%v): give the CA of etcd with --etcd-cacert", err)
		}
		return fmt.Sprintf("its certificate is not of the CA in --etcd-cacert %s (%v): give the one that has signed etcd's, and restart", c.Files.CA, err)
	case errors.As(err, &name):
		return fmt.Sprintf("its certificate is of another host (%v): write the name or the address in --etcd as the certificate has it", err)
	case errors.As(err, &invalid):
		return fmt.Sprintf("its certificate is not good (%v): renew that of etcd, or set the clock of this host", err)
	case errors.As(err, &cert):
		return fmt.Sprintf("its certificate is not good (%v)", err)
	case errors.As(err, &plain):
		return "it does not speak TLS: write http:// in --etcd, or have etcd serve TLS"
	case errors.As(err, &remote) && remote.Op == "remote error" && asked && c.Files.Cert == "":
		return fmt.Sprintf("it asks for a certificate (%v): give --etcd-cert and --etcd-key", remote.Err)
	case errors.As(err, &remote) && remote.Op == "remote error" && asked:
		return fmt.Sprintf("it refuses the certificate in --etcd-cert %s (%v): give one of the CA in etcd's --trusted-ca-file that is in force%s", c.Files.Cert, remote.Err, validity(of))
	case errors.As(err, &remote) && remote.Op == "remote error":
		return fmt.Sprintf("it refuses the handshake (%v): is it etcd that listens there?", remote.Err)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return "it closes the connection during the handshake: its log gives the reason"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "it takes the connection and does not answer: it is stuck, or something else listens there"
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission):
		return fmt.Sprintf("%v: put the file there, readable by svcctl", err)
	}
	return err.Error()
}

// validity returns the validity of the client certificate if it has expired or is not yet valid; "" otherwise.
func validity(of *tls.Config) string {
	cert, err := of.GetClientCertificate(&tls.CertificateRequestInfo{})
	if err != nil || len(cert.Certificate) == 0 {
		return ""
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if now := time.Now(); err != nil || !now.Before(leaf.NotBefore) && !now.After(leaf.NotAfter) {
		return ""
	}
	return fmt.Sprintf("; this one is from %s until %s", leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339))
}

// checkProtocol sends the HTTP/2 preface to a server without TLS and returns a message about the server's answer.
func checkProtocol(conn net.Conn) string {
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		return err.Error()
	}
	begin := make([]byte, 5)
	const alert = 0x15 // the type of a record of TLS
	_, err := io.ReadFull(conn, begin)
	switch {
	case err == nil && begin[0] != alert && string(begin[:4]) != "HTTP":
		return "it takes connections, and does not answer for a majority of etcd's members: `etcdctl endpoint health --cluster` says which of them are away, and their logs give the reason"
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "it does not speak etcd's protocol without TLS: write https:// in --etcd, and give --etcd-cacert"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "it takes the connection and does not answer: it is stuck, or something else listens there"
	}
	return err.Error()
}

// shown holds the client certificate, in DER, that this box used in its last handshake with etcd; nil: none.
type shown struct{ certificate atomic.Pointer[[]byte] }

// recordPeerCert returns a Config whose TLS handshakes record the client certificate in s.
func (c Config) recordPeerCert(s *shown) *Config {
	if c.TLS == nil || c.TLS.GetClientCertificate == nil {
		return &c
	}
	load := c.TLS.GetClientCertificate
	c.TLS = c.TLS.Clone()
	c.TLS.GetClientCertificate = func(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		loaded, err := load(asked)
		if err == nil && len(loaded.Certificate) > 0 {
			s.certificate.Store(&loaded.Certificate[0])
		}
		return loaded, err
	}
	return &c
}

// A leaf that had to leave a core box goes back to it when that has answered for a while. Without that, a restart of each core box, one
// after the other, would end with all leaves at one of them.

const (
	// probeEvery is the interval at which a leaf probes the core boxes that it prefers to the current one.
	probeEvery = 10 * time.Second
	// returnAfter is the time for which a preferred core box has to answer all probes before the leaf returns to it. Up to the same time is added,
	// derived from a hash of the leaf's name, so that leaves do not all return at once.
	returnAfter = time.Minute
	// mostReturn is the upper bound of the time in returnAfter, which doubles if the leaf has to leave soon after a return (see coreSelector.left).
	mostReturn = time.Hour
	// settled is a factor. A core box counts as stable when it has served the leaf, after a return, for settled times as long as it had to answer
	// probes before the return. If the leaf leaves it after that, the time for which it has to answer probes is reset.
	settled = 10
)

// coreSelector decides when a leaf returns to a core box that it prefers to the current one. It identifies core boxes by their index in the
// order of preference, from 0. The caller passes the time.
type coreSelector struct {
	least, most time.Duration // the bounds of the time for which a core box has to answer
	cores       []preferred
}

// preferred holds the results of probes of one core box, and the returns to it.
type preferred struct {
	since time.Time     // time since which it has answered all probes; zero if it did not answer the last one
	wait  time.Duration // time for which it has to answer probes before the leaf returns
	back  time.Time     // time when the leaf returned to it; zero if the leaf has not, or has left it since
}

// newCoreSelector returns the coreSelector of a leaf. The constants above are divided by pace.
func newCoreSelector(leaf string, cores int, pace time.Duration) coreSelector {
	sum := sha256.Sum256([]byte(leaf))
	share := float64(binary.BigEndian.Uint32(sum[:])) / (1 << 32)
	least := returnAfter + time.Duration(share*float64(returnAfter))
	p := coreSelector{least: least / pace, most: mostReturn / pace, cores: make([]preferred, cores)}
	for i := range p.cores {
		p.cores[i].wait = p.least
	}
	return p
}

// probed records whether a core box answered a probe.
func (p *coreSelector) probed(core int, answered bool, now time.Time) {
	switch c := &p.cores[core]; {
	case !answered:
		c.since = time.Time{}
	case c.since.IsZero():
		c.since = now
	}
}

// better returns the most preferred core box with an index less than at that answers probes, and whether it has answered them for long enough to
// return to it.
func (p *coreSelector) better(at int, now time.Time) (core int, is bool) {
	for i := range at {
		if c := &p.cores[i]; !c.since.IsZero() {
			return i, now.Sub(c.since) >= c.wait // not first to one that is preferred less, and then to this one
		}
	}
	return 0, false
}

// returned records that the leaf returned to a core box.
func (p *coreSelector) returned(core int, now time.Time) {
	p.cores[core].back = now
}

// left records that a core box does not serve the leaf. If that is soon after a return, the core box has to answer probes for twice as long
// before the next return.
func (p *coreSelector) left(core int, now time.Time) {
	c := &p.cores[core]
	switch {
	case c.back.IsZero():
	case now.Sub(c.back) < settled*c.wait:
		c.wait = min(2*c.wait, p.most)
	default:
		c.wait = p.least
	}
	c.since, c.back = time.Time{}, time.Time{}
}
