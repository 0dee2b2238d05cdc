package tlsterm

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/crypto/ocsp"
)

// stapleKey is the key of a Secret with an OCSP response in DER, by the name that Envoy Gateway gives it.
const stapleKey = "tls.ocsp-staple"

// staple is an OCSP response (RFC 6960) that says that a certificate is good. It is given to clients until its end.
type staple struct {
	response    []byte
	from, until time.Time
}

// endless is for how long a response is good that says nothing about its end.
const endless = 24 * time.Hour

// readStaple reads an OCSP response about a certificate. issuer is the certificate that signed it; nil: it is not
// known, and the signature of the response is not checked.
func readStaple(der []byte, leaf, issuer *x509.Certificate) (*staple, error) {
	r, err := ocsp.ParseResponseForCert(der, leaf, issuer)
	switch {
	case err != nil:
		return nil, fmt.Errorf("is no OCSP response about the certificate: %w", err)
	case r.Status == ocsp.Revoked:
		return nil, fmt.Errorf("says that the certificate was revoked at %s: replace it", stamp(r.RevokedAt))
	case r.Status != ocsp.Good:
		return nil, errors.New("says that the responder does not know the certificate")
	}
	s := &staple{response: slices.Clone(der), from: r.ThisUpdate, until: r.NextUpdate}
	if s.until.IsZero() {
		s.until = s.from.Add(endless)
	}
	return s, nil
}

func (s *staple) good(now time.Time) bool { return !now.Before(s.from) && now.Before(s.until) }

// stamp is a time in messages.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
