package main

import (
	"context"
	"strings"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

func (p *program) schemaVerb() *verb {
	return &verb{
		name:    "schema",
		summary: "print the JSON Schema of manifests, for editors",
		about: `Prints a JSON Schema (draft 7) of the documents that files may have: Services,
EndpointSlices, Endpoints, Pods and Lists of them, every field with its meaning, and the
annotations that mean something here. Editors complete and check files with it. Conflicts
with other objects and with the box are reported by ` + "`svcctl validate`" + ` and the
status.`,
		examples: []example{
			{"For the YAML language server, in the settings of an editor or as the first line of a file.",
				"svcctl schema > ~/svcctl.json  # yaml-language-server: $schema=svcctl.json"},
		},
		exits: `  0  done
  2  wrong usage`,
		run: p.runSchema,
	}
}

// runSchema prints the schema.
func (p *program) runSchema(_ context.Context, _ *verb, args []string) error {
	if len(args) > 0 {
		return usagef("schema takes no arguments")
	}
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
