package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"

	"svcctl.io/svcctl/api/wire"
)

// Trace calls f for every packet that is followed, as they come; query is that of
// /svcctl/v1/trace. It ends when the server has told of enough, or ctx is done.
func (c *Client) Trace(ctx context.Context, query url.Values, f func(wire.TracedPacket) error) error {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: wire.Trace.Path, query: query})
	if err != nil {
		return err
	}
	defer resp.Close()
	decoder := json.NewDecoder(resp)
	for {
		var p wire.TracedPacket
		err := decoder.Decode(&p)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return c.unreachable(err)
		}
		if err := f(p); err != nil {
			return err
		}
	}
}
