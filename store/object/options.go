package object

import (
	"encoding/json"
	"time"
)

// ManagedFieldsEntry is meta/v1 ManagedFieldsEntry: the fields of an object that one
// manager owns.
type ManagedFieldsEntry struct {
	Manager    string     `json:"manager,omitempty"`
	Operation  string     `json:"operation,omitempty"` // Apply or Update
	APIVersion string     `json:"apiVersion,omitempty"`
	Time       *time.Time `json:"time,omitempty"`
	FieldsType string     `json:"fieldsType,omitempty"` // always FieldsV1
	// FieldsV1 is a tree of field names, as FieldsV1 of meta/v1 writes them.
	FieldsV1    json.RawMessage `json:"fieldsV1,omitempty"`
	Subresource string          `json:"subresource,omitempty"`
}

// DeleteOptions is meta/v1 DeleteOptions, the body of a DELETE; no object that is kept.
type DeleteOptions struct {
	TypeMeta
	GracePeriodSeconds *int64         `json:"gracePeriodSeconds,omitempty"`
	Preconditions      *Preconditions `json:"preconditions,omitempty"`
	OrphanDependents   *bool          `json:"orphanDependents,omitempty"`
	PropagationPolicy  *string        `json:"propagationPolicy,omitempty"`
	DryRun             []string       `json:"dryRun,omitempty"`
}

// Preconditions is meta/v1 Preconditions: what must be so for a deletion to happen.
type Preconditions struct {
	UID             *string `json:"uid,omitempty"`
	ResourceVersion *string `json:"resourceVersion,omitempty"`
}
