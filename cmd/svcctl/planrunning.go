package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/manifest"
)

// What --against takes.
const (
	againstNothing = "nothing"
	againstRunning = "running"
)

// runningOptions returns the options of a plan against the running box.
func runningOptions() []*option {
	const group = "Against the running box"
	o := []*option{
		{name: "against", arg: againstNothing + "|" + againstRunning, def: againstNothing, words: []string{againstNothing, againstRunning}, group: group,
			usage: "base of the plan: nothing, or the kernel's state of the running appliance"},
		{name: "in-place-of", arg: argDir, group: group, usage: "as if this watched directory had exactly the files of -f; without it, as if they were applied"},
		{name: "field-manager", arg: "NAME", def: manager, group: group, usage: "as if applied by this manager"},
		{name: "force-conflicts", group: group, usage: "as if fields that other managers set were taken over"},
		namespaceOption(),
	}
	o = append(o, setOptions()...)
	o = append(o, outputOption(formText, formJSON))
	for _, c := range connectOptions() {
		if c.name != "config" { // it is among the settings
			o = append(o, c)
		}
	}
	for _, one := range o {
		one.group = group
	}
	return o
}

// planAgainst returns the base of a plan, and refuses the flags that mean nothing for it.
func (v *verb) planAgainst() (running bool, err error) {
	against := v.option("against")
	if !slices.Contains(against.words, against.text()) {
		return false, usagef("--against %q: want %s or %s", against.text(), againstNothing, againstRunning)
	}
	running = against.text() == againstRunning
	var stray []string
	for _, o := range v.options {
		if !o.isSet() {
			continue
		}
		about := slices.ContainsFunc(runningOptions(), func(r *option) bool { return r.name == o.name })
		switch {
		case o == against || o.name == "filename" || o.name == "config":
		case about != running:
			stray = append(stray, "--"+o.name)
		}
	}
	switch {
	case len(stray) > 0 && running:
		return running, usagef("%s: the running appliance has settings of its own: leave it out, or plan --against %s", strings.Join(stray, ", "), againstNothing)
	case len(stray) > 0:
		return running, usagef("%s: that is for a plan --against %s", strings.Join(stray, ", "), againstRunning)
	}
	return running, nil
}

// runPlanRunning prints what the files would change in the kernel of the running box.
func (p *program) runPlanRunning(ctx context.Context, v *verb) error {
	if err := checkOutput(v); err != nil {
		return err
	}
	if !v.option("filename").isSet() {
		return usagef("plan of what? Give a file or a directory with -f")
	}
	c, err := p.client(v)
	if err != nil {
		return err
	}
	var plan wire.KernelPlan
	var documents batch
	unread := 0
	if v.option("in-place-of").isSet() {
		plan, err = p.planFiles(ctx, v, c)
	} else {
		plan, documents, unread, err = p.planObjects(ctx, v, c)
	}
	switch _, unreachable := errors.AsType[*client.UnreachableError](err); {
	case unreachable:
		return err
	case err != nil:
		return &exitError{exitUsage, err}
	}
	for i := range plan.Objects {
		if o := &plan.Objects[i]; o.Did == wire.Refused || o.Did == wire.Held {
			fmt.Fprintln(p.stderr, refusedInPlan(o, documents.documents))
		}
	}
	if v.option("output").text() == formJSON {
		err = p.printLine(&plan)
	} else {
		text := planText(&plan)
		if p.color {
			text = output.PaintDiff(text)
		}
		err = p.print(text)
	}
	switch refused := plan.Refused() + unread; {
	case err != nil:
		return err
	case refused > 0:
		return &exitError{exitUsage, fmt.Errorf("%w; the plan is without what was refused", refusedError(refused))}
	case plan.Changes():
		return errDiffers
	}
	return nil
}

