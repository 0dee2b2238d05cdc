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

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/jsonpath"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/kind"
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

// getting is one run of get.
type getting struct {
	env    *cli.Env
	c      *client.Client
	v      *cli.Verb
	form   resource.Form
	all    bool // namespaces
	sortBy *jsonpath.Template
	query  url.Values // the selectors
	labels []string   // that have columns
	prefix bool       // the kind stands before names
}

// runGet prints objects.
func runGet(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	boxes, rest, err := takeBoxes(args)
	if err != nil {
		return err
	}
	if boxes != nil {
		return getBoxes(ctx, env, v, boxes, rest)
	}
	g, what, err := newGetting(env, v, args)
	if err != nil {
		return err
	}
	if v.Option("watch").On() {
		return g.watch(ctx, what)
	}
	if g.form.IsTable() {
		return g.tables(ctx, what)
	}
	return g.objects(ctx, what)
}

// newGetting judges the command line.
func newGetting(env *cli.Env, v *cli.Verb, args []string) (*getting, []resource.Target, error) {
	if len(args) == 0 && !v.Option("filename").IsSet() {
		return nil, nil, cli.Usagef("get what? Give a kind, as in `svcctl get services`; the kinds are %s", strings.Join(resource.Plurals(), ", "))
	}
	what, err := resource.Selected(env, v, args)
	if err != nil {
		return nil, nil, err
	}
	g := &getting{env: env, v: v, all: v.Option("all-namespaces").On(), query: resource.Selectors(v), labels: v.List("label-columns")}
	if g.form, err = resource.FormOf(v); err != nil {
		return nil, nil, err
	}
	if text := v.Option("sort-by").Text(); text != "" {
		if g.sortBy, err = jsonpath.ParseExpression(text); err != nil {
			return nil, nil, cli.Usagef("--sort-by %s: %v", text, err)
		}
	}
	several := slices.ContainsFunc(what, func(t resource.Target) bool { return t.Kind.Plural != what[0].Kind.Plural })
	g.prefix = several || v.Option("show-kind").On()
	g.c = env.Client(v)
	return g, what, nil
}

// objects prints whole objects.
func (g *getting) objects(ctx context.Context, what []resource.Target) error {
	w := &resource.Printer{Env: g.env, Form: g.form, Managed: g.v.Option("show-managed-fields").On(), Headers: !g.v.Option("no-headers").On()}
	named := what[0].Name != ""
	w.List = !named || len(what) > 1
	type found struct {
		kind kind.Kind
		o    client.Object
	}
	var kept []found // to be sorted
	each := func(k kind.Kind, o client.Object) error {
		if g.sortBy != nil {
			kept = append(kept, found{k, o})
			return nil
		}
		return w.Object(k, o)
	}
	var missing []error
	for _, t := range what {
		err := g.one(ctx, t, each)
		if f, is := errors.AsType[*wire.Failure](err); is && f.Reason == wire.ReasonNotFound && named {
			if !g.v.Option("ignore-not-found").On() {
				missing = append(missing, f)
			}
			w.List = w.List && len(what) > 1
		} else if err != nil {
			return err
		}
	}
	slices.SortStableFunc(kept, func(a, b found) int { return g.compare(a.o, b.o) })
	for _, f := range kept {
		if err := w.Object(f.kind, f.o); err != nil {
			return err
		}
	}
	if named && w.Count == 0 { // an empty list would not be what was asked for
		return errors.Join(missing...)
	}
	return errors.Join(append([]error{w.End()}, missing...)...)
}

// one calls f for the object, or the objects, of a target.
func (g *getting) one(ctx context.Context, t resource.Target, f func(kind.Kind, client.Object) error) error {
	if t.Name != "" {
		o, err := g.c.Get(ctx, t.Path(), nil)
		if err != nil {
			return err
		}
		return f(t.Kind, o)
	}
	_, err := g.c.Each(ctx, t.Path(), g.query, func(raw json.RawMessage) error {
		o, err := resource.DecodeObject(raw)
		if err != nil {
			return fmt.Errorf("read an object of %s: %w", t.Path(), err)
		}
		return f(t.Kind, o)
	})
	return err
}

// compare is the order of --sort-by: what has no value comes first.
func (g *getting) compare(a, b client.Object) int {
	x, y := g.sortBy.Find(a), g.sortBy.Find(b)
	if len(x) == 0 || len(y) == 0 {
		return len(x) - len(y)
	}
	if c, comparable := jsonpath.Compare(x[0], y[0]); comparable {
		return c
	}
	s, _ := jsonpath.Text(x[0])
	t, _ := jsonpath.Text(y[0])
	c, _ := jsonpath.Compare(s, t)
	return c
}

// sheet prints the Tables of one kind: which columns there are does not change while
// rows come in.
type sheet struct {
	g       *getting
	target  resource.Target
	grid    output.Grid
	columns []client.Column
	begun   bool // the line above is printed
}

// tables prints a table for each kind.
func (g *getting) tables(ctx context.Context, what []resource.Target) error {
	var missing []error
	printed, empty := 0, 0
	for _, same := range byKind(what) {
		s := &sheet{g: g, target: same[0]}
		var rows []client.Row
		for _, t := range same {
			table, err := g.c.Table(ctx, t.Path(), g.tableQuery(t))
			if f, is := errors.AsType[*wire.Failure](err); is && f.Reason == wire.ReasonNotFound && t.Name != "" {
				if !g.v.Option("ignore-not-found").On() {
					missing = append(missing, f)
				}
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

// byKind puts the targets of each kind together.
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

// tableQuery asks for as much of the objects as will be needed.
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

// print prints rows, and the line above before the first ones.
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
		value := ""
		if v, there := labels[label]; there {
			value = output.CellText(v)
		}
		line = append(line, value)
	}
	if s.g.v.Option("show-labels").On() {
		line = append(line, labelsText(labels))
	}
	return line
}

// labelsText is labels in one line.
func labelsText(labels map[string]any) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, fmt.Sprintf("%s=%v", key, labels[key]))
	}
	if all == nil {
		return "<none>"
	}
	return output.Printable(strings.Join(all, ","))
}
