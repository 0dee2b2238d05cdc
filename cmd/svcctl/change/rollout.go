package change

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/rollout"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// The defaults of --bake and --within.
const (
	defaultBake   = "2m"
	defaultWithin = "1m"
	// rolloutGiveUp is the maximum time for undoing a rollout that could not be started.
	rolloutGiveUp = 5 * time.Second
)

// rolloutOptions returns --rollout and its related options.
func rolloutOptions() []*cli.Option {
	return []*cli.Option{
		{Name: "rollout", Arg: "STEPS", Group: cli.GroupHow, Usage: "in a fleet: some boxes first, as gw1,25%,100% or gw1+gw2,100%; see `svcctl fleet rollout`"},
		{Name: "bake", Arg: "DURATION", Def: defaultBake, Bounds: &cli.Bounds{Most: math.MaxInt64, As: "90s or 5m, at least 0s"}, Group: cli.GroupHow, Usage: "with --rollout: for how long the boxes of a step are watched before the next one"},
		{Name: "within", Arg: "DURATION", Def: defaultWithin, Bounds: &cli.Bounds{Least: time.Second, Most: math.MaxInt64, As: "90s or 5m, at least 1s"}, Group: cli.GroupHow, Usage: "with --rollout: in what time the boxes of a step have to program it"},
		{Name: "on-failure", Arg: wire.OnFailureStop + "|" + wire.OnFailureUndo, Def: wire.OnFailureStop, Words: []string{wire.OnFailureStop, wire.OnFailureUndo}, Strict: true, Group: cli.GroupHow,
			Usage: "with --rollout: where it would stop by itself, stop, and wait for `svcctl fleet rollout resume` or `undo`; or undo it at once"},
	}
}

// rolling is the staged rollout for the changes that a verb makes; nil without --rollout.
type rolling struct {
	env          *cli.Env
	c            *client.Client
	steps        string
	bake, within time.Duration
	onFailure    string
	began        *wire.Rollout
}

// newRolling returns the rollout that --rollout and its related options request; nil without --rollout.
func newRolling(env *cli.Env, v *cli.Verb, c *client.Client) (r *rolling, err error) {
	o := v.Option("rollout")
	if !o.IsSet() {
		if v.Option("bake").IsSet() || v.Option("within").IsSet() || v.Option("on-failure").IsSet() {
			return nil, cli.Usagef("--bake, --within and --on-failure are about a rollout: give --rollout, too")
		}
		return nil, nil
	}
	if v.Option("confirm").IsSet() {
		return nil, cli.Usagef("--rollout and --confirm exclude each other: a rollout is taken back by `svcctl fleet rollout undo`")
	}
	r = &rolling{env: env, c: c, steps: o.Text(), bake: v.Option("bake").Duration(), within: v.Option("within").Duration(), onFailure: v.Option("on-failure").Text()}
	if _, err := rollout.ParseSteps(r.steps); err != nil {
		return nil, cli.Usagef("--rollout: %v", err)
	}
	return r, nil
}

// untried prints that a dry run ignores --rollout.
func (r *rolling) untried() {
	if r != nil {
		fmt.Fprintf(r.env.Err, "--rollout %s is not tried with --dry-run: what is decided is the same for all boxes\n", r.steps)
	}
}

// begin creates the rollout. It must be called before the first change; later calls do nothing.
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
		return fmt.Errorf("--on-failure %s: the requested box runs a version without it", r.onFailure)
	}
	return nil
}

