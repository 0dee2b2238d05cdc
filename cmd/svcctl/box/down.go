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
		Name: "down",
		Options: append([]*cli.Option{
			cli.YesOption(),
			{Name: "force", Group: cli.GroupHow, Usage: "even while an appliance serves"},
		}, settings.SocketOptions()...),
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
		switch _, err := client.New(socket).Version(ctx); {
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
