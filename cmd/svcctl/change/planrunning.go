package change

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/watch"
)

// The values of --against.
const (
	againstNothing = "nothing"
	againstRunning = "running"
)

// runningOptions returns the options for a plan that compares files with the state of the running box.
func runningOptions() []*cli.Option {
	const group = "Against the running box"
	o := []*cli.Option{
		{Name: "against", Arg: againstNothing + "|" + againstRunning, Def: againstNothing, Words: []string{againstNothing, againstRunning}, Strict: true, Group: group,
			Usage: "base of the plan: nothing, or the kernel's state of the running appliance"},
		{Name: "in-place-of", Arg: cli.ArgDir, Group: group, Usage: "as if this watched directory had exactly the files of -f; without it, as if they were applied"},
		{Name: "field-manager", Arg: "NAME", Def: manager, Group: group, Usage: "as if applied by this manager"},
		{Name: "force-conflicts", Group: group, Usage: "as if fields that other managers set were taken over"},
		settings.NamespaceOption(),
	}
	o = append(o, setOptions()...)
	o = append(o, cli.OutputOption(cli.FormText, cli.FormJSON))
	for _, c := range settings.ConnectOptions() {
		if c.Name != "config" { // it is among the settings
			o = append(o, c)
		}
	}
	for _, one := range o {
		one.Group = group
	}
	return o
}

// planAgainst reports whether --against is "running". It returns an error for flags that have no effect with the value of --against.
func planAgainst(v *cli.Verb) (running bool, err error) {
	running = v.Option("against").Text() == againstRunning
	var stray []string
	for _, o := range v.Options {
		if !o.IsSet() {
			continue
		}
		about := slices.ContainsFunc(runningOptions(), func(r *cli.Option) bool { return r.Name == o.Name })
		switch {
		case o.Name == "against" || o.Name == "filename" || o.Name == "config":
		case about != running:
			stray = append(stray, "--"+o.Name)
		}
	}
	switch {
	case len(stray) > 0 && running:
		return running, cli.Usagef("%s: the running appliance has settings of its own: leave it out, or plan --against %s", strings.Join(stray, ", "), againstNothing)
	case len(stray) > 0:
		return running, cli.Usagef("%s: that is for a plan --against %s", strings.Join(stray, ", "), againstRunning)
	}
	return running, nil
}

// runPlanRunning prints what the files would change in the kernel of the running box.
func runPlanRunning(ctx context.Context, env *cli.Env, v *cli.Verb) error {
	if !v.Option("filename").IsSet() {
		return cli.Usagef("plan of what? Give a file or a directory with -f")
	}
	c := env.Client(v)
	var plan wire.KernelPlan
	var err error
	var documents resource.Batch
	unread := 0
	if v.Option("in-place-of").IsSet() {
		plan, err = planFiles(ctx, v, c)
	} else {
		plan, documents, unread, err = planObjects(ctx, env, v, c)
	}
	switch _, unreachable := errors.AsType[*client.UnreachableError](err); {
	case unreachable:
		return err
	case err != nil:
		return &cli.ExitError{Code: cli.ExitUsage, Err: err}
	}
	for i := range plan.Objects {
		if o := &plan.Objects[i]; o.Did == wire.Refused || o.Did == wire.Held {
			fmt.Fprintln(env.Err, refusedInPlan(o, documents.Documents))
		}
	}
	if v.Option("output").Text() == cli.FormJSON {
		err = env.PrintLine(&plan)
	} else {
		text := planText(&plan)
		if env.Color {
			text = output.PaintDiff(text)
		}
		err = env.Print(text)
	}
	switch refused := plan.Refused() + unread; {
	case err != nil:
		return err
	case refused > 0:
		return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("%w; the plan is without what was refused", resource.RefusedError(refused))}
	case plan.Changes():
		return errDiffers
	}
	return nil
}

// planObjects requests a plan of applying the documents in the files. unread is the number of documents that could not be read.
func planObjects(ctx context.Context, env *cli.Env, v *cli.Verb, c *client.Client) (plan wire.KernelPlan, b resource.Batch, unread int, err error) {
	o := client.ApplyOptions{Manager: v.Option("field-manager").Text(), Force: v.Option("force-conflicts").On()}
	if o.Manager == fileManager {
		return plan, b, 0, cli.Usagef("--field-manager %s: what a file changes is planned with --in-place-of DIR, the watched directory", fileManager)
	}
	a := &applying{env: env, c: c, options: o, set: v.Option("applyset").Text()}
	if err := a.pruning(v); err != nil {
		return plan, b, 0, err
	}
	files := &resource.Reader{Env: env, Paths: v.Option("filename").Texts, Namespace: settings.Namespace(env, v),
		Forced: v.Option("namespace").IsSet() && v.Option("namespace").Text() != ""}
	err = files.Each(func(d *resource.Document) error {
		raw, err := a.take(d)
		if err != nil || raw == nil {
			return err
		}
		if !b.HasRoom(raw) {
			return fmt.Errorf("the files have more than %d MiB of objects: plan fewer at a time", resource.BatchBytes>>20)
		}
		b.Add(d, raw)
		return nil
	})
	switch {
	case err != nil:
		return plan, b, 0, err
	case len(b.Raws) == 0 && files.Refused > 0:
		return plan, b, 0, resource.RefusedError(files.Refused)
	case len(b.Raws) == 0:
		return plan, b, 0, errors.New("the files have no objects to plan")
	}
	var gone []wire.PlanRemoval
	if v.Option("prune").On() && files.Refused == 0 {
		if gone, err = a.removals(ctx, v.Option("selector").Text()); err != nil {
			return plan, b, 0, err
		}
	}
	plan, err = c.Plan(ctx, o, b.Raws, gone)
	if v.Option("prune").On() && (files.Refused > 0 || plan.Refused() > 0) {
		fmt.Fprintln(env.Err, "nothing is pruned while an object is refused")
	}
	return plan, b, files.Refused, err
}

