package main

import (
	"context"
	"fmt"

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
			yesOption(),
			{name: "force", group: groupHow, usage: "even while an appliance serves"},
		}, socketOptions()...),
		examples: []example{
			{"Once the appliance is stopped, without a question.", "svcctl down --yes"},
		},
		exits: `  0  nothing of svcctl is left in the kernel
  1  nothing was removed: stderr has the reason
  2  wrong usage, or no terminal to ask on and no --yes`,
		run: p.runDown,
	}
}

// runDown removes the tables, when that is what is really wanted.
func (p *program) runDown(ctx context.Context, v *verb, _ []string) error {
	const consequence = "this removes all that svcctl programmed: no Service is reachable through this box, and connections through it end"
	socket, err := p.socket(v)
	if err != nil {
		return err
	}
	if !v.option("yes").on() && !p.stdinTTY { // wrong usage, whether an appliance serves or not
		return p.consent(v, consequence)
	}
	if !v.option("force").on() {
		_, err := client.New(socket).Version(ctx)
		switch {
		case err == nil:
			return fmt.Errorf("an appliance serves on %s and would bring everything back: stop it first, or give --force", socket)
		case !client.NotRunning(err):
			return fmt.Errorf("cannot find out whether an appliance still serves: %w; --force goes on all the same", err)
		}
	}
	if err := p.consent(v, consequence); err != nil {
		return err
	}
	if err := p.down(ctx); err != nil {
		return err
	}
	return p.print("Nothing of svcctl is left in the kernel.\n")
}
