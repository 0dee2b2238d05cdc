// Package wire holds the JSON documents that the API answers with: what the server
// in package api writes and what package api/client reads.
//
// Status, the answer of /svcctl/v1/status and of `svcctl status -o json`, is stable:
// fields are added, never renamed, removed or given another meaning; what does not
// apply is left out. Failure and Version have the shapes of Kubernetes
// (meta/v1 Status and version.Info).
//
// The package is types and their encoding: it does no I/O, reads no clock and
// imports nothing of ours.
//
//	var s wire.Status
//	err := json.Unmarshal(body, &s)
//	fmt.Println(s.Synced, s.Revision.Programmed, len(s.Problems))
package wire
