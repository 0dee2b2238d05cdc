package top

import (
	"context"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// Every is the interval of requests for traffic data. The appliance scans its connections at most once per second.
const Every = 2 * time.Second

// Top holds the query and the last response of `svcctl top`.
type Top struct {
	c     *client.Client
	q     wire.TrafficQuery
	color bool
	seen  *wire.Traffic
}

// Options are the initial settings of the table: sort column, filter, maximum number of rows, and what to show.
type Options struct {
	By, Filter                string
	Limit                     int
	Endpoints, Clients, Color bool
}

// New returns a Top for one Service, the Services of a namespace, or all Services.
func New(c *client.Client, of wire.ObjectQuery, o Options) *Top {
	return &Top{c: c, color: o.Color, q: wire.TrafficQuery{Namespace: of.Namespace, Service: of.Name, Sort: o.By, Filter: o.Filter, Limit: o.Limit, Endpoints: o.Endpoints, Clients: o.Clients}}
}

// Seen returns the last response; nil before the first one.
func (t *Top) Seen() *wire.Traffic { return t.seen }

// Look requests traffic data and stores the response.
func (t *Top) Look(ctx context.Context) (err error) {
	t.seen, err = client.Call(ctx, t.c, wire.GetTraffic, t.q)
	return err
}

// Second requests traffic data until they contain rates and clients. Rates take two scans, and clients are counted only in scans after the first
// request for them.
func (t *Top) Second(ctx context.Context) error {
	for {
		if err := t.Look(ctx); err != nil {
			return err
		}
		// The first two looks of the appliance are a quarter of a second apart at the least, others a second.
		if t.seen.Seconds > 0 && (t.seen.Clients == nil || t.seen.Clients.Counted) || client.Pause(ctx, Every*3/20) != nil {
			return nil
		}
	}
}
