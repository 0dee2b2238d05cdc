package main

import (
	"strings"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// printSchema prints a JSON Schema (draft 7) of the documents that files may have.
func (p *program) printSchema() error {
	var hints []schema.Hint
	for _, r := range annotation.Table() {
		if strings.HasSuffix(r.Key, "*") || r.Effect == annotation.Kept {
			continue
		}
		h := schema.Hint{Key: r.Key, Kinds: r.Kinds, Label: r.Label, Text: r.Text}
		if r.Values != "" {
			h.Text += ". Values: " + r.Values
		}
		if h.Kinds == nil {
			h.Kinds = []string{object.KindService}
		}
		hints = append(hints, h)
	}
	return p.print(string(schema.JSONSchema(hints)))
}
