package client

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
)

// Proxy passes requests on to the appliance, as the user of this Client. Cookies and credentials of
// a request stay here. An appliance that does not answer is told to unanswered, which answers with what to do.
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
