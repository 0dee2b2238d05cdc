// Package output lays out text for terminals: tables whose columns keep their width (Grid), pages of
// labels and values (Page) and unified differences (Diff). It computes text from values: it writes to
// no stream and reads nothing.
package output
