package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"svcctl.io/svcctl/api/wire"
)

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
