package bench

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// program is the one that is measured, built once.
var program string

// rounds is how often each thing is measured, in turns with what it is compared with.
var rounds = flag.Int("rounds", 21, "measure everything `N` times, in turns")

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	dir, err := os.MkdirTemp("", "svcctl-bench-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if f := flag.Lookup("test.bench"); f != nil && f.Value.String() != "" {
		if program, err = netlab.Build(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	code := m.Run()
	results.print(os.Stdout)
	return code
}
