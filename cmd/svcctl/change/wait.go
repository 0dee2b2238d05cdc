package change

import (
	"context"
	"fmt"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// The boxes of a fleet that --wait waits for.
const (
	waitPresent = "present" // those that report
	waitAll     = "all"
	waitQuorum  = "quorum" // most of all
	waitBox     = "box"    // the one that was asked
)

// fleetPoll is the interval at which --wait asks for the revisions of the boxes.
const fleetPoll = 300 * time.Millisecond

// patience has the timeout of --wait, and the boxes that it waits for.
type patience struct {
	timeout time.Duration // 0: nothing
	boxes   string        // "": of a fleet those that report
}

// patienceOf reads --wait: a duration, which boxes, or both as "all,2m".
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
	w.timeout, err = cli.Duration("wait", text)
	return w, err
}

// waitForKernels returns when a revision is in the kernels that are waited for.
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

// waitForBoxes waits for the reports of the boxes of a fleet.
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
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(fleetPoll):
		}
	}
}

// behindOf names the boxes that have not programmed a revision, with their states, and those among them that do
// not report; done is set when all have that are waited for.
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
