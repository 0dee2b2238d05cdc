package managedfields

import (
	"fmt"
	"strconv"
	"strings"
)

// A Conflict is a field with another value that another manager owns.
type Conflict struct {
	// Manager is its owner, as messages name it: "gitops", or with how it came to it:
	// "kubectl-edit" using v1.
	Manager string
	// Name is the name of the owner alone.
	Name string
	// Field is the path of the field: .spec.ports[port=80,protocol="TCP"].targetPort
	Field string

	path []string
}

// Message is the message of the cause in a Status; its reason is FieldManagerConflict.
func (c Conflict) Message() string { return "conflict with " + c.Manager }

// A ConflictError is a refusal to take fields from their owners (HTTP 409).
type ConflictError struct{ Conflicts []Conflict }

// Error is the message of the Status.
func (e *ConflictError) Error() string {
	if len(e.Conflicts) == 1 {
		c := e.Conflicts[0]
		return fmt.Sprintf("Apply failed with 1 conflict: %s: %s", c.Message(), c.Field)
	}
	var lines []string
	for i, c := range e.Conflicts { // they are sorted by their owners
		if i == 0 || e.Conflicts[i-1].Manager != c.Manager {
			lines = append(lines, fmt.Sprintf("conflicts with %s:", c.Manager))
		}
		lines = append(lines, "- "+c.Field)
	}
	return fmt.Sprintf("Apply failed with %d conflicts: %s", len(e.Conflicts), strings.Join(lines, "\n"))
}

func conflictsOf(o owner, h ownership, contested *set) []Conflict {
	name := strconv.Quote(o.manager)
	if o.subresource != "" {
		name += " with subresource " + strconv.Quote(o.subresource)
	}
	if o.operation == operationUpdate {
		name += " using " + h.apiVersion
	}
	var conflicts []Conflict
	contested.paths(nil, func(path []string) {
		path = append([]string(nil), path...)
		conflicts = append(conflicts, Conflict{Manager: name, Name: o.manager, Field: pathText(path), path: path})
	})
	return conflicts
}

// Taken returns the fields that a write would take from a manager that applied them: those
// whose values it changes or removes. It is for managers whose fields only they may change.
func Taken(live, written map[string]any, by Writer, manager string) []Conflict {
	entries, _, err := entriesOf(live)
	all, bad := decode(entries)
	if err != nil || bad != nil {
		return nil
	}
	change := compare(withoutEntries(live), withoutEntries(written), by.Type).without(by.ignored())
	touched := union(union(change.added, change.changed), change.removed)
	var taken []Conflict
	for o, h := range all {
		if o.manager == manager && o.operation == operationApply && o.subresource == "" {
			taken = append(taken, conflictsOf(o, h, intersection(h.fields, touched))...)
		}
	}
	return taken
}
