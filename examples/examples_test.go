package examples_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcctl.io/svcctl/appliance"
	"svcctl.io/svcctl/appliance/config"
)

var update = flag.Bool("update", false, "write the goldens anew")

// The goldens of an example: what `svcctl plan` prints, and what it complains about,
// if it does.
const (
	goldenPlan     = "plan.nft"
	goldenProblems = "plan.problems"
)

// TestPlans compares what svcctl plans for every example with its goldens.
func TestPlans(t *testing.T) {
	for _, dir := range examples(t) {
		t.Run(dir, func(t *testing.T) {
			var plan, complaints bytes.Buffer
			_, problems, err := appliance.Plan(configOf(t, dir), []string{dir}, nil, &plan)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range problems {
				fmt.Fprintln(&complaints, p)
			}
			compare(t, filepath.Join(dir, goldenPlan), plan.String())
			compare(t, filepath.Join(dir, goldenProblems), complaints.String())
		})
	}
}

// sedOf runs examples/ipv6/from-ipv4.sed over a text.
func sedOf(t *testing.T, text string) string {
	t.Helper()
	sed := exec.Command("sed", "-E", "-f", "ipv6/from-ipv4.sed")
	sed.Stdin = strings.NewReader(text)
	out, err := sed.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// ipv4Address is an address of IPv4 in a text.
var ipv4Address = regexp.MustCompile(`\b[0-9]{1,3}(\.[0-9]{1,3}){3}\b`)

// Test867_examples_without_IPv4 plans every example, as ipv6/from-ipv4.sed changes it, for a box without IPv4: the same problems
// as with IPv4, the same frontends, and no address of IPv4. The samples of Kubernetes are kept as they were published.
func Test867_examples_without_IPv4(t *testing.T) {
	for _, dir := range examples(t) {
		if strings.HasPrefix(dir, "seeds/") || dir == "ipv6" {
			continue
		}
		t.Run(dir, func(t *testing.T) {
			to := filepath.Join(t.TempDir(), dir)
			names, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
			if err != nil || len(names) == 0 {
				t.Fatalf("%v: %v", names, err)
			}
			if err := os.Mkdir(to, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				text, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				six := sedOf(t, string(text))
				if four := ipv4Address.FindString(six); four != "" {
					t.Errorf("%s still has %s", name, four)
				}
				write(t, filepath.Join(to, filepath.Base(name)), six)
			}
			cfg := configOf(t, dir, "--service-cluster-ip-range", "fd00:10:96::/112")
			var plan bytes.Buffer
			_, problems, err := appliance.Plan(cfg, []string{to}, nil, &plan)
			if err != nil {
				t.Fatal(err)
			}
			var complaints []string
			for _, p := range problems {
				complaints = append(complaints, p.Reason)
			}
			_, want, err := appliance.Plan(configOf(t, dir), []string{dir}, nil, new(bytes.Buffer))
			if err != nil {
				t.Fatal(err)
			}
			var known []string
			for _, p := range want {
				known = append(known, p.Reason)
			}
			if diff := cmp.Diff(known, complaints); diff != "" {
				t.Errorf("other problems than with IPv4 (-IPv4 +IPv6): %s\n%v", diff, problems)
			}
			_, six, found := strings.Cut(plan.String(), "table ip6 svcctl {")
			golden, err := os.ReadFile(filepath.Join(dir, goldenPlan))
			if err != nil || !found {
				t.Fatalf("%v: the plan has no table ip6:\n%s", err, plan.String())
			}
			four, _, _ := strings.Cut(string(golden), "table ip6 svcctl {")
			if served, was := strings.Count(six, " : goto "), strings.Count(four, " : goto "); served < was {
				t.Errorf("%d frontends, and %d with IPv4:\n%s", served, was, six)
			}
		})
	}
}

// compare holds text against a golden; an empty text has no golden.
func compare(t *testing.T, golden, text string) {
	t.Helper()
	if *update {
		write(t, golden, text)
	}
	want, err := os.ReadFile(golden)
	if err != nil && (text != "" || !os.IsNotExist(err)) {
		t.Fatalf("%v: run `make golden` and review what it writes", err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s has changed: run `make golden` and review it (-golden +now):\n%s", golden, diff)
	}
}

func write(t *testing.T, golden, text string) {
	t.Helper()
	err := os.WriteFile(golden, []byte(text), 0o644)
	if text == "" {
		err = os.Remove(golden)
	}
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

// TestPlansLoad gives every golden to nft, in a network namespace of its own.
func TestPlansLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: tests with -short make no networks")
	}
	if os.Getuid() != 0 {
		if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
			t.Fatal("this test needs root, and SVCCTL_REQUIRE_PRIVILEGED=1 says that it must run")
		}
		t.Skip("SKIPPED: this test needs root to load rulesets in network namespaces: run make test")
	}
	for _, dir := range examples(t) {
		t.Run(dir, func(t *testing.T) {
			nft := exec.Command("nft", "-f", filepath.Join(dir, goldenPlan))
			nft.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
			if out, err := nft.CombinedOutput(); err != nil {
				t.Errorf("%v: %v\n%s", nft.Args, err, out)
			}
		})
	}
}

