package main

import (
	"bytes"
	"strings"
	"testing"
)

// Long work shows how far it is to who watches, and nothing in a pipe.
func TestProgressOfLongWork(t *testing.T) {
	for _, watched := range []bool{true, false} {
		var out bytes.Buffer
		p := &program{stderr: &out, shows: watched}
		m := p.moving("exported")
		for range 5 {
			if _, err := m.Write(make([]byte, movingEvery/2)); err != nil {
				t.Fatal(err)
			}
		}
		m.end()
		if got := strings.Contains(out.String(), "\r2 MiB exported"); got != watched || (out.Len() > 0) != watched {
			t.Errorf("watched %t: %q", watched, out.String())
		}
	}
}
