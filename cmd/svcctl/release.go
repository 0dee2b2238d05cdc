package main

import (
	"context"
)

func (p *program) releaseVerb() *verb {
	return &verb{
		name:    "release",
		summary: "let Services go that vanished from the manifests",
		about: `When more than half of the Services, and more than ten, vanish from the manifests at
once, or a directory has no manifests any more, that may be an accident: a script
that deleted too much, a checkout that failed. So ` + "`svcctl serve`" + ` keeps these
Services in force, goes on with everything else, and says so in ` + "`svcctl status`" + `.

Putting the files back ends that. This verb ends it too: it says that they are to go.
It needs root.`,
		options: connectOptions(),
		examples: []example{
			{"What is it that would go?", "svcctl status"},
			{"It was meant so.", "sudo svcctl release"},
		},
		exits: `  0  done, or there was nothing to let go
  1  not done: stderr says why
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runRelease,
	}
}

// runRelease lets go what is held and says how much that was.
func (p *program) runRelease(ctx context.Context, v *verb, _ []string) error {
	c, err := p.client(v)
	if err != nil {
		return err
	}
	services, err := c.Release(ctx)
	if err != nil {
		return err
	}
	if services == 0 {
		return p.print("There was nothing to let go.\n")
	}
	return p.print(count(services, "Service") + " let go.\n")
}
