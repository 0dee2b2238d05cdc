package store

import (
	"regexp"
	"testing"
)

func TestRandomUIDs(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	next, seen := randomUIDs(), map[string]bool{}
	for range 1_000 {
		uid := next()
		if !form.MatchString(uid) || seen[uid] {
			t.Fatalf("%q is no UUID of version 4, or was there before", uid)
		}
		seen[uid] = true
	}
}
