package look

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

func TraceVerb() *cli.Verb {
	return &cli.Verb{
		Name: "trace",
		Options: append([]*cli.Option{
			{Name: "count", Letter: "c", Arg: "N", Def: "5", Number: [2]int{1, 1000}, Group: cli.GroupWhich, Usage: "how many packets, at most 1000"},
			{Name: "for", Arg: "DURATION", Def: "30s", Bounds: &cli.Bounds{Least: time.Second, Most: time.Minute, Step: time.Second, As: "30s, from 1s to 60s in whole seconds"}, Group: cli.GroupWhich, Usage: "how long to wait for them, at most 60s"},
			{Name: "established", Group: cli.GroupWhich, Usage: "packets of connections that are tracked already"},
			{Name: "predict", Group: cli.GroupWhich, Usage: "compute the path of a packet, and follow none"},
			{Name: "steps", Group: cli.GroupOutput, Usage: "list every decision of the kernel too"},
			cli.OutputOption("text", "json"),
		}, settings.ConnectOptions()...),
		Run: runTrace,
	}
}

// runTrace prints the paths of packets.
func runTrace(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	query, err := traceQuery(v, args)
	if err != nil {
		return err
	}
	c := env.Client(v)
	inJSON := v.Option("output").Text() == cli.FormJSON
	if env.StderrTTY && !inJSON && !query.Predict {
		fmt.Fprintf(env.Err, "Waiting for packets, %d s at most ...\n", query.Seconds)
	}
	came := 0
	err = client.Stream(ctx, c, wire.Trace, query, func(packet wire.TracedPacket) error {
		came++
		addPaths(ctx, c, &packet)
		if inJSON {
			return env.PrintLine(packet)
		}
		text := tracedText(&packet, v.Option("steps").On())
		if came > 1 {
			text = "\n" + text
		}
		return env.Print(text)
	})
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	case came == 0 && query.To.IsValid() && query.Port != 0 && !query.Established && !inJSON:
		foretell(ctx, env, c, query)
		fallthrough
	case came == 0:
		return fmt.Errorf("no such packet came in %d s: see whether it reaches this box (tcpdump), whether a rule before connection tracking drops it (`nft list ruleset`, priority raw), "+
			"or, of a connection that is there already, give --established; packets of fast connections (`svcctl top --connections`) pass all rules by", query.Seconds)
	}
	return nil
}

// foretell prints the predicted path of a packet, for use after a trace without packets. It does nothing if the query selects several clients by a
// prefix.
func foretell(ctx context.Context, env *cli.Env, c *client.Client, query wire.TraceQuery) {
	if query.From.IsValid() && !query.From.IsSingleIP() {
		return
	}
	query.Predict = true
	_ = client.Stream(ctx, c, wire.Trace, query, func(packet wire.TracedPacket) error { // that none came is the error
		addPaths(ctx, c, &packet)
		return env.Print(tracedText(&packet, false) + "\n")
	})
}

// traceQuery returns the query for the arguments and flags of trace.
func traceQuery(v *cli.Verb, args []string) (query wire.TraceQuery, err error) {
	from, to := "", ""
	switch {
	case len(args) > 2:
		return query, cli.Usagef("trace takes clients and what they want to reach: run `svcctl trace --help`")
	case len(args) == 2:
		from, to = args[0], args[1]
	case len(args) == 1:
		if _, err := netip.ParsePrefix(unbracketed(args[0])); err == nil {
			from = args[0]
		} else {
			to = args[0]
		}
	}
	if from != "" {
		if err := query.From.UnmarshalText([]byte(unbracketed(from))); err != nil {
			return query, cli.Usagef("%v", err)
		}
	}
	if to != "" {
		q, is, err := parseQuestion(to)
		if err != nil {
			return query, err
		}
		if !is {
			return query, cli.Usagef("%q: want an address as 10.96.0.10:80, or 10.96.0.53:53/udp; `svcctl get svc` lists those of Services", to)
		}
		query.To, query.Port, query.Protocol = q.Address, q.Port, q.Protocol
	}
	query.Count, query.Seconds = v.Option("count").Int(), int(v.Option("for").Duration()/time.Second)
	query.Established, query.Predict = v.Option("established").On(), v.Option("predict").On()
	switch {
	case !query.Predict:
	case query.Established:
		return query, cli.Usagef("--predict is about a packet that begins a connection: leave out --established")
	case !query.To.IsValid() || query.Port == 0:
		return query, cli.Usagef("--predict is about a packet to an address with a port: give it, as 10.96.0.10:80")
	case query.From.IsValid() && !query.From.IsSingleIP():
		return query, cli.Usagef("--predict is about the packet of one client: give its address instead of %s", query.From)
	}
	return query, nil
}

