package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/rollout"
)

// What a rollout is given when nothing is said.
const (
	defaultBake   = "2m"
	defaultWithin = "1m"
	// rolloutPoll is the interval of `rollout status --wait`.
	rolloutPoll = time.Second
	// rolloutGiveUp bounds the attempt to undo what could not be started.
	rolloutGiveUp = 5 * time.Second
)

func (p *program) rolloutVerb() *verb {
	move := func(word, summary, about, answer string) *verb {
		return &verb{name: "fleet rollout " + word, summary: summary, about: about + " It works on any box of the fleet, and needs root.",
			options: connectOptions(),
			examples: []example{
				{"The rollout that is under way.", "sudo svcctl fleet rollout " + word},
			},
			exits: `  0  done
  1  there is none, or it was refused: stderr has the reason
  2  wrong usage
  3  the appliance cannot be reached`,
			run: func(ctx context.Context, v *verb, _ []string) error {
				c, err := p.client(v)
				if err != nil {
					return err
				}
				r, err := client.Call(ctx, c, wire.MoveRollout[word], wire.MoveQuery{})
				if err != nil {
					return err
				}
				return p.print(fmt.Sprintf(answer, r.ID))
			}}
	}
	return &verb{
		name:    "fleet rollout",
		summary: "show, stop, resume or undo a staged rollout",
		about: `` + "`svcctl apply --rollout`" + ` and ` + "`svcctl delete --rollout`" + ` apply a
change to some boxes of a fleet first, observe them, and continue with more and then with
all. The rollout stops when a box of the step reports a new problem, fails, stops reporting,
or has not programmed it in time, and when a Service has lost its last endpoint. Then boxes
that have the change keep it, and the others keep the previous versions. With --on-failure
undo it is undone instead of stopped.`,
		examples: []example{
			{"One box first, then a quarter of them, then all, each watched for five minutes.", "svcctl apply -f web.yaml --rollout gw1,25%,100% --bake 5m && svcctl fleet rollout status --wait"},
			{"Undo it automatically when something goes wrong.", "svcctl apply -f web.yaml --rollout gw1,25%,100% --on-failure undo && svcctl fleet rollout status --wait"},
		},
		verbs: words(&verb{
			name:    "fleet rollout status",
			summary: "show its progress, its boxes, and why it stopped",
			about:   "Shows the rollout that is under way, or the last one, with the next step when it has stopped.",
			options: slices.Concat([]*option{
				{name: "wait", group: groupHow, usage: "return when it is done, undone or stopped"},
				outputOption(formTable, formJSON),
			}, connectOptions()),
			examples: []example{{"The progress.", "svcctl fleet rollout status"}},
			exits: `  0  it is under way, done, or undone
  1  it has stopped or, with --wait, was undone; or there is none
  2  wrong usage
  3  the appliance cannot be reached`,
			run: p.rolloutStatus,
		},
			move(wire.RolloutPause, "stop it", "Stops the rollout: boxes that have the change keep it, the others keep the previous versions.",
				"Rollout %s is paused: `svcctl fleet rollout resume`, or `svcctl fleet rollout undo`.\n"),
			move(wire.RolloutResume, "continue with the step at which it stopped", "Continues with the step at which the rollout stopped, whatever the boxes report by now.", "Rollout %s goes on.\n"),
			move(wire.RolloutUndo, "take it back on all boxes", "Takes the rollout back on all boxes: objects are what they were, with their addresses.", "Rollout %s is undone.\n")),
	}
}

