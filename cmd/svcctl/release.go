package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// confirmRemovals lets go what is held and prints how much that was.
func (p *program) confirmRemovals(ctx context.Context, v *verb, c *client.Client) error {
	status, err := settledRemovals(ctx, c)
	if err != nil {
		return err
	}
	if consequence := releaseConsequence(status); consequence != "" {
		if err := p.consent(v, consequence); err != nil {
			return err
		}
	}
	released, err := client.Call(ctx, c, wire.Release, wire.None{})
	if err != nil {
		return err
	}
	var text string
	switch {
	case released.Services > 0:
		text = count(released.Services, "Service") + " released.\n"
	case released.Files > 0:
		text = "Objects of " + count(released.Files, "file") + " released.\n"
	}
	switch {
	case released.Frontends == 1:
		text += "1 address or port released that no object declares.\n"
	case released.Frontends > 1:
		text += fmt.Sprintf("%d addresses and ports released that no object declares.\n", released.Frontends)
	}
	if text == "" {
		text = "Nothing is held.\n"
	}
	return p.print(text)
}

// pendingPatience bounds the wait until it is decided whether what vanishes is held.
const pendingPatience = 5 * time.Second

// settledRemovals returns the status once no removal is undecided, at most pendingPatience later: what vanished a moment
// ago may be held then.
func settledRemovals(ctx context.Context, c *client.Client) (*wire.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, pendingPatience)
	defer cancel()
	for {
		status, err := c.Status(ctx)
		if err != nil || status.PendingRemovals == 0 {
			return status, err
		}
		select {
		case <-ctx.Done():
			return status, nil
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// releaseConsequence returns what a release removes, with its reason; "" when nothing is held.
func releaseConsequence(s *wire.Status) string {
	var parts []string
	for i := range s.Problems {
		problem := &s.Problems[i]
		var what string
		switch problem.Reason {
		case "MassRemovalHeld":
			if what = "objects that are in no file any more"; s.HeldRemovals > 0 {
				what = count(s.HeldRemovals, "Service")
			}
		case "UnknownServicesHeld":
			if what = count(s.UnknownFrontends, "address or port"); s.UnknownFrontends != 1 {
				what = fmt.Sprintf("%d addresses and ports", s.UnknownFrontends)
			}
		default:
			continue
		}
		why, _, _ := strings.Cut(problem.Message, "; as that may be an accident")
		why, _, _ = strings.Cut(why, "; they stay in force")
		parts = append(parts, fmt.Sprintf("this removes %s, and clients lose them (%s)", what, oneLine(why)))
	}
	return strings.Join(parts, "; ")
}
