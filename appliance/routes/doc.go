// Package routes maintains a table of kernel routes to the announced addresses, from which a BIRD or FRR on the box
// exports them.
//
// The routes are unreachable ones of a protocol of their own. No rule leads to the table, so that the box itself
// routes nothing by it.
package routes
