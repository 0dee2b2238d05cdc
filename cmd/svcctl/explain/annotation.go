package explain

import (
	"fmt"
	"strings"

	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/annotation"
)

// Annotations returns the table of annotations.
func Annotations() string {
	rows := annotation.Table()
	cells := [][]string{{"ANNOTATION", "EFFECT", "OF"}}
	for i := range rows {
		of, _, _ := strings.Cut(rows[i].Of, ",")
		cells = append(cells, []string{rows[i].Key, string(rows[i].Effect), of})
	}
	return new(output.Grid).Text(cells...) + "\n`svcctl explain annotations NAME` describes what one does here.\n"
}

// Annotation returns what an annotation does, or all of a name without a domain.
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

// annotationsNamed are the rows of a key, or of all keys that end in a name without a domain.
func annotationsNamed(name string) (found []*annotation.Row) {
	if strings.Contains(name, "/") {
		if r := annotation.Find(name); r != nil {
			found = append(found, r)
		}
		return found
	}
	rows := annotation.Table()
	for i := range rows {
		_, own, _ := strings.Cut(rows[i].Key, "/")
		if own == name {
			found = append(found, &rows[i])
		}
	}
	return found
}
