package change

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/object"
)

func DeleteVerb() *cli.Verb {
	return &cli.Verb{
		Name: "delete",
		Options: slices.Concat(resource.FilesOptions("objects to remove"), resource.WhichOptions(), []*cli.Option{
			{Name: "all", Group: cli.GroupWhich, Usage: "all objects of the kind"},
			{Name: "ignore-not-found", Group: cli.GroupHow, Usage: "a missing object is not an error"},
			{Name: "interactive", Letter: "i", Group: cli.GroupHow, Usage: "list the objects, and ask before anything is removed"},
			cli.YesOption(),
			dryRunOption("list what would be removed, and remove nothing"),
			confirmOption(),
			{Name: "wait", Def: "true", Group: cli.GroupHow, Usage: "return when the objects are gone: those with finalizers go later"},
			{Name: "timeout", Arg: "DURATION", Def: "30s", Bounds: cli.Wait, Group: cli.GroupHow, Usage: "how long to wait for each"},
		}, rolloutOptions(), []*cli.Option{resource.FormOption(cli.FormText, cli.FormText, cli.FormName)}, settings.ConnectOptions()),
		Run: runDelete,
	}
}

// deleting holds the settings of one run of delete, and the errors of objects that were not deleted.
type deleting struct {
	env     *cli.Env
	c       *client.Client
	v       *cli.Verb
	dryRun  bool
	name    bool // print only names
	timeout time.Duration
	missing []error
}

// victim is an object to delete.
type victim struct {
	resource.Target
	uid   string // the UID that the object must have; "" means any
	place string // position of its document, "FILE:LINE:COLUMN: ", "" if it was not in a file
}

// runDelete removes objects.
func runDelete(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	d := &deleting{env: env, v: v, timeout: v.Option("timeout").Duration()}
	var err error
	if d.dryRun, err = dryRun(v); err != nil {
		return err
	}
	f, err := resource.FormOf(v)
	if err != nil {
		return err
	}
	d.name = f.Name == cli.FormName
	victims, files, err := d.victims(ctx, args)
	if err != nil {
		return err
	}
	if v.Option("interactive").On() && len(victims) > 0 {
		if yes, err := d.ask(victims); err != nil || !yes {
			return err
		}
	} else if !d.dryRun {
		consequence, err := d.consequence(ctx, victims)
		if err != nil {
			return err
		}
		if consequence != "" {
			if err := env.Consent(v, consequence); err != nil {
				return err
			}
		}
	}
	if err := d.removeOnTrial(ctx, victims); err != nil {
		return err
	}
	if len(victims) == 0 && len(d.missing) == 0 && files == nil && !d.name {
		fmt.Fprintln(env.Err, "No resources found")
	}
	if files != nil {
		d.missing = append(d.missing, resource.RefusedError(files.Refused))
	}
	return errors.Join(d.missing...)
}

