package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

func (p *program) deleteVerb() *verb {
	return &verb{
		name:    "delete",
		summary: "remove objects",
		args:    "KIND NAME... | KIND/NAME... | -f FILE|DIR|- [FLAGS]",
		about: `Removes objects, and prints one line for each. Addresses and ports that a Service held
are free again at once. What a file of the appliance declares is not removed in this way:
the refusal names the file.

--all and selectors mean the objects of one namespace; with -A those of all of them. They
name what goes and ask, as a Namespace with Services does; without a terminal that needs --yes.`,
		options: slices.Concat(filesOptions("objects to remove"), whichOptions(), []*option{
			{name: "all", group: groupWhich, usage: "all objects of the kind"},
			{name: "ignore-not-found", group: groupHow, usage: "an object that is not there is no error"},
			{name: "interactive", letter: "i", group: groupHow, usage: "list the objects, and ask before anything is removed"},
			yesOption(),
			dryRunOption("list what would be removed, and remove nothing"),
			confirmOption(),
			{name: "wait", def: "true", group: groupHow, usage: "return when the objects are gone: those with finalizers go later"},
			{name: "timeout", arg: "DURATION", def: "30s", group: groupHow, usage: "how long to wait for each"},
		}, rolloutOptions(), []*option{formOption(formText, formText, formName)}, connectOptions()),
		examples: []example{
			{"By name, and by file.", "svcctl delete svc web api; svcctl delete -f shop/"},
			{"What has a label, in two kinds.", "svcctl delete svc,endpointslices -n shop -l app=web"},
		},
		exits: `  0  done
  1  an object is not there, or could not be removed: stderr names it
  2  wrong usage or configuration, or no terminal to ask on and no --yes
  3  the appliance cannot be reached`,
		run: p.runDelete,
	}
}

// deleting is one run of delete.
type deleting struct {
	p       *program
	c       *client.Client
	v       *verb
	dryRun  bool
	name    bool // print names only
	timeout time.Duration
	missing []error
}

// victim is an object that is to go.
type victim struct {
	target
	uid   string // "": whichever is there
	place string // of a document, "" for none
}

// runDelete removes objects.
func (p *program) runDelete(ctx context.Context, v *verb, args []string) error {
	d := &deleting{p: p, v: v}
	var err error
	if d.dryRun, err = v.dryRun(); err != nil {
		return err
	}
	f, err := v.form()
	if err != nil {
		return err
	}
	d.name = f.name == formName
	if d.timeout, err = duration("timeout", v.option("timeout").text()); err != nil {
		return err
	}
	victims, files, err := d.victims(ctx, args)
	if err != nil {
		return err
	}
	if v.option("interactive").on() && len(victims) > 0 {
		if yes, err := d.ask(victims); err != nil || !yes {
			return err
		}
	} else if !d.dryRun {
		consequence, err := d.consequence(ctx, victims)
		if err != nil {
			return err
		}
		if consequence != "" {
			if err := p.consent(v, consequence); err != nil {
				return err
			}
		}
	}
	if err := d.removeOnTrial(ctx, victims); err != nil {
		return err
	}
	if len(victims) == 0 && len(d.missing) == 0 && files == nil && !d.name {
		fmt.Fprintln(p.stderr, "No resources found")
	}
	if files != nil {
		d.missing = append(d.missing, refusedError(files.refused))
	}
	return errors.Join(d.missing...)
}

