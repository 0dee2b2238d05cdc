package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// The longest that a trial may last, and the shortest.
const (
	longestTrial  = 24 * time.Hour
	shortestTrial = time.Second
)

func (p *program) trialVerb() *verb {
	return &verb{
		name:    "trial",
		summary: "undo changes of files unless they are confirmed",
		args:    "[DURATION] [FLAGS]",
		about: `From now on, changes in the watched directories take effect as usual, and are
undone after the duration without ` + "`svcctl confirm`" + `, over crashes, restarts and
reboots too. A second call changes the end.

Undoing restores objects with their addresses, ports and uids. The files are not changed:
those that differ are held at their previous content, with a problem in
` + "`svcctl status`" + `. A file that changes again, or is restored, is no longer held.
Another trial tries all held files again, and ` + "`svcctl confirm`" + ` accepts them as
they are.

Changes of clients by ` + "`svcctl apply --confirm`" + ` join the trial. Without a duration it shows the
trial that is under way. Beginning one needs root.`,
		options: connectOptions(),
		examples: []example{
			{"A change that may cut this connection.", "svcctl trial 5m && git -C /etc/svcctl pull && sleep 9 && svcctl confirm"},
		},
		exits: `  0  the trial is under way, or shown
  1  it is not: stderr has the reason
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runTrial,
	}
}

// trialDuration reads how long a trial lasts.
func trialDuration(name, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < shortestTrial || d > longestTrial {
		return 0, usagef("%s %q: want a duration as 90s or 5m, at most 24h", name, text)
	}
	return d, nil
}

// runTrial begins a trial of files.
func (p *program) runTrial(ctx context.Context, v *verb, args []string) error {
	if len(args) == 0 {
		return p.showTrial(ctx, v)
	}
	if len(args) > 1 {
		return usagef("trial takes one duration, as `svcctl trial 5m`")
	}
	after, err := trialDuration("trial", args[0])
	if err != nil {
		return err
	}
	c, err := p.client(v)
	if err != nil {
		return err
	}
	t, err := client.Call(ctx, c, wire.BeginTrial, wire.TrialQuery{For: after, Files: true})
	if err != nil {
		return err
	}
	return p.print(fmt.Sprintf("Changes of files are undone at %s, unless `svcctl confirm`.\n", stamp(t.Ends)))
}

// showTrial prints the trial that is under way, or the files that are held since one was undone.
func (p *program) showTrial(ctx context.Context, v *verb) error {
	c, err := p.client(v)
	if err != nil {
		return err
	}
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	t, text := s.Trial, ""
	switch {
	case t == nil:
		text = "No change is on trial. `svcctl trial 5m` begins a trial of files, `svcctl apply --confirm 5m` one of objects.\n"
	case t.Pending():
		text = fmt.Sprintf("On trial since %s: undone at %s, unless `svcctl confirm`.\n", stamp(t.Began), stamp(t.Ends))
	default:
		text = fmt.Sprintf("Undone at %s: these files are held at their content before the trial. `svcctl confirm` accepts them as they are, `svcctl trial 5m` tries them again.\n", stamp(*t.WentBack))
	}
	if t != nil {
		for _, what := range slices.Concat(t.Objects, t.Files) {
			text += "  " + what + "\n"
		}
	}
	return p.print(text)
}

// confirmOption is --confirm.
func confirmOption() *option {
	return &option{name: "confirm", arg: "DURATION", group: groupHow, usage: "undo the change after this time without `svcctl confirm`"}
}

// trying is the trial that a verb's changes belong to; nil: they stay.
type trying struct {
	p     *program
	c     *client.Client
	after time.Duration
	began *wire.Trial
}

// trying reads --confirm.
func (p *program) trying(v *verb, c *client.Client) (*trying, error) {
	o := v.option("confirm")
	if !o.isSet() {
		return nil, nil
	}
	after, err := trialDuration("--confirm", o.text())
	if err != nil {
		return nil, err
	}
	return &trying{p: p, c: c, after: after}, nil
}

// begin begins the trial before the first change.
func (t *trying) begin(ctx context.Context) error {
	if t == nil || t.began != nil {
		return nil
	}
	began, err := client.Call(ctx, t.c, wire.BeginTrial, wire.TrialQuery{For: t.after})
	if err != nil {
		return err
	}
	t.began, t.c.Trial = began, began.ID
	return nil
}

// tell prints the time at which the trial goes back. A trial without any change is ended.
func (t *trying) tell(ctx context.Context) error {
	if t == nil || t.began == nil {
		return nil
	}
	if _, err := client.Call(ctx, t.c, wire.EndTrial, wire.EndQuery{ID: t.began.ID}); err == nil {
		_, err = fmt.Fprintln(t.p.stderr, "nothing has changed, so there is no trial")
		return err
	}
	_, err := fmt.Fprintf(t.p.stderr, "on trial: the change is undone at %s, unless `svcctl confirm`\n", stamp(t.began.Ends))
	return err
}

func (p *program) confirmVerb() *verb {
	return &verb{
		name:    "confirm",
		summary: "keep the change that is on trial",
		about: `Keeps the changes of ` + "`svcctl apply --confirm`" + ` or
` + "`svcctl trial`" + `. After a trial of files was undone, it accepts the files as they
are now. With --back it undoes the change at once instead.

It fails with 1 when there is no trial, as when its time was over and the change was undone.
It needs root.`,
		options: append([]*option{
			{name: "back", group: groupHow, usage: "undo the change now"},
		}, connectOptions()...),
		examples: []example{
			{"The connection still stands: keep the change.", "svcctl confirm"},
			{"Undo it.", "svcctl confirm --back"},
		},
		exits: `  0  done
  1  nothing waits to be confirmed: it went back, or there was no trial
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runConfirm,
	}
}

// runConfirm ends a trial.
func (p *program) runConfirm(ctx context.Context, v *verb, args []string) error {
	if len(args) > 0 {
		return usagef("confirm takes no arguments")
	}
	c, err := p.client(v)
	if err != nil {
		return err
	}
	if v.option("back").on() {
		back, err := client.Call(ctx, c, wire.UndoTrial, wire.None{})
		if err != nil {
			return perhapsDone(err, "taken back")
		}
		return p.print(revivedLines(back, "") + "The change was taken back.\n")
	}
	t, err := client.Call(ctx, c, wire.ConfirmTrial, wire.None{})
	if err != nil {
		return perhapsDone(err, "confirmed")
	}
	text := "Confirmed: " + count(len(t.Objects), "object")
	if len(t.Files) > 0 {
		text += ", " + count(len(t.Files), "file")
	}
	return p.print(text + ".\n")
}

// perhapsDone adds to the error of a call that was sent and not answered that it may have taken effect.
func perhapsDone(err error, what string) error {
	unreached, is := errors.AsType[*client.UnreachableError](err)
	if !is || !unreached.Sent() {
		return err
	}
	return fmt.Errorf("%w; the change may have been %s: see `svcctl status` when it runs again", err, what)
}

// revivedLines has a line for each object that is what it was.
func revivedLines(b *wire.RolledBack, suffix string) string {
	text := ""
	for _, r := range b.Objects {
		text += r.Object + " " + r.Did + suffix
		if r.Why != "" {
			text += ": " + oneLine(r.Why)
		}
		text += "\n"
	}
	return text
}

// errConflicts means that a rollback could not restore every object.
var errConflicts = errors.New("not every object is served as it was: see above")
