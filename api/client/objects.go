package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// Object is an object of any kind as JSON has it: map[string]any, []any, string, bool,
// nil and json.Number.
type Object = map[string]any

const (
	// listPatience bounds the time without data from the server while a list or the response to a write is awaited.
	listPatience = time.Minute
	jsonType     = "application/json"
	// MergePatch is the media type of a JSON merge patch (RFC 7386).
	MergePatch = "application/merge-patch+json"
	// tableType is the Accept header for a Table, or for plain JSON if the server has no Table.
	tableType = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
)

// Get asks for the object at a path.
func (c *Client) Get(ctx context.Context, path string) (o Object, err error) {
	err = c.Typed(ctx, path, &o)
	return o, err
}

// Typed decodes the object at a path into o.
func (c *Client) Typed(ctx context.Context, path string, o any) error {
	return c.call(ctx, http.MethodGet, path, nil, listPatience, o)
}

// Each calls f for every object of the list at a path, as raw JSON and in order, while the response arrives. Only one object is in memory at a time.
// Each stops at the first error of f and returns it. version is the resourceVersion of the list.
func (c *Client) Each(ctx context.Context, path string, query url.Values, f func(json.RawMessage) error) (version string, err error) {
	var list struct {
		Metadata listMeta `json:"metadata"`
	}
	err = c.stream(ctx, path, query, jsonType, "items", &list, func(d *json.Decoder) error {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		if err := f(raw); err != nil {
			return itemError{err}
		}
		return nil
	})
	return list.Metadata.ResourceVersion, err
}

// Patch changes the object at a path; form is the media type of the patch.
func (c *Client) Patch(ctx context.Context, path string, query url.Values, form string, patch []byte) (Object, error) {
	return c.send(ctx, request{method: http.MethodPatch, path: path, query: query, form: form, body: patch})
}

// Delete deletes the object at a path if uid is "" or the UID of the object. The answer is a
// Status, or the object while finalizers keep it.
func (c *Client) Delete(ctx context.Context, path string, query url.Values, uid string) (Object, error) {
	options := map[string]any{"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
	if values := query["dryRun"]; len(values) > 0 {
		options["dryRun"] = values // a body replaces the query, as in Kubernetes
	}
	if uid != "" {
		options["preconditions"] = map[string]any{"uid": uid}
	}
	body, err := json.Marshal(options)
	if err != nil {
		return nil, err
	}
	return c.send(ctx, request{method: http.MethodDelete, path: path, query: query, form: jsonType, body: body})
}

// send makes a request and returns the object in the answer.
func (c *Client) send(ctx context.Context, r request) (Object, error) {
	r.patience = listPatience
	var o Object
	err := c.ask(ctx, r, &o)
	return o, err
}

// stream reads a JSON object that has a long array. It calls item for each element of the field array, which must decode it, and decodes the other
// fields into rest.
func (c *Client) stream(ctx context.Context, path string, query url.Values, accept, array string, rest any, item func(*json.Decoder) error) error {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: path, query: query, accept: accept, patience: listPatience})
	if err != nil {
		return err
	}
	defer resp.Close()
	d := json.NewDecoder(resp)
	d.UseNumber()
	others, err := split(d, array, item)
	if err != nil {
		return c.broken(path, err)
	}
	body, err := json.Marshal(others)
	if err == nil {
		err = json.Unmarshal(body, rest)
	}
	if err != nil {
		return c.strange(path, err)
	}
	return nil
}

// itemError wraps an error of the function that the caller gave for each item.
type itemError struct{ error }

// split reads a JSON object. It calls item to decode each element of the field array, and returns the other fields.
func split(d *json.Decoder, array string, item func(*json.Decoder) error) (others map[string]json.RawMessage, err error) {
	others = map[string]json.RawMessage{}
	if err := expect(d, '{'); err != nil {
		return nil, err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		if key != array {
			var raw json.RawMessage
			if err := d.Decode(&raw); err != nil {
				return nil, err
			}
			others[key.(string)] = raw
			continue
		}
		switch token, err := d.Token(); {
		case err != nil:
			return nil, err
		case token == nil: // null is an empty list
			continue
		case token != json.Delim('['):
			return nil, errors.New("a list is missing")
		}
		for d.More() {
			if err := item(d); err != nil {
				return nil, err
			}
		}
		if err := expect(d, ']'); err != nil {
			return nil, err
		}
	}
	return others, expect(d, '}')
}

