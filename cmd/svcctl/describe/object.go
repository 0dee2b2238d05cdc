package describe

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// Object writes all fields of an object of a kind.
func (p *Page) Object(o map[string]any, k kind.Kind) {
	meta, _ := o["metadata"].(map[string]any)
	p.line("Name", "%s", output.Printable(metaText(meta, "name")))
	p.given("Namespace", output.Printable(metaText(meta, "namespace")))
	p.pairs("Labels", textMap(meta["labels"]))
	p.pairs("Annotations", textMap(meta["annotations"]))
	p.line("API Version", "%s", k.APIVersion())
	p.line("Kind", "%s", k.Name)
	p.given("Created", metaText(meta, "creationTimestamp"))
	for _, key := range slices.Sorted(maps.Keys(o)) {
		switch key {
		case "metadata", "apiVersion", "kind":
		default:
			if k.Name == object.KindSecret && key == "data" {
				p.secrets(o[key])
				continue
			}
			if text, is := oneLiner(o[key]); is {
				p.line(title(key), "%s", text)
				continue
			}
			p.tree(title(key), o[key], schema.Of(k).Child(key), 0)
		}
	}
}

// metaText returns a text field of the metadata, "" if it is absent.
func metaText(meta map[string]any, field string) string {
	text, _ := meta[field].(string)
	return text
}

// oneLiner returns the text of a value if it fits on one line; the bool reports whether it does.
func oneLiner(v any) (string, bool) {
	switch v := v.(type) {
	case map[string]any, []any:
		return "", false
	case string:
		return output.Printable(v), !strings.Contains(v, "\n")
	}
	return output.CellText(v), true
}

// secrets writes the keys of a Secret with the lengths of their values in bytes.
func (p *Page) secrets(data any) {
	p.heading("Data")
	for _, key := range slices.Sorted(maps.Keys(textMap(data))) {
		fmt.Fprintf(p, "  %s: %s\n", output.Printable(key), output.Count(len(strings.TrimRight(textMap(data)[key], "="))*3/4, "byte"))
	}
}

// tree writes a field and its content, indented by depth levels. t is the type of the field, which determines whether keys are field names or keys of
// a map; nil if unknown.
func (p *Page) tree(name string, value any, t *schema.Type, depth int) {
	indent := strings.Repeat("  ", depth)
	if isEmpty(value) {
		fmt.Fprintf(p, "%s%s: <none>\n", indent, name)
		return
	}
	switch v := value.(type) {
	case map[string]any:
		fmt.Fprintf(p, "%s%s:\n", indent, name)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			p.tree(keyTitle(t, key), v[key], t.Child(key), depth+1)
		}
	case []any:
		fmt.Fprintf(p, "%s%s:\n", indent, name)
		for _, item := range v {
			p.item(item, itemType(t), indent+"  ")
		}
	default:
		if s, is := value.(string); is && strings.Contains(s, "\n") {
			fmt.Fprintf(p, "%s%s:\n%s", indent, name, output.Indent(strings.TrimRight(printableLines(s), "\n")+"\n", indent+"  "))
			return
		}
		fmt.Fprintf(p, "%s%s: %s\n", indent, name, output.CellText(value))
	}
}

// isEmpty reports whether a value needs no line: an empty map, list or text.
func isEmpty(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return output.CellText(value) == ""
}

// item writes an item of a list. For a structure, the first field has a dash in front.
func (p *Page) item(item any, t *schema.Type, indent string) {
	m, is := item.(map[string]any)
	if !is {
		fmt.Fprintf(p, "%s%s\n", indent, output.CellText(item))
		return
	}
	mark := "- "
	for _, key := range slices.Sorted(maps.Keys(m)) {
		var inner Page
		inner.tree(keyTitle(t, key), m[key], t.Child(key), 0)
		p.WriteString(indent + mark + strings.TrimPrefix(output.Indent(inner.String(), indent+"  "), indent+"  "))
		mark = "  "
	}
}

// keyTitle returns the text for a key: the key itself in a map, whose keys users choose; otherwise the field name as a title.
func keyTitle(t *schema.Type, key string) string {
	if t != nil && t.Form == schema.Map {
		return output.Printable(key)
	}
	return title(key)
}

func itemType(t *schema.Type) *schema.Type {
	if t == nil || t.Form != schema.List {
		return nil
	}
	return t.Elem
}

// printableLines replaces control characters in a text of several lines, but keeps the line breaks.
func printableLines(s string) string {
	return strings.Join(object.Texts(strings.Split(s, "\n"), output.Printable), "\n")
}

// title converts a field name to a title as kubectl does: clusterIP becomes Cluster IP.
func title(key string) string {
	if strings.ContainsAny(key, "-./_ ") || key == "" || strings.ToLower(key[:1]) != key[:1] {
		return output.Printable(key)
	}
	var b strings.Builder
	for i, r := range key {
		if upper := r >= 'A' && r <= 'Z'; upper && i > 0 && !(key[i-1] >= 'A' && key[i-1] <= 'Z') {
			b.WriteByte(' ')
		}
		if i == 0 {
			r = []rune(strings.ToUpper(string(r)))[0]
		}
		b.WriteRune(r)
	}
	return output.Printable(b.String())
}

// textMap returns a map with its values converted to text.
func textMap(v any) map[string]string {
	m, _ := v.(map[string]any)
	texts := make(map[string]string, len(m))
	for key, value := range m {
		texts[key] = fmt.Sprint(value)
	}
	return texts
}

// Page is the description of an object as text: lines of names and values, under headings.
type Page struct{ strings.Builder }

// descriptionWidth is the column at which values begin.
const descriptionWidth = 26

// line writes a name and its value.
func (p *Page) line(name, format string, args ...any) {
	if name != "" {
		name += ":"
	}
	p.WriteString(strings.TrimRight(output.Pad(name, descriptionWidth)+fmt.Sprintf(format, args...), " ") + "\n")
}

// heading writes a heading; the lines below it are indented.
func (p *Page) heading(name string) { p.WriteString(name + ":\n") }

// given writes a name and its value, unless the value is empty.
func (p *Page) given(name, text string) {
	if text != "" {
		p.line(name, "%s", text)
	}
}

// table writes rows as an indented table, for use below a heading.
func (p *Page) table(rows [][]string) {
	var g output.Grid
	p.WriteString(output.Indent(g.Text(rows...), "  "))
}

// pairs writes labels or annotations, one a line.
func (p *Page) pairs(name string, pairs map[string]string) {
	pairs = maps.Clone(pairs)
	delete(pairs, object.AnnotationLastApplied) // it repeats the whole object: kubectl does not show it either
	if len(pairs) == 0 {
		p.line(name, "<none>")
		return
	}
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		p.line(name, "%s", output.Printable(key+"="+pairs[key]))
		name = ""
	}
}

// Problems writes the problems of an object.
func (p *Page) Problems(ref object.Ref, status *wire.Status) {
	var lines []string
	for _, problem := range status.Problems {
		if problem.Object == ref.String() {
			severity := problem.Severity
			problem.Object, problem.Severity = "", "" // so as not to repeat them
			lines = append(lines, fmt.Sprintf("%s: %s", severity, &problem))
		}
	}
	if len(lines) == 0 {
		p.line("Problems", "<none>")
		return
	}
	p.line("Problems", "%s", lines[0])
	for _, line := range lines[1:] {
		p.line("", "%s", line)
	}
}

// Events writes an object's Events, one for each row of table.
func (p *Page) Events(table *client.Table) {
	if len(table.Rows) == 0 {
		p.line("Events", "<none>")
		return
	}
	p.heading("Events")
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
	p.table(rows)
}
