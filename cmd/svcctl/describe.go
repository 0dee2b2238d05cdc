package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

func (p *program) describeVerb() *verb {
	return &verb{
		name:    "describe",
		summary: "tell all about an object, and what happened to it",
		args:    "KIND [NAME...] | KIND/NAME... [FLAGS]",
		about: `Of a Service it tells what it says, which addresses and ports it has, its endpoints slice
by slice and why some of them are not used, whether its present version is in the kernel,
what is wrong with it, and the events about it. Of other objects it tells all fields and
the events.`,
		options: slices.Concat(filesOptions("the objects of files"), whichOptions(), []*option{
			{name: "show-events", def: "true", group: groupOutput, usage: "tell the events too"},
		}, connectOptions()),
		examples: []example{
			{"One Service.", "svcctl describe svc/web -n shop"},
			{"What this box says of itself.", "svcctl describe nodes"},
		},
		exits: `  0  done
  1  a name does not exist, or the appliance refused: stderr says which
  2  wrong usage or configuration
  3  the appliance cannot be reached`,
		run: p.runDescribe,
	}
}

// describing is one run of describe.
type describing struct {
	p      *program
	c      *client.Client
	events bool
	status *wire.Status
	count  int
}

// runDescribe describes objects.
func (p *program) runDescribe(ctx context.Context, v *verb, args []string) error {
	if len(args) == 0 && !v.option("filename").isSet() {
		return usagef("describe what? Give a kind, as in `svcctl describe svc/web`")
	}
	what, err := p.selected(v, args)
	if err != nil {
		return err
	}
	d := &describing{p: p, events: v.option("show-events").text() != "false"}
	if d.c, err = p.client(v); err != nil {
		return err
	}
	if d.status, err = d.c.Status(ctx); err != nil {
		return err
	}
	var missing []error
	for _, t := range what {
		if t.name != "" {
			o, err := d.c.Get(ctx, t.path(), nil)
			if f, is := errors.AsType[*wire.Failure](err); is {
				missing = append(missing, f)
				continue
			}
			if err == nil {
				err = d.one(ctx, t, o)
			}
			if err != nil {
				return err
			}
			continue
		}
		_, err := d.c.Each(ctx, t.path(), selectors(v), func(raw json.RawMessage) error {
			o, err := decodeObject(raw)
			if err != nil {
				return err
			}
			return d.one(ctx, target{t.kind, namespaceOf(o), nameOf(o)}, o)
		})
		if err != nil {
			return err
		}
	}
	if d.count == 0 && len(missing) == 0 {
		fmt.Fprintln(p.stderr, nothingFound(what[0].namespace))
	}
	return errors.Join(missing...)
}

// one describes an object.
func (d *describing) one(ctx context.Context, t target, o client.Object) error {
	if d.count++; d.count > 1 {
		if err := d.p.print("\n\n"); err != nil {
			return err
		}
	}
	b := &description{}
	if t.kind.Plural == "services" {
		if err := d.service(ctx, b, t); err != nil {
			return err
		}
	} else {
		b.generic(o, t.kind)
	}
	d.problems(b, t)
	if d.events && t.kind.Name != object.KindEvent {
		if err := d.happened(ctx, b, t, textField(o, "metadata", "uid")); err != nil {
			return err
		}
	}
	return d.p.print(b.String())
}

// problems tells what is wrong with the object.
func (d *describing) problems(b *description, t target) {
	ref := object.Ref{Kind: t.kind.Name, Namespace: t.namespace, Name: t.name}
	var lines []string
	for _, problem := range d.status.Problems {
		if problem.Object == ref.String() {
			problem.Object = ""
			lines = append(lines, fmt.Sprintf("%s: %s", problem.Severity, withoutSeverity(problem)))
		}
	}
	if len(lines) == 0 {
		b.line("Problems", "<none>")
		return
	}
	b.line("Problems", "%s", lines[0])
	for _, line := range lines[1:] {
		b.line("", "%s", line)
	}
}

