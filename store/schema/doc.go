// Package schema knows the shapes of the objects that the API serves, and reads them.
//
// The shapes are made by reflection from the types of store/object, with what Go's types do
// not say from the tables in build.go, and with the texts of store/object's fields.txt. So
// everything that has to know fields tells the same story: field validation, strategic
// merge patches, server-side apply, protobuf, and the OpenAPI documents that kubectl
// validates and explains by.
//
// Objects here are map[string]any, []any, string, bool and json.Number: numbers keep their
// digits. A pruned object has only fields of its type, each in its form, and no nulls; it
// can be put into its Go type (ToObject), and comes back from there (FromObject), without a
// way over JSON.
//
// Invariants: types are shared and never change; a body costs bounded time and memory,
// whatever it says (MaxBytes, MaxDepth, a number of values); the texts about unknown and
// duplicate fields and about values of another form are those of Kubernetes; the same
// program makes the same documents. The package does no I/O and knows nothing about what
// is stored. It must not say whether an object is valid: that is store/object's.
//
//	o, fieldWarnings, err := schema.Decode(body, schema.Of(k))
//	if strict {
//		err = schema.StrictError(fieldWarnings) // unknown field "spec.bogus"
//	}
package schema
