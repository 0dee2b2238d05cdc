package box

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/annotation"
)

func drainVerb() *cli.Verb {
	return &cli.Verb{
		Name: "announce drain",
		Options: slices.Concat([]*cli.Option{
			{Name: "wait", Group: cli.GroupHow, Usage: "return when nothing is announced, and no packet of a connection to these addresses came for 2s"},
			{Name: "timeout", Arg: "DURATION", Def: "60s", Bounds: &cli.Bounds{Least: 1, Most: math.MaxInt64, As: "60s, more than 0"}, Group: cli.GroupHow, Usage: "how long --wait waits at most"},
			cli.YesOption(),
		}, settings.ConnectOptions()),
		Run: func(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
			return runDrain(ctx, env, v, true)
		},
	}
}

func undrainVerb() *cli.Verb {
	return &cli.Verb{
		Name:    "announce undrain",
		Options: settings.ConnectOptions(),
		Run: func(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
			return runDrain(ctx, env, v, false)
		},
	}
}

// runDrain sets the label on the Node of the box that drains it, or removes the label.
func runDrain(ctx context.Context, env *cli.Env, v *cli.Verb, drain bool) error {
	wait, patience := false, time.Duration(0)
	if drain {
		wait = v.Option("wait").On()
		patience = v.Option("timeout").Duration()
		if v.Option("timeout").IsSet() && !wait {
			return cli.Usagef("--timeout is about --wait: give both")
		}
	}
	c := env.Client(v)
	status, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if drain {
		if err := askToDrain(ctx, env, v, c); err != nil {
			return err
		}
	}
	var value any // null takes a label away
	if drain {
		value = ""
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{annotation.ExcludeNode: value}}})
	if err != nil {
		return err
	}
	if _, err := c.Patch(ctx, "/api/v1/nodes/"+url.PathEscape(status.NodeName), nil, client.MergePatch, patch); err != nil {
		return err
	}
	if !drain {
		return env.Print(fmt.Sprintf("%s announces its addresses again.\n", status.NodeName))
	}
	if !wait {
		return env.Print(fmt.Sprintf("%s is drained: `svcctl announce status` shows what is left.\n", status.NodeName))
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	open, err := awaitSilence(ctx, c)
	if err != nil {
		return err
	}
	return env.Print(fmt.Sprintf("%s is drained, and no packet came for %s; %s still open.\n", status.NodeName, silence, output.Count(open, "connection")))
}

// askToDrain asks for confirmation if the drain would make addresses unreachable, as far as this box can determine.
func askToDrain(ctx context.Context, env *cli.Env, v *cli.Verb, c *client.Client) error {
	all, err := client.Call(ctx, c, wire.GetAnnouncements, wire.None{})
	if err != nil {
		return err
	}
	switch alone, unknown := announcedAlone(all); {
	case len(alone) > 0:
		return env.Consent(v, fmt.Sprintf("no other box announces %s: clients lose %s", wire.First(alone, few), pronoun(alone)))
	case len(unknown) > 0 && env.StdinTTY:
		return env.Consent(v, fmt.Sprintf("clients lose %s, unless another box announces %s, which this box cannot see", wire.First(unknown, few), pronoun(unknown)))
	}
	return nil
}

// announcedAlone returns addresses that this box announces. alone are those that no other box can take over: a network segment without an election
// has only one announcer. unknown are those for which this box cannot determine whether another box can take over: backups of an election do not send
// (RFC 9568), and only routers have the routes of other boxes.
func announcedAlone(all *wire.Announcements) (alone, unknown []string) {
	for i := range all.Items {
		item := &all.Items[i]
		segment, elsewhere := false, false
		for _, place := range item.Places {
			switch {
			case place.State != "announced" && place.State != "sending":
			case strings.HasPrefix(place.By, "bgp ") || all.Group != nil:
				elsewhere = true
			default:
				segment = true
			}
		}
		switch {
		case elsewhere:
			unknown = append(unknown, item.Address)
		case segment:
			alone = append(alone, item.Address)
		}
	}
	return alone, unknown
}

// few is the maximum number of addresses in a message.
const few = 5

// pronoun returns "it" for a single address, otherwise "them".
func pronoun(addrs []string) string {
	if len(addrs) == 1 {
		return "it"
	}
	return "them"
}

// silence is the time without packets after which a drain is complete.
const silence = 2 * time.Second

// awaitSilence waits until no address is announced and no packets arrive for silence. open is the number of connections still open.
func awaitSilence(ctx context.Context, c *client.Client) (open int, err error) {
	var before *wire.Connections
	for why := "the appliance did not answer"; ; {
		all, err := client.Call(ctx, c, wire.GetAnnouncements, wire.None{})
		var now *wire.Connections
		if err == nil {
			now, err = client.Call(ctx, c, wire.GetConnections, wire.ConnectionsQuery{Limit: resource.MostConnections})
		}
		switch {
		case ctx.Err() != nil:
			return 0, fmt.Errorf("not silent after the time of --timeout: %s", why)
		case err != nil:
			return 0, err
		}
		vips := map[netip.Addr]bool{}
		why = stillAnnounced(all, vips)
		active, open := activeConnections(before, now, vips)
		if why == "" {
			why = stillActive(active, now.More)
		}
		if why == "" && before != nil {
			return open, nil
		}
		before = now
		if client.Pause(ctx, silence) != nil {
			return 0, fmt.Errorf("not silent after the time of --timeout: %s", why)
		}
	}
}

// stillAnnounced returns the reason why the drain is not complete, such as an address that is still announced; "" if there is none. It adds each
// address in all.Items to vips.
func stillAnnounced(all *wire.Announcements, vips map[netip.Addr]bool) (why string) {
	if !all.Drained {
		why = "serve has not learned of it yet"
	}
	for _, item := range all.Items {
		if addr, err := netip.ParseAddr(item.Address); err == nil {
			vips[addr] = true
		}
		for _, place := range item.Places {
			if place.State == "announced" || place.State == "sending" || place.State == "leaving" {
				why = fmt.Sprintf("%s is still announced (%s)", item.Address, place.By)
			}
		}
	}
	return why
}

// stillActive returns a message about active connections; "" if there are none. unlisted is the number of connections that could not be checked; they
// count as active.
func stillActive(active, unlisted int) string {
	switch {
	case active > 0:
		return fmt.Sprintf("packets of %s still come", output.Count(active, "connection"))
	case unlisted > 0:
		return fmt.Sprintf("%s could not be looked at: there are more than %d", output.Count(unlisted, "connection"), resource.MostConnections)
	}
	return ""
}

// activeConnections returns the number of open connections to the addresses in vips, and how many of them are active. A connection is active if it
// had a packet between the readings before and now, which resets the timeout of its conntrack entry, or is not in before. If before is nil, all are
// active.
func activeConnections(before, now *wire.Connections, vips map[netip.Addr]bool) (active, open int) {
	last := map[uint32]int{}
	if before != nil {
		for i := range before.Connections {
			last[before.Connections[i].ID] = before.Connections[i].Expires
		}
	}
	for i := range now.Connections {
		conn := &now.Connections[i]
		if to, err := netip.ParseAddrPort(conn.To); err != nil || !vips[to.Addr()] || resource.IsClosed(conn.State) {
			continue
		}
		open++
		if expires, known := last[conn.ID]; !known || conn.Expires >= expires {
			active++
		}
	}
	return active, open
}
