package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"svcctl.io/svcctl/api/wire"
)

// WatchAnnouncements calls f for each event, as the announcer, until f returns an error, ctx is done or
// the server ends the watch.
func (c *Client) WatchAnnouncements(ctx context.Context, f func(wire.AnnouncementsEvent) error) error {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: wire.GetAnnouncements.Path, query: url.Values{"watch": {"true"}, "announcer": {"true"}}})
	if err != nil {
		return err
	}
	defer resp.Close()
	d := json.NewDecoder(resp)
	for {
		var event wire.AnnouncementsEvent
		switch err := d.Decode(&event); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return c.broken(wire.GetAnnouncements.Path, err)
		}
		if err := f(event); err != nil {
			return err
		}
	}
}

// ReportAnnouncements sends the announcer's report to the appliance.
func (c *Client) ReportAnnouncements(ctx context.Context, r wire.AnnouncerReport) error {
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var nothing wire.None
	return c.ask(ctx, request{method: http.MethodPost, path: wire.ReportAnnouncements.Path, form: "application/json", body: body, patience: callTimeout}, &nothing)
}
