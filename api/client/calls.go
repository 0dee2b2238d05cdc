package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// applyPatience bounds the time without data from the server during a batch. It is long because a dry run of the whole batch is computed before the
// first result is sent.
const applyPatience = 10 * time.Minute

// ndjson is the media type of JSON values one a line.
const ndjson = "application/x-ndjson"

// ApplyOptions are the options of applying a batch.
type ApplyOptions struct {
	// Manager is the field manager that owns the applied fields.
	Manager string
	// Force takes fields that others own.
	Force bool
	// DryRun computes the results, including allocations, and changes nothing.
	DryRun bool
	// AsFile treats the objects as if they were read from the manifest files that declare them. It is for dry runs.
	AsFile bool
}

// Apply applies objects, each in JSON, in one request. It calls f with the result of each, in order, as it arrives. If the server refuses an object,
// it still applies the others. Apply returns an error if the request fails. It stops at the first error of f and returns it; the objects applied
// until then stay applied.
func (c *Client) Apply(ctx context.Context, o ApplyOptions, objects []json.RawMessage, f func(i int, r wire.Applied) error) error {
	query := url.Values{"fieldManager": {o.Manager}, "force": {strconv.FormatBool(o.Force)}, "fieldValidation": {"Strict"}}
	if o.DryRun {
		query.Set("dryRun", "All")
	}
	if o.AsFile {
		query.Set("asFile", "true")
	}
	var body bytes.Buffer
	for _, object := range objects {
		body.Write(object)
		body.WriteByte('\n')
	}
	const path = "/svcctl/v1/apply"
	resp, err := c.do(ctx, request{method: http.MethodPost, path: path, query: query, form: ndjson, accept: ndjson, body: body.Bytes(), patience: applyPatience})
	if err != nil {
		return err
	}
	defer resp.Close()
	d := json.NewDecoder(resp)
	d.UseNumber()
	for i := range objects {
		var r wire.Applied
		if err := d.Decode(&r); err != nil {
			return fmt.Errorf("after %d of %d objects: %w", i, len(objects), c.broken(path, err))
		}
		if err := f(i, r); err != nil {
			return err
		}
	}
	return nil
}

// Plan returns the changes in the kernel that would result from applying objects, each in JSON, and then deleting the objects in removals. The
// removals are left out if an object is refused. o.DryRun and o.AsFile are ignored.
func (c *Client) Plan(ctx context.Context, o ApplyOptions, objects []json.RawMessage, removals []wire.PlanRemoval) (wire.KernelPlan, error) {
	query := url.Values{"fieldManager": {o.Manager}, "force": {strconv.FormatBool(o.Force)}, "fieldValidation": {"Strict"}}
	if len(removals) > 0 {
		query.Set("removals", strconv.Itoa(len(removals)))
	}
	body, err := linesOf(removals)
	if err != nil {
		return wire.KernelPlan{}, err
	}
	for _, object := range objects {
		body = append(append(body, object...), '\n')
	}
	return c.plan(ctx, query, body)
}

// PlanFiles returns what would change in the kernel if a watched directory had these files.
func (c *Client) PlanFiles(ctx context.Context, directory string, files []wire.PlanFile) (wire.KernelPlan, error) {
	body, err := linesOf(files)
	if err != nil {
		return wire.KernelPlan{}, err
	}
	return c.plan(ctx, url.Values{"directory": {directory}}, body)
}

func (c *Client) plan(ctx context.Context, query url.Values, body []byte) (p wire.KernelPlan, err error) {
	err = c.ask(ctx, request{method: http.MethodPost, path: wire.Plan.Path, query: query, form: ndjson, body: body, patience: applyPatience}, &p)
	return p, err
}

// linesOf returns values in JSON, one a line.
func linesOf[T any](values []T) ([]byte, error) {
	var body bytes.Buffer
	lines := json.NewEncoder(&body)
	for i := range values {
		if err := lines.Encode(&values[i]); err != nil {
			return nil, err
		}
	}
	return body.Bytes(), nil
}

// exportPatience bounds the time without data from the server during an export.
const exportPatience = time.Minute

// Export writes everything that the appliance has stored to w. An answer that was cut short is an error.
func (c *Client) Export(ctx context.Context, w io.Writer) error {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: wire.Export.Path, accept: "application/jsonl", patience: exportPatience})
	if err != nil {
		return err
	}
	defer resp.Close()
	end := &tail{w: w}
	if _, err := io.Copy(end, resp); end.failed != nil {
		return end.failed
	} else if err != nil {
		return c.broken(wire.Export.Path, err)
	}
	last := bytes.TrimSuffix(end.last, []byte{'\n'})
	if !bytes.HasPrefix(last[bytes.LastIndexByte(last, '\n')+1:], []byte(`{"sha256":`)) {
		return fmt.Errorf("the export is cut short: %w", c.broken(wire.Export.Path, errors.New("its last line is missing")))
	}
	return nil
}