// victims are the objects that the command line means; the reader is that of -f.
func (d *deleting) victims(ctx context.Context, args []string) (victims []victim, files *reader, err error) {
	v := d.v
	if v.option("filename").isSet() {
		if len(args) > 0 || v.option("all").on() || len(selectors(v)) > 0 {
			return nil, nil, usagef("delete takes either files with -f, or kinds and names, not both")
		}
		if d.c, err = d.p.client(v); err != nil {
			return nil, nil, err
		}
		files = d.p.reader(v)
		err = files.each(func(doc *document) error {
			victims = append(victims, victim{target: doc.target, place: doc.where("") + ": "})
			return nil
		})
		slices.Reverse(victims) // what came last may need what came first
		slices.SortStableFunc(victims, byTurn)
		return victims, files, err
	}
	if len(args) == 0 {
		return nil, nil, usagef("delete what? Give a kind and names, or files with -f")
	}
	what, err := d.p.selected(v, args)
	if err != nil {
		return nil, nil, err
	}
	named := what[0].name != ""
	switch all := v.option("all").on(); {
	case named && all:
		return nil, nil, usagef("%s: give either names or --all", what[0])
	case !named && !all && len(selectors(v)) == 0:
		return nil, nil, usagef("delete which %s? Give names, a selector with -l, or --all", what[0].kind.Plural)
	}
	if d.c, err = d.p.client(v); err != nil {
		return nil, nil, err
	}
	for _, t := range what {
		if named {
			victims = append(victims, victim{target: t})
			continue
		}
		_, err := d.c.Each(ctx, t.path(), selectors(v), func(raw json.RawMessage) error {
			o, err := decodeObject(raw)
			victims = append(victims, victim{uid: textField(o, "metadata", "uid"),
				target: target{kind: t.kind, namespace: namespaceOf(o), name: nameOf(o)}})
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	if !named {
		slices.SortStableFunc(victims, byTurn)
	}
	return victims, nil, nil
}

// turn is in which turn an object goes: what takes others along goes after them.
func (v *victim) turn() int {
	switch v.kind.Name {
	case object.KindNamespace:
		return 2
	case object.KindService:
		return 1
	}
	return 0
}

func byTurn(a, b victim) int { return cmp.Compare(a.turn(), b.turn()) }

// consequence returns what goes that the command line does not name: the choice of --all or of a selector, and the Services of
// Namespaces; "": nothing.
func (d *deleting) consequence(ctx context.Context, victims []victim) (string, error) {
	named, services, others := map[string]bool{}, map[string]bool{}, 0
	for _, one := range victims {
		switch key := one.namespace + "/" + one.name; {
		case one.kind.Name == object.KindService && one.uid == "":
			named[key] = true
		case one.kind.Name == object.KindService:
			services[key] = true
		case one.uid != "":
			others++
		}
	}
	k, _ := kindNamed("services")
	for _, one := range victims {
		if one.kind.Name != object.KindNamespace {
			continue
		}
		within, err := typedList[object.Service](ctx, d.c, collectionPath(k, one.name), nil)
		if f, is := errors.AsType[*wire.Failure](err); is && f.Code == 404 {
			continue
		} else if err != nil {
			return "", err
		}
		for _, s := range within {
			if key := one.name + "/" + s.Metadata.Name; !named[key] {
				services[key] = true
			}
		}
	}
	var parts []string
	if len(services) > 0 {
		parts = append(parts, count(len(services), "Service")+openConnections(ctx, d.c, services))
	}
	noun := "object"
	if len(services) > 0 {
		noun = "other object"
	}
	if others > 0 {
		parts = append(parts, count(others, noun))
	}
	if len(parts) == 0 {
		return "", nil
	}
	return "this removes " + strings.Join(parts, " and "), nil
}

// ask asks whether to go on.
func (d *deleting) ask(victims []victim) (bool, error) {
	if !d.p.stdinTTY {
		return false, usagef("--interactive asks, and stdin is no terminal: leave it out")
	}
	fmt.Fprintln(d.p.stderr, "You are about to delete the following objects:")
	for _, one := range victims {
		fmt.Fprintf(d.p.stderr, "  %s%s\n", one, in(one.namespace))
	}
	fmt.Fprint(d.p.stderr, "Do you want to continue? [y/N] ")
	answer, err := bufio.NewReader(d.p.stdin).ReadString('\n')
	if err != nil && answer == "" {
		return false, fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true, nil
	}
	return false, errors.New("nothing was deleted")
}

// in is " from NAMESPACE namespace", as kubectl says it.
func in(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " from " + namespace + " namespace"
}

// deletesAtOnce is the number of concurrent deletes: the appliance stores writes that arrive
// together in one commit.
const deletesAtOnce = 32

// removeOnTrial is remove, with --confirm as part of a trial, and with --rollout as one.
func (d *deleting) removeOnTrial(ctx context.Context, victims []victim) error {
	rollout, err := d.p.rolling(d.v, d.c)
	if err != nil {
		return err
	}
	if d.dryRun {
		rollout.untried()
	}
	if len(victims) == 0 || d.dryRun {
		return d.remove(ctx, victims)
	}
	trial, err := d.p.trying(d.v, d.c)
	if err != nil {
		return err
	}
	if err := errors.Join(trial.begin(ctx), rollout.begin(ctx)); err != nil {
		return err
	}
	err = errors.Join(d.remove(ctx, victims), trial.tell(ctx))
	if rollout != nil && err == nil {
		err = errors.Join(d.missing...) // a part of it is not what was asked for
		d.missing = nil
	}
	return rollout.end(ctx, err)
}

// remove removes objects, some at a time, and tells of each in their order.
func (d *deleting) remove(ctx context.Context, victims []victim) error {
	for len(victims) > 0 {
		n := 1
		for n < min(len(victims), deletesAtOnce) && victims[n].turn() == victims[0].turn() {
			n++
		}
		for i, r := range removeAtOnce(ctx, d.c, d.dryRun, victims[:n]) {
			if err := d.told(ctx, victims[i], r.answer, r.err); err != nil {
				return err
			}
		}
		victims = victims[n:]
	}
	return nil
}

// removal is the result of a delete.
type removal struct {
	answer client.Object
	err    error
}

// removeAtOnce asks for the removal of objects, all at the same time.
func removeAtOnce(ctx context.Context, c *client.Client, dryRun bool, victims []victim) []removal {
	query := url.Values{}
	if dryRun {
		query.Set("dryRun", "All")
	}
	removals := make([]removal, len(victims))
	var requests sync.WaitGroup
	for i, v := range victims {
		requests.Go(func() { removals[i].answer, removals[i].err = c.Delete(ctx, v.path(), query, v.uid) })
	}
	requests.Wait()
	return removals
}

// told handles the answer to a deletion. What is only its own trouble is noted.
func (d *deleting) told(ctx context.Context, v victim, answer client.Object, err error) error {
	if f, is := errors.AsType[*wire.Failure](err); is {
		if f.Code != 404 || !d.v.option("ignore-not-found").on() {
			d.missing = append(d.missing, fmt.Errorf("%s%s", v.place, oneLine(f.Message)))
		}
		return nil
	}
	if err != nil {
		return err
	}
	line, suffix := v.String(), ""
	if d.dryRun {
		suffix = " (server dry run)"
	}
	if !d.name {
		word, _, _ := strings.Cut(fullName(v.kind, ""), "/")
		line = fmt.Sprintf("%s %q deleted%s%s", word, v.name, in(v.namespace), suffix)
	}
	if err := d.p.print(line + "\n"); err != nil {
		return err
	}
	if d.dryRun || d.v.option("wait").text() == "false" || textField(answer, "kind") == "Status" {
		return nil
	}
	err = until(ctx, d.c, v.target, d.timeout, gone(textField(answer, "metadata", "uid")))
	if errors.Is(err, errNotInTime) {
		d.missing = append(d.missing, fmt.Errorf("%s is still there after %s: %s", v, d.timeout, kept(ctx, d.c, v.target)))
		return nil
	}
	return err
}
