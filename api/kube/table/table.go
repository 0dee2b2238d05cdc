package table

import (
	"fmt"
	"time"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// APIVersion of the forms in this package.
const APIVersion = "meta.k8s.io/v1"

// The kinds of the forms in this package.
const (
	KindTable        = "Table"
	KindMetadata     = "PartialObjectMetadata"
	KindMetadataList = "PartialObjectMetadataList"
)

// ListMeta is meta/v1 ListMeta.
type ListMeta struct {
	ResourceVersion    string `json:"resourceVersion,omitempty"`
	Continue           string `json:"continue,omitempty"`
	RemainingItemCount *int64 `json:"remainingItemCount,omitempty"`
}

// Table is meta/v1 Table. In a watch only the first one has column definitions.
type Table struct {
	Kind              string   `json:"kind"`
	APIVersion        string   `json:"apiVersion"`
	Metadata          ListMeta `json:"metadata"`
	ColumnDefinitions []Column `json:"columnDefinitions"`
	Rows              []Row    `json:"rows"`
}

// Column is meta/v1 TableColumnDefinition.
type Column struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Format      string `json:"format"`
	Description string `json:"description"`
	Priority    int32  `json:"priority"` // 0: always shown, 1: in wide output only
}

// Row is meta/v1 TableRow.
type Row struct {
	Cells []any `json:"cells"`
	// Object is the whole object, its Metadata, or nil.
	Object any `json:"object,omitempty"`
}

// Metadata is meta/v1 PartialObjectMetadata.
type Metadata struct {
	object.TypeMeta
	Metadata object.ObjectMeta `json:"metadata"`
}

// Include is the part of its object that a row contains: the value of includeObject in a
// query.
type Include string

// The values of Include.
const (
	IncludeNone     Include = "None"
	IncludeMetadata Include = "Metadata"
	IncludeObject   Include = "Object"
)

// ParseInclude parses the value of includeObject; "" means Metadata.
func ParseInclude(s string) (Include, error) {
	switch include := Include(s); include {
	case "":
		return IncludeMetadata, nil
	case IncludeNone, IncludeMetadata, IncludeObject:
		return include, nil
	}
	return "", fmt.Errorf("unrecognized includeObject value: %q", s)
}

// New returns an empty table for objects of a kind.
func New(k kind.Kind, meta ListMeta) *Table {
	return &Table{Kind: KindTable, APIVersion: APIVersion, Metadata: meta, ColumnDefinitions: Columns(k), Rows: []Row{}}
}

// RowOf returns the row of an object.
func RowOf(o object.Object, include Include, now time.Time) Row {
	row := Row{Cells: cells(o, now)}
	switch include {
	case IncludeMetadata:
		row.Object = MetadataOf(o)
	case IncludeObject:
		row.Object = o
	}
	return row
}

// MetadataOf returns the metadata of an object as a PartialObjectMetadata.
func MetadataOf(o object.Object) Metadata {
	return Metadata{TypeMeta: object.TypeMeta{Kind: KindMetadata, APIVersion: APIVersion}, Metadata: *o.GetMeta()}
}
