package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// applyPatience bounds the silence of the server during a batch: the whole of a dry run is decided
// before the first result is sent.
const applyPatience = 10 * time.Minute

// ndjson is the media type of JSON values one a line.
const ndjson = "application/x-ndjson"

// ApplyOptions say how a batch is applied.
type ApplyOptions struct {
	// Manager is the field manager that owns the applied fields.
	Manager string
	// Force takes fields that others own.
	Force bool
	// DryRun decides and allocates, and changes nothing.
	DryRun bool
	// AsFile decides as if the file of the appliance that declares an object said so; it is for
	// dry runs.
	AsFile bool
}

// Apply applies objects, each in JSON, in one request, and calls f with what became of
// each, in their order, as it is known. An object that is refused stops no other. Errors:
// those of the whole request, and of f, which ends it; results before it stand.
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

// Plan returns what applying objects, each in JSON, would change in the kernel, and then removing others, which happens only if no
// object is refused. o.DryRun and o.AsFile are ignored.
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

// exportPatience bounds the silence of the server during an export.
const exportPatience = time.Minute

// Export writes everything that the appliance has stored to w. An answer that was cut short is an error.
func (c *Client) Export(ctx context.Context, w io.Writer) error {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: wire.Export.Path, accept: "application/jsonl", patience: exportPatience})
	if err != nil {
		return err
	}
	defer resp.Close()
	end := &lastLine{w: w}
	if _, err := io.Copy(end, resp); err != nil {
		if end.failed != nil {
			return end.failed
		}
		return c.broken(wire.Export.Path, err)
	}
	if !bytes.HasPrefix(end.last, []byte(`{"sha256":`)) {
		return fmt.Errorf("the export is cut short: %w", c.broken(wire.Export.Path, errors.New("its last line is missing")))
	}
	return nil
}

// lastLine hands bytes on, and keeps the beginning of the last line.
type lastLine struct {
	w      io.Writer
	failed error // of w
	last   []byte
	ended  bool // the next byte begins a line
}

// Write implements io.Writer.
func (l *lastLine) Write(p []byte) (int, error) {
	const enough = 16
	for rest := p; len(rest) > 0; {
		if l.ended {
			l.last, l.ended = l.last[:0], false
		}
		line := rest
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			line, l.ended = rest[:i+1], true
		}
		if len(l.last) < enough {
			l.last = append(l.last, line[:min(len(line), enough-len(l.last))]...)
		}
		rest = rest[len(line):]
	}
	n, err := l.w.Write(p)
	l.failed = err
	return n, err
}

// WatchAnnouncements calls f for each event, as the announcer, until f returns an error, ctx is done or
// the server ends the watch.
func (c *Client) WatchAnnouncements(ctx context.Context, f func(wire.AnnouncementsEvent) error) error {
	return stream(ctx, c, request{method: http.MethodGet, path: wire.GetAnnouncements.Path, query: url.Values{"watch": {"true"}, "announcer": {"true"}}}, f)
}

// ReportAnnouncements sends the announcer's report to the appliance.
func (c *Client) ReportAnnouncements(ctx context.Context, r wire.AnnouncerReport) error {
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var nothing wire.None
	return c.ask(ctx, request{method: http.MethodPost, path: wire.ReportAnnouncements.Path, form: "application/json", body: body, patience: callTimeout}, &nothing)
}

// Stream makes a request of a route that answers by values, and calls f with each as it comes. It ends with the answer, when ctx
// is done, or with an error of f.
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

// Token asks for a bearer token. It is given over the socket only.
func (c *Client) Token(ctx context.Context, ask wire.TokenRequest) (*wire.Token, error) {
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, fmt.Errorf("ask for a token: %w", err)
	}
	r := request{method: http.MethodPost, path: tokenPath, form: "application/json", body: body, patience: callTimeout}
	var t wire.Token
	if err := c.ask(ctx, r, &t); err != nil {
		return nil, err
	}
	return &t, nil
}

// RevokeTokens makes all tokens invalid that were given so far.
func (c *Client) RevokeTokens(ctx context.Context) (r wire.Revoked, err error) {
	return r, c.call(ctx, http.MethodDelete, tokenPath, nil, callTimeout, &r)
}

// Journal asks for the newest changes of objects, at most limit, the oldest first, those of
// Events among them when they are wanted.
func (c *Client) Journal(ctx context.Context, q wire.JournalQuery) (entries []wire.JournalEntry, err error) {
	err = stream(ctx, c, request{method: http.MethodGet, path: wire.GetJournal.Path, query: wire.WriteQuery(q), patience: callTimeout}, func(entry wire.JournalEntry) error {
		entries = append(entries, entry)
		return nil
	})
	return entries, err
}
