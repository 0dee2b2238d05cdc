package look

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/store/kind"
)

// boxesAsked are the boxes that a command line asks for.
type boxesAsked struct {
	names []string // none: all
	first bool     // before the objects
}

// takeBoxes takes the boxes out of the arguments KIND[,KIND] [NAME...] or KIND/NAME..., and leaves the rest; nil: there are none.
func takeBoxes(args []string) (asked *boxesAsked, rest []string, err error) {
	if len(args) == 0 {
		return nil, args, nil
	}
	if strings.Contains(args[0], "/") {
		for i, arg := range args {
			word, name, _ := strings.Cut(arg, "/")
			switch {
			case !resource.IsBoxes(word):
				rest = append(rest, arg)
				continue
			case name == "" || strings.Contains(name, "/"):
				return nil, nil, cli.Usagef("%q is not of the form KIND/NAME, as the other arguments are", arg)
			case asked == nil:
				asked = &boxesAsked{first: i == 0}
			}
			asked.names = append(asked.names, name)
		}
		return asked, rest, nil
	}
	var kinds []string
	for i, word := range strings.Split(args[0], ",") {
		if !resource.IsBoxes(word) {
			kinds = append(kinds, word)
		} else if asked == nil {
			asked = &boxesAsked{names: args[1:], first: i == 0}
		}
	}
	if asked == nil {
		return nil, args, nil
	}
	for _, name := range asked.names {
		if name == "" || strings.Contains(name, "/") {
			return nil, nil, cli.Usagef("%q is no name: give either KIND NAME... or KIND/NAME...", name)
		}
	}
	if len(kinds) > 0 {
		rest = append([]string{strings.Join(kinds, ",")}, args[1:]...)
	}
	return asked, rest, nil
}

// checkBoxes refuses options that do not apply to boxes. alone is set when boxes are the only resource.
func checkBoxes(v *cli.Verb, f resource.Form, alone bool) error {
	for name, instead := range map[string]string{
		"watch":          "they cannot be watched: run `watch svcctl get boxes`",
		"selector":       "they have no labels: name those that you want, as `svcctl get boxes gw1 gw2`",
		"field-selector": "they have no fields to select by: name those that you want, as `svcctl get boxes gw1 gw2`",
		"sort-by":        "they come by name: leave out --sort-by",
		"show-labels":    "they have no labels: `svcctl get nodes --show-labels` shows those of their Nodes",
		"label-columns":  "they have no labels: `svcctl get nodes -L LABEL` shows those of their Nodes",
		"filename":       "give either files with -f, or kinds and names, not both",
	} {
		if o := v.Option(name); o.IsSet() && o.Text() != "false" {
			return cli.Usagef("boxes are no objects: %s", instead)
		}
	}
	if !alone && !f.IsTable() && f.Name != cli.FormName {
		return cli.Usagef("boxes are no objects, and -o %s cannot print them with some: ask for them alone, as `svcctl get boxes -o %s`", f.Name, v.Option("output").Text())
	}
	return nil
}

// getBoxes prints the boxes of a fleet, with kinds of objects or without. It exits with 1 when one of them is not OK.
func getBoxes(ctx context.Context, env *cli.Env, v *cli.Verb, asked *boxesAsked, rest []string) error {
	f, err := resource.FormOf(v)
	if err == nil {
		err = checkBoxes(v, f, len(rest) == 0)
	}
	if err != nil {
		return err
	}
	if len(rest) == 0 {
		return printBoxes(ctx, env, v, f, asked, false)
	}
	g, what, err := newGetting(env, v, rest)
	if err != nil {
		return err
	}
	g.prefix = true
	gap := func() error {
		if !g.form.IsTable() {
			return nil
		}
		return env.Print("\n")
	}
	objects := func() error {
		if g.form.IsTable() {
			return g.tables(ctx, what)
		}
		return g.objects(ctx, what)
	}
	boxes := func() error { return printBoxes(ctx, env, v, f, asked, true) }
	steps := []func() error{objects, gap, boxes}
	if asked.first {
		steps = []func() error{boxes, gap, objects}
	}
	var errs []error
	for _, step := range steps {
		errs = append(errs, step())
	}
	return errors.Join(errs...)
}

