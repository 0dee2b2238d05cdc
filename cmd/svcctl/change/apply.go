package change

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/kube/selector"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// manager is the default field manager of applied fields.
const manager = "svcctl"

func ApplyVerb() *cli.Verb {
	return &cli.Verb{
		Name: "apply",
		Options: slices.Concat(resource.FilesOptions("what to apply"), []*cli.Option{
			settings.NamespaceOption(),
		}, setOptions(), []*cli.Option{
			dryRunOption("print the result, with the addresses and ports that would be allocated, and change nothing"),
			{Name: "force-conflicts", Group: cli.GroupHow, Usage: "take over fields that other managers set"},
			{Name: "field-manager", Arg: "NAME", Def: manager, Group: cli.GroupHow, Usage: "owner of the applied fields"},
			confirmOption(),
			{Name: "wait", Arg: "DURATION", Optional: true, Group: cli.GroupHow, Usage: "return when the objects are in the kernel and judged, print their problems, and fail at an error; at most so long, or 30s. In a fleet, in the kernels of all boxes that report; --wait=all, quorum or box selects others, and --wait=all,2m sets the time too"},
		}, rolloutOptions(), []*cli.Option{resource.FormOption(cli.FormText, cli.FormText, cli.FormName, cli.FormYAML, cli.FormJSON, cli.FormJSONPath)}, settings.ConnectOptions()),
		Run: runApply,
	}
}

// setOptions returns the options that select objects in the files (--selector), and those about sets of objects (--applyset, --prune).
func setOptions() []*cli.Option {
	return []*cli.Option{
		{Name: "selector", Letter: "l", Arg: "SELECTOR", Group: cli.GroupWhich, Usage: "only the objects of the files that have these labels"},
		{Name: "prune", Group: cli.GroupHow, Usage: "remove objects of the set that are no longer in the files"},
		{Name: "applyset", Arg: "NAME", Group: cli.GroupHow, Usage: "label every object as one of this set (" + setLabel + ")"},
	}
}

// setLabel is the label of an applied object that names its set (--applyset).
const setLabel = "svcctl.io/applyset"

// dryRunOption returns the option --dry-run, with an optional value as in kubectl.
func dryRunOption(usage string) *cli.Option {
	return &cli.Option{Name: "dry-run", Arg: "none|server", Optional: true, Words: []string{"none", "server"}, Group: cli.GroupHow, Usage: usage}
}

// dryRun reports whether --dry-run requests a dry run.
func dryRun(v *cli.Verb) (bool, error) {
	switch o := v.Option("dry-run"); o.Text() {
	case "", "none", "false":
		return false, nil
	case "server", "true":
		return true, nil
	default:
		return false, cli.Usagef("--dry-run=%s: want server, as it is without a value, or none; `svcctl plan -f` tries manifests without an appliance", o.Text())
	}
}

// applying holds the state of one run of apply. It has more than 15 fields: the settings of the verb, and the state that is carried from one document
// to the next.
type applying struct {
	env     *cli.Env
	c       *client.Client
	options client.ApplyOptions
	form    resource.Form
	printer *resource.Printer // nil: print a line of text for each object
	suffix  string            // printed at the end of each line, such as " (server dry run)"
	labels  selector.Labels
	set     string

	batch resource.Batch
	shown *cli.Progress

	done    map[objectKey]bool // the objects in the files; nil without --prune
	spaces  map[string]bool    // the namespaces of the objects in done
	version uint64             // the newest resourceVersion in a response
	trial   *trying            // the trial (--confirm), nil if there is none
	rollout *rolling           // the staged rollout (--rollout), nil if there is none
	total   int
	refused int
	applied map[string]bool // references to the applied objects, such as "Service default/web"
}

// runApply applies files.
func runApply(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	a, wait, err := newApplying(env, v, args)
	if err != nil {
		return err
	}
	return a.rollout.end(ctx, a.run(ctx, v, wait))
}