// rolloutStatus prints the rollout, and fails when it has stopped.
func (p *program) rolloutStatus(ctx context.Context, v *verb, _ []string) error {
	if err := checkOutput(v); err != nil {
		return err
	}
	c, err := p.client(v)
	if err != nil {
		return err
	}
	wait := v.option("wait").on()
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
		if err := p.output(v, r, func() string { return rolloutPage(r) }); err != nil {
			return err
		}
		if r.Phase == wire.RolloutStopped || wait && r.Phase == wire.RolloutUndone {
			return &exitError{code: exitNo}
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
	line("Rollout", fmt.Sprintf("%s, begun%s at %s", r.ID, by, stamp(r.Began)))
	phase := fmt.Sprintf("%s, since %s", r.Phase, stamp(r.Since))
	if r.Left > 0 {
		phase += fmt.Sprintf(", %s left", span(time.Duration(r.Left)))
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
	const most = 10
	if n := len(r.Objects); n > 0 {
		text := strings.Join(r.Objects[:min(most, n)], ", ")
		if n > most {
			text += fmt.Sprintf(" and %d more", n-most)
		}
		line("Objects", text)
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

// rolloutOptions are --rollout, its times, and what becomes of it.
func rolloutOptions() []*option {
	return []*option{
		{name: "rollout", arg: "STEPS", group: groupHow, usage: "in a fleet: some boxes first, as gw1,25%,100% or gw1+gw2,100%; see `svcctl fleet rollout`"},
		{name: "bake", arg: "DURATION", def: defaultBake, group: groupHow, usage: "with --rollout: for how long the boxes of a step are watched before the next one"},
		{name: "within", arg: "DURATION", def: defaultWithin, group: groupHow, usage: "with --rollout: in what time the boxes of a step have to program it"},
		{name: "on-failure", arg: wire.OnFailureStop + "|" + wire.OnFailureUndo, def: wire.OnFailureStop, words: []string{wire.OnFailureStop, wire.OnFailureUndo}, group: groupHow,
			usage: "with --rollout: where it would stop by itself, stop, and wait for `svcctl fleet rollout resume` or `undo`; or undo it at once"},
	}
}

// rolling is the rollout that a verb's changes belong to; nil: they come to all boxes at once.
type rolling struct {
	p            *program
	c            *client.Client
	steps        string
	bake, within time.Duration
	onFailure    string
	began        *wire.Rollout
}

// rolling reads --rollout.
func (p *program) rolling(v *verb, c *client.Client) (r *rolling, err error) {
	o := v.option("rollout")
	if !o.isSet() {
		if v.option("bake").isSet() || v.option("within").isSet() || v.option("on-failure").isSet() {
			return nil, usagef("--bake, --within and --on-failure are about a rollout: give --rollout, too")
		}
		return nil, nil
	}
	if v.option("confirm").isSet() {
		return nil, usagef("--rollout and --confirm exclude each other: a rollout is taken back by `svcctl fleet rollout undo`")
	}
	r = &rolling{p: p, c: c, steps: o.text(), onFailure: v.option("on-failure").text()}
	if words := v.option("on-failure").words; !slices.Contains(words, r.onFailure) {
		return nil, usagef("--on-failure %q: want %s", r.onFailure, strings.Join(words, " or "))
	}
	if _, err := rollout.ParseSteps(r.steps); err != nil {
		return nil, usagef("--rollout: %v", err)
	}
	if r.bake, err = time.ParseDuration(v.option("bake").text()); err != nil || r.bake < 0 {
		return nil, usagef("--bake %q: want a duration as 90s or 5m", v.option("bake").text())
	}
	if r.within, err = time.ParseDuration(v.option("within").text()); err != nil || r.within < time.Second {
		return nil, usagef("--within %q: want a duration as 90s or 5m, at least 1s", v.option("within").text())
	}
	return r, nil
}

// untried says that a dry run is none of the rollout.
func (r *rolling) untried() {
	if r != nil {
		fmt.Fprintf(r.p.stderr, "--rollout %s is not tried with --dry-run: what is decided is the same for all boxes\n", r.steps)
	}
}

// begin begins the rollout before the first change.
func (r *rolling) begin(ctx context.Context) error {
	if r == nil || r.began != nil {
		return nil
	}
	began, err := client.Call(ctx, r.c, wire.BeginRollout, wire.RolloutQuery{Steps: r.steps, Bake: r.bake, Within: r.within, OnFailure: r.onFailure})
	if err != nil {
		return err
	}
	r.began, r.c.InRollout = began, began.ID
	if r.onFailure != cmp.Or(began.OnFailure, wire.OnFailureStop) {
		return fmt.Errorf("--on-failure %s: the box that was asked runs a version that does not know it", r.onFailure)
	}
	return nil
}

// end starts the rollout, or undoes it when something of it failed.
func (r *rolling) end(ctx context.Context, failed error) error {
	if r == nil || r.began == nil {
		return failed
	}
	r.c.InRollout = ""
	if failed == nil {
		started, err := client.Call(ctx, r.c, wire.MoveRollout[wire.RolloutStart], wire.MoveQuery{ID: r.began.ID})
		if err == nil && !started.Pending {
			_, err = fmt.Fprintln(r.p.stderr, "nothing is rolled out: every object is as in the files")
			return err
		}
		if err == nil {
			_, err = fmt.Fprintf(r.p.stderr, "rollout %s: step 1 of %d (%s); see `svcctl fleet rollout status`\n", started.ID, len(started.Steps), started.Steps[started.Step])
			return err
		}
		failed = err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rolloutGiveUp)
	defer cancel()
	if _, err := client.Call(ctx, r.c, wire.MoveRollout[wire.RolloutUndo], wire.MoveQuery{ID: r.began.ID}); err != nil {
		if refused, is := errors.AsType[*wire.Failure](err); !is || refused.Reason != wire.ReasonConflict { // else it is over
			return errors.Join(failed, fmt.Errorf("nothing is rolled out, and rollout %s could not be undone (%w): it is undone automatically after %v", r.began.ID, err, rollout.Gather))
		}
	}
	return errors.Join(failed, errors.New("nothing is rolled out: no box has any of it"))
}
