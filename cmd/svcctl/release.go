package main

import (
	"context"
	"fmt"
)

func (p *program) releaseVerb() *verb {
	return &verb{
		name:    "release",
		summary: "confirm the removal of Services that vanished from files",
		about: `Services that vanish from the manifests in a way that looks like an accident stay in
force: most of them at once, or all; a directory that has no manifests any more, is
unavailable, or is not watched any more; endpoints that go where Services stay. So do
addresses and ports that the kernel serves for unknown Services, when the data directory
was lost or is not mounted. ` + "`svcctl status`" + ` says what is held.

Putting things back ends that. This verb ends it too: it says that all of it is to go.
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
	released, err := c.Release(ctx)
	if err != nil {
		return err
	}
	var text string
	switch {
	case released.Services > 0:
		text = count(released.Services, "Service") + " let go.\n"
	case released.Files > 0:
		text = "Objects of " + count(released.Files, "file") + " let go.\n"
	}
	switch {
	case released.Frontends == 1:
		text += "1 address or port let go that no object declares.\n"
	case released.Frontends > 1:
		text += fmt.Sprintf("%d addresses and ports let go that no object declares.\n", released.Frontends)
	}
	if text == "" {
		text = "There was nothing to let go.\n"
	}
	return p.print(text)
}
