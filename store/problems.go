package store

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// Problems returns the problems of files and objects, sorted by file, line and object. The result is cached until the next change.
func (s *Store) Problems() []manifest.Problem {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if known := s.problems.Load(); known != nil {
		return slices.Clone(*known)
	}
	problems := s.declared.problems()
	for ref, notes := range s.outcomes.notes {
		for _, n := range notes {
			p := manifest.Problem{File: n.path, Object: ref, Field: n.field, Reason: n.reason, Message: n.message, Warning: n.warning}
			p.Line, p.Column = s.position(ref, n.path, n.field)
			problems = append(problems, p)
		}
	}
	problems = append(problems, s.foreignProblems()...)
	slices.SortFunc(problems, compareProblems)
	problems = slices.Compact(problems)
	s.problems.Store(&problems)
	return slices.Clone(problems)
}

// ProblemsOf returns the problems of one object, without file and line.
func (s *Store) ProblemsOf(ref object.Ref) (problems []manifest.Problem) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, n := range s.outcomes.notes[ref] {
		problems = append(problems, manifest.Problem{Object: ref, Field: n.field, Reason: n.reason, Message: n.message, Warning: n.warning})
	}
	return problems
}

func compareProblems(a, b manifest.Problem) int {
	return cmp.Or(
		cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
		cmp.Compare(a.Object.Kind, b.Object.Kind), cmp.Compare(a.Object.Key(), b.Object.Key()),
		cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message),
	)
}

// foreignProblems returns a warning for each label or annotation in the objects that has no effect here, in no order.
func (s *Store) foreignProblems() (problems []manifest.Problem) {
	for each, c := range s.table.foreign {
		p := manifest.Problem{Object: c.example, Field: each.Field, Reason: ReasonNoEffect, Message: each.Text, Warning: true}
		if r := s.table.records[c.example]; r != nil {
			p.File = r.Owner.File
			p.Line, p.Column = s.position(c.example, p.File, each.Field)
		}
		if c.count > 1 {
			p.Message += "; other objects have it too"
		}
		problems = append(problems, p)
	}
	return problems
}

// The values of Problem.Reason, besides those of package manifest and the types
// of object.Error.
const (
	ReasonConflict = "Conflict"     // another owner has the object, or another object one of its values
	ReasonFull     = "RangeFull"    // no free value is left
	ReasonPending  = "Pending"      // warning: a load balancer waits for an IP
	ReasonOutside  = "OutsideRange" // the value lies in no range; a warning if the Service keeps it nevertheless
	ReasonUnusual  = "Unusual"      // warning: accepted, but strange
	ReasonUnmerged = "Unmerged"     // the document cannot be merged with the changes made through the API
)

// note is a Problem of an object without file and line. These are looked up when the
// problem is read, as they change with the file.
type note struct {
	path    string // the file whose document it is about; "" for a version of the API
	field   string
	reason  string
	message string
	warning bool
	asked   netip.Addr // a load balancer IP that the Service waits for; the zero Addr if there is none
	use     string     // the other use of asked because of which it is not allocated, such as an endpoint; "" if there is none
}

// fieldInFile returns the field of the document that corresponds to a field of the object: spec.clusterIP for spec.clusterIPs if only the former is
// set, else field.
func fieldInFile(o object.Object, field string) string {
	if svc, ok := o.(*object.Service); ok && len(svc.Spec.ClusterIPs) == 0 && strings.HasPrefix(field, "spec.clusterIPs") {
		return "spec.clusterIP"
	}
	return field
}

// withheldNote returns the note about a stored object that is withheld from the dataplane.
func withheldNote(r *record.Record, err error) note {
	return note{path: r.Owner.File, reason: ReasonConflict, message: fmt.Sprintf(
		"%v, which is older; nothing is programmed for this one: delete one of the two", err)}
}

// remarks returns the remarks of Config.Rules about the object.
func (c *Config) remarks(o object.Object) []annotation.Remark {
	if c.Rules == nil {
		return nil
	}
	return c.Rules.Remarks(o)
}

