package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"svcctl.io/svcctl/api/wire"
)

// Traffic asks which Services have connections; query is that of /svcctl/v1/traffic.
func (c *Client) Traffic(ctx context.Context, query url.Values) (*wire.Traffic, error) {
	var t wire.Traffic
	if err := c.get(ctx, "/svcctl/v1/traffic", query, callTimeout, &t); err != nil {
		return nil, err
	}
	return &t, nil
}

// Connections asks for connections through Services; query is that of /svcctl/v1/conns.
func (c *Client) Connections(ctx context.Context, query url.Values) (*wire.Connections, error) {
	var l wire.Connections
	if err := c.get(ctx, "/svcctl/v1/conns", query, callTimeout, &l); err != nil {
		return nil, err
	}
	return &l, nil
}

// Kill ends a connection by its ID.
func (c *Client) Kill(ctx context.Context, id uint32) (*wire.Connection, error) {
	var killed wire.Connection
	query := url.Values{"id": {strconv.FormatUint(uint64(id), 10)}}
	if err := c.call(ctx, http.MethodPost, "/svcctl/v1/conns/kill", query, callTimeout, &killed); err != nil {
		return nil, err
	}
	return &killed, nil
}

// Trace calls f for every packet that is followed, as they come; query is that of
// /svcctl/v1/trace. It ends when the server has told of enough, or ctx is done.
func (c *Client) Trace(ctx context.Context, query url.Values, f func(wire.TracedPacket) error) error {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: "/svcctl/v1/trace", query: query})
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
