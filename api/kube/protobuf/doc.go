// Package protobuf reads the bodies that Kubernetes' typed clients send: objects in
// protobuf, in the envelope that begins with "k8s" and a zero byte.
//
// Clients since client-go 0.32 send nothing else, and do not try JSON when it is refused.
// Answers stay JSON: clients take either.
//
// An object becomes what schema.Decode makes of the same object in JSON: map[string]any,
// []any, json.Number. Protobuf writes every field that is no pointer in Go, also when it is
// zero, where JSON leaves it out; so zero values of such fields are left out here.
//
// Invariants: a body costs memory in proportion to the body, and no more than a limit; a body
// that is truncated, of another form or not UTF-8 is refused; fields of unknown numbers are
// skipped, as protobuf has it: there is no strict field validation for it. The package
// does not depend on the meaning of objects, and does no I/O.
//
//	envelope, err := protobuf.Open(body)
//	k, ok := kind.ByName(envelope.APIVersion, envelope.Kind)
//	o, err := envelope.Object(schema.Of(k))
package protobuf
