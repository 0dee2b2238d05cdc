package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"svcctl.io/svcctl/api/client"
)

func (p *program) waitVerb() *verb {
	words := []string{string(client.Synced), string(client.Ready)}
	return &verb{
		name:    "wait",
		summary: "wait until the appliance is synced or ready",
		about: `synced: everything that was in the manifests when svcctl wait was called is in the
kernel, or refused.

ready: the appliance has read all its directories once, and what they held then
is in the kernel.

An appliance that is only just being started is waited for too.`,
		options: append([]*option{
			{name: "for", arg: "synced|ready", def: words[0], words: words, group: "What to wait for", usage: "the condition"},
			{name: "timeout", arg: "DURATION", def: "30s", group: "What to wait for", usage: "how long to wait, as 500ms, 30s or 2m; at most 1h"},
		}, connectOptions()...),
		examples: []example{
			{"Start, and go on when it serves.", "svcctl serve --config svcctl.yaml & svcctl wait --for ready"},
			{"In a script, after the manifests were changed.", "svcctl wait --for synced --timeout 5s || svcctl status"},
		},
		exits: `  0  it is so
  1  it was not so in time
  2  wrong usage or configuration
  3  the appliance could not be reached in time`,
		run: p.runWait,
	}
}

// maxTimeout is the longest that the appliance lets somebody wait.
const maxTimeout = time.Hour

// runWait waits.
func (p *program) runWait(ctx context.Context, v *verb, _ []string) error {
	socket, err := p.socket(v)
	problems := flatten(err)
	cond := client.Condition(v.option("for").text())
	if cond != client.Synced && cond != client.Ready {
		problems = append(problems, fmt.Errorf("--for %q: want synced or ready", cond))
	}
	timeout, err := time.ParseDuration(v.option("timeout").text())
	if err != nil || timeout <= 0 || timeout > maxTimeout {
		problems = append(problems, fmt.Errorf("--timeout %q: want a duration as 500ms, 30s or 2m, at most 1h", v.option("timeout").text()))
	}
	if len(problems) > 0 {
		return &usageError{problems: problems}
	}
	if p.shows {
		fmt.Fprintf(p.stderr, "waiting until %s is %s, at most %s ...\n", socket, cond, timeout)
	}
	_, err = client.New(socket).Wait(ctx, cond, timeout)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("not %s after %s, and no answer from %s: its log may say why", cond, timeout, socket)
	}
	return err
}