// unbracketed removes the brackets from an address or a prefix, such as "[2001:db8::1]/64".
func unbracketed(text string) string {
	inner, is := strings.CutPrefix(text, "[")
	addr, rest, closed := strings.Cut(inner, "]")
	if !is || !closed || rest != "" && !strings.HasPrefix(rest, "/") {
		return text
	}
	return addr + rest
}

// signs maps the state of a line to its symbol. explain uses the same symbols.
var signs = map[string]string{wire.TraceGood: "✓", wire.TraceWarn: "!", wire.TraceBad: "✗", wire.TraceNote: "·"}

// tracedText formats the description of a packet, with its trace steps if steps is set.
func tracedText(packet *wire.TracedPacket, steps bool) string {
	var b strings.Builder
	fmt.Fprintln(&b, output.Printable(packet.What))
	width := 0
	for _, l := range packet.Lines {
		if l.Where != "" {
			width = max(width, len([]rune(l.Text)))
		}
	}
	width = min(width, 60)
	for _, l := range packet.Lines {
		line := "  " + signs[l.State] + " " + l.Text
		if l.Where != "" {
			line += strings.Repeat(" ", max(0, width-len([]rune(l.Text)))) + "   " + l.Where
		}
		fmt.Fprintln(&b, output.Printable(line))
	}
	if steps {
		for _, s := range packet.Steps {
			what := "rule " + strconv.FormatUint(s.Rule, 10)
			switch {
			case s.Policy:
				what = "policy"
			case s.Rule == 0:
				what = "end"
			}
			fmt.Fprintf(&b, "    %s  %s  %s  %s\n", s.Table, s.Chain, what, s.Verdict)
		}
	}
	return b.String()
}

func JournalVerb() *cli.Verb {
	return &cli.Verb{
		Name: "journal",
		Options: slices.Concat([]*cli.Option{
			settings.NamespaceOption(),
			{Name: "all-namespaces", Letter: "A", Group: cli.GroupWhich, Usage: "of all namespaces, as without -n"},
			{Name: "since", Arg: "DURATION", Bounds: &cli.Bounds{Least: time.Second, Most: longest, As: "90m or 24h, from 1s to 87600h"}, Group: cli.GroupWhich, Usage: "of this time only, as 90m or 24h"},
			{Name: "limit", Arg: "N", Def: "100", Number: [2]int{1, 10_000}, Group: cli.GroupWhich, Usage: "how many lines, at most 10000"},
			{Name: "events", Group: cli.GroupWhich, Usage: "include the Events of the appliance about problems"},
			cli.OutputOption(cli.FormTable, cli.FormJSON),
		}, settings.ConnectOptions()),
		Run: runJournal,
	}
}

// longest is the maximum of --since for the journal.
const longest = 87_600 * time.Hour

// runJournal prints the journal.
func runJournal(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	q := wire.JournalQuery{Since: v.Option("since").Duration(), Limit: v.Option("limit").Int(), Events: v.Option("events").On()}
	q.Namespace, _ = settings.Given(env, v.Option("namespace"))
	switch {
	case len(args) > 1:
		return cli.Usagef("journal takes one Service, as svc/web, or none")
	case len(args) == 1:
		if v.Option("all-namespaces").On() {
			return cli.Usagef("%s: a name is in one namespace: give -n NAMESPACE, not -A", args[0])
		}
		t, err := resource.OneService(env, v, args[0])
		if err != nil {
			return err
		}
		q.Namespace, q.Name = t.Namespace, t.Name
	case v.Option("all-namespaces").On():
		q.Namespace = ""
	}
	appliance := env.Client(v)
	h, err := client.Call(ctx, appliance, wire.GetHistory, wire.HistoryQuery{Since: cmp.Or(q.Since, longest), Limit: q.Limit, Namespace: q.Namespace, Name: q.Name})
	if err != nil {
		return err
	}
	changes, err := appliance.Journal(ctx, q)
	if f, is := errors.AsType[*wire.Failure](err); is && f.Reason == wire.ReasonForbidden {
		fmt.Fprintln(env.Err, "changes of objects are left out: they are for administrators")
	} else if err != nil {
		return err
	}
	if begin := env.Now().Add(-q.Since); q.Since > 0 && h.From.After(begin) {
		fmt.Fprintf(env.Err, "the history begins at %s\n", output.Stamp(h.From))
	}
	lines := resource.Journal(changes, h.Entries, q.Limit)
	if v.Option("output").Text() == cli.FormTable {
		return env.Print(resource.JournalTable(lines))
	}
	var b strings.Builder
	to := json.NewEncoder(&b)
	for _, l := range lines {
		var line any = l.JournalEntry
		if l.HistoryEntry != nil {
			line = l.HistoryEntry
		}
		if err := to.Encode(line); err != nil {
			return fmt.Errorf("encode as JSON: %w", err)
		}
	}
	return env.Print(b.String())
}
