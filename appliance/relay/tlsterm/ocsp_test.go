package tlsterm

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ocsp"

	"svcctl.io/svcctl/appliance/test/pki"
)

// authority issues certificates, and responses about them.
type authority struct {
	t  *testing.T
	ca *tls.Certificate
}

func newAuthority(t *testing.T) *authority {
	return &authority{t, pki.Issue(t, nil, time.Now().Add(-day), time.Now().Add(100*day), "ca")}
}

// issue is a Secret with a certificate that names a responder, and the certificate of the authority behind it.
func (a *authority) issue(name, responder string, must bool) map[string][]byte {
	a.t.Helper()
	cert, key := pki.PEM(a.t, pki.IssueWith(a.t, a.ca, func(c *x509.Certificate) {
		if responder != "" {
			c.OCSPServer = []string{responder}
		}
		if must {
			pki.MustStaple(c)
		}
	}, time.Now().Add(-day), time.Now().Add(90*day), name))
	chain, _ := pki.PEM(a.t, a.ca)
	return map[string][]byte{certKey: append(cert, chain...), keyKey: key}
}

// response is one about a certificate, good for the time from an hour ago; 0: it does not say until when.
func (a *authority) response(serial *big.Int, status int, good time.Duration) []byte {
	a.t.Helper()
	template := ocsp.Response{Status: status, SerialNumber: serial, ThisUpdate: time.Now().Add(-time.Hour), RevokedAt: time.Now().Add(-time.Hour), IssuerHash: crypto.SHA1}
	if good > 0 {
		template.NextUpdate = template.ThisUpdate.Add(good)
	}
	der, err := ocsp.CreateResponse(a.ca.Leaf, a.ca.Leaf, template, a.ca.PrivateKey.(crypto.Signer))
	if err != nil {
		a.t.Fatal(err)
	}
	return der
}

func serialOf(t *testing.T, data map[string][]byte) *big.Int {
	t.Helper()
	p, err := ParsePair("default/web", data)
	if err != nil {
		t.Fatal(err)
	}
	return p.Leaf().SerialNumber
}

// with is a Secret with an OCSP response.
func with(data map[string][]byte, response []byte) map[string][]byte {
	all := map[string][]byte{stapleKey: response}
	for key, value := range data {
		all[key] = value
	}
	return all
}

// stapledTo is the response that a client gets, and whether it resumed a session.
func stapledTo(t *testing.T, config *tls.Config, a *authority, cache tls.ClientSessionCache) (response []byte, resumed bool) {
	t.Helper()
	near, far := pipe(t)
	go func() {
		if c, err := Accept(t.Context(), near, config); err == nil {
			_, _ = io.WriteString(c, "x")
			_ = c.Close()
		}
	}()
	c := tls.Client(far, &tls.Config{RootCAs: pki.Pool(a.ca), ServerName: "a", ClientSessionCache: cache})
	if _, err := io.ReadAll(c); err != nil {
		t.Fatal(err)
	}
	return c.ConnectionState().OCSPResponse, c.ConnectionState().DidResume
}

func TestStapleOfASecret(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	k := keeper()
	k.Keeper.now = time.Now
	good := a.issue("a", "", false)
	serial := serialOf(t, good)
	say := func(when, want string) *Pair {
		t.Helper()
		p, said := k.Pair("default/web")
		if p == nil || want == "" && said.Staple != "" || !strings.Contains(said.Staple, want) {
			t.Errorf("%s: %v, said %+v, want %q", when, p, said, want)
		}
		return p
	}
	k.put(good)
	pair := say("without a response", "")
	config := (&Server{Pairs: []*Pair{pair}, Min: tls.VersionTLS12, Max: tls.VersionTLS13}).Config()
	cache := tls.NewLRUClientSessionCache(1)
	if got, _ := stapledTo(t, config, a, cache); got != nil {
		t.Error("a response, and there is none")
	}
	first := a.response(serial, ocsp.Good, 10*day)
	k.put(with(good, first))
	if again := say("with a response", ""); again != pair {
		t.Error("another Pair with the same certificate: clients lose their sessions")
	}
	if got, _ := stapledTo(t, config, a, nil); string(got) != string(first) {
		t.Error("the client did not get the response")
	}
	if _, resumed := stapledTo(t, config, a, cache); !resumed {
		t.Error("a session is not resumed since there is a response")
	}
	for name, tt := range map[string]struct {
		response []byte
		want     string
	}{
		"half":         {first[:100], "data[tls.ocsp-staple] is no OCSP response"},
		"foreign":      {other.response(serial, ocsp.Good, day), "data[tls.ocsp-staple] is no OCSP response about the certificate"},
		"of another":   {a.response(big.NewInt(4711), ocsp.Good, day), "data[tls.ocsp-staple] is no OCSP response about the certificate"},
		"revoked":      {a.response(serial, ocsp.Revoked, day), "says that the certificate was revoked at"},
		"unknown":      {a.response(serial, ocsp.Unknown, day), "does not know the certificate"},
		"not PEM, DER": {[]byte("-----BEGIN"), "is no OCSP response"},
	} {
		k.put(with(good, tt.response))
		say(name, tt.want)
		say(name, "clients get the OCSP response from before until")
		if got, _ := stapledTo(t, config, a, nil); string(got) != string(first) {
			t.Errorf("%s: the client did not get the response from before", name)
		}
	}
	k.put(with(good, first))
	now := time.Now()
	k.Keeper.now = func() time.Time { return now.Add(11 * day) }
	say("after its end", "put the one of now into data[tls.ocsp-staple]; clients get no OCSP response")
	if c := pair.current(now.Add(11 * day)); c.OCSPStaple != nil {
		t.Error("a response is given after its end")
	}
	if at, secrets, ok := k.Due(now); !ok || len(secrets) != 1 || at.After(now.Add(10*day)) {
		t.Errorf("the end of a response is due at %s, %v, %t", at, secrets, ok)
	}
	k.Keeper.now = time.Now
	must := a.issue("a", "", true)
	k.put(must)
	say("must-staple without", "must-staple), and there is none: put one into data[tls.ocsp-staple], or set the annotation svcctl.io/tls-ocsp: fetch")
	k.put(with(must, a.response(serialOf(t, must), ocsp.Good, 0)))
	say("must-staple, with one without an end", "")
}

