// Package describe writes all about an object as text: fields of any kind, and of a Service its addresses, ports,
// endpoints, policies and state. What it writes about is handed to it.
//
//	page := &describe.Page{}
//	page.Service(describe.Facts{Service: svc, Slices: slices, Status: status})
//	text := page.String()
package describe
