// Package schema has the shapes of the objects that the API serves, and decodes them.
//
// The shapes are made by reflection from the types of store/object, with what Go's types do
// not have from the tables in build.go, and with the texts of store/object's fields.txt. So
// everything that depends on fields agrees: field validation, strategic
// merge patches, server-side apply, protobuf, and the OpenAPI documents that kubectl
// validates and explains by.
//
// Objects here are map[string]any, []any, string, bool and json.Number: numbers keep their
// digits. A pruned object has only fields of its type, each in its form, and no nulls; it
// can be put into its Go type (ToObject), and comes back from there (FromObject), without a
// way over JSON.
//
// Invariants: types are shared and never change; a body costs bounded time and memory,
// whatever it has (MaxBytes, MaxDepth, a number of values); the texts about unknown and
// duplicate fields and about values of another form are those of Kubernetes; the same
// program makes the same documents. The package does no I/O and does not depend on stored
// objects. It does not validate objects: store/object does.
//
//	o, fieldWarnings, err := schema.Decode(body, schema.Of(k))
//	if strict {
//		err = schema.StrictError(fieldWarnings) // unknown field "spec.bogus"
//	}
package schema
