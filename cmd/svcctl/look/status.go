package look

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

func StatusVerb() *cli.Verb {
	return &cli.Verb{
		Name:    "status",
		Options: append([]*cli.Option{cli.OutputOption("table", "wide", "json", "yaml")}, settings.ConnectOptions()...),
		Run:     runStatus,
	}
}

// runStatus prints the status. The exit code is 1 if there is an error.
func runStatus(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	c := env.Client(v)
	s, err := c.Status(ctx)
	if client.NotRunning(err) && !c.Remote() {
		return errors.Join(err, withoutAppliance(env))
	}
	if err != nil {
		return err
	}
	wide := v.Option("output").Text() == "wide"
	page := func() string { return StatusPage(s, env.Now(), env.Color, wide) }
	if err := env.Output(v, s, page); err != nil {
		return err
	}
	return verdict(s)
}

// withoutAppliance describes what the kernel serves when no appliance answers on the socket. It returns nil if the kernel cannot be read.
func withoutAppliance(env *cli.Env) error {
	switch frontends, held, err := env.Left(); {
	case err != nil:
		return nil
	case held:
		return errors.New("another svcctl serves in this network namespace: give its --socket")
	case frontends == 0:
		return errors.New("the kernel has none of its rules: no Service is reachable through this box")
	default:
		return fmt.Errorf("the kernel serves %s of Services", output.Count(frontends, "frontend"))
	}
}

// verdict returns nil if the appliance is ready and synced and no problem is an error. Otherwise it returns the error for the exit of the verb.
func verdict(s *wire.Status) error {
	switch {
	case !s.Ready:
		return fmt.Errorf("not ready: %s", s.Reason)
	case !s.Synced:
		return fmt.Errorf("not synced: %s", behind(s))
	case s.Errors() > 0:
		return fmt.Errorf("%s: part of the configuration is not active", output.Count(s.Errors(), "error"))
	}
	return nil
}

// statusText writes the parts of the status page.
type statusText struct{ output.Page }

// StatusPage formats the status as text.
func StatusPage(s *wire.Status, now time.Time, color, wide bool) string {
	p := &statusText{output.Page{Color: color}}
	p.verdict(s, now)
	p.Line("Node", "%s", s.NodeName)
	p.Line("Version", "%s, up %s, since %s", s.Version, output.Span(now.Sub(s.Started)), output.Stamp(s.Started))
	p.Line("Ready", "%s", p.answer(s.Ready, s.Reason))
	p.Line("Synced", "%s", p.answer(s.Synced, behind(s)))
	if f := s.Fleet; f != nil {
		p.Line("Fleet", "%s", p.fleet(f))
	}
	p.Line("Serves", "%s, %s: %s, %s, %s",
		output.Count(s.Counts.Services, "Service"), output.Count(s.Counts.ServicePorts, "port"), output.Count(s.Counts.VIPs, "VIP"),
		output.Count(s.Counts.Frontends, "frontend"), output.Count(s.Counts.Endpoints, "endpoint"))
	if t := s.LastTransaction; t != nil {
		p.Line("Last transaction", "%s ago, at %s: %s, %s, took %s, generation %d",
			output.Span(now.Sub(t.At)), output.Stamp(t.At), output.Count(t.Operations, "operation"), output.Count(t.Elements, "element"),
			output.Shortest(time.Duration(t.Duration)), t.Generation)
	} else {
		p.Line("Last transaction", "none yet")
	}
	p.Line("Foreign changes", "%d", s.ForeignChanges)
	if s.HeldRemovals > 0 {
		p.Line("Held removals", "%s", p.Paint(output.Red, output.Count(s.HeldRemovals, "Service")+" that vanished from the manifests; see `svcctl confirm --removals`"))
	}
	if s.PendingRemovals > 0 {
		p.Line("Pending removals", "%s", output.Count(s.PendingRemovals, "Service")+" that vanished from the manifests and go in a moment")
	}
	if s.UnknownFrontends > 0 {
		p.Line("Unknown", "%s", p.Paint(output.Red, fmt.Sprintf("%d addresses and ports in the kernel that no object declares; see `svcctl confirm --removals`", s.UnknownFrontends)))
	}
	p.trial(s.Trial)
	p.rollout(s.Rollout)
	kernel := s.Kernel.Release
	if wide {
		kernel += join("; uses ", s.Kernel.Features)
	}
	p.Line("Kernel", "%s", kernel+join("; lacks ", s.Kernel.Missing))
	p.sources(s.Sources)
	if wide || s.Verdict.Text == "" {
		p.problems(s)
	}
	return p.String()
}

// The sign and the color of each severity; "" stands for no problem.
var (
	severitySigns  = map[string]string{wire.SeverityError: "✗", wire.SeverityWarning: "▲", "": "✓"}
	severityColors = map[string]string{wire.SeverityError: output.Red, wire.SeverityWarning: output.Yellow, "": output.Green}
)

