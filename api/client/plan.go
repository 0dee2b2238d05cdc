package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"svcctl.io/svcctl/api/wire"
)

// Plan returns what applying objects, each in JSON, would change in the kernel, and then removing others, which happens only if no
// object is refused. o.DryRun and o.AsFile are ignored.
func (c *Client) Plan(ctx context.Context, o ApplyOptions, objects []json.RawMessage, removals []wire.PlanRemoval) (p wire.KernelPlan, err error) {
	query := url.Values{"fieldManager": {o.Manager}, "force": {strconv.FormatBool(o.Force)}, "fieldValidation": {"Strict"}}
	var body bytes.Buffer
	if len(removals) > 0 {
		query.Set("removals", strconv.Itoa(len(removals)))
	}
	lines := json.NewEncoder(&body)
	for i := range removals {
		if err := lines.Encode(&removals[i]); err != nil {
			return p, err
		}
	}
	for _, object := range objects {
		body.Write(object)
		body.WriteByte('\n')
	}
	err = c.ask(ctx, request{method: http.MethodPost, path: wire.Plan.Path, query: query, form: ndjson, body: body.Bytes(), patience: applyPatience}, &p)
	return p, err
}

// PlanFiles returns what would change in the kernel if a watched directory had these files.
func (c *Client) PlanFiles(ctx context.Context, directory string, files []wire.PlanFile) (p wire.KernelPlan, err error) {
	var body bytes.Buffer
	lines := json.NewEncoder(&body)
	for i := range files {
		if err := lines.Encode(&files[i]); err != nil {
			return p, err
		}
	}
	query := url.Values{"directory": {directory}}
	err = c.ask(ctx, request{method: http.MethodPost, path: wire.Plan.Path, query: query, form: ndjson, body: body.Bytes(), patience: applyPatience}, &p)
	return p, err
}
