// Package announcements keeps the addresses of Services that are to be announced, from the Service
// ports that are programmed, and sends changes to watchers.
//
// It does not announce: the process that does is package announce, at the other end of the API.
//
// Invariants:
//
//   - An address is announced after the rules for it are in force, and withdrawn before they go.
//   - Only addresses of the ranges that the operator gave are ever announced.
//   - A slow watcher holds up no other: it gets the newest state of each address, once.
//   - Work is proportional to the addresses that changed.
package announcements
