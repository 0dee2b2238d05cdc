package main

import (
	"regexp"
	"testing"
)

// matches asserts that some line of a text is as a regular expression says.
func matches(t *testing.T, text, line string) {
	t.Helper()
	if !regexp.MustCompile(line).MatchString(text) {
		t.Errorf("no line %q in:\n%s", line, text)
	}
}
