package store

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain has garbage collected less often, which is a third of the work: random files and writes are encoded again and again.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
