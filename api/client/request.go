package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// request is one request of the server.
type request struct {
	method string
	path   string
	query  url.Values
	accept string // the media type that is wanted; "" is JSON
	form   string // the media type of body
	body   []byte
	// patience bounds the silence of the server; 0: no bound.
	patience time.Duration
}

// A busy server answers 429 with Retry-After (RFC 6585 section 4): the retries, and the longest wait
// before one.
const (
	maxRetries  = 5
	maxRetryGap = 10 * time.Second
)

// maxFailure bounds the body of a failure, in bytes.
const maxFailure = 4 << 20

// do makes a request and gives the body of the answer, which the caller closes. A server
// that is busy is asked again. Errors: *UnreachableError; *wire.Failure for an answer that is
// none of success.
func (c *Client) do(ctx context.Context, r request) (*answer, error) {
	for try := 0; ; try++ {
		a, err := c.once(ctx, r)
		f, refused := errors.AsType[*wire.Failure](err)
		if !refused || f.Code != http.StatusTooManyRequests || try == maxRetries {
			return a, err
		}
		gap := time.Second
		if f.Details != nil && f.Details.RetryAfterSeconds > 0 {
			gap = time.Duration(f.Details.RetryAfterSeconds) * time.Second
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(min(gap, maxRetryGap)):
		}
	}
}

// once makes a request once.
func (c *Client) once(ctx context.Context, r request) (*answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &answer{cancel: func() { cancel(nil) }, patience: r.patience}
	if r.patience > 0 {
		a.timer = time.AfterFunc(r.patience, func() { cancel(context.DeadlineExceeded) })
	}
	u, query := c.base+r.path, r.query
	for name, id := range map[string]string{"trial": c.Trial, "rollout": c.InRollout} {
		if id == "" || r.method == http.MethodGet {
			continue
		}
		query = maps.Clone(query)
		if query == nil {
			query = url.Values{}
		}
		query.Set(name, id)
	}
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, bodyOf(r.body))
	if err != nil {
		a.Close()
		return nil, fmt.Errorf("ask for %s: %w", r.path, err)
	}
	req.Header.Set("User-Agent", agent)
	accept := "application/json"
	if r.accept != "" {
		accept = r.accept
	}
	req.Header.Set("Accept", accept)
	if r.form != "" {
		req.Header.Set("Content-Type", r.form)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	end := c.watchStopped(cancel)
	began := time.Now()
	resp, err := c.http.Do(req)
	end()
	if err != nil {
		err = patienceOr(ctx, err)
		a.Close()
		return nil, c.silent(err, time.Since(began))
	}
	a.body, a.context = resp.Body, ctx
	c.warn(resp.Header)
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return a, nil
	}
	defer a.Close()
	body, err := io.ReadAll(io.LimitReader(a, maxFailure))
	if err != nil {
		return nil, c.unreachable(err)
	}
	return nil, failure(resp.StatusCode, body)
}

// bodyOf is nil for no body: an empty one is a body too.
func bodyOf(b []byte) io.Reader {
	if b == nil {
		return nil
	}
	return bytes.NewReader(b)
}

// agent is the User-Agent of all requests: the part before the slash is the default
// field manager.
const agent = "svcctl/v1"

// patienceOr returns the cause that ended a request: context.DeadlineExceeded when patience was
// over, else err.
func patienceOr(ctx context.Context, err error) error {
	if why := context.Cause(ctx); errors.Is(why, context.DeadlineExceeded) || errors.Is(why, errStopped) {
		return context.DeadlineExceeded
	}
	return err
}

// answer is the body of an answer. Every byte that comes renews the patience.
type answer struct {
	body     io.ReadCloser
	context  context.Context
	cancel   func()
	patience time.Duration
	timer    *time.Timer // nil: patience is endless
}

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	n, err := a.body.Read(p)
	if a.timer != nil && n > 0 {
		a.timer.Reset(a.patience)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = patienceOr(a.context, err)
	}
	return n, err
}

// Close ends the request.
func (a *answer) Close() {
	if a.timer != nil {
		if a.body != nil {
			_, _ = io.CopyN(io.Discard, a.body, 1) // a body that is read to its end leaves the connection usable
		}
		a.timer.Stop()
	}
	a.cancel()
	if a.body != nil {
		_ = a.body.Close()
	}
}

// warn hands on the warnings of an answer: Warning: 299 - "text" (RFC 7234 section 5.5).
func (c *Client) warn(header http.Header) {
	if c.Warned == nil {
		return
	}
	for _, line := range header.Values("Warning") {
		if text, ok := warning(line); ok {
			c.Warned(text)
		}
	}
}

// warning is the text in a Warning header, which stands in the first quotes.
func warning(line string) (string, bool) {
	_, line, ok := strings.Cut(line, `"`)
	if !ok {
		return "", false
	}
	var b strings.Builder
	for i := 0; i < len(line); i++ {
		switch {
		case line[i] == '\\' && i+1 < len(line):
			i++
			b.WriteByte(line[i])
		case line[i] == '"':
			return b.String(), true
		default:
			b.WriteByte(line[i])
		}
	}
	return "", false
}