// run applies the files.
func (a *applying) run(ctx context.Context, v *cli.Verb, wait patience) error {
	env, files := a.env, resource.NewReader(a.env, v)
	if err := files.Each(func(d *resource.Document) error { return a.add(ctx, d) }); err != nil {
		return err
	}
	if err := a.flush(ctx); err != nil {
		return err
	}
	a.shown.End()
	if err := a.trial.printDeadline(ctx); err != nil {
		return err
	}
	refused := resource.RefusedError(files.Refused + a.refused)
	switch {
	case a.total == 0 && files.Refused == 0:
		return errors.New("the files have no objects to apply")
	case !v.Option("prune").On():
	case refused != nil:
		fmt.Fprintln(env.Err, "nothing is pruned while an object is refused")
	default:
		if err := a.prune(ctx, v.Option("selector").Text()); err != nil {
			return err
		}
		refused = resource.RefusedError(a.refused)
	}
	if a.printer != nil {
		if err := a.printer.End(); err != nil {
			return err
		}
	}
	if wait.timeout > 0 && a.version > 0 && !a.options.DryRun {
		began := time.Now()
		if err := waitForKernels(ctx, env, a.c, a.version, wait); err != nil {
			return errors.Join(refused, err)
		}
		return errors.Join(refused, a.judge(ctx, wait.timeout-time.Since(began)))
	}
	return refused
}

// newApplying returns the state for a run of apply, from the command line. wait is the parsed --wait. The error is about the flags.
func newApplying(env *cli.Env, v *cli.Verb, args []string) (a *applying, wait patience, err error) {
	switch {
	case len(args) > 0:
		return nil, wait, cli.Usagef("apply takes files with -f, and %q stands alone: run `svcctl apply --help`", args[0])
	case !v.Option("filename").IsSet():
		return nil, wait, cli.Usagef("apply what? Give a file or a directory with -f, or -f - for stdin")
	}
	a = &applying{env: env, set: v.Option("applyset").Text(), shown: env.Progress()}
	if env.StdoutTTY {
		a.shown = &cli.Progress{} // the results say how far it is
	}
	a.options = client.ApplyOptions{Manager: v.Option("field-manager").Text(), Force: v.Option("force-conflicts").On()}
	if a.options.DryRun, err = dryRun(v); err != nil {
		return nil, wait, err
	}
	if a.options.DryRun {
		a.suffix = " (server dry run)"
	}
	if err := a.pruning(v); err != nil {
		return nil, wait, err
	}
	if a.form, err = resource.FormOf(v); err != nil {
		return nil, wait, err
	}
	if a.form.Name != cli.FormText {
		a.printer = &resource.Printer{Env: env, Form: a.form, Single: true}
	}
	if wait, err = patienceOf(v); err != nil {
		return nil, wait, err
	}
	if a.c = env.Client(v); !a.options.DryRun {
		a.trial = newTrying(env, v, a.c)
	}
	a.rollout, err = newRolling(env, v, a.c)
	switch {
	case a.rollout == nil:
	case wait.timeout > 0:
		return nil, wait, cli.Usagef("--wait waits for all boxes, and --rollout goes from box to box: `svcctl fleet rollout status --wait` waits for that")
	case a.options.DryRun:
		a.rollout.untried()
		a.rollout = nil
	}
	return a, wait, err
}

// pruning reads the options --selector and --prune. With --prune it makes the run record the objects in the files, so that others can be pruned.
func (a *applying) pruning(v *cli.Verb) (err error) {
	if a.labels, err = selector.ParseLabels(v.Option("selector").Text()); err != nil {
		return cli.Usagef("-l: %v", err)
	}
	if !v.Option("prune").On() {
		return nil
	}
	if a.set == "" && a.labels.Empty() {
		return cli.Usagef("--prune of which set? Name it with --applyset, or select it with -l")
	}
	a.done, a.spaces = map[objectKey]bool{}, map[string]bool{}
	return nil
}

// defaultWait is the default timeout of --wait.
const defaultWait = 30 * time.Second

// add adds a document to the batch of the next request. It first applies the batch if that is full.
func (a *applying) add(ctx context.Context, d *resource.Document) error {
	raw, err := a.take(d)
	if err != nil || raw == nil {
		return err
	}
	if !a.batch.HasRoom(raw) {
		if err := a.flush(ctx); err != nil {
			return err
		}
	}
	a.batch.Add(d, raw)
	return nil
}

