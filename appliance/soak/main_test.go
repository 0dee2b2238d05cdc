package soak

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	netlab.Parallel(8) // of those that may run at the same time; the ones with load run alone
	if os.Geteuid() != 0 || testing.Short() {
		return m.Run() // every test skips, or fails when it must not
	}
	dir, err := os.MkdirTemp("", "svcctl-soak-")
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

// count is how often something is done, unless the environment says otherwise.
type count struct {
	name  string
	quick int
}

// The counts, with what `make test` does; `make soak` sets the variables.
var (
	rate        = count{"SVCCTL_SOAK_RATE", 1000}        // new connections a second
	updates     = count{"SVCCTL_SOAK_UPDATES", 50}       // of manifests
	stops       = count{"SVCCTL_SOAK_STOPS", 3}          // SIGTERM and start
	upgrades    = count{"SVCCTL_SOAK_UPGRADES", 5}       // hand-overs
	kills       = count{"SVCCTL_SOAK_KILLS", 5}          // kill -9 and start
	flushes     = count{"SVCCTL_SOAK_FLUSHES", 2}        // of the ruleset by another program
	heals       = count{"SVCCTL_SOAK_HEALS", 3}          // flushes whose healing is timed
	healed      = count{"SVCCTL_SOAK_SERVICES", 1000}    // Services that are healed
	randomKills = count{"SVCCTL_SOAK_RANDOM_KILLS", 100} // between two moments of a change
	callKills   = count{"SVCCTL_SOAK_CALL_KILLS", 3}     // at each of so many calls of a system call
	seconds     = count{"SVCCTL_SOAK_SECONDS", 8}        // of churn while resources are watched
)

func (c count) value(t *testing.T) int {
	t.Helper()
	text := os.Getenv(c.name)
	if text == "" {
		return c.quick
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s=%q is not a number", c.name, text)
	}
	return n
}
