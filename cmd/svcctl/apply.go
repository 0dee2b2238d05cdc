package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/kube/selector"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

// manager is the default field manager of applied fields.
const manager = "svcctl"

func (p *program) applyVerb() *verb {
	return &verb{
		name:    "apply",
		summary: "create or change objects from files",
		args:    "-f FILE|DIR|- [FLAGS]",
		about: `Creates or changes objects to match the files, and prints one line for each.
Fields that the files do not have stay as they are; fields that they had the last time and
no longer have are removed, unless another manager set them too. A field that another
manager set to another value is refused and names the manager: --force-conflicts takes it
over, except fields declared by files of the appliance.

A refused object does not stop the others: stderr has the reason, as FILE:LINE:COLUMN: reason.

--prune removes objects that earlier applies of the same set created and that are no longer
in the files. The set is selected by -l, or named by --applyset. Nothing is removed if an
object was refused, and objects that were created in another way are never removed.`,
		options: slices.Concat(filesOptions("what to apply"), []*option{
			namespaceOption(),
		}, setOptions(), []*option{
			dryRunOption("print the result, with the addresses and ports that would be allocated, and change nothing"),
			{name: "force-conflicts", group: groupHow, usage: "take over fields that other managers set"},
			{name: "field-manager", arg: "NAME", def: manager, group: groupHow, usage: "owner of the applied fields"},
			confirmOption(),
			{name: "wait", arg: "DURATION", optional: true, group: groupHow, usage: "return when the objects are in the kernel and judged, print their problems, and fail at an error; at most so long, or 30s. In a fleet, in the kernels of all boxes that report; --wait=all, quorum or box selects others, and --wait=all,2m sets the time too"},
		}, rolloutOptions(), []*option{formOption(formText, formText, formName, formYAML, formJSON, formJSONPath)}, connectOptions()),
		examples: []example{
			{"One file, or a whole directory.", "svcctl apply -f web.yaml; svcctl apply -f manifests/"},
			{"The address that it would get.", "svcctl apply -f web.yaml --dry-run -o jsonpath='{.items[0].spec.clusterIP}'"},
			{"The directory is the source of truth for the set shop.", "svcctl apply -f shop/ --prune --applyset shop"},
			{"A change that may cut this connection: undone unless confirmed within five minutes.", "svcctl apply -f web.yaml --confirm 5m && svcctl confirm"},
			{"In a fleet: on one box first, then on more.", "svcctl apply -f web.yaml --rollout gw1,25%,100% --bake 5m"},
			{"From a pipe, and continue when the change is in the kernel.", "generate | svcctl apply -f - --wait && echo live"},
		},
		exits: `  0  done
  1  an object was refused, or has an error (--wait): stderr has the reason
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runApply,
	}
}

// setOptions say which objects of the files are meant, and whether others of the set go.
func setOptions() []*option {
	return []*option{
		{name: "selector", letter: "l", arg: "SELECTOR", group: groupWhich, usage: "only the objects of the files that have these labels"},
		{name: "prune", group: groupHow, usage: "remove objects of the set that are no longer in the files"},
		{name: "applyset", arg: "NAME", group: groupHow, usage: "label every object as one of this set (" + setLabel + ")"},
	}
}

const (
	formText = "text"
	// setLabel is the label with the name of the set that an object was applied with.
	setLabel = "svcctl.io/applyset"
)

// dryRunOption is --dry-run, which kubectl has with a value.
func dryRunOption(usage string) *option {
	return &option{name: "dry-run", arg: "none|server", optional: true, words: []string{"none", "server"}, group: groupHow, usage: usage}
}

// dryRun reports whether --dry-run was given.
func (v *verb) dryRun() (bool, error) {
	switch o := v.option("dry-run"); o.text() {
	case "", "none", "false":
		return false, nil
	case "server", "true":
		return true, nil
	default:
		return false, usagef("--dry-run=%s: want server, as it is without a value, or none; `svcctl plan -f` tries manifests without an appliance", o.text())
	}
}

// applying is one run of apply. It has more than 15 fields: the settings of the verb, and what the documents
// read so far have left for the next one.
type applying struct {
	p       *program
	c       *client.Client
	options client.ApplyOptions
	form    form
	printer *printer // nil: lines of text
	suffix  string   // of each line
	labels  selector.Labels
	set     string

	batch batch
	shown *progress

	done    map[objectKey]bool // what the files have, when that matters
	spaces  map[string]bool    // the namespaces of that
	version uint64             // the newest that was answered
	trial   *trying            // nil: what is applied stays
	rollout *rolling           // nil: it comes to all boxes at once
	total   int
	refused int
	applied map[string]bool // as problems name objects: "Service default/web"
}

// runApply applies files.
func (p *program) runApply(ctx context.Context, v *verb, args []string) error {
	a, wait, err := p.applying(v, args)
	if err != nil {
		return err
	}
	return a.rollout.end(ctx, a.run(ctx, v, wait))
}

// run applies the files.
func (a *applying) run(ctx context.Context, v *verb, wait patience) error {
	p, files := a.p, a.p.reader(v)
	if err := files.each(func(d *document) error { return a.add(ctx, d) }); err != nil {
		return err
	}
	if err := a.flush(ctx); err != nil {
		return err
	}
	a.shown.end()
	if err := a.trial.tell(ctx); err != nil {
		return err
	}
	refused := refusedError(files.refused + a.refused)
	switch {
	case a.total == 0 && files.refused == 0:
		return errors.New("the files have no objects to apply")
	case !v.option("prune").on():
	case refused != nil:
		fmt.Fprintln(p.stderr, "nothing is pruned while an object is refused")
	default:
		if err := a.prune(ctx, v.option("selector").text()); err != nil {
			return err
		}
		refused = refusedError(a.refused)
	}
	if a.printer != nil {
		if err := a.printer.end(); err != nil {
			return err
		}
	}
	if wait.timeout > 0 && a.version > 0 && !a.options.DryRun {
		began := time.Now()
		if err := p.wait(ctx, a.c, a.version, wait); err != nil {
			return errors.Join(refused, err)
		}
		return errors.Join(refused, a.judge(ctx, wait.timeout-time.Since(began)))
	}
	return refused
}

// applying judges the command line.
func (p *program) applying(v *verb, args []string) (a *applying, wait patience, err error) {
	switch {
	case len(args) > 0:
		return nil, wait, usagef("apply takes files with -f, and %q stands alone: run `svcctl apply --help`", args[0])
	case !v.option("filename").isSet():
		return nil, wait, usagef("apply what? Give a file or a directory with -f, or -f - for stdin")
	}
	a = &applying{p: p, set: v.option("applyset").text(), shown: p.progress()}
	if p.stdoutTTY {
		a.shown = &progress{} // the results say how far it is
	}
	a.options = client.ApplyOptions{Manager: v.option("field-manager").text(), Force: v.option("force-conflicts").on()}
	if a.options.DryRun, err = v.dryRun(); err != nil {
		return nil, wait, err
	}
	if a.options.DryRun {
		a.suffix = " (server dry run)"
	}
	if err := a.pruning(v); err != nil {
		return nil, wait, err
	}
	if a.form, err = v.form(); err != nil {
		return nil, wait, err
	}
	if a.form.name != formText {
		a.printer = &printer{p: p, form: a.form, single: true}
	}
	if wait, err = v.waiting(); err != nil {
		return nil, wait, err
	}
	if a.c, err = p.client(v); err == nil && !a.options.DryRun {
		a.trial, err = p.trying(v, a.c)
	}
	if err == nil {
		a.rollout, err = p.rolling(v, a.c)
	}
	switch {
	case a.rollout == nil:
	case wait.timeout > 0:
		return nil, wait, usagef("--wait waits for all boxes, and --rollout goes from box to box: `svcctl fleet rollout status --wait` waits for that")
	case a.options.DryRun:
		a.rollout.untried()
		a.rollout = nil
	}
	return a, wait, err
}

// pruning reads which objects of the files are meant, and which others go.
func (a *applying) pruning(v *verb) (err error) {
	if a.labels, err = selector.ParseLabels(v.option("selector").text()); err != nil {
		return usagef("-l: %v", err)
	}
	if !v.option("prune").on() {
		return nil
	}
	if a.set == "" && a.labels.Empty() {
		return usagef("--prune of which set? Name it with --applyset, or select it with -l")
	}
	a.done, a.spaces = map[objectKey]bool{}, map[string]bool{}
	return nil
}

// defaultWait is the default timeout of --wait.
const defaultWait = 30 * time.Second

// add takes a document into the batch.
func (a *applying) add(ctx context.Context, d *document) error {
	raw, err := a.take(d)
	if err != nil || raw == nil {
		return err
	}
	if !a.batch.hasRoom(raw) {
		if err := a.flush(ctx); err != nil {
			return err
		}
	}
	a.batch.add(d, raw)
	return nil
}

// take gives a document as it is applied; nil: it is not one that was asked for.
func (a *applying) take(d *document) (json.RawMessage, error) {
	if !a.labels.Matches(d.labels()) {
		return nil, nil
	}
	if a.set != "" {
		meta := d.object["metadata"].(map[string]any)
		labels, is := meta["labels"].(map[string]any)
		if !is {
			labels = map[string]any{}
			meta["labels"] = labels
		}
		labels[setLabel] = a.set
	}
	raw, err := d.raw()
	if err != nil {
		return nil, err
	}
	if a.done != nil {
		a.done[keyOf(d.target)] = true
		a.spaces[d.namespace] = true
	}
	return raw, nil
}

// flush applies the batch.
func (a *applying) flush(ctx context.Context) error {
	if len(a.batch.documents) == 0 {
		return nil
	}
	if err := errors.Join(a.trial.begin(ctx), a.rollout.begin(ctx)); err != nil {
		return err
	}
	err := a.c.Apply(ctx, a.options, a.batch.raws, func(i int, r wire.Applied) error {
		if i%progressEvery == 0 {
			a.shown.say("%d objects applied", a.total)
		}
		return a.result(a.batch.documents[i], r)
	})
	a.batch = batch{}
	return err
}

// result prints the outcome of applying a document.
func (a *applying) result(d *document, r wire.Applied) error {
	a.total++
	for _, warning := range r.Warnings {
		fmt.Fprintf(a.p.stderr, "%s: warning: %s: %s\n", d.where(""), d, oneLine(warning))
	}
	if r.Status != nil {
		a.refused++
		fmt.Fprintln(a.p.stderr, refusal(d, r.Status))
		return nil
	}
	if a.applied == nil {
		a.applied = map[string]bool{}
	}
	a.applied[object.Ref{Kind: d.kind.Name, Namespace: namespaceOf(r.Object), Name: nameOf(r.Object)}.String()] = true
	if version, err := strconv.ParseUint(versionOf(r.Object), 10, 64); err == nil {
		a.version = max(a.version, version)
	}
	if a.printer != nil {
		return a.printer.object(d.kind, r.Object)
	}
	result := r.Result
	if result == wire.Removed {
		result = removedText
	}
	return a.p.print(fmt.Sprintf("%s %s%s\n", d, result, a.suffix))
}

// unknownField matches messages about a field that does not exist.
var unknownField = regexp.MustCompile(`(?:unknown|duplicate) field "([^"]+)"`)

