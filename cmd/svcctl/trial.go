package main

import (
	"context"
	"errors"
	"fmt"
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
		summary: "have changes of files go back unless they are confirmed",
		args:    "DURATION [FLAGS]",
		about: `From now on, what changes in the watched directories comes into force as ever, and
goes back after the duration unless ` + "`svcctl confirm`" + ` says before that it may stay.
That holds over crashes, restarts and reboots. A second call moves the end.

When it goes back, objects have the addresses, ports and uids that they had. The files
are not touched: those that differ are held as they were before, which is a problem in
` + "`svcctl status`" + `. A file that changes once more, or is put back, is held no longer;
another trial tries all of them again, and ` + "`svcctl confirm`" + ` takes them as they are.

What clients change with ` + "`svcctl apply --confirm`" + ` meanwhile joins the trial. It needs root.`,
		options: connectOptions(),
		examples: []example{
			{"A change that may cut this very connection.", "svcctl trial 5m && git -C /etc/svcctl pull && sleep 9 && svcctl confirm"},
		},
		exits: `  0  the trial is under way
  1  it is not: stderr says why
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
	if len(args) != 1 {
		return usagef("trial takes how long it waits to be confirmed, as `svcctl trial 5m`")
	}
	after, err := trialDuration("trial", args[0])
	if err != nil {
		return err
	}
	c, err := p.client(v)
	if err != nil {
		return err
	}
	t, err := c.BeginTrial(ctx, true, after)
	if err != nil {
		return err
	}
	return p.print(fmt.Sprintf("What files change goes back at %s, unless `svcctl confirm`.\n", stamp(t.Ends)))
}

// confirmOption is --confirm.
func confirmOption() *option {
	return &option{name: "confirm", arg: "DURATION", group: groupHow, usage: "take it all back after the time, unless `svcctl confirm` comes before"}
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
	began, err := t.c.BeginTrial(ctx, false, t.after)
	if err != nil {
		return err
	}
	t.began, t.c.Trial = &began, began.ID
	return nil
}

// tell prints the time at which the trial goes back.
func (t *trying) tell() error {
	if t == nil || t.began == nil {
		return nil
	}
	_, err := fmt.Fprintf(t.p.stderr, "on trial: it goes back at %s, unless `svcctl confirm`\n", stamp(t.began.Ends))
	return err
}

func (p *program) confirmVerb() *verb {
	return &verb{
		name:    "confirm",
		summary: "keep the change that is on trial",
		about: `Makes what ` + "`svcctl apply --confirm`" + ` or ` + "`svcctl trial`" + ` has changed stay. After a trial of
files went back, it takes the files as they are now. With --back it takes the change back at
once instead.

It is a no (1) when nothing waits to be confirmed, as when the time was over: what was
on trial went back then. It needs root.`,
		options: append([]*option{
			{name: "back", group: groupHow, usage: "take the change back now"},
		}, connectOptions()...),
		examples: []example{
			{"The connection still stands: keep the change.", "svcctl confirm"},
			{"It was not good.", "svcctl confirm --back"},
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
		back, err := c.GoBack(ctx)
		if err != nil {
			return err
		}
		return p.print(revivedLines(back, "") + "The change was taken back.\n")
	}
	t, err := c.Confirm(ctx)
	if err != nil {
		return err
	}
	text := "Confirmed: " + count(len(t.Objects), "object")
	if len(t.Files) > 0 {
		text += ", " + count(len(t.Files), "file")
	}
	return p.print(text + ".\n")
}

// revivedLines has a line for each object that is what it was.
func revivedLines(b wire.RolledBack, suffix string) string {
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
