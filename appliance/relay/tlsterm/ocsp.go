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
	"strings"
	"sync"
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

func (s *staple) good(now time.Time) bool { return !now.Before(s.from) && now.Before(s.until) }

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

// Fetch sets whether the responder of a Secret's certificate is asked: see Staple.
func (k *Keeper) Fetch(secret string, fetch bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case !fetch:
		delete(k.fetched, secret)
	case k.fetched[secret] == nil:
		k.fetched[secret] = &asking{}
	}
}

// Staple asks the responders of certificates for OCSP responses, until ctx is done: each when half of the time of
// the last response is over. woken has a value when certificates or what Fetch said may have changed; changed is called
// with Secrets about which Pair may say something else.
func (k *Keeper) Staple(ctx context.Context, woken <-chan struct{}, changed func(secrets []string)) {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-woken:
		case <-timer.C:
		}
		var news []string
		due, next := k.dueForStaple(time.Now())
		for some := range slices.Chunk(due, askAtOnce) {
			news = append(news, k.askAll(ctx, client, some)...)
		}
		if ctx.Err() != nil {
			return
		}
		if len(due) > 0 {
			_, next = k.dueForStaple(time.Now())
		}
		if len(news) > 0 {
			changed(news)
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
	}
}

// askAll asks the responders of some certificates at once, and returns the Secrets about which that is news.
func (k *Keeper) askAll(ctx context.Context, client *http.Client, due []dueStaple) (news []string) {
	heard := make([]bool, len(due))
	var all sync.WaitGroup
	for i, d := range due {
		all.Go(func() {
			s, err := d.pair.ask(ctx, client)
			heard[i] = ctx.Err() == nil && k.answered(d.secret, d.pair, s, err)
		})
	}
	all.Wait()
	for i, d := range due {
		if heard[i] {
			news = append(news, d.secret)
		}
	}
	return news
}

// dueStaple is a certificate whose responder is to be asked.
type dueStaple struct {
	secret string
	pair   *Pair
}

// dueForStaple are the certificates whose responders are to be asked now, and when the next one is; the zero Time: never.
func (k *Keeper) dueForStaple(now time.Time) (due []dueStaple, next time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for secret, a := range k.fetched {
		kept := k.pairs[secret]
		if kept == nil || kept.good == nil {
			continue
		}
		if a.of != kept.good {
			*a = asking{of: kept.good}
		}
		switch {
		case !now.Before(a.next):
			due = append(due, dueStaple{secret, kept.good})
		case next.IsZero() || a.next.Before(next):
			next = a.next
		}
	}
	slices.SortFunc(due, func(a, b dueStaple) int { return strings.Compare(a.secret, b.secret) })
	return due, next
}

// answered notes what a responder said about a certificate, and reports whether that is news.
func (k *Keeper) answered(secret string, p *Pair, s *staple, err error) (news bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	a := k.fetched[secret]
	if a == nil || a.of != p {
		return false // it is for another certificate, or for none
	}
	_, had := p.Stapled(now)
	before := a.wrong
	if a.wrong = err; err != nil {
		a.next = now.Add(min(askAgain<<min(a.fails, 6), askAtMost))
		a.fails++
		return before == nil || before.Error() != err.Error()
	}
	p.stapled.Store(s)
	a.fails, a.next = 0, now.Add(max(s.until.Sub(now)/2, askAtLeast))
	return before != nil || !had
}

// stapleText returns the problem with the OCSP responses of a Secret; "": none. The caller holds the lock.
func (k *Keeper) stapleText(secret string, kept *keptPair, now time.Time) string {
	p := kept.good
	if p == nil {
		return ""
	}
	why := ""
	a := k.fetched[secret]
	switch {
	case kept.wrongStaple != nil:
		why = fmt.Sprintf("data[%s] %v", stapleKey, kept.wrongStaple)
	case a != nil && a.of == p && a.wrong != nil:
		why = a.wrong.Error()
	}
	until, is := p.Stapled(now)
	switch {
	case is && why != "":
		return fmt.Sprintf("%s; clients get the OCSP response from before until %s", why, stamp(until))
	case is || why == "" && a != nil && a.of != p: // it is asked soon
		return ""
	}
	if last := p.stapled.Load(); why == "" && last != nil {
		why = fmt.Sprintf("its OCSP response is good from %s to %s alone: put the one of now into data[%s]", stamp(last.from), stamp(last.until), stapleKey)
	}
	switch must := p.MustStaple(); {
	case must && why == "":
		return fmt.Sprintf("clients refuse its certificate without an OCSP response (must-staple), and there is none: put one into data[%s], or set the annotation svcctl.io/tls-ocsp: fetch", stapleKey)
	case must:
		return why + "; without a response clients refuse its certificate (must-staple)"
	case why != "":
		return why + "; clients get no OCSP response"
	}
	return ""
}
