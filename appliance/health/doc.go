// Package health decides which endpoints are up: what a Service asks of its endpoints, and what
// follows from the answers. It sends nothing and reads no clock; package prober does.
package health
