package e2e

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	if err := flag.Set("test.parallel", parallel()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if os.Geteuid() != 0 {
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

// parallel is how many tests run at once where the command line does not say: much of a
// test's time is waiting for time-outs.
func parallel() string {
	value := "8"
	flag.Visit(func(f *flag.Flag) {
		if f.Name == "test.parallel" {
			value = f.Value.String()
		}
	})
	return value
}
