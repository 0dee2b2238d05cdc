// Package managedfields tracks the owners of the fields of objects: it keeps
// metadata.managedFields, and applies objects as server-side apply does.
//
// A manager is a client that writes an object. What a manager applies, it owns: the fields it
// names, and no others. What it writes in any other way (a PUT, a patch), it owns as far as the
// write changed it. Two managers that apply the same value own it together; a manager that applies
// another value than an owner's meets a conflict, and takes the field over only by force. A field
// that a manager no longer applies is removed, unless another manager owns it.
//
// Sets of fields are trees in the form FieldsV1 of meta/v1: "f:name" a field, `k:{...}` an
// item of a list with keys, `v:...` a member of a set, "." the thing itself.
//
// Objects are as schema.Decode or FromObject make them: map[string]any, []any, json.Number,
// pruned by their type, so without nulls and unknown fields. Objects of one kind are of one version:
// entries that name another version of it are taken as if they named this one.
//
// Invariants: nothing that is given is changed, though results may share parts with it; the same input has the same result; the
// entries are sorted, appliers first, then by time; at most 10 of them are of managers
// that did not apply, older ones are joined as ancient-changes; identity fields (name,
// namespace, uid, resourceVersion and the like) have no owner.
//
// The package does not depend on the meaning of kinds, does no I/O and reads no clock: the caller
// passes the time, defaults and validates what comes out, and decides whether it is
// a change at all (Same).
//
//	by := fields.Writer{Manager: "gitops", APIVersion: "v1", Type: schema.Of(k), Now: now}
//	merged, err := fields.Apply(live, applied, by, false)
//	var conflict *fields.ConflictError
//	if errors.As(err, &conflict) { ... } // 409, with conflict.Conflicts as causes
package managedfields
