package bench

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

var (
	// program is the measured one.
	program = flag.String("program", "", "measure the `FILE` instead of a svcctl that is built for it")
	// rounds is how often each thing is measured, in turns with what it is compared with.
	rounds = flag.Int("rounds", 21, "measure everything `N` times, in turns")
	// against is another one, for BenchmarkLoneChange and BenchmarkAddition.
	against = flag.String("against", "", "compare a lone change with that of the program in `FILE`")
	// populations are the numbers of Services of BenchmarkVerbs, BenchmarkExports, BenchmarkLoneChange and BenchmarkAddition.
	populations = []int{1_000, 10_000, 50_000}
)

func init() {
	flag.Func("services", "measure boxes with `N[,N]` Services: -bench 'Verbs|Exports|LoneChange|Addition'", func(text string) error {
		populations = nil
		for _, one := range strings.Split(text, ",") {
			n, err := strconv.Atoi(one)
			if err != nil {
				return err
			}
			populations = append(populations, n)
		}
		return nil
	})
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if text := os.Getenv(checksVar); text != "" {
		if err := serveChecks(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	flag.Parse()
	dir, err := os.MkdirTemp("", "svcctl-bench-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := prepare(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	results.print(os.Stdout)
	return code
}

// prepare builds the program, if a benchmark is to run.
func prepare(dir string) (err error) {
	switch f := flag.Lookup("test.bench"); {
	case f == nil || f.Value.String() == "":
	case *program != "":
		*program, err = filepath.Abs(*program)
	default:
		*program, err = netlab.Build(dir)
	}
	return err
}
