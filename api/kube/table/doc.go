// Package table puts objects into the forms that readers ask for instead of whole objects:
// the Table of meta/v1, which kubectl prints, and PartialObjectMetadata, which holds the
// metadata alone.
//
// Columns and cells are those of Kubernetes 1.36 (pkg/printers/internalversion), always the
// wide ones: kubectl hides those of priority 1 unless it is asked for -o wide. Only Pods
// have fewer columns, because containers are not counted here.
//
// Invariants: a row has as many cells as its kind has columns; the same objects at the same
// time have the same table. The package computes only: the caller passes the time, and
// may write rows one by one.
//
//	t := table.New(k, "meta.k8s.io/v1", meta)
//	t.Rows = append(t.Rows, table.RowOf(service, table.IncludeMetadata, t.APIVersion, now))
//	json.NewEncoder(w).Encode(t)
package table