// verdict writes the summary of the status, and the problems grouped by cause.
func (p *statusText) verdict(s *wire.Status, now time.Time) {
	v, worst := &s.Verdict, s.Worst()
	if v.Text != "" {
		fmt.Fprintln(p, p.Paint(severityColors[worst], severitySigns[worst]+" "+v.Text))
	}
	for i := range v.Groups {
		g := &v.Groups[i]
		since := ""
		if !g.Since.IsZero() {
			since = " (" + output.Span(now.Sub(g.Since)) + ")"
		}
		fmt.Fprintln(p, p.Paint(severityColors[g.Severity], severitySigns[g.Severity]+" "+output.Printable(g.Text))+since)
		for _, detail := range g.Details {
			fmt.Fprintln(p, "  "+detail)
		}
		if more := g.Problems - 1 - len(g.Details); more > 0 {
			fmt.Fprintf(p, "  and %d more: svcctl status -o wide\n", more)
		}
		if g.Place != "" {
			fmt.Fprintln(p, "  "+output.Printable(g.Place))
		}
		if g.Next != "" {
			fmt.Fprintln(p, "  → "+g.Next)
		}
	}
	if v.Unchecked > 0 && v.Services > 0 {
		fmt.Fprintf(p, "– %s without a health check\n", output.Count(v.Unchecked, "Service"))
	}
	if v.Text != "" {
		fmt.Fprintln(p)
	}
}

// trial writes a line about the trial that must be confirmed.
func (p *statusText) trial(t *wire.Trial) {
	switch {
	case t == nil:
	case t.Pending():
		what := output.Count(len(t.Objects), "object")
		if t.CoversFiles {
			what += ", " + output.Count(len(t.Files), "file")
		}
		p.Line("On trial", "%s", p.Paint(output.Yellow, fmt.Sprintf("%s: back in %s unless confirmed; see `svcctl confirm`", what, output.Span(time.Duration(t.Left)))))
	default:
		p.Line("Not confirmed", "%s", p.Paint(output.Red, fmt.Sprintf("%s held as before, since %s; see `svcctl confirm --state`", output.Count(len(t.Files), "file"), output.Stamp(*t.WentBack))))
	}
}

// rollout writes which versions this box uses during a rollout.
func (p *statusText) rollout(r *wire.Rollout) {
	if r == nil {
		return
	}
	versions, color := "the versions before", output.Yellow
	if r.Here {
		versions = "the new versions"
	}
	if r.Phase == wire.RolloutStopped {
		color = output.Red
	}
	p.Line("Rollout", "%s", p.Paint(color, fmt.Sprintf("%s: %s in step %d of %d; this box has %s; see `svcctl fleet rollout status`", r.ID, r.Phase, r.Step+1, len(r.Steps), versions)))
}

// fleet formats the state of the box in its fleet.
func (p *statusText) fleet(f *wire.Fleet) string {
	if f.State != wire.FleetFollowing {
		return f.Name + ": " + p.Paint(output.Red, f.State) + ", since " + output.Stamp(f.Since)
	}
	text := f.Name + ": " + p.Paint(output.Green, f.State)
	if f.Core != "" {
		text += " " + f.Core
	}
	if f.Writer != "" {
		text += ", controllers run on " + f.Writer
	}
	return text
}

// behind returns the reason why the appliance is not synced.
func behind(s *wire.Status) string {
	if s.Ready && s.Reason != "" {
		return s.Reason
	}
	return fmt.Sprintf("revision %d is accepted, %d is programmed", s.Revision.Accepted, s.Revision.Programmed)
}

// answer returns "yes", or "no" with the reason why.
func (p *statusText) answer(yes bool, why string) string {
	if yes {
		return p.Paint(output.Green, "yes")
	}
	if why != "" {
		why = ": " + why
	}
	return p.Paint(output.Red, "no") + why
}

// sources writes the table of watched directories.
func (p *statusText) sources(sources []wire.Source) {
	p.Heading("Directories")
	if len(sources) == 0 {
		p.WriteString("none\n")
		return
	}
	rows := [][]string{{"DIRECTORY", "STATE", "FILES"}} // without colors: a Grid counts their escape sequences as width
	for _, s := range sources {
		state, dir := s.State, s.Dir
		if s.Error != "" {
			state += ": " + s.Error
		}
		if s.Name != "" {
			dir = s.Name + "=" + s.Dir
			if s.Reader != "" {
				state += ", read by " + s.Reader
			}
		}
		rows = append(rows, []string{dir, state, fmt.Sprint(s.Files)})
	}
	p.WriteString(new(output.Grid).Text(rows...))
}

