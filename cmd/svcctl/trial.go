package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// The longest that a trial may last, and the shortest.
const (
	longestTrial  = 24 * time.Hour
	shortestTrial = time.Second
)

// trialDuration reads how long a trial lasts.
func trialDuration(name, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < shortestTrial || d > longestTrial {
		return 0, usagef("%s %q: want a duration as 90s or 5m, at most 24h", name, text)
	}
	return d, nil
}

// startTrial begins a trial of files.
func (p *program) startTrial(ctx context.Context, v *verb, c *client.Client) error {
	after, err := trialDuration("--start", v.option("start").text())
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
func (p *program) showTrial(ctx context.Context, c *client.Client) error {
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	t, text := s.Trial, ""
	switch {
	case t == nil:
		text = "No change is on trial. `svcctl confirm --start 5m` begins a trial of files, `svcctl apply --confirm 5m` one of objects.\n"
	case t.Pending():
		text = fmt.Sprintf("On trial since %s: undone at %s, unless `svcctl confirm`.\n", stamp(t.Began), stamp(t.Ends))
	default:
		text = fmt.Sprintf("Undone at %s: these files are held at their content before the trial. `svcctl confirm` accepts them as they are, `svcctl confirm --start 5m` tries them again.\n", stamp(*t.WentBack))
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
		summary: "keep a change on trial, or a removal that is held",
		about: `Keeps the changes of ` + "`svcctl apply --confirm`" + ` or ` + "`svcctl confirm --start`" + `, which are
undone at the end of their time otherwise. With --back it undoes them at once instead. It
fails with 1 when there is no trial, as when its time was over and the change was undone.

With --start, changes in the watched directories take effect as usual from now on, and are
undone after the duration without ` + "`svcctl confirm`" + `, over crashes, restarts and reboots
too. A second call changes the end. Changes of clients by ` + "`svcctl apply --confirm`" + ` join the
trial. Undoing restores objects with their addresses, ports and uids. The files are not
changed: those that differ are held at their previous content, with a problem in
` + "`svcctl status`" + `. A file that changes again, or is restored, is no longer held. Another
trial tries all held files again, and ` + "`svcctl confirm`" + ` accepts them as they are.

With --removals it confirms the removal of what stays in force because it vanished in a way
that looks like an accident: most Services at once, or all; a directory that has no
manifests any more, is unavailable, or is not watched any more; endpoints that go where
Services stay; and addresses and ports that the kernel serves for unknown Services, when the
data directory was lost or is not mounted. ` + "`svcctl status`" + ` lists what is held. Restoring
the files ends that, too. It names what goes and asks; without a terminal it needs --yes.

All but --state need root.`,
		options: append([]*option{
			{name: "back", group: groupHow, usage: "undo the change now"},
			{name: "start", arg: "DURATION", group: groupHow, usage: "begin a trial of files of this length, as 90s or 5m, 1s to 24h; or move its end"},
			{name: "state", group: groupHow, usage: "show the trial, or the files that are held since one was undone"},
			{name: "removals", group: groupHow, usage: "confirm the removal of what is held since it vanished"},
			yesOption(),
		}, connectOptions()...),
		examples: []example{
			{"The connection still stands: keep the change.", "svcctl confirm"},
			{"Undo it.", "svcctl confirm --back"},
			{"A change of files that may cut this connection.", "svcctl confirm --start 5m && git -C /etc/svcctl pull && sleep 9 && svcctl confirm"},
			{"Let Services go that were removed on purpose.", "svcctl status; sudo svcctl confirm --removals"},
		},
		exits: `  0  done; with --state also without a trial, with --removals if nothing is held
  1  nothing waits to be confirmed: it was undone, or there was no trial
  2  wrong usage or configuration, or no terminal to ask on and no --yes
  3  the appliance cannot be reached`,
		run: p.runConfirm,
	}
}

// runConfirm ends a trial, begins or shows one, or confirms removals.
func (p *program) runConfirm(ctx context.Context, v *verb, _ []string) error {
	var asked []string
	for _, name := range []string{"back", "start", "state", "removals"} {
		if v.option(name).isSet() {
			asked = append(asked, "--"+name)
		}
	}
	switch removals := v.option("removals").on(); {
	case len(asked) > 1:
		return usagef("confirm: %s exclude each other: give one", strings.Join(asked, " and "))
	case v.option("yes").isSet() && !removals:
		return usagef("confirm: --yes is about --removals, which asks: leave it out")
	}
	c, err := p.client(v)
	switch {
	case err != nil:
		return err
	case v.option("start").isSet():
		return p.startTrial(ctx, v, c)
	case v.option("state").on():
		return p.showTrial(ctx, c)
	case v.option("removals").on():
		return p.confirmRemovals(ctx, v, c)
	case v.option("back").on():
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
