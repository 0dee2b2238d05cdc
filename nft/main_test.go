package nft_test

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain has garbage collected less often: random rulesets are a third of it.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
