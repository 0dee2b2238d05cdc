package look

import (
	"cmp"
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
	"svcctl.io/svcctl/api/jsonpath"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

func GetVerb() *cli.Verb {
	return &cli.Verb{
		Name: "get",
		Options: slices.Concat(resource.FilesOptions("the objects of files"), resource.WhichOptions(), []*cli.Option{
			{Name: "ignore-not-found", Group: cli.GroupWhich, Usage: "ignore names that do not exist"},
			resource.FormOption(cli.FormTable, cli.FormTable, cli.FormWide, cli.FormYAML, cli.FormJSON, cli.FormName, cli.FormJSONPath, cli.FormColumns),
			{Name: "watch", Letter: "w", Group: cli.GroupOutput, Usage: "print every further change, until interrupted"},
			{Name: "sort-by", Arg: "PATH", Group: cli.GroupOutput, Usage: "sort by the value of a JSONPath expression, as .metadata.name"},
			{Name: "show-labels", Group: cli.GroupOutput, Usage: "add a column with all labels"},
			{Name: "label-columns", Letter: "L", Arg: "LABEL[,LABEL]", Group: cli.GroupOutput, Repeats: true, Usage: "add columns with the values of labels; repeatable"},
			{Name: "show-kind", Group: cli.GroupOutput, Usage: "write the kind before each name"},
			{Name: "no-headers", Group: cli.GroupOutput, Usage: "omit the header of a table"},
			{Name: "show-managed-fields", Group: cli.GroupOutput, Usage: "show managedFields in YAML and JSON"},
		}, settings.ConnectOptions()),
		Run: runGet,
	}
}

// getting holds the settings of one run of get, and the boxes that it prints.
type getting struct {
	env    *cli.Env
	c      *client.Client
	v      *cli.Verb
	form   resource.Form
	all    bool // all namespaces
	sortBy *jsonpath.Template
	query  url.Values // the label and field selectors
	labels []string   // labels to show as columns
	prefix bool       // print names with their kind
	fleet  *wire.Fleet
	boxes  []wire.FleetBox // the boxes to print
}

// runGet prints objects. The exit code is 1 if it prints a box that is not OK.
func runGet(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	if len(args) == 0 && !v.Option("filename").IsSet() {
		plurals := resource.KindWords(func(k kind.Kind) []string { return []string{k.Plural} })
		return cli.Usagef("get what? Give a kind, as in `svcctl get services`; the kinds are %s", strings.Join(plurals, ", "))
	}
	what, err := resource.Selected(env, v, args, resource.Boxes)
	if err != nil {
		return err
	}
	g := &getting{env: env, v: v, all: v.Option("all-namespaces").On(), query: resource.Selectors(v), labels: v.List("label-columns")}
	if g.form, err = resource.FormOf(v); err != nil {
		return err
	}
	if text := v.Option("sort-by").Text(); text != "" {
		if g.sortBy, err = jsonpath.ParseExpression(text); err != nil {
			return cli.Usagef("--sort-by %s: %v", text, err)
		}
	}
	several := slices.ContainsFunc(what, func(t resource.Target) bool { return t.Kind.Plural != what[0].Kind.Plural })
	g.prefix = several || v.Option("show-kind").On()
	if slices.ContainsFunc(what, isBoxes) {
		if err := g.checkBoxes(several); err != nil {
			return err
		}
	}
	g.c = env.Client(v)
	switch document := g.form.Name == cli.FormYAML || g.form.Name == cli.FormJSON || g.form.Name == cli.FormJSONPath; {
	case v.Option("watch").On():
		return g.watch(ctx, what)
	case g.form.IsTable():
		err = g.tables(ctx, what)
	case document && isBoxes(what[0]):
		err = g.fleetDocument(ctx, what)
	default:
		err = g.objects(ctx, what)
	}
	return errors.Join(resource.NotOK(g.boxes), err)
}

func isBoxes(t resource.Target) bool { return t.Kind.Plural == resource.Boxes.Plural }

// checkBoxes returns an error for options that do not apply to boxes. several is set if other kinds are requested as well.
func (g *getting) checkBoxes(several bool) error {
	for name, instead := range map[string]string{
		"watch":          "they cannot be watched: run `watch svcctl get boxes`",
		"selector":       "they have no labels: name those that you want, as `svcctl get boxes gw1 gw2`",
		"field-selector": "they have no fields to select by: name those that you want, as `svcctl get boxes gw1 gw2`",
		"sort-by":        "they come by name: leave out --sort-by",
		"show-labels":    "they have no labels: `svcctl get nodes --show-labels` shows those of their Nodes",
		"label-columns":  "they have no labels: `svcctl get nodes -L LABEL` shows those of their Nodes",
	} {
		if o := g.v.Option(name); o.IsSet() && o.Text() != "false" {
			return cli.Usagef("boxes are no objects: %s", instead)
		}
	}
	if several && !g.form.IsTable() && g.form.Name != cli.FormName {
		return cli.Usagef("boxes are no objects, and -o %s cannot print them with some: ask for them alone, as `svcctl get boxes -o %s`", g.form.Name, g.v.Option("output").Text())
	}
	return nil
}

// boxesOf returns the boxes that a target selects, and adds them to g.boxes. If the target names a box that does not exist, the error has the reason
// NotFound.
func (g *getting) boxesOf(ctx context.Context, t resource.Target) (boxes []wire.FleetBox, err error) {
	if g.fleet == nil {
		if g.fleet, err = client.Call(ctx, g.c, wire.GetFleet, wire.None{}); err != nil {
			return nil, resource.OfFleet(err)
		}
	}
	for _, b := range g.fleet.Boxes {
		if t.Name == "" || t.Name == b.Name {
			boxes = append(boxes, b)
		}
	}
	if t.Name != "" && boxes == nil {
		return nil, wire.NotFound("no box %q has reported to this fleet: `svcctl get boxes` lists those that have", t.Name)
	}
	g.boxes = append(g.boxes, boxes...)
	return boxes, nil
}

// fleetDocument prints the fleet as a document with all boxes or the named ones. If a single box is named, it prints only that box.
func (g *getting) fleetDocument(ctx context.Context, what []resource.Target) error {
	var missing []error
	for _, t := range what {
		if _, err := g.boxesOf(ctx, t); g.isMissing(err, t) {
			missing = g.noteMissing(missing, err)
		} else if err != nil {
			return err
		}
	}
	if len(g.boxes) == 0 && what[0].Name != "" {
		return errors.Join(missing...)
	}
	fleet := *g.fleet
	fleet.Boxes = g.boxes
	var document any = fleet
	if len(what) == 1 && what[0].Name != "" {
		document = g.boxes[0]
	}
	plain, err := plainly(document)
	if err == nil {
		err = g.env.Output(g.v, document, func() string { return g.form.Template(plain) })
	}
	return errors.Join(append([]error{err}, missing...)...)
}

// plainly converts a value to the maps, lists and scalars of its JSON encoding.
func plainly(v any) (client.Object, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return resource.DecodeObject(text)
}

// isMissing reports whether err means that the object named by t does not exist.
func (g *getting) isMissing(err error, t resource.Target) bool {
	f, is := errors.AsType[*wire.Failure](err)
	return is && f.Reason == wire.ReasonNotFound && t.Name != ""
}

// noteMissing adds the error of an object that does not exist, unless --ignore-not-found is given.
func (g *getting) noteMissing(missing []error, err error) []error {
	if g.v.Option("ignore-not-found").On() {
		return missing
	}
	return append(missing, err)
}

// objects prints whole objects, in the format of -o.
func (g *getting) objects(ctx context.Context, what []resource.Target) error {
	w := &resource.Printer{Env: g.env, Form: g.form, Managed: g.v.Option("show-managed-fields").On(), Headers: !g.v.Option("no-headers").On()}
	named := what[0].Name != ""
	w.List = !named || len(what) > 1
	type found struct {
		t resource.Target
		o client.Object
	}
	var kept []found // to be sorted
	each := func(t resource.Target, o client.Object) error {
		if g.sortBy != nil {
			kept = append(kept, found{t, o})
			return nil
		}
		return w.Object(t, o)
	}
	var missing []error
	for _, t := range what {
		if err := g.each(ctx, t, each); g.isMissing(err, t) {
			missing = g.noteMissing(missing, err)
			w.List = w.List && len(what) > 1
		} else if err != nil {
			return err
		}
	}
	slices.SortStableFunc(kept, func(a, b found) int { return g.compare(a.o, b.o) })
	for _, f := range kept {
		if err := w.Object(f.t, f.o); err != nil {
			return err
		}
	}
	if named && w.Count == 0 { // an empty list would not be what was asked for
		return errors.Join(missing...)
	}
	return errors.Join(append([]error{w.End()}, missing...)...)
}

// each calls f for the objects, or the boxes, of a target.
func (g *getting) each(ctx context.Context, t resource.Target, f func(resource.Target, client.Object) error) error {
	if !isBoxes(t) {
		return resource.Each(ctx, g.c, t, g.query, f)
	}
	boxes, err := g.boxesOf(ctx, t)
	for i := range boxes {
		var plain client.Object
		if plain, err = plainly(boxes[i]); err == nil {
			err = f(resource.Target{Kind: t.Kind, Name: boxes[i].Name}, plain)
		}
		if err != nil {
			return err
		}
	}
	return err
}

// table returns the objects, or the boxes, of a target as a Table.
func (g *getting) table(ctx context.Context, t resource.Target) (*client.Table, error) {
	if !isBoxes(t) {
		return g.c.Table(ctx, t.Path(), g.tableQuery(t))
	}
	boxes, err := g.boxesOf(ctx, t)
	if err != nil {
		return nil, err
	}
	return resource.BoxTable(boxes, g.fleet.Boxes), nil
}

// compare orders objects by --sort-by; those without a value come first.
func (g *getting) compare(a, b client.Object) int {
	x, y := g.sortBy.Find(a), g.sortBy.Find(b)
	if len(x) == 0 || len(y) == 0 {
		return len(x) - len(y)
	}
	if c, comparable := jsonpath.Compare(x[0], y[0]); comparable {
		return c
	}
	return strings.Compare(jsonpath.Text(x[0]), jsonpath.Text(y[0]))
}

// sheet prints Tables of one kind with a common header. The first Table determines the columns.
type sheet struct {
	g       *getting
	target  resource.Target
	grid    output.Grid
	columns []client.Column
	begun   bool // the header is printed, or --no-headers was given
}

// tables prints a table for each kind.
func (g *getting) tables(ctx context.Context, what []resource.Target) error {
	var missing []error
	printed, empty := 0, 0
	for _, same := range byKind(what) {
		s := &sheet{g: g, target: same[0]}
		var rows []client.Row
		for _, t := range same {
			table, err := g.table(ctx, t)
			if g.isMissing(err, t) {
				missing = g.noteMissing(missing, err)
				continue
			}
			if err != nil {
				return err
			}
			s.columns, rows = table.Columns, append(rows, table.Rows...)
		}
		if len(rows) == 0 {
			empty++
			continue
		}
		if printed++; printed > 1 {
			if err := g.env.Print("\n"); err != nil {
				return err
			}
		}
		if g.sortBy != nil {
			slices.SortStableFunc(rows, func(a, b client.Row) int { return g.compare(a.Object, b.Object) })
		}
		if err := s.print(rows); err != nil {
			return err
		}
	}
	if printed == 0 && what[0].Name == "" && !g.v.Option("ignore-not-found").On() {
		fmt.Fprintln(g.env.Err, resource.NothingFound(what[0].Namespace))
	}
	return errors.Join(missing...)
}

// byKind groups targets by kind.
func byKind(what []resource.Target) [][]resource.Target {
	var all [][]resource.Target
	for _, t := range what {
		i := slices.IndexFunc(all, func(same []resource.Target) bool {
			return same[0].Kind.Plural == t.Kind.Plural && same[0].Kind.Group == t.Kind.Group
		})
		if i < 0 {
			all = append(all, nil)
			i = len(all) - 1
		}
		all[i] = append(all[i], t)
	}
	return all
}

// tableQuery returns the query parameters for a Table. The rows include whole objects, metadata or nothing, depending on the options.
func (g *getting) tableQuery(t resource.Target) url.Values {
	q := url.Values{}
	if t.Name == "" {
		q = maps.Clone(g.query)
	}
	switch {
	case g.sortBy != nil:
		q.Set("includeObject", client.IncludeObject)
	case !g.all && len(g.labels) == 0 && !g.v.Option("show-labels").On():
		q.Set("includeObject", client.IncludeNone)
	}
	return q
}

// print prints rows. The first call also prints the header.
func (s *sheet) print(rows []client.Row) error {
	var lines [][]string
	if !s.begun && !s.g.v.Option("no-headers").On() {
		lines = append(lines, s.head())
	}
	s.begun = true
	for _, row := range rows {
		lines = append(lines, s.row(row))
	}
	return s.g.env.Print(s.grid.Text(lines...))
}

// shown reports whether a column is printed.
func (s *sheet) shown(c client.Column) bool { return c.Priority == 0 || s.g.form.Name == cli.FormWide }

func (s *sheet) withNamespace() bool { return s.g.all && s.target.Kind.Namespaced }

func (s *sheet) head() []string {
	var line []string
	if s.withNamespace() {
		line = append(line, "NAMESPACE")
	}
	for _, c := range s.columns {
		if s.shown(c) {
			line = append(line, strings.ToUpper(c.Name))
		}
	}
	for _, label := range s.g.labels {
		line = append(line, strings.ToUpper(label[strings.LastIndex(label, "/")+1:]))
	}
	if s.g.v.Option("show-labels").On() {
		line = append(line, "LABELS")
	}
	return line
}

func (s *sheet) row(row client.Row) []string {
	var line []string
	if s.withNamespace() {
		line = append(line, output.CellText(resource.NamespaceOf(row.Object)))
	}
	for i, cell := range row.Cells {
		if i >= len(s.columns) || !s.shown(s.columns[i]) {
			continue
		}
		text := output.CellText(cell)
		if s.g.prefix && s.columns[i].Name == "Name" {
			text = resource.FullName(s.target.Kind, text)
		}
		line = append(line, text)
	}
	labels, _ := resource.Field(row.Object, "metadata", "labels").(map[string]any)
	for _, label := range s.g.labels {
		value, _ := labels[label].(string)
		line = append(line, output.CellText(value))
	}
	if s.g.v.Option("show-labels").On() {
		line = append(line, output.Printable(cmp.Or(object.Pairs(labels), "<none>")))
	}
	return line
}

// watch prints objects of one or several kinds, and then each change of them.
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
	var follows []func() error
	for _, t := range what {
		if t.Name != "" {
			if _, err := g.c.Get(ctx, t.Path()); err != nil {
				return err // nothing may ever come
			}
		}
		query := maps.Clone(g.query)
		if t.Name != "" {
			query.Set("fieldSelector", "metadata.name="+t.Name)
		}
		feed := g.wholes
		if g.form.IsTable() {
			query.Set("includeObject", client.IncludeMetadata)
			feed = g.rows
		}
		list, watch := feed(ctx, t, query, &printing)
		version, err := list()
		if err != nil {
			return err
		}
		follows = append(follows, func() error { return resource.Follow(ctx, version, query, list, watch) })
	}
	var watches sync.WaitGroup
	for _, follow := range follows {
		watches.Go(func() {
			if err := follow(); err != nil && ctx.Err() == nil {
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

// rows returns the list and watch functions for resource.Follow that print the objects of a target as rows of Tables.
func (g *getting) rows(ctx context.Context, t resource.Target, query url.Values, printing *sync.Mutex) (list func() (string, error), watch func(url.Values, *string) error) {
	s := &sheet{g: g, target: t}
	path := resource.CollectionPath(t.Kind, t.Namespace)
	print := func(rows []client.Row) error {
		printing.Lock()
		defer printing.Unlock()
		return s.print(rows)
	}
	list = func() (string, error) {
		table, err := g.c.Table(ctx, path, query)
		if err != nil {
			return "", err
		}
		s.columns = table.Columns
		if len(table.Rows) > 0 {
			err = print(table.Rows)
		}
		return table.Metadata.ResourceVersion, err
	}
	return list, func(query url.Values, version *string) error {
		return g.c.WatchTable(ctx, path, query, func(kind string, table *client.Table) error {
			if len(table.Columns) > 0 {
				s.columns = table.Columns
			}
			for _, row := range table.Rows {
				*version = cmp.Or(resource.VersionOf(row.Object), *version)
			}
			if kind == client.Bookmark {
				return nil
			}
			return print(table.Rows)
		})
	}
}

// wholes returns the list and watch functions for resource.Follow that print the objects of a target as whole objects.
func (g *getting) wholes(ctx context.Context, t resource.Target, query url.Values, printing *sync.Mutex) (list func() (string, error), watch func(url.Values, *string) error) {
	path := resource.CollectionPath(t.Kind, t.Namespace)
	w := &resource.Printer{Env: g.env, Form: g.form, Managed: g.v.Option("show-managed-fields").On(), Headers: !g.v.Option("no-headers").On(), Live: true}
	print := func(o client.Object) error {
		printing.Lock()
		defer printing.Unlock()
		return w.Object(resource.Target{Kind: t.Kind, Name: resource.NameOf(o)}, o)
	}
	list = func() (string, error) {
		return g.c.Each(ctx, path, query, func(raw json.RawMessage) error {
			o, err := resource.DecodeObject(raw)
			if err != nil {
				return err
			}
			return print(o)
		})
	}
	return list, func(query url.Values, version *string) error {
		return g.c.Watch(ctx, path, query, func(c client.Change) error {
			*version = resource.VersionOf(c.Object)
			if c.Type == client.Bookmark {
				return nil
			}
			return print(c.Object)
		})
	}
}
