// Package routes keeps a table of kernel routes to the addresses that are to be announced, for a BIRD or FRR on the
// box that tells routers of them.
//
//   - routes.go: what is announced, to routes
//   - table.go: the kernel's table
//
// The routes are unreachable ones of a protocol of their own. No rule leads to the table, so that the box itself
// routes nothing by it.
package routes
