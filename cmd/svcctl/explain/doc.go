// Package explain prints the documentation of kinds, fields and annotations: the part of `svcctl explain` that
// needs no appliance.
//
//	text, err := explain.Field(services, []string{"spec", "ports"}, false)
package explain
