// Package selector reads the selectors of list and watch requests, and reports which objects
// they select: by labels (app=web,tier in (a,b),!old) and by fields (metadata.name=web,
// spec.type!=ClusterIP).
//
// Syntax and texts of errors are those of Kubernetes; every error is the caller's (HTTP
// 400).
//
// Invariants: an empty selector selects everything; a selector does not change once it is
// read, and can be used by many at once; reading one costs time in proportion to its
// length. The package does no I/O and does not depend on how objects are stored.
//
//	labels, err := selector.ParseLabels(query.Get("labelSelector"))
//	fields, err := selector.ParseFields(k, query.Get("fieldSelector"))
//	selected := labels.Matches(o.GetMeta().Labels) && fields.Matches(o)
package selector
