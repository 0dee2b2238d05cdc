package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"svcctl.io/svcctl/api/wire"
)

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
func (c *Client) Journal(ctx context.Context, limit int, withEvents bool) ([]wire.JournalEntry, error) {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: wire.GetJournal.Path,
		query: wire.WriteQuery(wire.JournalQuery{Limit: limit, Events: withEvents}), patience: callTimeout})
	if err != nil {
		return nil, err
	}
	defer resp.Close()
	var entries []wire.JournalEntry
	lines := json.NewDecoder(io.LimitReader(resp, maxAnswer))
	for {
		var entry wire.JournalEntry
		switch err := lines.Decode(&entry); {
		case errors.Is(err, io.EOF):
			return entries, nil
		case err != nil:
			return nil, c.strange(wire.GetJournal.Path, err)
		}
		entries = append(entries, entry)
	}
}
