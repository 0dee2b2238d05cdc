package e2e

import (
	"fmt"
	"os"
	"runtime/debug"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	netlab.Parallel(10)     // most of the time they wait: for timers of the kernel, of programs and of the product
	debug.SetGCPercent(400) // most of a collection is stacks: those of servers that wait for questions
	if os.Geteuid() != 0 || testing.Short() {
		return m.Run() // every test skips, or fails when it must not
	}
	dir, err := os.MkdirTemp("", "svcctl-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if binary, err = netlab.Build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