// tail is an io.Writer that passes bytes on to w and keeps the last ones, which include the line with the checksum.
type tail struct {
	w      io.Writer
	failed error // error of the last write to w
	last   []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (n int, err error) {
	const enough = 512
	t.last = append(t.last, p[max(0, len(p)-enough):]...)
	t.last = slices.Delete(t.last, 0, max(0, len(t.last)-enough))
	n, t.failed = t.w.Write(p)
	return n, t.failed
}

// WatchAnnouncements calls f for each event of the announcements until f returns an error, ctx is done or the server ends the watch. It identifies
// itself to the server as the announcer, the process that announces addresses.
func (c *Client) WatchAnnouncements(ctx context.Context, f func(wire.AnnouncementsEvent) error) error {
	return stream(ctx, c, request{method: http.MethodGet, path: wire.GetAnnouncements.Path, query: url.Values{"watch": {"true"}, "announcer": {"true"}}}, f)
}

// ReportAnnouncements sends the announcer's report to the appliance.
func (c *Client) ReportAnnouncements(ctx context.Context, r wire.AnnouncerReport) error {
	return c.post(ctx, wire.ReportAnnouncements.Path, r, new(wire.None))
}

// post sends v in JSON and decodes the answer into answer.
func (c *Client) post(ctx context.Context, path string, v, answer any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the request of %s: %w", path, err)
	}
	return c.ask(ctx, request{method: http.MethodPost, path: path, form: jsonType, body: body, patience: callTimeout}, answer)
}

// Stream makes a request to a route that returns a sequence of JSON values, and calls f with each value as it arrives. It returns nil at the end of
// the response, the cause of ctx when it is done, or the first error of f.
func Stream[Query, Value any](ctx context.Context, c *Client, at wire.Route[Query, Value], q Query, f func(Value) error) error {
	return stream(ctx, c, request{method: at.Method, path: at.Path, query: wire.WriteQuery(q)}, f)
}

func stream[Value any](ctx context.Context, c *Client, r request, f func(Value) error) error {
	resp, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Close()
	for d := json.NewDecoder(resp); ; {
		var v Value
		switch err := d.Decode(&v); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return c.broken(r.path, err)
		}
		if err := f(v); err != nil {
			return err
		}
	}
}

const tokenPath = "/svcctl/v1/token"

// Token asks for a bearer token, which the server issues to clients of its unix socket alone.
func (c *Client) Token(ctx context.Context, ask wire.TokenRequest) (t wire.Token, err error) {
	return t, c.post(ctx, tokenPath, ask, &t)
}

// RevokeTokens invalidates all tokens that were issued before.
func (c *Client) RevokeTokens(ctx context.Context) (r wire.Revoked, err error) {
	return r, c.call(ctx, http.MethodDelete, tokenPath, nil, callTimeout, &r)
}

// Journal returns the newest entries of the journal of object changes, at most q.Limit, oldest first. Changes of Events are included only if q.Events
// is set.
func (c *Client) Journal(ctx context.Context, q wire.JournalQuery) (entries []wire.JournalEntry, err error) {
	err = stream(ctx, c, request{method: http.MethodGet, path: wire.GetJournal.Path, query: wire.WriteQuery(q), patience: callTimeout}, func(entry wire.JournalEntry) error {
		entries = append(entries, entry)
		return nil
	})
	return entries, err
}

// request is a request to the server.
type request struct {
	method string
	path   string
	query  url.Values
	accept string // the media type that is wanted; "" is JSON
	form   string // the media type of body
	body   []byte
	// patience bounds the time without data from the server; 0 means no bound.
	patience time.Duration
}

// maxRetries bounds the retries of a request that the server answered with 429 and Retry-After (RFC 6585, section 4). maxRetryGap bounds the wait
// before each.
const (
	maxRetries  = 5
	maxRetryGap = 10 * time.Second
)

// maxFailure bounds the body of a failure, in bytes.
const maxFailure = 4 << 20

// do makes a request and returns the body of the answer, which the caller closes. It retries
// while the server is busy. Errors: *UnreachableError; *wire.Failure for an HTTP status other
// than success.
func (c *Client) do(ctx context.Context, r request) (*answer, error) {
	if c.Failed != nil {
		return nil, c.Failed
	}
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
		if Pause(ctx, min(gap, maxRetryGap)) != nil {
			return nil, err
		}
	}
}

// once sends a request a single time, without retries.
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
	var body io.Reader // nil for no body, which an empty one is not
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, body)
	if err != nil {
		a.Close()
		return nil, fmt.Errorf("ask for %s: %w", r.path, err)
	}
	req.Header.Set("User-Agent", agent)
	req.Header.Set("Accept", cmp.Or(r.accept, jsonType))
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
	text, err := io.ReadAll(io.LimitReader(a, maxFailure))
	if err != nil {
		return nil, c.unreachable(err)
	}
	return nil, failure(resp.StatusCode, text)
}

// agent is the User-Agent of all requests: the part before the slash is the default
// field manager.
const agent = "svcctl/v1"

// patienceOr returns context.DeadlineExceeded if the request was canceled because its patience ran out or the server process is stopped, else err.
func patienceOr(ctx context.Context, err error) error {
	if why := context.Cause(ctx); errors.Is(why, context.DeadlineExceeded) || errors.Is(why, errStopped) {
		return context.DeadlineExceeded
	}
	return err
}

// answer is the body of a response. Reading it fails after patience without data.
type answer struct {
	body     io.ReadCloser
	context  context.Context
	cancel   func()
	patience time.Duration
	timer    *time.Timer // nil if there is no timeout
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

// warn passes the warnings of a response to c.Warned. They are headers of the form Warning: 299 - "text" (RFC 7234, section 5.5).
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

// warning returns the text of a Warning header, which is its first quoted string; false if it has none.
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