// end starts the rollout after all changes were made. If failed is not nil, it undoes the rollout instead.
func (r *rolling) end(ctx context.Context, failed error) error {
	if r == nil || r.began == nil {
		return failed
	}
	r.c.InRollout = ""
	if failed == nil {
		started, err := client.Call(ctx, r.c, wire.MoveRollout[wire.RolloutStart], wire.MoveQuery{ID: r.began.ID})
		if err == nil && !started.Pending {
			_, err = fmt.Fprintln(r.env.Err, "nothing is rolled out: every object is as in the files")
			return err
		}
		if err == nil {
			_, err = fmt.Fprintf(r.env.Err, "rollout %s: step 1 of %d (%s); see `svcctl fleet rollout status`\n", started.ID, len(started.Steps), started.Steps[started.Step])
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

// The values of --wait that select boxes of a fleet.
const (
	waitPresent = "present" // all boxes that currently report, the default
	waitAll     = "all"
	waitQuorum  = "quorum" // more than half of all boxes
	waitBox     = "box"    // the box that answers the request
)

// fleetPoll is the interval at which --wait asks for the revisions of the boxes.
const fleetPoll = 300 * time.Millisecond

// patience is the parsed --wait: the timeout, and which boxes of a fleet to wait for.
type patience struct {
	timeout time.Duration // 0 means not to wait
	boxes   string        // waitPresent or another of these values; "" means waitPresent
}

// patienceOf parses --wait: a duration, a selection of boxes, or both, such as "all,2m".
func patienceOf(v *cli.Verb) (w patience, err error) {
	text := v.Option("wait").Text()
	switch text {
	case "", "false":
		return w, nil
	case "true":
		return patience{timeout: defaultWait}, nil
	}
	w.timeout = defaultWait
	switch boxes, rest, both := strings.Cut(text, ","); boxes {
	case waitPresent, waitAll, waitQuorum, waitBox:
		if w.boxes = boxes; !both {
			return w, nil
		}
		text = rest
	}
	w.timeout, err = cli.Wait.Read("wait", text)
	return w, err
}

// waitForKernels waits until the boxes that w selects have programmed a revision into their kernels.
func waitForKernels(ctx context.Context, env *cli.Env, c *client.Client, revision uint64, w patience) error {
	defer env.Waiting(func() string { return "waiting until it is in the kernel" }, w.timeout)()
	if w.boxes == waitBox {
		_, err := c.WaitFor(ctx, client.Synced, revision, w.timeout)
		return err
	}
	status, err := c.Status(ctx)
	switch {
	case err != nil:
		return err
	case status.Fleet != nil:
		return waitForBoxes(ctx, env, c, revision, w)
	case w.boxes != "":
		return fmt.Errorf("--wait=%s: this box belongs to no fleet; --wait alone waits for it", w.boxes)
	}
	_, err = c.WaitFor(ctx, client.Synced, revision, w.timeout)
	return err
}

// waitForBoxes waits until the boxes of the fleet that w selects report that they have programmed a revision.
func waitForBoxes(ctx context.Context, env *cli.Env, c *client.Client, revision uint64, w patience) error {
	deadline := time.Now().Add(w.timeout)
	for {
		f, err := client.Call(ctx, c, wire.GetFleet, wire.None{})
		if err != nil {
			return fmt.Errorf("the change is made, and which boxes have it is not known: %w", err)
		}
		missing, away, done := behindOf(f.Boxes, revision, w.boxes)
		if done {
			if len(away) > 0 {
				fmt.Fprintf(env.Err, "not reporting, and not waited for: %s\n", strings.Join(away, ", "))
			}
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the change is made at revision %d, and after %s it is not in the kernel of %s", revision, w.timeout, strings.Join(missing, ", "))
		}
		if err := client.Pause(ctx, fleetPoll); err != nil {
			return err
		}
	}
}

// behindOf returns the boxes that have not programmed a revision, with their states (missing). of is a value of --wait: done reports whether all
// boxes (waitAll), a majority (waitQuorum) or all boxes that report (waitPresent) have programmed it. With waitPresent, away has the names of the
// missing boxes that do not report; otherwise it is nil.
func behindOf(boxes []wire.FleetBox, revision uint64, of string) (missing, away []string, done bool) {
	for i := range boxes {
		switch b := &boxes[i]; {
		case b.Programmed >= revision && b.State != wire.BoxKeyMissing: // it may be the Secret that it cannot read
		case b.State == wire.BoxAway:
			away = append(away, b.Name)
			missing = append(missing, b.Name+" (not reporting)")
		case b.Why != "":
			missing = append(missing, fmt.Sprintf("%s (%s: %s)", b.Name, b.State, b.Why))
		default:
			missing = append(missing, fmt.Sprintf("%s (%s, at revision %d)", b.Name, b.State, b.Programmed))
		}
	}
	switch of {
	case waitAll:
		return missing, nil, len(missing) == 0
	case waitQuorum:
		return missing, nil, 2*(len(boxes)-len(missing)) > len(boxes)
	}
	return missing, away, len(missing) == len(away)
}