// removals returns the objects that apply would prune.
func (a *applying) removals(ctx context.Context, labels string) (gone []wire.PlanRemoval, err error) {
	for _, k := range prunable() {
		victims, err := a.leftOvers(ctx, k, labels)
		if err != nil {
			return nil, err
		}
		for i := range victims {
			gone = append(gone, wire.PlanRemoval{Path: victims[i].Path(), UID: victims[i].uid})
		}
	}
	return gone, nil
}

// planFiles requests a plan of replacing the files of a watched directory (--in-place-of) by the files given with -f.
func planFiles(ctx context.Context, v *cli.Verb, c *client.Client) (plan wire.KernelPlan, err error) {
	for _, name := range []string{"field-manager", "force-conflicts", "namespace", "selector", "prune", "applyset"} {
		if v.Option(name).IsSet() {
			return plan, cli.Usagef("--%s is about objects that are applied: leave it out, or --in-place-of", name)
		}
	}
	paths := v.Option("filename").Texts
	if len(paths) != 1 || paths[0] == "-" {
		return plan, cli.Usagef("--in-place-of takes one directory with -f: the one that has the files")
	}
	from, err := filepath.Abs(paths[0])
	if err != nil {
		return plan, err
	}
	watched, err := filepath.Abs(v.Option("in-place-of").Text())
	if err != nil {
		return plan, err
	}
	var files []wire.PlanFile
	once := watch.Once{}
	err = once.Each([]string{from}, func(name string, data []byte, refused *manifest.Problem) error {
		if refused != nil {
			return *refused
		}
		rel, err := filepath.Rel(from, name)
		files = append(files, wire.PlanFile{Path: rel, Data: data})
		return err
	})
	if err != nil {
		return plan, resource.Unreadable(err)
	}
	if len(files) == 1 && files[0].Path == "." {
		return plan, cli.Usagef("--in-place-of takes a directory with -f, and %s is a file", paths[0])
	}
	return c.PlanFiles(ctx, watched, files)
}

// refusedInPlan formats the reason why a planned object was rejected or is held, with its position in the file.
func refusedInPlan(o *wire.PlannedObject, documents []*resource.Document) string {
	if o.Status != nil && 0 < o.Document && o.Document <= len(documents) {
		text := refusal(documents[o.Document-1], o.Status)
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

// planText formats a plan: first the changes of objects and Services in words, then the changes of tables in nft syntax.
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

// changeText formats one change of a Service as a line.
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

// tableText formats the changes of a table in nft's syntax.
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

func PlanVerb() *cli.Verb {
	files := &cli.Option{Name: "filename", Letter: "f", Arg: "FILE|DIR", Group: "What to plan", Repeats: true,
		Usage: "manifest, directory of manifests, or - for stdin; repeatable. Without it: the directories of --manifests"}
	return &cli.Verb{
		Name:    "plan",
		About:   settings.SettingsAbout,
		Options: slices.Concat([]*cli.Option{files}, runningOptions(), settings.SettingOptions(true)),
		Run:     runPlan,
	}
}

// runPlan prints the plan to stdout and the problems to stderr.
func runPlan(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	switch running, err := planAgainst(v); {
	case err != nil:
		return err
	case running:
		return runPlanRunning(ctx, env, v)
	}
	cfg, err := settings.Load(env, v)
	if err != nil {
		return err
	}
	paths := v.Option("filename").Texts
	if len(paths) == 0 {
		paths = cfg.ManifestDirs()
	}
	if len(paths) == 0 {
		return cli.Usagef("plan of what? Give a file or a directory with -f")
	}
	out := bufio.NewWriter(env.Out)
	_, problems, err := env.Plan(cfg, paths, env.In, out)
	refused := 0
	for _, problem := range problems {
		fmt.Fprintln(env.Err, problem) // file:line:column first, as compilers do
		if !problem.Warning {
			refused++
		}
	}
	if err != nil {
		return resource.Unreadable(err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write to stdout: %w", err)
	}
	if refused > 0 {
		return fmt.Errorf("%s: the ruleset is without what was refused", output.Count(refused, "problem"))
	}
	return nil
}