func expect(d *json.Decoder, delim json.Delim) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	if token != delim {
		return errors.New(delim.String() + " is missing")
	}
	return nil
}

// broken returns the error for a response that is truncated or has an unexpected form. It returns an error of the caller's item function as it is.
func (c *Client) broken(path string, err error) error {
	if own, is := errors.AsType[itemError](err); is {
		return own.error
	}
	var syntax *json.SyntaxError
	var form *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &form) {
		return c.strange(path, err)
	}
	return c.unreachable(err)
}

// Column is a column of a Table.
type Column struct {
	Name     string `json:"name"`
	Priority int    `json:"priority"` // 0: shown always; greater: only in wide output
}

// Row is a row of a Table.
type Row struct {
	Cells []any `json:"cells"`
	// Object is the whole object or its metadata; nil when it was not asked for.
	Object Object `json:"object"`
}

// Table is a list in the form in which the server proposes to print it: rows of cells.
type Table struct {
	Columns  []Column `json:"columnDefinitions"`
	Rows     []Row    `json:"rows"`
	Metadata listMeta `json:"metadata"`
}

// listMeta is the metadata of a list.
type listMeta struct {
	ResourceVersion string `json:"resourceVersion"`
}

// The values of the query parameter includeObject: how much of its object each row of a Table holds.
const (
	IncludeNone     = "None"
	IncludeMetadata = "Metadata"
	IncludeObject   = "Object"
)

// Table asks for the objects, or the object, at a path as a Table.
func (c *Client) Table(ctx context.Context, path string, query url.Values) (*Table, error) {
	var t Table
	err := c.stream(ctx, path, query, tableType, "rows", &t, func(d *json.Decoder) error {
		var row Row
		if err := d.Decode(&row); err != nil {
			return err
		}
		t.Rows = append(t.Rows, row)
		return nil
	})
	return &t, err
}

// The types of a Change.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
	// Bookmark carries the revision up to which the watch is complete; its object has a
	// resourceVersion only.
	Bookmark = "BOOKMARK"
)

// Change is an event of a watch.
type Change struct {
	Type   string
	Object Object
}

// Watch calls f for every change at a path, until f returns an error, ctx is done or the server ends the watch. query has the resourceVersion to
// start from. If the server ended the watch with an ERROR event, Watch returns it as a *wire.Failure; its reason is Expired if changes were missed.
func (c *Client) Watch(ctx context.Context, path string, query url.Values, f func(Change) error) error {
	return c.watch(ctx, path, query, jsonType, func(kind string, raw json.RawMessage) error {
		change := Change{Type: kind}
		if err := c.decode(path, raw, &change.Object); err != nil {
			return err
		}
		return f(change)
	})
}

// WatchTable is like Watch, but passes each change as a Table, of which only the first has columns. kind is the type of the change.
func (c *Client) WatchTable(ctx context.Context, path string, query url.Values, f func(kind string, t *Table) error) error {
	return c.watch(ctx, path, query, tableType, func(kind string, raw json.RawMessage) error {
		var t Table
		if err := c.decode(path, raw, &t); err != nil {
			return err
		}
		return f(kind, &t)
	})
}

func (c *Client) watch(ctx context.Context, path string, query url.Values, accept string, f func(kind string, object json.RawMessage) error) error {
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{}
	}
	query.Set("watch", "true")
	type frame struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	return stream(ctx, c, request{method: http.MethodGet, path: path, query: query, accept: accept}, func(e frame) error {
		if e.Type != "ERROR" {
			return f(e.Type, e.Object)
		}
		var failure wire.Failure
		if err := json.Unmarshal(e.Object, &failure); err != nil {
			return fmt.Errorf("watch %s: an error that cannot be read: %w", path, err)
		}
		return &failure
	})
}
