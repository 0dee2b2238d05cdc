package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// exportPatience bounds the silence of the server during an export.
const exportPatience = time.Minute

// BeginTrial begins a trial that goes back after a duration unless it is confirmed, or moves the end of
// the one that is under way. With files, changes of files are on trial, too. What is written belongs to it once
// Client.Trial is its ID.
func (c *Client) BeginTrial(ctx context.Context, files bool, after time.Duration) (t wire.Trial, err error) {
	query := url.Values{"for": {after.String()}, "files": {strconv.FormatBool(files)}}
	err = c.call(ctx, http.MethodPost, "/svcctl/v1/trial", query, callTimeout, &t)
	return t, err
}

// Confirm makes what is on trial stay.
func (c *Client) Confirm(ctx context.Context) (t wire.Trial, err error) {
	err = c.call(ctx, http.MethodPost, "/svcctl/v1/trial/confirm", nil, callTimeout, &t)
	return t, err
}

// GoBack takes back at once what is on trial.
func (c *Client) GoBack(ctx context.Context) (b wire.RolledBack, err error) {
	err = c.call(ctx, http.MethodPost, "/svcctl/v1/trial/back", nil, callTimeout, &b)
	return b, err
}

// Rollback makes objects what they were at a revision; 0 is the one before the last change by a client. It is refused
// (409) when that is another one than last, unless last is 0.
func (c *Client) Rollback(ctx context.Context, revision, last uint64, dryRun bool) (b wire.RolledBack, err error) {
	query := url.Values{}
	if revision > 0 {
		query.Set("revision", strconv.FormatUint(revision, 10))
	}
	if last > 0 {
		query.Set("last", strconv.FormatUint(last, 10))
	}
	if dryRun {
		query.Set("dryRun", "All")
	}
	err = c.call(ctx, http.MethodPost, "/svcctl/v1/rollback", query, callTimeout, &b)
	return b, err
}

// Export writes everything that the appliance has stored to w. An answer that was cut short is an error.
func (c *Client) Export(ctx context.Context, w io.Writer) error {
	const path = "/svcctl/v1/export"
	resp, err := c.do(ctx, request{method: http.MethodGet, path: path, accept: "application/jsonl", patience: exportPatience})
	if err != nil {
		return err
	}
	defer resp.Close()
	end := &lastLine{w: w}
	if _, err := io.Copy(end, resp); err != nil {
		if end.failed != nil {
			return end.failed
		}
		return c.broken(path, err)
	}
	if !bytes.HasPrefix(end.last, []byte(`{"sha256":`)) {
		return fmt.Errorf("the export is cut short: %w", c.broken(path, errors.New("its last line is missing")))
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
