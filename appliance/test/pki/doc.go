// Package pki makes certificates for tests.
//
// It must not import anything of ours.
package pki