// printBoxes prints boxes in a form, with the kind before their names.
func printBoxes(ctx context.Context, env *cli.Env, v *cli.Verb, f resource.Form, asked *boxesAsked, prefix bool) error {
	c := env.Client(v)
	of, err := client.Call(ctx, c, wire.GetFleet, wire.None{})
	if err != nil {
		return resource.OfFleet(err)
	}
	all, missing := asked.of(of.Boxes)
	if v.Option("ignore-not-found").On() {
		missing = nil
	}
	of.Boxes = all
	if len(all) > 0 || len(asked.names) == 0 {
		err = layBoxes(env, v, f, asked, of, prefix || v.Option("show-kind").On())
	}
	return errors.Join(append([]error{err, resource.NotOK(all)}, missing...)...)
}

// of returns the boxes that are asked for, and an error for each name without a box.
func (a *boxesAsked) of(boxes []wire.FleetBox) (all []wire.FleetBox, missing []error) {
	if len(a.names) == 0 {
		return boxes, nil
	}
	for _, name := range a.names {
		i := slices.IndexFunc(boxes, func(b wire.FleetBox) bool { return b.Name == name })
		if i < 0 {
			missing = append(missing, fmt.Errorf("no box %q has reported to this fleet: `svcctl get boxes` lists those that have", name))
			continue
		}
		all = append(all, boxes[i])
	}
	return all, missing
}

// layBoxes prints boxes. One that is named is a document of its own; else the document is that of the fleet.
func layBoxes(env *cli.Env, v *cli.Verb, f resource.Form, asked *boxesAsked, of *wire.Fleet, prefix bool) error {
	switch headers := !v.Option("no-headers").On(); f.Name {
	case cli.FormTable, cli.FormWide:
		return env.Print(resource.BoxTable(of.Boxes, resource.BoxLook{Wide: f.Name == cli.FormWide, Prefix: prefix, Bare: !headers}))
	case cli.FormName:
		for _, b := range of.Boxes {
			if err := env.Print("box/" + b.Name + "\n"); err != nil {
				return err
			}
		}
		return nil
	case cli.FormColumns:
		return columnBoxes(env, f, of.Boxes, headers)
	}
	var document any = of
	if len(asked.names) == 1 {
		document = of.Boxes[0]
	}
	switch f.Name {
	case cli.FormYAML:
		return env.PrintYAML(document)
	case cli.FormJSONPath:
		plain, err := plainly(document)
		if err != nil {
			return err
		}
		w := &resource.Printer{Env: env, Form: f}
		return w.Template(plain)
	}
	body, err := output.JSON(document)
	if err != nil {
		return err
	}
	return env.Print(body)
}

// columnBoxes prints a line for each box in columns of the user.
func columnBoxes(env *cli.Env, f resource.Form, boxes []wire.FleetBox, headers bool) error {
	var rows [][]string
	if headers {
		rows = append(rows, f.Headers())
	}
	for i := range boxes {
		plain, err := plainly(boxes[i])
		if err != nil {
			return err
		}
		rows = append(rows, f.Row(plain))
	}
	var g output.Grid
	return env.Print(g.Text(rows...))
}

// plainly is a document as JSON has it.
func plainly(v any) (plain any, err error) {
	text, err := json.Marshal(v)
	if err == nil {
		plain, err = resource.DecodeObject(text)
	}
	return plain, err
}

