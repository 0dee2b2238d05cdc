package explain

import (
	"cmp"
	"fmt"
	"strings"

	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/schema"
)

// Field describes a kind, or its field at a path, in the format of `kubectl explain`. With recursive it lists the names of all fields below.
func Field(k kind.Kind, path []string, recursive bool) (string, error) {
	t := schema.Of(k)
	page := &output.Page{}
	if k.Group != "" {
		fmt.Fprintf(page, "GROUP:      %s\n", k.Group)
	}
	fmt.Fprintf(page, "KIND:       %s\nVERSION:    %s\n\n", k.Name, k.Version)
	doc := t.Doc
	for i, name := range path {
		inside := structure(t)
		var f *schema.Field
		if inside != nil {
			f, _ = inside.Field(name)
		}
		if f == nil {
			return "", noField(k, path[:i], name, inside)
		}
		t, doc = f.Type, f.Doc
		if i == len(path)-1 {
			fmt.Fprintf(page, "FIELD: %s <%s>%s\n\n", name, typeText(t), required(f))
			if values := enum(t); values != nil {
				fmt.Fprintf(page, "ENUM:\n    %s\n\n", strings.Join(values, "\n    "))
			}
		}
	}
	page.WriteString("DESCRIPTION:\n" + output.Wrap(doc, "    ", output.HelpWidth))
	inside := structure(t)
	if inside != nil && len(path) > 0 && inside.Doc != "" && inside.Doc != doc {
		page.WriteString("\n" + output.Wrap(inside.Doc, "    ", output.HelpWidth))
	}
	if inside != nil {
		page.WriteString("\nFIELDS:\n")
		if recursive {
			fieldTree(page, inside, "  ", map[*schema.Type]bool{})
		} else {
			fieldList(page, inside)
		}
	}
	return page.String(), nil
}

// noField returns the error for a field that does not exist.
func noField(k kind.Kind, path []string, name string, inside *schema.Type) error {
	where := strings.Join(append([]string{k.Singular()}, path...), ".")
	if inside == nil {
		return fmt.Errorf("%s has no field %q: it has no fields", where, name)
	}
	var names []string
	for _, f := range inside.Fields {
		names = append(names, f.Name)
	}
	return fmt.Errorf("%s has no field %q: %s", where, name, output.DidYouMean("", name, names, "it has "+strings.Join(names, ", ")))
}

// structure returns t if it is a structure, or the structure type of the items if t is a list or map, at any depth. It returns nil for a scalar.
func structure(t *schema.Type) *schema.Type {
	for t != nil && (t.Form == schema.List || t.Form == schema.Map) {
		t = t.Elem
	}
	if t == nil || t.Form != schema.Structure {
		return nil
	}
	return t
}

// enum returns the allowed values of a field or of its items; nil if every value is allowed.
func enum(t *schema.Type) []string {
	if t.Elem != nil {
		t = t.Elem
	}
	return t.Enum
}

func required(f *schema.Field) string {
	if f.Required {
		return " -required-"
	}
	return ""
}

// fieldList writes the fields of a structure with their descriptions.
func fieldList(page *output.Page, t *schema.Type) {
	for i, f := range t.Fields {
		if i > 0 {
			page.WriteString("\n")
		}
		fmt.Fprintf(page, "  %s <%s>%s\n", f.Name, typeText(f.Type), required(f))
		if values := enum(f.Type); values != nil {
			fmt.Fprintf(page, "  enum: %s\n", strings.Join(values, ", "))
		}
		page.WriteString(output.Wrap(f.Doc, "    ", output.HelpWidth))
	}
}

// fieldTree writes the names of the fields of a structure and of all fields below them. within contains the structures around t, to end the
// recursion.
func fieldTree(page *output.Page, t *schema.Type, indent string, within map[*schema.Type]bool) {
	within[t] = true
	for _, f := range t.Fields {
		fmt.Fprintf(page, "%s%s <%s>%s\n", indent, f.Name, typeText(f.Type), required(f))
		if inside := structure(f.Type); inside != nil && !within[inside] {
			fieldTree(page, inside, indent+"  ", within)
		}
	}
	delete(within, t)
}

// typeText returns the name of a type as in kubectl.
func typeText(t *schema.Type) string {
	switch t.Form {
	case schema.Structure:
		return t.Short
	case schema.List:
		return "[]" + typeText(t.Elem)
	case schema.Map:
		return "map[string]" + typeText(t.Elem)
	}
	return cmp.Or(typeNames[t.Form], "string")
}

var typeNames = map[schema.Form]string{
	schema.Integer: "integer", schema.Boolean: "boolean", schema.Time: "Time", schema.MicroTime: "MicroTime", schema.IntOrString: "IntOrString",
	schema.FieldSet: "FieldsV1", schema.Bytes: "bytes",
}

// Annotations returns a table of the supported annotations.
func Annotations() string {
	rows := annotation.Table()
	cells := [][]string{{"ANNOTATION", "EFFECT", "OF"}}
	for i := range rows {
		of, _, _ := strings.Cut(rows[i].Of, ",")
		cells = append(cells, []string{rows[i].Key, string(rows[i].Effect), of})
	}
	return new(output.Grid).Text(cells...) + "\n`svcctl explain annotations NAME` describes what one does here.\n"
}

// Annotation describes an annotation. If name has no domain, it describes all annotations with that name in any domain.
func Annotation(name string) (string, error) {
	found := annotationsNamed(name)
	if len(found) == 0 {
		rows := annotation.Table()
		var keys []string
		for i := range rows {
			key := rows[i].Key
			if _, own, is := strings.Cut(key, "/"); is && !strings.Contains(name, "/") {
				key = own
			}
			keys = append(keys, key)
		}
		return "", fmt.Errorf("no annotation %q is known, and it has no effect here: %s", name,
			output.DidYouMean("", name, keys, "`svcctl explain annotations` lists those that are"))
	}
	page := &output.Page{}
	for i, r := range found {
		if i > 0 {
			page.WriteString("\n")
		}
		fmt.Fprintf(page, "KEY:     %s\nON:      %s\nOF:      %s\nEFFECT:  %s\n", r.Key, r.On(), r.Of, r.Effect)
		if r.Values != "" {
			fmt.Fprintf(page, "VALUES:  %s\n", r.Values)
		}
		page.WriteString("\n" + output.Wrap(r.Text, "    ", output.HelpWidth))
		if r.Page != "" {
			page.WriteString(output.Wrap("More of it: svcctl-"+r.Page+"(7)", "    ", output.HelpWidth))
		}
	}
	return page.String(), nil
}

// annotationsNamed returns the row of the annotation with the key name. If name has no domain, it returns the rows of all annotations with that name
// in any domain.
func annotationsNamed(name string) (found []*annotation.Row) {
	if strings.Contains(name, "/") {
		if r := annotation.Find(name); r != nil {
			found = append(found, r)
		}
		return found
	}
	rows := annotation.Table()
	for i := range rows {
		if _, own, _ := strings.Cut(rows[i].Key, "/"); own == name {
			found = append(found, &rows[i])
		}
	}
	return found
}