// planObjects asks for the plan of applying the documents of the files.
func (p *program) planObjects(ctx context.Context, v *verb, c *client.Client) (plan wire.KernelPlan, b batch, unread int, err error) {
	o := client.ApplyOptions{Manager: v.option("field-manager").text(), Force: v.option("force-conflicts").on()}
	if o.Manager == fileManager {
		return plan, b, 0, usagef("--field-manager %s: what a file changes is planned with --in-place-of DIR, the watched directory", fileManager)
	}
	a := &applying{p: p, c: c, options: o, set: v.option("applyset").text()}
	if err := a.pruning(v); err != nil {
		return plan, b, 0, err
	}
	files := &reader{p: p, paths: v.option("filename").texts, namespace: p.namespace(v),
		forced: v.option("namespace").isSet() && v.option("namespace").text() != ""}
	err = files.each(func(d *document) error {
		raw, err := a.take(d)
		if err != nil || raw == nil {
			return err
		}
		if !b.hasRoom(raw) {
			return fmt.Errorf("the files have more than %d MiB of objects: plan fewer at a time", batchBytes>>20)
		}
		b.add(d, raw)
		return nil
	})
	switch {
	case err != nil:
		return plan, b, 0, err
	case len(b.raws) == 0 && files.refused > 0:
		return plan, b, 0, refusedError(files.refused)
	case len(b.raws) == 0:
		return plan, b, 0, errors.New("the files have no objects to plan")
	}
	var gone []wire.PlanRemoval
	if v.option("prune").on() && files.refused == 0 {
		if gone, err = a.removals(ctx, v.option("selector").text()); err != nil {
			return plan, b, 0, err
		}
	}
	plan, err = c.Plan(ctx, o, b.raws, gone)
	if v.option("prune").on() && (files.refused > 0 || plan.Refused() > 0) {
		fmt.Fprintln(p.stderr, "nothing is pruned while an object is refused")
	}
	return plan, b, files.refused, err
}

// removals are the objects that apply would prune.
func (a *applying) removals(ctx context.Context, labels string) (gone []wire.PlanRemoval, err error) {
	for _, k := range prunable() {
		victims, err := a.leftOvers(ctx, k, labels)
		if err != nil {
			return nil, err
		}
		for i := range victims {
			gone = append(gone, wire.PlanRemoval{Path: victims[i].path(), UID: victims[i].uid})
		}
	}
	return gone, nil
}

// planFiles asks for the plan of files in the place of those of a watched directory.
func (p *program) planFiles(ctx context.Context, v *verb, c *client.Client) (plan wire.KernelPlan, err error) {
	for _, name := range []string{"field-manager", "force-conflicts", "namespace", "selector", "prune", "applyset"} {
		if v.option(name).isSet() {
			return plan, usagef("--%s is about objects that are applied: leave it out, or --in-place-of", name)
		}
	}
	paths := v.option("filename").texts
	if len(paths) != 1 || paths[0] == "-" {
		return plan, usagef("--in-place-of takes one directory with -f: the one that has the files")
	}
	from, err := filepath.Abs(paths[0])
	if err != nil {
		return plan, err
	}
	watched, err := filepath.Abs(v.option("in-place-of").text())
	if err != nil {
		return plan, err
	}
	var files []wire.PlanFile
	once := appliance.Manifests{}
	err = once.Each([]string{from}, func(name string, data []byte, refused *manifest.Problem) error {
		if refused != nil {
			return *refused
		}
		rel, err := filepath.Rel(from, name)
		files = append(files, wire.PlanFile{Path: rel, Data: data})
		return err
	})
	if err != nil {
		return plan, unreadable(err)
	}
	if len(files) == 1 && files[0].Path == "." {
		return plan, usagef("--in-place-of takes a directory with -f, and %s is a file", paths[0])
	}
	return c.PlanFiles(ctx, watched, files)
}

// refusedInPlan formats why an object was refused or is held, with its place.
func refusedInPlan(o *wire.PlannedObject, documents []*document) string {
	if o.Status != nil && 0 < o.Document && o.Document <= len(documents) {
		d := documents[o.Document-1]
		text := refusal(d, o.Status)
		if strings.Contains(text, `"`+fileManager+`"`) {
			text += "; --in-place-of plans an edit of that file"
		}
		return text
	}
	if o.Did == wire.Held {
		return o.Object + " is held: " + o.Message
	}
	return o.Message
}