// victims returns the objects that the command line selects, and the reader of the files of -f (nil without -f).
func (d *deleting) victims(ctx context.Context, args []string) (victims []victim, files *resource.Reader, err error) {
	v := d.v
	if v.Option("filename").IsSet() {
		if len(args) > 0 || v.Option("all").On() || len(resource.Selectors(v)) > 0 {
			return nil, nil, cli.Usagef("delete takes either files with -f, or kinds and names, not both")
		}
		d.c = d.env.Client(v)
		files = resource.NewReader(d.env, v)
		err = files.Each(func(doc *resource.Document) error {
			victims = append(victims, victim{Target: doc.Target, place: doc.Where("") + ": "})
			return nil
		})
		slices.Reverse(victims) // what came last may need what came first
		slices.SortStableFunc(victims, byTurn)
		return victims, files, err
	}
	if len(args) == 0 {
		return nil, nil, cli.Usagef("delete what? Give a kind and names, or files with -f")
	}
	what, err := resource.Selected(d.env, v, args)
	if err != nil {
		return nil, nil, err
	}
	named := what[0].Name != ""
	switch all := v.Option("all").On(); {
	case named && all:
		return nil, nil, cli.Usagef("%s: give either names or --all", what[0])
	case !named && !all && len(resource.Selectors(v)) == 0:
		return nil, nil, cli.Usagef("delete which %s? Give names, a selector with -l, or --all", what[0].Kind.Plural)
	}
	d.c = d.env.Client(v)
	for _, t := range what {
		if named {
			victims = append(victims, victim{Target: t})
			continue
		}
		err := resource.Each(ctx, d.c, t, resource.Selectors(v), func(t resource.Target, o client.Object) error {
			victims = append(victims, victim{Target: t, uid: resource.TextField(o, "metadata", "uid")})
			return nil
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

// turn ranks an object for deletion, lowest first: a Namespace is deleted after the objects in it, a Service after its slices.
func (v *victim) turn() int {
	switch v.Kind.Name {
	case object.KindNamespace:
		return 2
	case object.KindService:
		return 1
	}
	return 0
}

func byTurn(a, b victim) int { return cmp.Compare(a.turn(), b.turn()) }

// consequence describes, as a clause, the objects that are deleted without being named: those that --all or a selector selects, and the Services in
// deleted Namespaces. It returns "" if there are none.
func (d *deleting) consequence(ctx context.Context, victims []victim) (string, error) {
	named, services, others := map[string]bool{}, map[string]bool{}, 0
	for _, one := range victims {
		switch key := one.Namespace + "/" + one.Name; {
		case one.Kind.Name == object.KindService && one.uid == "":
			named[key] = true
		case one.Kind.Name == object.KindService:
			services[key] = true
		case one.uid != "":
			others++
		}
	}
	for _, one := range victims {
		if one.Kind.Name != object.KindNamespace {
			continue
		}
		within, err := resource.List[object.Service](ctx, d.c, "services", one.Name, nil)
		if f, is := errors.AsType[*wire.Failure](err); is && f.Code == 404 {
			continue
		} else if err != nil {
			return "", err
		}
		for _, s := range within {
			if key := one.Name + "/" + s.Metadata.Name; !named[key] {
				services[key] = true
			}
		}
	}
	var parts []string
	if len(services) > 0 {
		parts = append(parts, output.Count(len(services), "Service")+resource.OpenConnections(ctx, d.c, services))
	}
	noun := "object"
	if len(services) > 0 {
		noun = "other object"
	}
	if others > 0 {
		parts = append(parts, output.Count(others, noun))
	}
	if len(parts) == 0 {
		return "", nil
	}
	return "this removes " + strings.Join(parts, " and "), nil
}

// ask lists the objects and asks the user whether to delete them (--interactive).
func (d *deleting) ask(victims []victim) (bool, error) {
	if !d.env.StdinTTY {
		return false, cli.Usagef("--interactive asks, and stdin is no terminal: leave it out")
	}
	fmt.Fprintln(d.env.Err, "You are about to delete the following objects:")
	for _, one := range victims {
		fmt.Fprintf(d.env.Err, "  %s%s\n", one, in(one.Namespace))
	}
	if !d.env.Confirm("Do you want to continue?") {
		return false, errors.New("nothing was deleted")
	}
	return true, nil
}

// in returns " from NAMESPACE namespace", in the wording of kubectl; "" if namespace is "".
func in(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " from " + namespace + " namespace"
}

// deletesAtOnce is the number of concurrent deletes: the appliance stores writes that arrive
// together in one commit.
const deletesAtOnce = 32

// removeOnTrial calls remove, as part of a trial (--confirm) or of a staged rollout (--rollout) if one is requested.
func (d *deleting) removeOnTrial(ctx context.Context, victims []victim) error {
	rollout, err := newRolling(d.env, d.v, d.c)
	if err != nil {
		return err
	}
	if d.dryRun {
		rollout.untried()
	}
	if len(victims) == 0 || d.dryRun {
		return d.remove(ctx, victims)
	}
	trial := newTrying(d.env, d.v, d.c)
	if err := errors.Join(trial.begin(ctx), rollout.begin(ctx)); err != nil {
		return err
	}
	err = errors.Join(d.remove(ctx, victims), trial.printDeadline(ctx))
	if rollout != nil && err == nil {
		err = errors.Join(d.missing...) // a part of it is not what was asked for
		d.missing = nil
	}
	return rollout.end(ctx, err)
}

// remove deletes objects, several at a time, and prints the results in order.
func (d *deleting) remove(ctx context.Context, victims []victim) error {
	for len(victims) > 0 {
		n := 1
		for n < min(len(victims), deletesAtOnce) && victims[n].turn() == victims[0].turn() {
			n++
		}
		for i, r := range removeAtOnce(ctx, d.c, d.dryRun, victims[:n]) {
			if err := d.answered(ctx, victims[i], r.answer, r.err); err != nil {
				return err
			}
		}
		victims = victims[n:]
	}
	return nil
}

// removal is the response to a delete request.
type removal struct {
	answer client.Object
	err    error
}

// removeAtOnce deletes objects with concurrent requests. It returns the results in the order of victims.
func removeAtOnce(ctx context.Context, c *client.Client, dryRun bool, victims []victim) []removal {
	query := url.Values{}
	if dryRun {
		query.Set("dryRun", "All")
	}
	removals := make([]removal, len(victims))
	var requests sync.WaitGroup
	for i, v := range victims {
		requests.Go(func() { removals[i].answer, removals[i].err = c.Delete(ctx, v.Path(), query, v.uid) })
	}
	requests.Wait()
	return removals
}

// answered prints the result of a deletion. A failure that concerns only this object is added to d.missing.
func (d *deleting) answered(ctx context.Context, v victim, answer client.Object, err error) error {
	if f, is := errors.AsType[*wire.Failure](err); is {
		if f.Code != 404 || !d.v.Option("ignore-not-found").On() {
			d.missing = append(d.missing, fmt.Errorf("%s%s", v.place, output.OneLine(f.Message)))
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
		word, _, _ := strings.Cut(resource.FullName(v.Kind, ""), "/")
		line = fmt.Sprintf("%s %q deleted%s%s", word, v.Name, in(v.Namespace), suffix)
	}
	if err := d.env.Print(line + "\n"); err != nil {
		return err
	}
	if d.dryRun || d.v.Option("wait").Text() == "false" || resource.TextField(answer, "kind") == "Status" {
		return nil
	}
	err = resource.Until(ctx, d.c, v.Target, d.timeout, resource.Gone(resource.TextField(answer, "metadata", "uid")))
	if errors.Is(err, resource.ErrNotInTime) {
		d.missing = append(d.missing, fmt.Errorf("%s is still there after %s: %s", v, d.timeout, resource.Kept(ctx, d.c, v.Target)))
		return nil
	}
	return err
}
