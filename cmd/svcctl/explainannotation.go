package main

import (
	"fmt"
	"strings"

	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/annotation"
)

// annotationsWord makes explain print the table of annotations.
const annotationsWord = "annotations"

// explainAnnotations prints the table of annotations, or what one of them does.
func (p *program) explainAnnotations(args []string) error {
	rows := annotation.Table()
	if len(args) == 0 {
		cells := [][]string{{"ANNOTATION", "EFFECT", "OF"}}
		for i := range rows {
			of, _, _ := strings.Cut(rows[i].Of, ",")
			cells = append(cells, []string{rows[i].Key, string(rows[i].Effect), of})
		}
		return p.print(new(output.Grid).Text(cells...) + "\n`svcctl explain annotations NAME` tells what one does here.\n")
	}
	found := annotationsNamed(args[0])
	if len(found) == 0 {
		var keys []string
		for i := range rows {
			key := rows[i].Key
			if _, own, is := strings.Cut(key, "/"); is && !strings.Contains(args[0], "/") {
				key = own
			}
			keys = append(keys, key)
		}
		return fmt.Errorf("no annotation %q is known, and it has no effect here: %s", args[0],
			didYouMean("", args[0], keys, "`svcctl explain annotations` lists those that are"))
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
		page.WriteString("\n" + wrap(r.Text, "    ", helpWidth))
		if r.Page != "" {
			page.WriteString(wrap("More of it: svcctl-"+r.Page+"(7)", "    ", helpWidth))
		}
	}
	return p.print(page.String())
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
