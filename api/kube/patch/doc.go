// Package patch changes objects as PATCH requests say: by merge patches (RFC 7386), JSON
// patches (RFC 6902), and strategic merge patches, Kubernetes' form of the first in which
// lists are merged item by item.
//
// Objects are as schema.Parse makes them: map[string]any, []any, json.Number. What comes
// out may have fields and nulls that its type does not have: prune it (schema.Type.Prune)
// before it becomes an object.
//
// Invariants: neither the object nor the patch that is given is changed, and the result
// shares nothing with them; the same input has the same result; the work is proportional
// to the object and the patch, but for JSON patches, whose number of operations is bounded.
//
// It does not depend on the meaning of objects, and does no I/O: package schema defines which lists are
// merged, and the caller checks what came out.
//
//	live, _, _ := schema.ParseObject([]byte(`{"spec":{"ports":[{"port":80},{"port":443}]}}`))
//	change, _, _ := schema.ParseObject([]byte(`{"spec":{"ports":[{"port":80,"name":"http"}]}}`))
//	k, _ := kind.ByName("v1", "Service")
//	merged, err := patch.Strategic(live, change, schema.Of(k)) // both ports, one with a name
package patch
