package main

import (
	"context"
	"errors"
	"fmt"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

func (p *program) statusVerb() *verb {
	return &verb{
		name:    "status",
		summary: "show the state of the appliance, and its problems",
		about: `Answers in its first line whether the Services answer their clients. The problems follow,
one line for each cause, with the next step; a dead server behind eleven Services is one.
Then come the directories of manifests and the last change to the kernel. With -o wide
every problem is listed, and the features of the kernel. Problems are written as

  file:line:column: object: field: message

status finds a problem, explain gives the reason, trace proves it.

With -o json or yaml it prints one document, whose fields keep their names and
meaning; what does not apply is left out:

  version nodeName started  of the appliance; started in UTC (RFC 3339)
  packaged                  systemd runs the units of the package
  ready                     everything found at its start is in force
  synced                    everything accepted is in the kernel now
  reason                    why it is not ready or not synced
  revision                  accepted, programmed: counters that only grow
  sources[]                 dir, state (ok, reading, unavailable), files, error
  counts                    services, servicePorts, frontends, endpoints, vips
  lastTransaction           at, duration, operations, elements, generation
  problems[]                object, file, line, column, field, reason, message,
                            severity (error, warning), cause
  verdict                   text, services: fails, stale, idle, warning,
                            answers, settling[]; unchecked; groups[] by cause:
                            severity, reason, text, next, place, since,
                            services[], concerned, problems, details[]
  kernel                    release, features[], missing[]
  foreignChanges            changes by other programs to the tables, repaired
  heldRemovals              Services that vanished in a mass and stay in force
  pendingRemovals           Services that vanished and go within two seconds
  unknownFrontends          addresses and ports served for unknown Services
  trial                     change on trial: id, began, ends, left, user,
                            coversFiles, objects[], files[]; with wentBack the
                            files that are held since`,
		options: append([]*option{outputOption("table", "wide", "json", "yaml")}, connectOptions()...),
		examples: []example{
			{"Whether everything is in force.", "svcctl status > /dev/null && echo yes"},
			{"All messages about one file.", `svcctl status -o json | jq -r '.problems[] | select(.file | endswith("web.yaml")).message'`},
		},
		exits: `  0  ready, synced, and no errors (warnings are no errors)
  1  not ready, not synced, or errors
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runStatus,
	}
}

// runStatus prints the status, and says no when not all is well.
func (p *program) runStatus(ctx context.Context, v *verb, _ []string) error {
	if err := checkOutput(v); err != nil {
		return err
	}
	c, err := p.client(v)
	if err != nil {
		return err
	}
	s, err := c.Status(ctx)
	if client.NotRunning(err) && !c.Remote() {
		return errors.Join(err, p.withoutAppliance())
	}
	if err != nil {
		return err
	}
	wide := v.option("output").text() == "wide"
	page := func() string { return statusPage(s, p.now(), p.color, wide) }
	if err := p.output(v, s, page); err != nil {
		return err
	}
	return verdict(s)
}

// withoutAppliance returns what the kernel serves while nothing answers on the socket; nil when it cannot be read.
func (p *program) withoutAppliance() error {
	switch frontends, held, err := p.left(); {
	case err != nil:
		return nil
	case held:
		return errors.New("another svcctl serves in this network namespace: give its --socket")
	case frontends == 0:
		return errors.New("the kernel has none of its rules: no Service is reachable through this box")
	default:
		return fmt.Errorf("the kernel serves %s of Services", count(frontends, "frontend"))
	}
}

// verdict is nil when all is well, else why not.
func verdict(s *wire.Status) error {
	switch {
	case !s.Ready:
		return fmt.Errorf("not ready: %s", s.Reason)
	case !s.Synced:
		return fmt.Errorf("not synced: %s", behind(s))
	case s.Errors() > 0:
		return fmt.Errorf("%s: part of the configuration is not active", count(s.Errors(), "error"))
	}
	return nil
}
