package box

import (
	"context"
	"fmt"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

func DownVerb() *cli.Verb {
	return &cli.Verb{
		Name:    "down",
		Summary: "remove everything svcctl programmed into the kernel",
		About: `Removes the tables of svcctl from nftables, in one transaction: no Service is
reachable through this box afterwards, and connections through it end. Tables of
other programs, manifests, and the allocations in the data directory stay; the
next ` + "`svcctl serve`" + ` brings everything back.

It asks first, and refuses while an appliance serves on the socket, which would restore
everything. It needs root, or CAP_NET_ADMIN.`,
		Options: append([]*cli.Option{
			cli.YesOption(),
			{Name: "force", Group: cli.GroupHow, Usage: "even while an appliance serves"},
		}, settings.SocketOptions()...),
		Examples: []cli.Example{
			{"Once the appliance is stopped, without a question.", "svcctl down --yes"},
		},
		Exits: `  0  nothing of svcctl is left in the kernel
  1  nothing was removed: stderr has the reason
  2  wrong usage, or no terminal to ask on and no --yes`,
		Run: runDown,
	}
}

// runDown removes the tables, after it has asked.
func runDown(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	const consequence = "this removes all that svcctl programmed: no Service is reachable through this box, and connections through it end"
	socket, err := settings.Socket(env, v)
	if err != nil {
		return err
	}
	if !v.Option("yes").On() && !env.StdinTTY { // wrong usage, whether an appliance serves or not
		return env.Consent(v, consequence)
	}
	if !v.Option("force").On() {
		_, err := client.New(socket).Version(ctx)
		switch {
		case err == nil:
			return fmt.Errorf("an appliance serves on %s and would bring everything back: stop it first, or give --force", socket)
		case !client.NotRunning(err):
			return fmt.Errorf("cannot determine whether an appliance still serves: %w; --force goes on all the same", err)
		}
	}
	if err := env.Consent(v, consequence); err != nil {
		return err
	}
	if err := env.Down(ctx); err != nil {
		return err
	}
	return env.Print("Nothing of svcctl is left in the kernel.\n")
}
