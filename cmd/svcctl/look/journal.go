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
		Name:    "journal",
		Summary: "show changes, health, announcements and problems by time",
		Args:    "[svc/NAME] [FLAGS]",
		About: `Shows, the oldest first, the newest changes of objects, with their authors, and the history of
the box: endpoints that went down and came up, Services that did not answer, announcements,
and problems with their ends. Of one Service, of a namespace, or of all.

WHO is the author of a change: a user of the API with the field manager, a file, or a
controller of the appliance. Of the history it is problem, endpoint, condition (of a Service)
or announcement; ✗ and ▲ are faults, and ✓ their ends.

Both are kept over restarts and kill -9: about 10,000 changes and 8,000 entries of the
history. Changes are for administrators; others get the history alone. Events are left out,
unless --events is given.

With -o json every line is a JSON object. A change has the keys revision, time, verb, kind,
namespace, name, user, manager, agent, file and controller; an entry of the history time,
kind, severity (error or warning), text, services and concerned. What does not apply is left
out.`,
		Options: slices.Concat([]*cli.Option{
			settings.NamespaceOption(),
			{Name: "all-namespaces", Letter: "A", Group: cli.GroupWhich, Usage: "of all namespaces, as without -n"},
			{Name: "since", Arg: "DURATION", Group: cli.GroupWhich, Usage: "of this time only, as 90m or 24h"},
			{Name: "limit", Arg: "N", Def: "100", Group: cli.GroupWhich, Usage: "how many lines, at most 10000"},
			{Name: "events", Group: cli.GroupWhich, Usage: "include the Events of the appliance about problems"},
			cli.OutputOption(cli.FormTable, cli.FormJSON),
		}, settings.ConnectOptions()),
		Examples: []cli.Example{
			{"The last hour.", "svcctl journal --since 1h"},
			{"When did this Service fail, and who changed it before?", "svcctl journal svc/web -n shop"},
			{"Who deleted something lately?", `svcctl journal --limit 1000 -o json | jq -r 'select(.verb == "delete") | [.time, .user, .name] | @tsv'`},
			{"The faults of a week.", `svcctl journal --since 168h --limit 10000 -o json | jq -r 'select(.severity == "error") | .time + " " + .text'`},
		},
		Exits: `  0  done
  1  refused
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
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