// refusal returns the reason for which an object of a file was refused, in one line that begins
// with the place.
func refusal(d *document, f *wire.Failure) string {
	place := ""
	if f.Details != nil && len(f.Details.Causes) > 0 {
		place = strings.TrimPrefix(f.Details.Causes[0].Field, ".")
	} else if m := unknownField.FindStringSubmatch(f.Message); m != nil {
		place = m[1]
	}
	// What is a line of its own for kubectl is a sentence here.
	message := oneLine(strings.ReplaceAll(f.Message, "\nThe manager", "; the manager"))
	if f.Details != nil && len(f.Details.Causes) > 0 && f.Details.Causes[0].Reason == "FieldValueTypeInvalid" {
		message = oneLine(f.Details.Causes[0].Message)
	}
	if f.Reason == wire.ReasonNotFound && f.Details != nil && f.Details.Kind == "namespaces" && d.kind.Namespaced {
		message += fmt.Sprintf(": apply a Namespace %s first", f.Details.Name)
	}
	if strings.HasPrefix(message, "Apply failed with") && !strings.Contains(message, `"gitops"`) {
		message += "; --force-conflicts takes that over"
	}
	return fmt.Sprintf("%s: %s: %s", d.where(place), d, message)
}

// progressEvery is after how many objects the progress is shown again.
const progressEvery = 500