// withoutSeverity is a problem in one line that does not say twice what it is.
func withoutSeverity(p wire.Problem) string {
	p.Severity = ""
	return p.String()
}

// happened tells the events about the object.
func (d *describing) happened(ctx context.Context, b *description, t target, uid string) error {
	k, _ := kindNamed("events")
	about := []string{"involvedObject.kind=" + t.kind.Name, "involvedObject.name=" + t.name}
	if t.namespace != "" {
		about = append(about, "involvedObject.namespace="+t.namespace)
	}
	if uid != "" {
		about = append(about, "involvedObject.uid="+uid)
	}
	table, err := d.c.Table(ctx, collectionPath(k, t.namespace), url.Values{"fieldSelector": {strings.Join(about, ",")}})
	if f, is := errors.AsType[*wire.Failure](err); is && f.Code == 404 {
		return nil
	}
	if err != nil {
		return err
	}
	if len(table.Rows) == 0 {
		b.line("Events", "<none>")
		return nil
	}
	b.heading("Events")
	rows := [][]string{{"LAST SEEN", "TYPE", "REASON", "FROM", "MESSAGE"}}
	cell := func(row client.Row, name string) string {
		for i, c := range table.Columns {
			if c.Name == name && i < len(row.Cells) {
				return output.CellText(row.Cells[i])
			}
		}
		return ""
	}
	for _, row := range table.Rows {
		rows = append(rows, []string{cell(row, "Last Seen"), cell(row, "Type"), cell(row, "Reason"), cell(row, "Source"), cell(row, "Message")})
	}
	b.table(rows)
	return nil
}

// description is the text about an object.
type description struct{ strings.Builder }

// descriptionWidth is the column of values.
const descriptionWidth = 26

// line writes a name and its value.
func (b *description) line(name, format string, args ...any) {
	if name != "" {
		name += ":"
	}
	text := strings.TrimRight(output.Pad(name, descriptionWidth)+fmt.Sprintf(format, args...), " ")
	b.WriteString(text + "\n")
}

// heading begins a part that is indented.
func (b *description) heading(name string) { b.WriteString(name + ":\n") }

// table writes rows below a heading.
func (b *description) table(rows [][]string) {
	var g output.Grid
	b.WriteString(output.Indent(g.Text(rows...), "  "))
}

// pairs writes labels or annotations, one a line.
func (b *description) pairs(name string, pairs map[string]string) {
	if len(pairs) == 0 {
		b.line(name, "<none>")
		return
	}
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		b.line(name, "%s", output.Printable(key+"="+pairs[key]))
		name = ""
	}
}

// since returns a time, and how long ago it was.
func (d *describing) since(t *time.Time) string {
	if t == nil {
		return "<unknown>"
	}
	return fmt.Sprintf("%s (%s ago)", stamp(*t), span(d.p.now().Sub(*t)))
}

// generic writes all fields of an object of a kind.
func (b *description) generic(o client.Object, k kind.Kind) {
	meta, _ := o["metadata"].(map[string]any)
	b.line("Name", "%s", output.Printable(nameOf(o)))
	if namespace := namespaceOf(o); namespace != "" {
		b.line("Namespace", "%s", output.Printable(namespace))
	}
	b.pairs("Labels", textMap(meta["labels"]))
	b.pairs("Annotations", textMap(meta["annotations"]))
	b.line("API Version", "%s", k.APIVersion())
	b.line("Kind", "%s", k.Name)
	if created := textField(o, "metadata", "creationTimestamp"); created != "" {
		b.line("Created", "%s", created)
	}
	for _, key := range slices.Sorted(maps.Keys(o)) {
		switch key {
		case "metadata", "apiVersion", "kind":
		default:
			if k.Name == object.KindSecret && key == "data" {
				b.secrets(o[key])
				continue
			}
			if text, is := oneLiner(o[key]); is {
				b.line(title(key), "%s", text)
				continue
			}
			b.tree(title(key), o[key], schema.Of(k).Child(key), 0)
		}
	}
}

