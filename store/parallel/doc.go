// Package parallel runs the same function for many indexes on all CPUs.
package parallel