// take returns the JSON of a document to apply, with the label of its set; nil if the document does not match --selector.
func (a *applying) take(d *resource.Document) (json.RawMessage, error) {
	if !a.labels.Matches(d.Labels()) {
		return nil, nil
	}
	if a.set != "" {
		meta := d.Object["metadata"].(map[string]any)
		labels, is := meta["labels"].(map[string]any)
		if !is {
			labels = map[string]any{}
			meta["labels"] = labels
		}
		labels[setLabel] = a.set
	}
	raw, err := d.Raw()
	if err != nil {
		return nil, err
	}
	if a.done != nil {
		a.done[keyOf(d.Target)] = true
		a.spaces[d.Namespace] = true
	}
	return raw, nil
}

// flush applies the documents in the batch.
func (a *applying) flush(ctx context.Context) error {
	if len(a.batch.Documents) == 0 {
		return nil
	}
	if err := errors.Join(a.trial.begin(ctx), a.rollout.begin(ctx)); err != nil {
		return err
	}
	err := a.c.Apply(ctx, a.options, a.batch.Raws, func(i int, r wire.Applied) error {
		if i%progressEvery == 0 {
			a.shown.Say("%d objects applied", a.total)
		}
		return a.result(a.batch.Documents[i], r)
	})
	a.batch = resource.Batch{}
	return err
}

// result prints the outcome of applying a document.
func (a *applying) result(d *resource.Document, r wire.Applied) error {
	a.total++
	for _, warning := range r.Warnings {
		fmt.Fprintf(a.env.Err, "%s: warning: %s: %s\n", d.Where(""), d, output.OneLine(warning))
	}
	if r.Status != nil {
		a.refused++
		fmt.Fprintln(a.env.Err, refusal(d, r.Status))
		return nil
	}
	if a.applied == nil {
		a.applied = map[string]bool{}
	}
	a.applied[object.Ref{Kind: d.Kind.Name, Namespace: resource.NamespaceOf(r.Object), Name: resource.NameOf(r.Object)}.String()] = true
	if version, err := strconv.ParseUint(resource.VersionOf(r.Object), 10, 64); err == nil {
		a.version = max(a.version, version)
	}
	if a.printer != nil {
		return a.printer.Object(d.Target, r.Object)
	}
	result := r.Result
	if result == wire.Removed {
		result = removedText
	}
	return a.env.Print(fmt.Sprintf("%s %s%s\n", d, result, a.suffix))
}

// unknownField matches messages about a field that does not exist.
var unknownField = regexp.MustCompile(`(?:unknown|duplicate) field "([^"]+)"`)

// refusal formats the reason why an object in a file was rejected as one line, which begins with the position in the file.
func refusal(d *resource.Document, f *wire.Failure) string {
	place := ""
	if f.Details != nil && len(f.Details.Causes) > 0 {
		place = strings.TrimPrefix(f.Details.Causes[0].Field, ".")
	} else if m := unknownField.FindStringSubmatch(f.Message); m != nil {
		place = m[1]
	}
	// kubectl prints a line of its own here.
	message := output.OneLine(strings.ReplaceAll(f.Message, "\nThe manager", "; the manager"))
	if f.Details != nil && len(f.Details.Causes) > 0 && f.Details.Causes[0].Reason == "FieldValueTypeInvalid" {
		message = output.OneLine(f.Details.Causes[0].Message)
	}
	if f.Reason == wire.ReasonNotFound && f.Details != nil && f.Details.Kind == "namespaces" && d.Kind.Namespaced {
		message += fmt.Sprintf(": apply a Namespace %s first", f.Details.Name)
	}
	if strings.HasPrefix(message, "Apply failed with") && !strings.Contains(message, `"gitops"`) {
		message += "; --force-conflicts takes that over"
	}
	return fmt.Sprintf("%s: %s: %s", d.Where(place), d, message)
}

// progressEvery is the number of objects between two updates of the progress line.
const progressEvery = 500

