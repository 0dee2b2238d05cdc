package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// statusText writes the parts of the status page.
type statusText struct{ output.Page }

// statusPage is the status for people.
func statusPage(s *wire.Status, now time.Time, color, wide bool) string {
	p := &statusText{output.Page{Color: color}}
	p.verdict(s, now)
	p.Line("Node", "%s", s.NodeName)
	p.Line("Version", "%s, up %s, since %s", s.Version, span(now.Sub(s.Started)), stamp(s.Started))
	p.Line("Ready", "%s", p.answer(s.Ready, s.Reason))
	p.Line("Synced", "%s", p.answer(s.Synced, behind(s)))
	if f := s.Fleet; f != nil {
		p.Line("Fleet", "%s", p.fleet(f))
	}
	p.Line("Serves", "%s, %s: %s, %s, %s",
		count(s.Counts.Services, "Service"), count(s.Counts.ServicePorts, "port"), count(s.Counts.VIPs, "VIP"),
		count(s.Counts.Frontends, "frontend"), count(s.Counts.Endpoints, "endpoint"))
	if t := s.LastTransaction; t != nil {
		p.Line("Last transaction", "%s ago, at %s: %s, %s, took %s, generation %d",
			span(now.Sub(t.At)), stamp(t.At), count(t.Operations, "operation"), count(t.Elements, "element"),
			shortest(time.Duration(t.Duration)), t.Generation)
	} else {
		p.Line("Last transaction", "none yet")
	}
	p.Line("Foreign changes", "%d", s.ForeignChanges)
	if s.HeldRemovals > 0 {
		p.Line("Held removals", "%s", p.Paint(output.Red, count(s.HeldRemovals, "Service")+" that vanished from the manifests; see `svcctl confirm --removals`"))
	}
	if s.PendingRemovals > 0 {
		p.Line("Pending removals", "%s", count(s.PendingRemovals, "Service")+" that vanished from the manifests and go in a moment")
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

// severitySigns and severityColors of severities.
var (
	severitySigns  = map[string]string{wire.SeverityError: "✗", wire.SeverityWarning: "▲", "": "✓"}
	severityColors = map[string]string{wire.SeverityError: output.Red, wire.SeverityWarning: output.Yellow, "": output.Green}
)

// verdict writes the answer, and the problems by cause.
func (p *statusText) verdict(s *wire.Status, now time.Time) {
	v, worst := &s.Verdict, s.Worst()
	if v.Text != "" {
		fmt.Fprintln(p, p.Paint(severityColors[worst], severitySigns[worst]+" "+v.Text))
	}
	for i := range v.Groups {
		g := &v.Groups[i]
		since := ""
		if !g.Since.IsZero() {
			since = " (" + span(now.Sub(g.Since)) + ")"
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
		fmt.Fprintf(p, "– %s without a health check\n", count(v.Unchecked, "Service"))
	}
	if v.Text != "" {
		fmt.Fprintln(p)
	}
}

// trial writes what waits to be confirmed.
func (p *statusText) trial(t *wire.Trial) {
	switch {
	case t == nil:
	case t.Pending():
		what := count(len(t.Objects), "object")
		if t.CoversFiles {
			what += ", " + count(len(t.Files), "file")
		}
		p.Line("On trial", "%s", p.Paint(output.Yellow, fmt.Sprintf("%s: back in %s unless confirmed; see `svcctl confirm`", what, span(time.Duration(t.Left)))))
	default:
		p.Line("Not confirmed", "%s", p.Paint(output.Red, fmt.Sprintf("%s held as before, since %s; see `svcctl confirm --state`", count(len(t.Files), "file"), stamp(*t.WentBack))))
	}
}

// rollout writes which versions this box has during a rollout.
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
		return f.Name + ": " + p.Paint(output.Red, f.State) + ", since " + stamp(f.Since)
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

// behind returns why the state is not synced.
func behind(s *wire.Status) string {
	if s.Ready && s.Reason != "" {
		return s.Reason
	}
	return fmt.Sprintf("revision %d is accepted, %d is programmed", s.Revision.Accepted, s.Revision.Programmed)
}

// answer is yes, or no and why.
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
	// Colors have no width and tabwriter does not know: so none in here.
	w := tabwriter.NewWriter(p, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "DIRECTORY\tSTATE\tFILES")
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
		fmt.Fprintf(w, "%s\t%s\t%d\n", dir, state, s.Files)
	}
	_ = w.Flush() // into memory
}

// problems writes the problems, errors first.
func (p *statusText) problems(s *wire.Status) {
	errors := s.Errors()
	warnings := len(s.Problems) - errors
	if len(s.Problems) == 0 {
		p.Heading("No problems")
		return
	}
	p.Heading("Problems: %s, %s", count(errors, "error"), count(warnings, "warning"))
	for _, severity := range []string{wire.SeverityError, wire.SeverityWarning} {
		color := map[string]string{wire.SeverityError: output.Red, wire.SeverityWarning: output.Yellow}[severity]
		for _, problem := range s.Problems {
			if problem.Severity == severity {
				fmt.Fprintln(p, p.Paint(color, problem.String()))
			}
		}
	}
}

// join is words behind what introduces them; "" without words.
func join(intro string, words []string) string {
	if len(words) == 0 {
		return ""
	}
	return intro + strings.Join(words, ", ")
}

// stamp is a time for people, to the second, in UTC.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// span is a duration for people: its two largest units.
func span(d time.Duration) string {
	d = max(d, 0)
	days, hours := int(d.Hours())/24, int(d.Hours())%24
	minutes, seconds := int(d.Minutes())%60, int(d.Seconds())%60
	switch {
	case days > 0:
		return fmt.Sprintf("%dd%dh", days, hours)
	case hours > 0:
		return fmt.Sprintf("%dh%dm", hours, minutes)
	case minutes > 0:
		return fmt.Sprintf("%dm%ds", minutes, seconds)
	}
	return fmt.Sprintf("%ds", seconds)
}

// shortest is a duration with three digits or so: 412µs, 1.25ms, 2.3s.
func shortest(d time.Duration) string {
	for unit := time.Second; unit > time.Nanosecond; unit /= 1000 {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}
