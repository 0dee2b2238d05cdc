package tlsterm

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"golang.org/x/crypto/ocsp"
)

// issuer is the certificate that signed the leaf, if it is in the chain.
func (p *Pair) issuer() *x509.Certificate {
	if len(p.certificate.Certificate) < 2 {
		return nil
	}
	c, err := x509.ParseCertificate(p.certificate.Certificate[1])
	if err != nil || p.Leaf().CheckSignatureFrom(c) != nil {
		return nil
	}
	return c
}

// tlsFeature is the extension that says what a server has to do (RFC 7633); statusRequest has it staple.
var tlsFeature = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}

const statusRequest = 5

// MustStaple reports whether clients refuse the certificate without an OCSP response.
func (p *Pair) MustStaple() bool {
	for _, e := range p.Leaf().Extensions {
		var features []int
		if e.Id.Equal(tlsFeature) {
			if _, err := asn1.Unmarshal(e.Value, &features); err == nil && slices.Contains(features, statusRequest) {
				return true
			}
		}
	}
	return false
}

// Stapled is until when clients get an OCSP response; not ok: they get none.
func (p *Pair) Stapled(now time.Time) (until time.Time, ok bool) {
	s := p.stapled.Load()
	if s == nil || !s.good(now) {
		return time.Time{}, false
	}
	return s.until, true
}

// current is the certificate with the response that it has now.
func (p *Pair) current(now time.Time) *tls.Certificate {
	s := p.stapled.Load()
	if s == nil || !s.good(now) {
		return &p.certificate
	}
	c := p.certificate
	c.OCSPStaple = s.response
	return &c
}

// Bounds of asking a responder.
const (
	askTime    = 10 * time.Second
	askAgain   = time.Minute // after the first failure, twice that after the next one
	askAtMost  = time.Hour   // between two attempts
	maxAnswer  = 64 << 10    // bytes
	askAtOnce  = 8
	askAtLeast = time.Minute // between two responses
)

// ask asks the responder of a certificate for a response.
func (p *Pair) ask(ctx context.Context, client *http.Client) (*staple, error) {
	leaf, issuer := p.Leaf(), p.issuer()
	switch {
	case len(leaf.OCSPServer) == 0:
		return nil, errors.New("its certificate names no OCSP responder")
	case issuer == nil:
		return nil, fmt.Errorf("data[%s] does not have the certificate of the issuer behind the certificate, which an OCSP request needs", certKey)
	}
	request, err := ocsp.CreateRequest(leaf, issuer, nil)
	if err != nil {
		return nil, fmt.Errorf("make an OCSP request: %w", err)
	}
	ctx, stop := context.WithTimeout(ctx, askTime)
	defer stop()
	server := leaf.OCSPServer[0]
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, server, bytes.NewReader(request))
	if err != nil {
		return nil, fmt.Errorf("OCSP responder %q: %w", server, err)
	}
	post.Header.Set("Content-Type", "application/ocsp-request")
	answer, err := client.Do(post)
	if err != nil {
		return nil, fmt.Errorf("OCSP responder: %w", err)
	}
	defer answer.Body.Close()
	der, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	switch {
	case err != nil:
		return nil, fmt.Errorf("OCSP responder %s: %w", server, err)
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("OCSP responder %s answers %s", server, answer.Status)
	}
	s, err := readStaple(der, leaf, issuer)
	if err != nil {
		return nil, fmt.Errorf("what OCSP responder %s answers %w", server, err)
	}
	return s, nil
}

// asking is the schedule of OCSP requests for a Secret's certificate.
type asking struct {
	of    *Pair     // who was asked about
	next  time.Time // when a responder is asked; the zero Time: now
	fails int       // in a row
	wrong error     // of the last time
}
