package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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
// those of the whole request, and of f, which ends it; what was told before is so.
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
