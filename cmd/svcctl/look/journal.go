package look

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

func JournalVerb() *cli.Verb {
	return &cli.Verb{
		Name: "journal",
		Options: slices.Concat([]*cli.Option{
			settings.NamespaceOption(),
			{Name: "all-namespaces", Letter: "A", Group: cli.GroupWhich, Usage: "of all namespaces, as without -n"},
			{Name: "since", Arg: "DURATION", Group: cli.GroupWhich, Usage: "of this time only, as 90m or 24h"},
			{Name: "limit", Arg: "N", Def: "100", Group: cli.GroupWhich, Usage: "how many lines, at most 10000"},
			{Name: "events", Group: cli.GroupWhich, Usage: "include the Events of the appliance about problems"},
			cli.OutputOption(cli.FormTable, cli.FormJSON),
		}, settings.ConnectOptions()),
		Run: runJournal,
	}
}

// longest is the greatest age of a line that can be given.
const longest = 87_600 * time.Hour

// runJournal prints the journal.
func runJournal(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if err := cli.CheckOutput(v); err != nil {
		return err
	}
	limit, err := wire.ParseBounded(v.Option("limit").Text(), 0, 10_000)
	if err != nil {
		return cli.Usagef("--limit %w", err)
	}
	q := wire.JournalQuery{Limit: limit, Events: v.Option("events").On()}
	if since := v.Option("since"); since.IsSet() {
		if q.Since, err = time.ParseDuration(since.Text()); err != nil || q.Since < time.Second || q.Since > longest {
			return cli.Usagef("--since %q: want a duration as 90m or 24h, at most 87600h", since.Text())
		}
	}
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
	appliance, err := env.Client(v)
	if err != nil {
		return err
	}
	h, err := client.Call(ctx, appliance, wire.GetHistory, wire.HistoryQuery{Since: cmp.Or(q.Since, longest), Limit: limit, Namespace: q.Namespace, Name: q.Name})
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
	lines := resource.Journal(changes, h.Entries, limit)
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
