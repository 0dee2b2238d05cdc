package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

// rolloutPoll is the interval of `svcctl fleet rollout status --wait`.
const rolloutPoll = time.Second

func rolloutVerb() *cli.Verb {
	move := func(word, answer string) *cli.Verb {
		return &cli.Verb{Name: "fleet rollout " + word, Options: settings.ConnectOptions(),
			Run: func(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
				c, err := env.Client(v)
				if err != nil {
					return err
				}
				r, err := client.Call(ctx, c, wire.MoveRollout[word], wire.MoveQuery{})
				if err != nil {
					return err
				}
				return env.Print(fmt.Sprintf(answer, r.ID))
			}}
	}
	return &cli.Verb{
		Name: "fleet rollout",
		Verbs: cli.Words(&cli.Verb{
			Name: "fleet rollout status",
			Options: slices.Concat([]*cli.Option{
				{Name: "wait", Group: cli.GroupHow, Usage: "return when it is done, undone or stopped"},
				cli.OutputOption(cli.FormTable, cli.FormJSON),
			}, settings.ConnectOptions()),
			Run: rolloutStatus,
		},
			move(wire.RolloutPause, "Rollout %s is paused: `svcctl fleet rollout resume`, or `svcctl fleet rollout undo`.\n"),
			move(wire.RolloutResume, "Rollout %s goes on.\n"),
			move(wire.RolloutUndo, "Rollout %s is undone.\n")),
	}
}

// rolloutStatus prints the rollout, and fails when it has stopped.
func rolloutStatus(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	if err := cli.CheckOutput(v); err != nil {
		return err
	}
	c, err := env.Client(v)
	if err != nil {
		return err
	}
	wait := v.Option("wait").On()
	for {
		r, err := client.Call(ctx, c, wire.GetRollout, wire.None{})
		if err != nil {
			return err
		}
		if wait && r.Pending && r.Phase != wire.RolloutStopped {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(rolloutPoll):
			}
			continue
		}
		if err := env.Output(v, r, func() string { return rolloutPage(r) }); err != nil {
			return err
		}
		if r.Phase == wire.RolloutStopped || wait && r.Phase == wire.RolloutUndone {
			return &cli.ExitError{Code: cli.ExitNo}
		}
		return nil
	}
}

// rolloutPage is a rollout for people.
func rolloutPage(r *wire.Rollout) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	line := func(name, text string) { fmt.Fprintf(w, "%s\t%s\n", name, text) }
	by := ""
	if r.User != "" {
		by = " by " + r.User
	}
	line("Rollout", fmt.Sprintf("%s, begun%s at %s", r.ID, by, output.Stamp(r.Began)))
	phase := fmt.Sprintf("%s, since %s", r.Phase, output.Stamp(r.Since))
	if r.Left > 0 {
		phase += fmt.Sprintf(", %s left", output.Span(time.Duration(r.Left)))
	}
	line("Phase", phase)
	if r.Phase != wire.RolloutGathering && r.Step < len(r.Steps) {
		line("Step", fmt.Sprintf("%d of %d (%s), of %s", r.Step+1, len(r.Steps), r.Steps[r.Step], strings.Join(r.Steps, ", ")))
	}
	if r.Why != "" {
		line("Why", r.Why)
	}
	if r.Pending && r.OnFailure == wire.OnFailureUndo {
		line("On failure", "it is undone by itself")
	}
	if r.Phase == wire.RolloutStopped {
		line("What to do", "`svcctl fleet rollout resume` goes on with this step, `svcctl fleet rollout undo` takes it back")
	}
	if len(r.Objects) > 0 {
		line("Objects", wire.First(r.Objects, 10))
	}
	if r.BoxesUnknown != "" {
		line("Boxes", "not known: "+r.BoxesUnknown)
	}
	_ = w.Flush() // into memory
	if len(r.Boxes) == 0 {
		return b.String()
	}
	b.WriteString("\n")
	fmt.Fprintln(w, "BOX\tVERSIONS\tSTATE\tPROGRAMMED")
	for _, x := range r.Boxes {
		versions, programmed := "before", "-"
		if x.New {
			versions, programmed = "new", map[bool]string{true: "yes", false: "no"}[x.Programmed]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", x.Name, versions, x.State, programmed)
	}
	_ = w.Flush() // into memory
	return b.String()
}
