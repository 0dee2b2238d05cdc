package auth

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// boxPrefix begins the names of users that are boxes.
const boxPrefix = "box:"

// GroupBoxes has the boxes that follow this one.
const GroupBoxes = "svcctl:boxes"

// Leaves authenticates boxes by certificates of a CA of the operator's: the common name is the name of the box. The
// file, PEM, may have certificate revocation lists (RFC 5280, section 5) of that CA and its certificates. It is looked at again
// every 2 seconds while it is asked. Leaves is safe for concurrent use.
type Leaves struct {
	path string
	log  *slog.Logger
	now  func() time.Time

	mu      sync.Mutex
	looked  time.Time
	text    []byte
	pool    *x509.CertPool
	revoked map[string]bool // by issuer and serial number
	refused error           // why the present content of the file is not used
}

// leavesInterval is the time between looks at the file.
const leavesInterval = 2 * time.Second

// OpenLeaves reads the CA.
func OpenLeaves(path string, log *slog.Logger) (*Leaves, error) {
	l := &Leaves{path: path, log: log, now: time.Now}
	l.looked = l.now()
	if err := l.load(); err != nil {
		return nil, fmt.Errorf("read the CA of leaves: %w", err)
	}
	return l, nil
}

// load reads the file, if it has changed.
func (l *Leaves) load() error {
	text, err := readPEM(l.path)
	if err != nil || l.pool != nil && bytes.Equal(text, l.text) {
		return err
	}
	pool, revoked, err := parseLeaves(text)
	if err != nil {
		return fmt.Errorf("%s: %w", l.path, err)
	}
	l.text, l.pool, l.revoked = text, pool, revoked
	return nil
}

// parseLeaves reads certificates of a CA, and what they have revoked.
func parseLeaves(text []byte) (*x509.CertPool, map[string]bool, error) {
	var issuers []*x509.Certificate
	var lists []*x509.RevocationList
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		switch block.Type {
		case pemCertificate:
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, nil, err
			}
			issuers = append(issuers, cert)
		case "X509 CRL":
			list, err := x509.ParseRevocationList(block.Bytes)
			if err != nil {
				return nil, nil, err
			}
			lists = append(lists, list)
		default:
			return nil, nil, fmt.Errorf("it has a %s: give certificates of a CA and its revocation lists", block.Type)
		}
	}
	if len(issuers) == 0 {
		return nil, nil, errors.New("it has no certificate in PEM")
	}
	pool, revoked := x509.NewCertPool(), map[string]bool{}
	for _, cert := range issuers {
		pool.AddCert(cert)
	}
	for _, list := range lists {
		if !slices.ContainsFunc(issuers, func(c *x509.Certificate) bool {
			return bytes.Equal(list.RawIssuer, c.RawSubject) && list.CheckSignatureFrom(c) == nil
		}) {
			return nil, nil, fmt.Errorf("no certificate in it has signed its revocation list of %s: put those of its issuer in front of it", list.Issuer)
		}
		for _, entry := range list.RevokedCertificateEntries {
			revoked[string(list.RawIssuer)+entry.SerialNumber.String()] = true
		}
	}
	return pool, revoked, nil
}

// reload reads the file again when that is due. What cannot be used leaves in use what was there before; a file that is
// gone revokes all.
func (l *Leaves) reload() {
	now := l.now()
	if now.Sub(l.looked) < leavesInterval {
		return
	}
	l.looked = now
	err := l.load()
	if errors.Is(err, os.ErrNotExist) {
		l.text, l.pool, l.revoked = nil, x509.NewCertPool(), nil
	}
	if err != nil && (l.refused == nil || l.refused.Error() != err.Error()) {
		l.log.Warn("the new CA of leaves is not used", "err", err)
	}
	l.refused = err
}

// CAs returns the certificates of the CA, by which clients choose theirs.
func (l *Leaves) CAs() *x509.CertPool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reload()
	return l.pool
}

// Verify returns the box of a certificate, which is followed by those of its issuers. The error wraps ErrCertificate.
func (l *Leaves) Verify(chain []*x509.Certificate) (User, error) {
	l.mu.Lock()
	l.reload()
	pool, revoked := l.pool, l.revoked
	l.mu.Unlock()
	cert, between := chain[0], x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := cert.Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, CurrentTime: l.now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	name := cert.Subject.CommonName
	switch {
	case err != nil:
		return User{}, fmt.Errorf("%w: %w", ErrCertificate, err)
	case revoked[string(cert.RawIssuer)+cert.SerialNumber.String()]:
		return User{}, fmt.Errorf("%w: it is revoked", ErrCertificate)
	case name == "" || strings.Contains(name, ":"):
		return User{}, fmt.Errorf("%w: its common name %q is no name of a box", ErrCertificate, name)
	}
	return User{Name: boxPrefix + name, Groups: []string{GroupBoxes, GroupAuthenticated}, Role: Box}, nil
}

// ErrCertificate means that the client certificate is not that of a leaf.
var ErrCertificate = errors.New("the certificate is not that of a leaf")

// BoxName returns the name of a box that is a user; "" for other users.
func (u User) BoxName() string {
	if u.Role != Box {
		return ""
	}
	return strings.TrimPrefix(u.Name, boxPrefix)
}

// Behind returns the admin, named so by a box that this one believes, that sent a change to that box.
func Behind(box User, name string) User { return newUser(box.Name+":"+name, Admin) }