// Responders are asked for Secrets that want it, and what they say is stapled, until it ends.
func TestStapleOfAResponder(t *testing.T) {
	a := newAuthority(t)
	var status, asked atomic.Int32
	var response atomic.Pointer[[]byte]
	status.Store(http.StatusServiceUnavailable)
	responder := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		body, err := io.ReadAll(r.Body)
		if request, wrong := ocsp.ParseRequest(body); err != nil || wrong != nil || request.SerialNumber == nil {
			t.Errorf("a request that is none: %v, %v", err, wrong)
		}
		w.WriteHeader(int(status.Load()))
		_, _ = w.Write(*response.Load())
	}))
	defer responder.Close()
	k := keeper()
	k.Keeper.now = time.Now
	data := a.issue("a", responder.URL, true)
	der := a.response(serialOf(t, data), ocsp.Good, 10*day)
	response.Store(&der)
	k.put(data)
	pair, _ := k.Pair("default/web")
	woken, changed := make(chan struct{}, 1), make(chan []string)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		k.Staple(ctx, woken, func(secrets []string) { changed <- secrets })
	}()
	defer func() { stop(); <-ended }()
	if n := asked.Load(); n > 0 {
		t.Errorf("asked %d times, and nobody wants it", n)
	}
	k.Fetch("default/web", true)
	woken <- struct{}{}
	if secrets := <-changed; len(secrets) != 1 || secrets[0] != "default/web" {
		t.Errorf("news about %v", secrets)
	}
	if _, said := k.Pair("default/web"); !strings.Contains(said.Staple, responder.URL+" answers 503") || !strings.Contains(said.Staple, "clients refuse its certificate (must-staple)") {
		t.Errorf("said %q", said.Staple)
	}
	status.Store(http.StatusOK)
	k.mu.Lock()
	k.fetched["default/web"].next = time.Time{} // its time has come
	k.mu.Unlock()
	woken <- struct{}{}
	<-changed
	if _, said := k.Pair("default/web"); said.Staple != "" {
		t.Errorf("said %q with a response", said.Staple)
	}
	config := (&Server{Pairs: []*Pair{pair}, Min: tls.VersionTLS12, Max: tls.VersionTLS13}).Config()
	if got, _ := stapledTo(t, config, a, nil); string(got) != string(der) {
		t.Error("the client did not get the response")
	}
	k.mu.Lock()
	next := k.fetched["default/web"].next
	k.mu.Unlock()
	if in := time.Until(next); in < 4*day || in > 5*day {
		t.Errorf("asked again in %s, want half of the time that is left", in)
	}
	n := asked.Load()
	woken <- struct{}{}
	woken <- struct{}{} // the first one was heard
	if asked.Load() != n {
		t.Error("asked again, and it is not time")
	}
	k.Forget("default/web")
	if len(k.fetched)+len(k.pairs) > 0 {
		t.Error("something is left of a Secret that nobody needs")
	}
	for name, tt := range map[string]struct {
		data map[string][]byte
		want string
	}{
		"no responder": {a.issue("a", "", false), "names no OCSP responder"},
		"no issuer":    {map[string][]byte{}, "certificate of the issuer"},
	} {
		if name == "no issuer" {
			tt.data = a.issue("a", responder.URL, false)
			chain, _ := pki.PEM(t, a.ca)
			tt.data[certKey] = tt.data[certKey][:len(tt.data[certKey])-len(chain)]
		}
		p, err := ParsePair("default/web", tt.data)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.ask(t.Context(), http.DefaultClient); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// A responder that does not answer holds up none of the others.
func TestStapleBesideADeadResponder(t *testing.T) {
	a := newAuthority(t)
	release := make(chan struct{})
	dead := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer dead.Close()
	defer sync.OnceFunc(func() { close(release) })()
	quick := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }))
	defer quick.Close()
	secrets := map[string]map[string][]byte{"a/dead": a.issue("a", dead.URL, false)}
	const others = 20
	for i := range others {
		secrets[fmt.Sprint("b/quick", i)] = a.issue("a", quick.URL, false)
	}
	k := NewKeeper(func(secret string) (map[string][]byte, string, bool) { return secrets[secret], "1", true })
	for secret := range secrets {
		k.Pair(secret)
		k.Fetch(secret, true)
	}
	due, _ := k.dueForStaple(time.Now())
	if len(due) != others+1 || due[0].secret != "a/dead" {
		t.Fatalf("due are %v", due)
	}
	news := k.askAll(t.Context(), http.DefaultClient, due)
	for range others {
		if secret := <-news; secret == "a/dead" {
			t.Fatal("the others wait for a responder that does not answer")
		}
	}
	k.mu.Lock()
	for secret := range secrets {
		k.fetched[secret].next = time.Time{}
	}
	k.fetched["b/quick7"].fails = 0
	k.mu.Unlock()
	if due, _ = k.dueForStaple(time.Now()); due[0].secret != "a/dead" || due[1].secret != "b/quick7" {
		t.Errorf("those that failed before are not the last: %v", due)
	}
}