// watch prints objects and then every change of them, of several kinds at once.
func (g *getting) watch(ctx context.Context, what []resource.Target) error {
	if g.sortBy != nil {
		return cli.Usagef("--watch prints changes as they come: leave out --sort-by")
	}
	for _, t := range what {
		if t.Name != "" && len(what) > 1 {
			return cli.Usagef("--watch takes one name, or kinds without names")
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var printing sync.Mutex // lines of several watches do not mix
	var feeds []*feed
	var versions []string
	for _, t := range what {
		if t.Name != "" {
			if _, err := g.c.Get(ctx, t.Path(), nil); err != nil {
				return err // nothing may ever come
			}
		}
		f := g.rows(ctx, t, &printing)
		if !g.form.IsTable() {
			f = g.wholes(ctx, t, &printing)
		}
		version, err := f.list()
		if err != nil {
			return err
		}
		feeds, versions = append(feeds, f), append(versions, version)
	}
	var watches sync.WaitGroup
	for i, f := range feeds {
		watches.Go(func() {
			if err := f.follow(ctx, versions[i]); err != nil {
				cancel(err)
			}
		})
	}
	watches.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// feed is the objects of one target as they change.
type feed struct {
	// list prints all and gives the version to go on from; watch prints the changes after a
	// version until the server has enough, and gives how far it came.
	list  func() (version string, err error)
	watch func(version string) (string, error)
}

// follow repeats the watch when it ends. When changes were missed it begins with the list again.
func (f *feed) follow(ctx context.Context, version string) error {
	var err error
	for err == nil && ctx.Err() == nil {
		version, err = f.watch(version)
		if failure, is := errors.AsType[*wire.Failure](err); is && failure.Reason == wire.ReasonExpired {
			version, err = f.list()
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// collection is the collection a target is watched in, and the query that leaves only it.
func (g *getting) collection(t resource.Target) (path string, query url.Values) {
	query = maps.Clone(g.query)
	if t.Name != "" {
		query.Set("fieldSelector", "metadata.name="+t.Name)
	}
	return resource.CollectionPath(t.Kind, t.Namespace), query
}

// rows is a feed that prints the rows of Tables.
func (g *getting) rows(ctx context.Context, t resource.Target, printing *sync.Mutex) *feed {
	s := &sheet{g: g, target: t}
	path, query := g.collection(t)
	query.Set("includeObject", client.IncludeMetadata)
	print := func(rows []client.Row) error {
		printing.Lock()
		defer printing.Unlock()
		return s.print(rows)
	}
	list := func() (string, error) {
		table, err := g.c.Table(ctx, path, query)
		if err != nil {
			return "", err
		}
		s.columns = table.Columns
		if len(table.Rows) > 0 {
			err = print(table.Rows)
		}
		return table.ResourceVersion, err
	}
	return &feed{list, func(version string) (string, error) {
		query := maps.Clone(query)
		query.Set("resourceVersion", version)
		query.Set("allowWatchBookmarks", "true")
		err := g.c.WatchTable(ctx, path, query, func(kind string, table *client.Table) error {
			if len(table.Columns) > 0 {
				s.columns = table.Columns
			}
			for _, row := range table.Rows {
				if v := resource.VersionOf(row.Object); v != "" {
					version = v
				}
			}
			if kind == client.Bookmark {
				return nil
			}
			return print(table.Rows)
		})
		return version, err
	}}
}

// wholes is a feed that prints whole objects.
func (g *getting) wholes(ctx context.Context, t resource.Target, printing *sync.Mutex) *feed {
	path, query := g.collection(t)
	w := &resource.Printer{Env: g.env, Form: g.form, Managed: g.v.Option("show-managed-fields").On()}
	heads := g.form.Name == cli.FormColumns && !g.v.Option("no-headers").On()
	var lines output.Grid
	print := func(k kind.Kind, o client.Object) error {
		printing.Lock()
		defer printing.Unlock()
		if g.form.Name != cli.FormColumns {
			return w.Object(k, o)
		}
		rows := [][]string{g.form.Row(o)}
		if heads {
			rows, heads = append([][]string{g.form.Headers()}, rows...), false
		}
		return g.env.Print(lines.Text(rows...))
	}
	list := func() (string, error) {
		meta, err := g.c.Each(ctx, path, query, func(raw json.RawMessage) error {
			o, err := resource.DecodeObject(raw)
			if err != nil {
				return err
			}
			return print(t.Kind, o)
		})
		return meta.ResourceVersion, err
	}
	return &feed{list, func(version string) (string, error) {
		query := maps.Clone(query)
		query.Set("resourceVersion", version)
		query.Set("allowWatchBookmarks", "true")
		err := g.c.Watch(ctx, path, query, func(c client.Change) error {
			version = resource.VersionOf(c.Object)
			if c.Type == client.Bookmark {
				return nil
			}
			return print(t.Kind, c.Object)
		})
		return version, err
	}}
}
