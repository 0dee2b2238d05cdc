// Package jsonpath finds values in objects by the templates of kubectl
// (-o jsonpath): text with expressions in braces, such as
//
//	{.metadata.name}  {.spec.ports[0].port}  {.items[*].metadata.name}
//	{range .items[*]}{.metadata.name}{"\n"}{end}
//	{.status.conditions[?(@.type=="Ready")].status}  {..name}  {['spec','status']}
//	{.metadata.labels.app\.kubernetes\.io/name}  {.spec.ports[-1:].port}
//
// Objects are map[string]any, []any, string, bool, nil and numbers, json.Number among
// them. A missing field is empty and no error; several values are parted by blanks;
// mappings and lists are written as JSON.
//
// Invariants: the same object gives the same text (keys are taken in their order); a
// template is parsed once and may be used concurrently; its length and depth bound what it
// costs to parse. The package computes only, and imports nothing of ours.
//
//	t, err := jsonpath.Parse(`{range .items[*]}{.metadata.name}{"\n"}{end}`)
//	text := t.Execute(list)
package jsonpath
