// Package explain says what kinds, fields and annotations mean here, in text: the part of `svcctl explain` that
// needs no appliance.
//
//	text, err := explain.Field(services, []string{"spec", "ports"}, false)
package explain