// examples lists the directories with manifests.
func examples(t *testing.T) []string {
	t.Helper()
	var dirs []string
	for _, pattern := range []string{"*/*.y*ml", "seeds/*/*.*"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if dir := filepath.Dir(name); dir != "monitoring" && (len(dirs) == 0 || dirs[len(dirs)-1] != dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// command is the line of a README that plans an example.
var command = regexp.MustCompile(`(?m)^    svcctl plan -f examples/(\S+)(.*)$`)

// configOf returns the configuration of the command in the example's README; with more flags that of its form without IPv4.
func configOf(t *testing.T, dir string, more ...string) config.Config {
	t.Helper()
	readme := filepath.Join(dir, "README.md")
	if strings.HasPrefix(dir, "seeds/") {
		readme = "seeds/README.md" // one for all of them
	}
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	line := command.FindSubmatch(text)
	if line == nil {
		t.Fatalf("%s has no line `    svcctl plan -f examples/%s`", readme, dir)
	}
	if first := string(line[1]); first != dir && !strings.HasPrefix(dir, "seeds/") {
		t.Fatalf("%s plans %s, not %s", readme, first, dir)
	}
	cfg := config.Default()
	cfg.NodeName = "gw1"
	words := strings.Fields(string(line[2]))
	if more != nil {
		words = append(strings.Fields(sedOf(t, string(line[2]))), more...)
	}
	if len(words)%2 != 0 {
		t.Fatalf("%s: not pairs of flag and value: %v", readme, words)
	}
	for i := 0; i < len(words); i += 2 {
		value := strings.Split(words[i+1], ",")
		slices.Sort(value) // both families of a range become one
		value = slices.Compact(value)
		switch words[i] {
		case "--load-balancer-pool":
			cfg.Addresses.LoadBalancerPools, err = config.ParseAddrRanges(value)
		case "--load-balancer-internal-pool":
			cfg.Addresses.InternalPools, err = config.ParseAddrRanges(value)
		case "--load-balancer-internal-from":
			cfg.Addresses.InternalFrom, err = config.ParseInternalFrom(value)
		case "--service-node-port-range":
			cfg.Addresses.NodePortRange, err = config.ParsePortRange(words[i+1])
		case "--nodeport-addresses":
			cfg.Addresses.NodePortAddresses, err = config.ParseNodePortAddresses(value)
		case "--egress-from":
			cfg.Addresses.EgressFrom, err = config.ParsePrefixes(value)
		case "--service-cluster-ip-range":
			cfg.Addresses.ClusterIPRanges, err = config.ParsePrefixes(value)
		default:
			err = fmt.Errorf("this test does not know the flag %s", words[i])
		}
		if err != nil {
			t.Fatalf("%s: %v", readme, err)
		}
	}
	return cfg
}
