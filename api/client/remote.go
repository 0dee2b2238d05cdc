package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"syscall"
)

// Server is the address of a remote appliance with the credentials for it.
type Server struct {
	// URL is https://HOST:PORT, or HOST:PORT.
	URL string
	// Token is the bearer token of the user; "": none.
	Token string
	// CA are the certificates in PEM that its certificate is checked with; nil are those
	// of this system.
	CA []byte
}

// Remote is a Client of a remote appliance.
func Remote(s Server) (*Client, error) {
	text := s.URL
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("%q is no address of an appliance: want https://HOST:PORT", s.URL)
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.CA != nil {
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(s.CA) {
			return nil, errors.New("the CA has no certificate in PEM")
		}
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	return &Client{place: "https://" + u.Host, base: "https://" + u.Host, token: strings.TrimSpace(s.Token), http: &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				return dialer.DialContext(ctx, network, address)
			},
			TLSClientConfig:   settings,
			ForceAttemptHTTP2: true,
			IdleConnTimeout:   idleConnection,
		},
	}}, nil
}

// remedy is the cause of not reaching a remote appliance, and what to do about it.
func (e *UnreachableError) remedy() error {
	switch unknown, is := errors.AsType[x509.UnknownAuthorityError](e.Err); {
	case is:
		return fmt.Errorf("%w: give its CA with --ca", unknown)
	case errors.Is(e.Err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: is `svcctl serve --listen` running there?", e.Err)
	case errors.Is(e.Err, io.EOF):
		return errors.New("it closed the connection: is it svcctl that serves there, with TLS?")
	}
	return e.Err
}

// Proxy passes requests on to the appliance, as the user of this Client. Cookies and credentials of
// a request stay here. unanswered answers when the appliance does not, with the reason.
func (c *Client) Proxy(unanswered func(w http.ResponseWriter, why error)) http.Handler {
	base, err := url.Parse(c.base)
	if err != nil {
		panic(fmt.Sprintf("client: base URL %q: %v", c.base, err)) // checked when it was made: a bug
	}
	return &httputil.ReverseProxy{
		Transport: c.http.Transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(base)
			r.Out.Host = ""
			r.Out.Header.Del("Cookie")
			r.Out.Header.Del("Authorization")
			if c.token != "" {
				r.Out.Header.Set("Authorization", "Bearer "+c.token)
			}
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			unanswered(w, c.unreachable(err))
		},
	}
}