// refusals returns errors for annotations that Config.Rules refuse. It leaves out annotations that the old version has with the same value, so that
// the rest of the object can be updated. If ofFile is set, it also leaves out annotations with Remark.Safe: the part of the object that such an
// annotation concerns is not served. To refuse the whole change would keep the last good version in force, such as a port without TLS that the change
// replaces by one with TLS.
func (c *Config) refusals(next, old object.Object, ofFile bool) (errs object.Errors) {
	var before []annotation.Remark
	looked := false
	for _, r := range c.remarks(next) {
		if !r.Refused || ofFile && r.Safe {
			continue
		}
		value := annotationAt(next, r.Field)
		if old != nil && annotationAt(old, r.Field) == value {
			if !looked {
				before, looked = c.remarks(old), true
			}
			if slices.ContainsFunc(before, func(b annotation.Remark) bool { return b.Refused && b.Field == r.Field }) {
				continue
			}
		}
		errs = append(errs, object.Invalid(r.Field, value, r.Text))
	}
	return errs
}

// addRefusals adds those refusals whose field has no other error.
func (s *Store) addRefusals(errs object.Errors, next object.Object, before *record.Record, ofFile bool) object.Errors {
	var old object.Object
	if before != nil {
		old = before.Object
	}
	for _, e := range s.cfg.refusals(next, old, ofFile) {
		if !slices.ContainsFunc(errs, func(other object.Error) bool { return other.Field == e.Field }) {
			errs = append(errs, e)
		}
	}
	return errs
}

// warningsOf returns the warnings about a written object for the answer to its client.
func (s *Store) warningsOf(o object.Object) []string {
	warnings := object.Warnings(o)
	foreign := annotation.Foreigners
	if s.cfg.Rules != nil {
		foreign = annotation.Unserved // the rules have the others
	}
	seen := map[string]bool{}
	for _, f := range append(foreign(o), annotation.Notes(o)...) {
		seen[f.Field] = true
		warnings = append(warnings, f.String())
	}
	for _, r := range s.cfg.remarks(o) {
		if text := r.String(); !seen[r.Field] && !slices.Contains(warnings, text) {
			warnings = append(warnings, text)
		}
	}
	return warnings
}

// annotationAt returns the value of an annotation, by its field path.
func annotationAt(o object.Object, field string) string {
	return o.GetMeta().Annotations[strings.TrimSuffix(strings.TrimPrefix(field, "metadata.annotations["), "]")]
}

// Host is a snapshot of the machine: its addresses, networks and ports in use. The store calls it under its
// lock, so methods must not do I/O and must not block.
type Host interface {
	// ExternalIP returns the reason why an API client may not use an address as an externalIP; nil allows it. It is not called for addresses that a
	// Service has already, nor for those in files.
	ExternalIP(svc *object.Service, addr netip.Addr) error
	// Reserved returns a description of the use of an address that a Service may not have, such as "a gateway of this host"; "" for any other
	// address. Reserved addresses are never allocated; the allocator calls Reserved with a nil Service. An API client that asks for a reserved
	// address as a cluster IP is refused, but a file is not.
	Reserved(svc *object.Service, addr netip.Addr) string
	// Avoid reports whether an address of the ranges for cluster IPs is allocated only on request; isEndpoint reports whether the address is an
	// endpoint's.
	Avoid(addr netip.Addr, isEndpoint func() bool) bool
	// NodePort returns why a client of the API may not have a node port that it asks for, as when a program
	// of the host listens there; nil allows it. It is not called for ports that a Service has already, nor
	// for those that files ask for.
	NodePort(protocol string, port uint16) error
	// HostPort returns the reason why an API client may not use a port at an external IP; nil allows it. One reason is that the IP is an address of
	// the host and a program listens on the port. Like NodePort, it is called for new ports only.
	HostPort(addr netip.Addr, protocol string, port uint16) error
	// AnswersNodePorts reports whether node ports answer on an address of the host.
	AnswersNodePorts(addr netip.Addr) bool
}

// unknownHost is the Host before the first snapshot: it has no addresses and no ports in use.
type unknownHost struct{}

func (unknownHost) ExternalIP(*object.Service, netip.Addr) error { return nil }
func (unknownHost) Reserved(*object.Service, netip.Addr) string  { return "" }
func (unknownHost) Avoid(netip.Addr, func() bool) bool           { return false }
func (unknownHost) NodePort(string, uint16) error                { return nil }
func (unknownHost) HostPort(netip.Addr, string, uint16) error    { return nil }
func (unknownHost) AnswersNodePorts(netip.Addr) bool             { return false }
