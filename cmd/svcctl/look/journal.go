package look

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

func JournalVerb() *cli.Verb {
	return &cli.Verb{
		Name:    "journal",
		Summary: "show who changed which object, and when",
		About: `Shows the newest changes of objects, the oldest of them first: by clients of the API,
with the user and the field manager, by files, and by the appliance's own
controllers. Events are left out, unless --events is given. It is for administrators.

With -o json every change is a JSON object on a line of its own, with the keys
revision, time, verb, kind, namespace, name, user, manager, agent, file and
controller; what does not apply is left out.`,
		Options: append([]*cli.Option{
			{Name: "limit", Arg: "N", Def: "100", Group: "What to show", Usage: "how many changes, at most 10000"},
			{Name: "events", Group: "What to show", Usage: "include the Events of the appliance about problems"},
			cli.OutputOption("table", "json"),
		}, settings.ConnectOptions()...),
		Examples: []cli.Example{
			{"Who deleted something lately?", `svcctl journal --limit 1000 -o json | jq -r 'select(.verb == "delete") | [.time, .user, .name] | @tsv'`},
		},
		Exits: `  0  done
  1  refused
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		Run: runJournal,
	}
}

// runJournal prints the journal.
func runJournal(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	if err := cli.CheckOutput(v); err != nil {
		return err
	}
	limit, err := strconv.Atoi(v.Option("limit").Text())
	if err != nil || limit < 1 {
		return cli.Usagef("--limit %q: want a number from 1 to 10000", v.Option("limit").Text())
	}
	appliance, err := env.Client(v)
	if err != nil {
		return err
	}
	entries, err := appliance.Journal(ctx, limit, v.Option("events").On())
	if err != nil {
		return err
	}
	if v.Option("output").Text() == "table" {
		return env.Print(resource.JournalTable(entries))
	}
	var b strings.Builder
	lines := json.NewEncoder(&b)
	for _, e := range entries {
		if err := lines.Encode(e); err != nil {
			return fmt.Errorf("encode as JSON: %w", err)
		}
	}
	return env.Print(b.String())
}
