package tlsterm

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The keys of a Secret that are read (core/v1 SecretTypeTLS, and ca.crt by convention).
const (
	certKey = "tls.crt"
	keyKey  = "tls.key"
	caKey   = "ca.crt"
)

// Pair is a certificate with its chain and key.
type Pair struct {
	Secret      string // "namespace/name"
	certificate tls.Certificate
}

// same reports whether another one has the same certificate and chain.
func (p *Pair) same(o *Pair) bool {
	return p != nil && o != nil && slices.EqualFunc(p.certificate.Certificate, o.certificate.Certificate, bytes.Equal)
}

// Leaf is the certificate itself.
func (p *Pair) Leaf() *x509.Certificate { return p.certificate.Leaf }

// String formats the names and the expiry of the certificate.
func (p *Pair) String() string {
	return fmt.Sprintf("for %s, until %s", strings.Join(p.Names(), ", "), stamp(p.Leaf().NotAfter))
}

// stamp formats a time for messages.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// maxNames bounds the names of a certificate in messages.
const maxNames = 5

// Names returns the first names of the certificate, at most maxNames.
func (p *Pair) Names() (names []string) {
	leaf := p.Leaf()
	names = append(names, leaf.DNSNames...)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		names = []string{"no name"}
	}
	if more := len(names) - maxNames; more > 0 {
		names = append(names[:maxNames:maxNames], fmt.Sprintf("%d more", more))
	}
	return names
}

// ParsePair reads tls.crt and tls.key of a Secret. Its errors name the key and show nothing of its value.
func ParsePair(secret string, data map[string][]byte) (*Pair, error) {
	crt, key := bytes.TrimSpace(data[certKey]), bytes.TrimSpace(data[keyKey])
	switch {
	case len(crt) == 0:
		return nil, fmt.Errorf("data[%s] is empty: it has the certificate in PEM, and those of its issuers behind it", certKey)
	case len(key) == 0:
		return nil, fmt.Errorf("data[%s] is empty: it has the private key in PEM", keyKey)
	}
	if err := checkPEM(crt, "CERTIFICATE"); err != nil {
		return nil, fmt.Errorf("data[%s] %w", certKey, err)
	}
	if err := checkPEM(key, "PRIVATE KEY"); err != nil {
		return nil, fmt.Errorf("data[%s] %w", keyKey, err)
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		text := strings.TrimPrefix(err.Error(), "tls: ")
		if strings.Contains(text, "does not match") {
			return nil, fmt.Errorf("the key in data[%s] does not belong to the certificate in data[%s]: put both of one pair there, in one write", keyKey, certKey)
		}
		return nil, fmt.Errorf("data[%s] and data[%s] cannot be used: %s", certKey, keyKey, text)
	}
	return &Pair{Secret: secret, certificate: pair}, nil
}

// checkPEM reports text that is no sequence of whole PEM blocks (RFC 7468) with one of a type, as a file that
// is half written.
func checkPEM(text []byte, kind string) error {
	found := false
	for len(text) > 0 {
		block, rest := pem.Decode(text)
		if block == nil {
			return errors.New("is not PEM, or ends in the middle: write it whole")
		}
		if strings.Contains(block.Type, "ENCRYPTED") || block.Headers["DEK-Info"] != "" {
			return errors.New("is encrypted: put the key there without a passphrase")
		}
		found = found || strings.HasSuffix(block.Type, kind)
		text = bytes.TrimSpace(rest)
	}
	if !found {
		return fmt.Errorf("has no PEM block of type %s", kind)
	}
	return nil
}

// Authority is certificates of a CA.
type Authority struct{ pool *x509.CertPool }

// ParseAuthority reads ca.crt of a Secret.
func ParseAuthority(data map[string][]byte) (*Authority, error) {
	text := bytes.TrimSpace(data[caKey])
	if len(text) == 0 {
		return nil, fmt.Errorf("data[%s] is empty: it has the certificates of the CA in PEM", caKey)
	}
	if err := checkPEM(text, "CERTIFICATE"); err != nil {
		return nil, fmt.Errorf("data[%s] %w", caKey, err)
	}
	pool := x509.NewCertPool()
	for len(text) > 0 {
		var block *pem.Block
		block, text = pem.Decode(text)
		if block == nil {
			break
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("data[%s] is not a certificate: %w", caKey, err)
		}
		pool.AddCert(certificate)
	}
	return &Authority{pool}, nil
}
