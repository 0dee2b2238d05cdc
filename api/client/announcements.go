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

const announcementsPath = "/svcctl/v1/announcements"

// Announcements asks for the addresses that are announced, or why not.
func (c *Client) Announcements(ctx context.Context) (*wire.Announcements, error) {
	var a wire.Announcements
	if err := c.get(ctx, announcementsPath, nil, callTimeout, &a); err != nil {
		return nil, err
	}
	return &a, nil
}

// WatchAnnouncements calls f for each event, as the announcer, until f returns an error, ctx is done or
// the server ends the watch.
func (c *Client) WatchAnnouncements(ctx context.Context, f func(wire.AnnouncementsEvent) error) error {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: announcementsPath, query: url.Values{"watch": {"true"}, "announcer": {"true"}}})
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
			return c.broken(announcementsPath, err)
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
	var nothing struct{}
	return c.ask(ctx, request{method: http.MethodPost, path: announcementsPath + "/report", form: "application/json", body: body, patience: callTimeout}, &nothing)
}
