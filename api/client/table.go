package client

import (
	"context"
	"encoding/json"
	"net/url"
)

// Column is a column of a Table.
type Column struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Priority int    `json:"priority"` // 0 is always shown, more in wide output only
}

// Row is a row of a Table.
type Row struct {
	Cells []any `json:"cells"`
	// Object is the whole object or its metadata; nil when it was not asked for.
	Object Object `json:"object"`
}

// Table is a list for people, as the server would have it printed.
type Table struct {
	Columns []Column
	Rows    []Row
	ListMeta
}

// How much of its object a row of a Table holds (includeObject).
const (
	IncludeNone     = "None"
	IncludeMetadata = "Metadata"
	IncludeObject   = "Object"
)

// wireTable is a Table as it is sent.
type wireTable struct {
	Kind     string   `json:"kind"`
	Columns  []Column `json:"columnDefinitions"`
	Rows     []Row    `json:"rows"`
	Metadata ListMeta `json:"metadata"`
}

// Table asks for the objects, or the object, at a path as a Table.
func (c *Client) Table(ctx context.Context, path string, query url.Values) (*Table, error) {
	var t Table
	var rest wireTable
	err := c.stream(ctx, path, query, tableType, "rows", &rest, func(d *json.Decoder) error {
		var row Row
		if err := d.Decode(&row); err != nil {
			return err
		}
		t.Rows = append(t.Rows, row)
		return nil
	})
	t.Columns, t.ListMeta = rest.Columns, rest.Metadata
	return &t, err
}