// planText is a plan in words, then in nft's terms.
func planText(plan *wire.KernelPlan) string {
	var b strings.Builder
	for i := range plan.Objects {
		o := &plan.Objects[i]
		if o.Did == wire.Refused || o.Did == wire.Held {
			continue
		}
		fmt.Fprintf(&b, "%s %s", o.Object, o.Did)
		if len(o.Values) > 0 {
			fmt.Fprintf(&b, ": %s", strings.Join(o.Values, ", "))
		}
		b.WriteString("\n")
	}
	for i := range plan.Services {
		fmt.Fprintf(&b, "\nService %s\n", plan.Services[i].Service)
		for j := range plan.Services[i].Changes {
			fmt.Fprintf(&b, "%s\n", changeText(&plan.Services[i].Changes[j]))
		}
	}
	for i := range plan.Problems {
		q := &plan.Problems[i]
		fmt.Fprintf(&b, "\n%s: %s: %s: %s\n", q.Object, q.Severity, q.Reason, q.Message)
	}
	for _, text := range plan.Undecided {
		fmt.Fprintf(&b, "\nundecided: %s\n", text)
	}
	for i := range plan.Tables {
		tableText(&b, &plan.Tables[i])
	}
	switch {
	case len(plan.Tables) == 0 && plan.Changes():
		b.WriteString("\nNothing changes in the kernel.\n")
	case len(plan.Tables) == 0:
		b.WriteString("Nothing changes.\n")
	}
	return b.String()
}

// changeText is one change of a Service as a line.
func changeText(c *wire.PlannedChange) string {
	port := c.Protocol
	if c.Port != "" {
		port = c.Port + "/" + port
	}
	sign := map[string]string{wire.Begins: "+", wire.Ends: "-", wire.Changes: "~"}[c.Did]
	name := c.Name
	if c.Of == wire.OfFrontend && !strings.ContainsAny(name, ".:") {
		name = "node port " + name + " on " + c.Family
	}
	if c.Of == wire.OfEndpoint {
		name = "endpoint " + name
	}
	text := fmt.Sprintf("%s   %s of %s %s", sign, name, port, c.Did)
	if c.Of == wire.OfPort {
		text = fmt.Sprintf("%s   %s on %s", sign, port, c.Family)
	}
	if c.What != "" {
		text = strings.TrimSuffix(text, " "+wire.Changes) + fmt.Sprintf(": %s: %s -> %s", c.What, c.From, c.To)
	}
	return text
}

// tableText writes what changes in a table.
func tableText(b *strings.Builder, t *wire.PlannedTable) {
	whole := func(did string) string {
		if did == "" {
			return ""
		}
		return " (" + did + ")"
	}
	fmt.Fprintf(b, "\ntable %s svcctl%s\n", t.Family, whole(t.Did))
	for i := range t.Sets {
		s := &t.Sets[i]
		fmt.Fprintf(b, "  %s%s\n", s.Name, whole(s.Did))
		for _, e := range s.Removed {
			fmt.Fprintf(b, "-   %s\n", e)
		}
		for _, e := range s.Changed {
			fmt.Fprintf(b, "-   %s\n+   %s\n", e.From, e.To)
		}
		for _, e := range s.Added {
			fmt.Fprintf(b, "+   %s\n", e)
		}
		for _, e := range s.Forgotten {
			fmt.Fprintf(b, "    clients that are remembered on %s are forgotten\n", e)
		}
		if s.Capped > 0 {
			fmt.Fprintf(b, "    remembered clients are forgotten after %s at the latest\n", s.Capped)
		}
	}
	for i := range t.Chains {
		c := &t.Chains[i]
		fmt.Fprintf(b, "  chain %s%s\n", c.Name, whole(c.Did))
		for _, r := range c.Rules {
			fmt.Fprintf(b, "    %s\n", r)
		}
	}
	for i := range t.Others {
		fmt.Fprintf(b, "  %s%s\n", t.Others[i].Name, whole(t.Others[i].Did))
	}
}
