package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"

	"svcctl.io/svcctl/api/wire"
)

// The types of a Change.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
	// Bookmark carries the revision up to which the watch is complete; its object has a
	// resourceVersion only.
	Bookmark = "BOOKMARK"
)

// Change is something that a watch tells.
type Change struct {
	Type   string
	Object Object
}

// Watch calls f for every change at a path, until f returns an error, ctx is done or the
// server ends the watch, which is an error only when it says so: a *wire.Failure of
// reason Expired when changes were missed. query says where to begin (resourceVersion).
func (c *Client) Watch(ctx context.Context, path string, query url.Values, f func(Change) error) error {
	return c.watch(ctx, path, query, jsonType, func(kind string, raw json.RawMessage) error {
		change := Change{Type: kind}
		if err := c.decode(path, raw, &change.Object); err != nil {
			return err
		}
		return f(change)
	})
}

// WatchTable is Watch for rows of a Table. What the columns are is told with the first.
func (c *Client) WatchTable(ctx context.Context, path string, query url.Values, f func(kind string, t *Table) error) error {
	return c.watch(ctx, path, query, tableType, func(kind string, raw json.RawMessage) error {
		var t wireTable
		if err := c.decode(path, raw, &t); err != nil {
			return err
		}
		return f(kind, &Table{Columns: t.Columns, Rows: t.Rows, ListMeta: t.Metadata})
	})
}

func (c *Client) watch(ctx context.Context, path string, query url.Values, accept string, f func(kind string, object json.RawMessage) error) error {
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{}
	}
	query.Set("watch", "true")
	resp, err := c.do(ctx, request{method: http.MethodGet, path: path, query: query, accept: accept})
	if err != nil {
		return err
	}
	defer resp.Close()
	d := json.NewDecoder(resp)
	for {
		var frame struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		switch err := d.Decode(&frame); {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return c.broken(path, err)
		case frame.Type == "ERROR":
			var failure wire.Failure
			if err := json.Unmarshal(frame.Object, &failure); err != nil {
				return fmt.Errorf("watch %s: an error that cannot be read: %w", path, err)
			}
			return &failure
		}
		if err := f(frame.Type, frame.Object); err != nil {
			return err
		}
	}
}
