package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"svcctl.io/svcctl/api/client"
)

func (p *program) downVerb() *verb {
	return &verb{
		name:    "down",
		summary: "remove everything svcctl programmed into the kernel",
		about: `Removes the tables of svcctl from nftables, in one transaction: no Service is
reachable through this box afterwards, and connections through it end. Tables of
other programs, manifests, and the allocations in the data directory stay; the
next ` + "`svcctl serve`" + ` brings everything back.

It asks first, and refuses while an appliance serves on the socket, which would restore
everything. It needs root, or CAP_NET_ADMIN.`,
		options: append([]*option{
			{name: "yes", letter: "y", group: "How to go about it", usage: "do not ask"},
			{name: "force", group: "How to go about it", usage: "even while an appliance serves"},
		}, socketOptions()...),
		examples: []example{
			{"Once the appliance is stopped, without a question.", "svcctl down --yes"},
		},
		exits: `  0  nothing of svcctl is left in the kernel
  1  nothing was removed: stderr says why
  2  wrong usage, or no terminal to ask on and no --yes`,
		run: p.runDown,
	}
}

// runDown removes the tables, when that is what is really wanted.
func (p *program) runDown(ctx context.Context, v *verb, _ []string) error {
	socket, err := p.socket(v)
	if err != nil {
		return err
	}
	yes := v.option("yes").on()
	if !yes && !p.stdinTTY {
		return usagef("down asks before it removes anything, and stdin is no terminal: give --yes")
	}
	if !v.option("force").on() {
		_, err := client.New(socket).Version(ctx)
		switch {
		case err == nil:
			return fmt.Errorf("an appliance serves on %s and would bring everything back: stop it first, or give --force", socket)
		case !client.NotRunning(err):
			return fmt.Errorf("cannot tell whether an appliance still serves: %w; --force goes on all the same", err)
		}
	}
	if !yes && !p.confirm("Remove everything svcctl programmed? Connections through this box end.") {
		return fmt.Errorf("nothing was removed")
	}
	if err := p.down(ctx); err != nil {
		return err
	}
	return p.print("Nothing of svcctl is left in the kernel.\n")
}

// confirm asks a question on stderr; the answer is no unless it is yes.
func (p *program) confirm(question string) bool {
	fmt.Fprintf(p.stderr, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(p.stdin).ReadString('\n') // what came before the end counts
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true
	}
	return false
}