// problems writes the problems, errors first.
func (p *statusText) problems(s *wire.Status) {
	errors := s.Errors()
	warnings := len(s.Problems) - errors
	if len(s.Problems) == 0 {
		p.Heading("No problems")
		return
	}
	p.Heading("Problems: %s, %s", output.Count(errors, "error"), output.Count(warnings, "warning"))
	for _, severity := range []string{wire.SeverityError, wire.SeverityWarning} {
		color := map[string]string{wire.SeverityError: output.Red, wire.SeverityWarning: output.Yellow}[severity]
		for _, problem := range s.Problems {
			if problem.Severity == severity {
				fmt.Fprintln(p, p.Paint(color, problem.String()))
			}
		}
	}
}

// join returns intro followed by a list of words; "" if there are no words.
func join(intro string, words []string) string {
	if len(words) == 0 {
		return ""
	}
	return intro + strings.Join(words, ", ")
}

func HealthVerb() *cli.Verb {
	return &cli.Verb{
		Name: "health",
		Options: slices.Concat([]*cli.Option{
			settings.NamespaceOption(),
			{Name: "watch", Letter: "w", Group: cli.GroupHow, Usage: "print an endpoint again when its state changes"},
			cli.OutputOption(cli.FormTable, cli.FormYAML, cli.FormJSON),
		}, settings.ConnectOptions()),
		Run: runHealth,
	}
}

// healthLook is the interval at which `svcctl health -w` requests the states.
const healthLook = time.Second

// runHealth prints the states of endpoints. The exit code is 1 if one of them is down.
func runHealth(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	namespace, _ := settings.Given(env, v.Option("namespace"))
	name, c := "", env.Client(v)
	if len(args) > 1 {
		return cli.Usagef("health takes one Service, as svc/web, or none")
	}
	if len(args) == 1 {
		t, err := resource.OneService(env, v, args[0])
		if err == nil { // one that does not exist has no health
			_, err = c.Get(ctx, t.Path())
		}
		if err != nil {
			return err
		}
		namespace, name = t.Namespace, t.Name
	}
	if v.Option("watch").On() {
		if form := v.Option("output").Text(); form != "" && form != cli.FormTable {
			return cli.Usagef("--watch prints lines: leave out -o %s", form)
		}
		return watchHealth(ctx, env, c, namespace, name)
	}
	h, err := client.Call(ctx, c, wire.GetHealth, wire.ObjectQuery{Namespace: namespace, Name: name})
	if err != nil {
		return err
	}
	page := func() string {
		if len(h.Endpoints) == 0 {
			return "No endpoint is checked: a Service asks for it by its annotation svcctl.io/health-check, and a Pod by its readinessProbe.\n"
		}
		return new(output.Grid).Text(healthRows(h.Endpoints, env.Now(), true)...)
	}
	if err := env.Output(v, h, page); err != nil {
		return err
	}
	down := map[string]bool{} // an endpoint may have several checks
	for i := range h.Endpoints {
		if e := &h.Endpoints[i]; e.State == wire.HealthDown {
			down[strings.Join([]string{e.Service, e.Port, e.Protocol, e.Endpoint}, " ")] = true
		}
	}
	if len(down) > 0 {
		return fmt.Errorf("%s down", output.IsOrAre(len(down), "endpoint"))
	}
	return nil
}

// healthRows returns a table row for each endpoint, after a header row if heading is set.
func healthRows(all []wire.EndpointHealth, now time.Time, heading bool) [][]string {
	var rows [][]string
	if heading {
		rows = append(rows, []string{"SERVICE", "PORT", "ENDPOINT", "STATE", "SINCE", "CHECK", "LAST", "WHY"})
	}
	for i := range all {
		e := &all[i]
		since := "start"
		switch {
		case e.State == wire.HealthOut || e.State == wire.HealthNotAsked:
			since = "-"
		case e.Since != nil:
			since = output.Span(now.Sub(*e.Since))
		}
		took := "-"
		if e.Took > 0 {
			took = output.Roughly(time.Duration(e.Took)).String()
		}
		rows = append(rows, []string{
			e.Service, cmp.Or(e.Port, "-"), e.Endpoint, e.State, since, cmp.Or(e.Check, "-"), took, output.Printable(e.Reasons()),
		})
	}
	return rows
}

// watchHealth prints endpoints when their state changes, until ctx is done.
func watchHealth(ctx context.Context, env *cli.Env, c *client.Client, namespace, name string) error {
	before := map[string]string{}
	for first := true; ; first = false {
		h, err := client.Call(ctx, c, wire.GetHealth, wire.ObjectQuery{Namespace: namespace, Name: name})
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		var changed []wire.EndpointHealth
		now := map[string]string{}
		for _, e := range h.Endpoints {
			key := strings.Join([]string{e.Service, e.Port, e.Protocol, e.Endpoint, e.Check}, " ")
			if now[key] = e.State; before[key] != e.State {
				changed = append(changed, e)
			}
		}
		before = now
		if len(changed) > 0 {
			if err := env.Print(new(output.Grid).Text(healthRows(changed, env.Now(), first)...)); err != nil {
				return err
			}
		}
		if client.Pause(ctx, healthLook) != nil {
			return nil
		}
	}
}