// oneLiner is the text of a value that has room in one line.
func oneLiner(v any) (string, bool) {
	switch v := v.(type) {
	case map[string]any, []any:
		return "", false
	case string:
		return output.Printable(v), !strings.Contains(v, "\n")
	}
	return output.CellText(v), true
}

// secrets writes how long secret values are.
func (b *description) secrets(data any) {
	b.heading("Data")
	for _, key := range slices.Sorted(maps.Keys(textMap(data))) {
		fmt.Fprintf(b, "  %s: %s\n", output.Printable(key), count(len(textMap(data)[key])*3/4, "byte"))
	}
}

// tree writes a field and what is in it. The type, nil for an unknown one, distinguishes field
// names from keys of maps.
func (b *description) tree(name string, value any, t *schema.Type, depth int) {
	indent := strings.Repeat("  ", depth)
	if isEmpty(value) {
		fmt.Fprintf(b, "%s%s: <none>\n", indent, name)
		return
	}
	switch v := value.(type) {
	case map[string]any:
		fmt.Fprintf(b, "%s%s:\n", indent, name)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			b.tree(keyTitle(t, key), v[key], childType(t, key), depth+1)
		}
	case []any:
		fmt.Fprintf(b, "%s%s:\n", indent, name)
		for _, item := range v {
			b.item(item, itemType(t), indent+"  ")
		}
	default:
		if s, is := value.(string); is && strings.Contains(s, "\n") {
			fmt.Fprintf(b, "%s%s:\n%s", indent, name, output.Indent(strings.TrimRight(printableLines(s), "\n")+"\n", indent+"  "))
			return
		}
		fmt.Fprintf(b, "%s%s: %s\n", indent, name, output.CellText(value))
	}
}

// isEmpty reports whether there is nothing to write of a value.
func isEmpty(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return output.CellText(value) == ""
}

// item writes an item of a list, a structure with a dash before its first field.
func (b *description) item(item any, t *schema.Type, indent string) {
	m, is := item.(map[string]any)
	if !is {
		fmt.Fprintf(b, "%s%s\n", indent, output.CellText(item))
		return
	}
	mark := "- "
	for _, key := range slices.Sorted(maps.Keys(m)) {
		var inner description
		inner.tree(keyTitle(t, key), m[key], childType(t, key), 0)
		text := output.Indent(inner.String(), indent+"  ")
		b.WriteString(indent + mark + strings.TrimPrefix(text, indent+"  "))
		mark = "  "
	}
}

// keyTitle returns the text of a key: unchanged in a map, whose keys users choose, else as a title.
func keyTitle(t *schema.Type, key string) string {
	if t != nil && t.Form == schema.Map {
		return output.Printable(key)
	}
	return title(key)
}

func childType(t *schema.Type, key string) *schema.Type {
	if t == nil {
		return nil
	}
	return t.Child(key)
}

func itemType(t *schema.Type) *schema.Type {
	if t == nil || t.Form != schema.List {
		return nil
	}
	return t.Elem
}

// printableLines is printable for a text of several lines.
func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = output.Printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

// title writes a field's name as kubectl does: clusterIP is Cluster IP.
func title(key string) string {
	if strings.ContainsAny(key, "-./_ ") || key == "" || strings.ToLower(key[:1]) != key[:1] {
		return output.Printable(key)
	}
	var b strings.Builder
	for i, r := range key {
		upper := r >= 'A' && r <= 'Z'
		if upper && i > 0 && !(key[i-1] >= 'A' && key[i-1] <= 'Z') {
			b.WriteByte(' ')
		}
		if i == 0 {
			r = []rune(strings.ToUpper(string(r)))[0]
		}
		b.WriteRune(r)
	}
	return output.Printable(b.String())
}

// textMap is a mapping of texts, whatever it is.
func textMap(v any) map[string]string {
	m, _ := v.(map[string]any)
	texts := make(map[string]string, len(m))
	for key, value := range m {
		texts[key] = fmt.Sprint(value)
	}
	return texts
}