// judge waits for the states of the applied Services and prints the problems of applied objects. It returns an error if one of the problems is an
// error.
func (a *applying) judge(ctx context.Context, timeout time.Duration) error {
	var services []string
	for ref := range a.applied {
		if key, is := strings.CutPrefix(ref, "Service "); is {
			services = append(services, key)
		}
	}
	s, err := resource.Settle(ctx, a.c, services, timeout)
	if err != nil {
		return err
	}
	failed := 0
	for _, p := range s.Problems {
		if !a.applied[p.Object] {
			continue
		}
		fmt.Fprintln(a.env.Err, p.String())
		if p.Severity == wire.SeverityError {
			failed++
		}
	}
	for _, key := range s.Verdict.Settling {
		if a.applied["Service "+key] {
			fmt.Fprintf(a.env.Err, "Service %s: it has no endpoint yet\n", key)
			failed++
		}
	}
	if failed > 0 {
		return errors.New(output.Count(failed, "error") + " with what was applied: `svcctl status` lists all problems")
	}
	return nil
}

// objectKey identifies an object.
type objectKey struct{ group, kind, namespace, name string }

func keyOf(t resource.Target) objectKey {
	return objectKey{t.Kind.Group, t.Kind.Name, t.Namespace, t.Name}
}

// prunable returns the kinds that can be pruned. Namespaces come last, because deleting one deletes the objects in it.
func prunable() []kind.Kind {
	var kinds, last []kind.Kind
	for _, k := range kind.All() {
		switch {
		case !slices.Contains(k.Verbs, "delete"):
		case k.Name == object.KindEvent, k.Name == object.KindNode, k.Name == object.KindIPAddress:
			// the appliance's own
		case k.Name == object.KindNamespace:
			last = append(last, k)
		default:
			kinds = append(kinds, k)
		}
	}
	return append(kinds, last...)
}

// prune deletes the objects of the set that the same manager applied and that are not in the files. Without a set name (--applyset), it ignores
// namespaces that do not occur in the files.
func (a *applying) prune(ctx context.Context, labels string) error {
	for _, k := range prunable() {
		gone, err := a.leftOvers(ctx, k, labels)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(gone, deletesAtOnce) {
			for i, r := range removeAtOnce(ctx, a.c, a.options.DryRun, some) {
				if err := a.pruned(some[i].Target, r); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// leftOvers returns the objects of a kind that prune must delete.
func (a *applying) leftOvers(ctx context.Context, k kind.Kind, labels string) (gone []victim, err error) {
	if of := setLabel + "=" + a.set; a.set != "" && labels != "" {
		labels += "," + of
	} else if a.set != "" {
		labels = of
	}
	err = resource.Each(ctx, a.c, resource.Target{Kind: k}, url.Values{"labelSelector": {labels}}, func(t resource.Target, o client.Object) error {
		if a.isLeftOver(t, o) {
			gone = append(gone, victim{Target: t, uid: resource.TextField(o, "metadata", "uid")}) // if it still is the one that was seen
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("prune: %w", err)
	}
	return gone, nil
}

// isLeftOver reports whether prune must delete an object that its query returned.
func (a *applying) isLeftOver(t resource.Target, o client.Object) bool {
	if a.done[keyOf(t)] || !appliedBy(o, a.options.Manager) {
		return false
	}
	// A selector may fit what others keep elsewhere; a set is of one hand.
	return a.set != "" || t.Namespace == "" || a.spaces[t.Namespace]
}

// appliedBy reports whether manager has applied an object by server-side apply, and no watched file declares the object.
func appliedBy(o client.Object, manager string) bool {
	entries, _ := resource.Field(o, "metadata", "managedFields").([]any)
	applied := false
	for _, e := range entries {
		if resource.TextField(e, "operation") != "Apply" {
			continue
		}
		switch resource.TextField(e, "manager") {
		case "gitops":
			return false
		case manager:
			applied = true
		}
	}
	return applied
}

// pruned prints the outcome of deleting an object that is no longer in the set.
func (a *applying) pruned(t resource.Target, r removal) error {
	err := r.err
	if f, is := errors.AsType[*wire.Failure](err); is {
		if f.Code != 404 {
			a.refused++
			fmt.Fprintf(a.env.Err, "%s: not pruned: %s\n", t, output.OneLine(f.Message))
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("prune %s: %w", t, err)
	}
	if a.printer != nil {
		return nil
	}
	if resource.TextField(r.answer, "metadata", "deletionTimestamp") != "" && !a.options.DryRun {
		return a.env.Print(fmt.Sprintf("%s pruned, and still there: %s\n", t, resource.Keepers(t, r.answer)))
	}
	return a.env.Print(fmt.Sprintf("%s pruned%s\n", t, a.suffix))
}
