package rest

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain has garbage collected less often, which is a third of the work: each test has a store of its own.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
