package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/jsonpath"
	"svcctl.io/svcctl/api/kube/selector"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/kind"
)

func (p *program) getVerb() *verb {
	return &verb{
		name:    "get",
		summary: "list or show objects",
		args:    "KIND[,KIND] [NAME...] | KIND/NAME... [FLAGS]",
		about: `KIND is services, endpointslices, endpoints, pods, namespaces, nodes, events,
configmaps, secrets, leases, servicecidrs or ipaddresses; or its singular, or a short
name (svc, ep, po, ns, no, ev, cm, ip), or "all" for services and pods. Of a fleet,
"boxes" are those that share the objects: exit status 1 means that one is not OK.`,
		options: slices.Concat(filesOptions("the objects of files"), whichOptions(), []*option{
			{name: "ignore-not-found", group: groupWhich, usage: "ignore names that do not exist"},
			formOption(formTable, formTable, formWide, formYAML, formJSON, formName, formJSONPath, formColumns),
			{name: "watch", letter: "w", group: groupOutput, usage: "print every further change, until interrupted"},
			{name: "sort-by", arg: "PATH", group: groupOutput, usage: "sort by the value of a JSONPath expression, as .metadata.name"},
			{name: "show-labels", group: groupOutput, usage: "add a column with all labels"},
			{name: "label-columns", letter: "L", arg: "LABEL[,LABEL]", group: groupOutput, repeats: true, usage: "add columns with the values of labels; repeatable"},
			{name: "show-kind", group: groupOutput, usage: "write the kind before each name"},
			{name: "no-headers", group: groupOutput, usage: "omit the header of a table"},
			{name: "show-managed-fields", group: groupOutput, usage: "show managedFields in YAML and JSON"},
		}, connectOptions()),
		examples: []example{
			{"All Services of a namespace, and of all of them.", "svcctl get svc -n shop; svcctl get svc -A -o wide"},
			{"Two kinds at once, as they change.", "svcctl get svc,endpointslices -w"},
			{"One field of each.", `svcctl get svc -o jsonpath='{range .items[*]}{.metadata.name}{"\t"}{.spec.clusterIP}{"\n"}{end}'`},
			{"Allocated addresses with their holders.", "svcctl get ipaddresses"},
			{"The boxes of a fleet, with why one is not OK.", "svcctl get boxes -o wide"},
		},
		exits: `  0  done, also when there is nothing to list
  1  a name does not exist, a box is not OK, or the appliance refused: stderr
     says which
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runGet,
	}
}

// whichOptions say which objects of a kind a verb is about.
func whichOptions() []*option {
	return []*option{
		namespaceOption(),
		{name: "all-namespaces", letter: "A", group: groupWhich, usage: "objects of all namespaces"},
		{name: "selector", letter: "l", arg: "SELECTOR", group: groupWhich, usage: "objects with these labels: app=web,tier!=test, env in (a,b), !old"},
		{name: "field-selector", arg: "SELECTOR", group: groupWhich, usage: "objects with these fields: spec.type=LoadBalancer,metadata.name!=web"},
	}
}

// getting is one run of get.
type getting struct {
	p      *program
	c      *client.Client
	v      *verb
	form   form
	all    bool // namespaces
	sortBy *jsonpath.Template
	query  url.Values // the selectors
	labels []string   // that have columns
	prefix bool       // the kind stands before names
}

// runGet prints objects.
func (p *program) runGet(ctx context.Context, v *verb, args []string) error {
	boxes, rest, err := takeBoxes(args)
	if err != nil {
		return err
	}
	if boxes != nil {
		return p.getBoxes(ctx, v, boxes, rest)
	}
	g, what, err := p.getting(v, args)
	if err != nil {
		return err
	}
	if v.option("watch").on() {
		return g.watch(ctx, what)
	}
	if g.form.isTable() {
		return g.tables(ctx, what)
	}
	return g.objects(ctx, what)
}

// getting judges the command line.
func (p *program) getting(v *verb, args []string) (*getting, []target, error) {
	if len(args) == 0 && !v.option("filename").isSet() {
		return nil, nil, usagef("get what? Give a kind, as in `svcctl get services`; the kinds are %s", strings.Join(plurals(), ", "))
	}
	what, err := p.selected(v, args)
	if err != nil {
		return nil, nil, err
	}
	g := &getting{p: p, v: v, all: v.option("all-namespaces").on(), query: selectors(v), labels: v.list("label-columns")}
	if g.form, err = v.form(); err != nil {
		return nil, nil, err
	}
	if text := v.option("sort-by").text(); text != "" {
		if g.sortBy, err = jsonpath.ParseExpression(text); err != nil {
			return nil, nil, usagef("--sort-by %s: %v", text, err)
		}
	}
	several := slices.ContainsFunc(what, func(t target) bool { return t.kind.Plural != what[0].kind.Plural })
	g.prefix = several || v.option("show-kind").on()
	g.c, err = p.client(v)
	return g, what, err
}

// selected are the targets of a verb with whichOptions and filesOptions.
func (p *program) selected(v *verb, args []string) ([]target, error) {
	if v.option("filename").isSet() {
		return p.inFiles(v, args)
	}
	namespace, all := p.namespace(v), v.option("all-namespaces").on()
	if all {
		namespace = ""
	}
	what, err := targets(args, namespace)
	if err != nil {
		return nil, err
	}
	if err := checkSelectors(v, what); err != nil {
		return nil, err
	}
	named := what[0].name != ""
	switch {
	case named && all:
		return nil, usagef("%s: a name is in one namespace: give -n NAMESPACE, not -A", what[0])
	case named && len(selectors(v)) > 0:
		return nil, usagef("%s: give either names or a selector", what[0])
	}
	return what, nil
}

// inFiles are the objects that the files of a verb name. A file that cannot be read, or a
// document of it, is an error: the answer would be about something else.
func (p *program) inFiles(v *verb, args []string) ([]target, error) {
	if len(args) > 0 || len(selectors(v)) > 0 || v.option("all-namespaces").on() {
		return nil, usagef("give either files with -f, or kinds and names, not both")
	}
	files := p.reader(v)
	var what []target
	err := files.each(func(d *document) error {
		what = append(what, d.target)
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case files.refused > 0:
		return nil, fmt.Errorf("%s cannot be read: see above", count(files.refused, "document"))
	case len(what) == 0:
		return nil, errors.New("the files have no objects")
	}
	return what, nil
}

// checkSelectors judges the selectors of a verb.
func checkSelectors(v *verb, what []target) error {
	if _, err := selector.ParseLabels(v.option("selector").text()); err != nil {
		return usagef("-l: %v", err)
	}
	for _, t := range what {
		if _, err := selector.ParseFields(t.kind, v.option("field-selector").text()); err != nil {
			return usagef("--field-selector: %v", err)
		}
	}
	return nil
}

// selectors are the selectors of a verb, as the server takes them.
func selectors(v *verb) url.Values {
	q := url.Values{}
	for name, key := range map[string]string{"selector": "labelSelector", "field-selector": "fieldSelector"} {
		if text := v.option(name).text(); text != "" {
			q.Set(key, text)
		}
	}
	return q
}

// objects prints whole objects.
func (g *getting) objects(ctx context.Context, what []target) error {
	w := &printer{p: g.p, form: g.form, managed: g.v.option("show-managed-fields").on(), headers: !g.v.option("no-headers").on()}
	named := what[0].name != ""
	w.list = !named || len(what) > 1
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
		return w.object(k, o)
	}
	var missing []error
	for _, t := range what {
		err := g.one(ctx, t, each)
		if f, is := errors.AsType[*wire.Failure](err); is && f.Reason == wire.ReasonNotFound && named {
			if !g.v.option("ignore-not-found").on() {
				missing = append(missing, f)
			}
			w.list = w.list && len(what) > 1
		} else if err != nil {
			return err
		}
	}
	slices.SortStableFunc(kept, func(a, b found) int { return g.compare(a.o, b.o) })
	for _, f := range kept {
		if err := w.object(f.kind, f.o); err != nil {
			return err
		}
	}
	if named && w.count == 0 { // an empty list would not be what was asked for
		return errors.Join(missing...)
	}
	return errors.Join(append([]error{w.end()}, missing...)...)
}

// one calls f for the object, or the objects, of a target.
func (g *getting) one(ctx context.Context, t target, f func(kind.Kind, client.Object) error) error {
	if t.name != "" {
		o, err := g.c.Get(ctx, t.path(), nil)
		if err != nil {
			return err
		}
		return f(t.kind, o)
	}
	_, err := g.c.Each(ctx, t.path(), g.query, func(raw json.RawMessage) error {
		o, err := decodeObject(raw)
		if err != nil {
			return fmt.Errorf("read an object of %s: %w", t.path(), err)
		}
		return f(t.kind, o)
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
