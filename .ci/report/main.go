package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ok, err := false, error(nil)
	if command, packages, is := split(os.Args[1:]); is {
		ok, err = run(command, packages, os.Stdout)
	} else {
		ok, err = report(os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// event is a line of `go test -json` (go doc cmd/test2json).
type event struct {
	Action, Package, Test, Output string
}

// test names a test of a package; the package itself is the test "".
type test struct{ pkg, name string }

// whole returns the test that a part belongs to.
func (t test) whole() test {
	name, _, _ := strings.Cut(t.name, "/")
	return test{t.pkg, name}
}

func (t test) id() string { return t.pkg + " " + t.name }

// excuses are good reasons to skip: something that this machine's kernel lacks,
// what only a user other than root can test, a server that a variable has to name, and, in the conformance tests of the
// Gateway API, features that svcctl does not have. One that it claims to have is none of them.
var excuses = regexp.MustCompile(`(?m)\.go:\d+: (SKIPPED: )?(this kernel has no |root may |SVCCTL_NOMAD names no |` +
	`Skipping \w+: suite does not support (GRPCRoute|HTTPRoute\w*|Mesh|GatewayHTTP\w+|GatewayBackendClientCertificate|GatewayPort8080)$)`)

// results has what was read so far.
type results struct {
	out             io.Writer
	said            map[test]string // of tests that are under way
	passed          int
	skipped         []string
	packages, wrong int
	began           time.Time
	failed          []test          // not parts of tests (subtests)
	final           map[string]bool // packages and tests whose failure counts, whatever a second run gives
}

func newResults(out io.Writer) *results {
	return &results{out: out, began: time.Now(), said: map[test]string{}, final: map[string]bool{}}
}

// report prints the report of what go test wrote and reports whether all tests passed.
func report(in io.Reader, out io.Writer) (ok bool, err error) {
	r := newResults(out)
	if err := r.read(in); err != nil {
		return false, err
	}
	return r.close(nil), nil
}

func (r *results) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprint(r.out, string(line)) // the go command's own words
			} else {
				r.take(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the test results: %w", err)
		}
	}
}

// close prints the end of the report, with the tests that failed and passed in a second run, and reports whether all
// tests passed in one of them.
func (r *results) close(flaky []test) bool {
	for _, s := range r.skipped {
		fmt.Fprintf(r.out, "skipped without an excuse: %s\n", s)
	}
	for _, t := range flaky {
		fmt.Fprintf(r.out, "FLAKY: %s %s failed, and passed when it was run once more by itself; why it failed is above\n", t.pkg, t.name)
	}
	fmt.Fprintf(r.out, "%d packages tested, %d failed; %d tests passed, %d skipped without an excuse",
		r.packages, r.wrong, r.passed, len(r.skipped))
	if len(flaky) > 0 {
		fmt.Fprintf(r.out, "; %d FLAKY", len(flaky))
	}
	// With the compiler, and all programs that tests have run to their end; 0 where go test is not its child.
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_CHILDREN, &used)
	cpu := time.Duration(used.Utime.Nano() + used.Stime.Nano())
	fmt.Fprintf(r.out, "\nin %s, with %s of CPU\n", time.Since(r.began).Round(time.Second), cpu.Round(time.Second))
	return r.packages > 0 && r.wrong == 0 && len(r.skipped) == 0
}

func (r *results) take(e event) {
	t := test{e.Package, e.Test}
	switch {
	case e.Action == "build-output":
		fmt.Fprint(r.out, e.Output)
	case e.Action == "output":
		r.said[t] += e.Output
		if ended.MatchString(e.Output) {
			r.final[e.Package] = true
		}
		if strings.Contains(e.Output, underLoad) {
			r.final[t.whole().id()] = true
		}
	case e.Test == "" && (e.Action == "pass" || e.Action == "fail"):
		r.closePackage(t, e.Action == "fail")
	case e.Action == "pass":
		r.passed++
		delete(r.said, t)
	case e.Action == "skip":
		if e.Test != "" && !excuses.MatchString(r.said[t]) {
			r.skipped = append(r.skipped, fmt.Sprintf("%s %s: %s", e.Package, e.Test, reason(r.said[t])))
		}
		delete(r.said, t)
	case e.Action == "fail":
		fmt.Fprint(r.out, r.said[t])
		delete(r.said, t)
		if t == t.whole() {
			r.failed = append(r.failed, t)
		}
	}
}

// closePackage prints how a package ended. What is left over when it failed was said
// by tests that did not end, because of a panic or a timeout.
func (r *results) closePackage(pkg test, failed bool) {
	r.packages++
	if failed {
		r.wrong++
		if !slices.ContainsFunc(r.failed, func(t test) bool { return t.pkg == pkg.pkg }) {
			r.final[pkg.pkg] = true // it was not built, or ended by itself
		}
		for _, t := range slices.SortedFunc(maps.Keys(r.said), func(a, b test) int { return cmp.Compare(a.name, b.name) }) {
			if t.pkg == pkg.pkg && t.name != "" {
				fmt.Fprint(r.out, r.said[t])
				delete(r.said, t)
				r.final[pkg.pkg] = true
			}
		}
	}
	for line := range strings.Lines(r.said[pkg]) {
		if line != "PASS\n" && line != "FAIL\n" {
			fmt.Fprint(r.out, line)
		}
	}
	delete(r.said, pkg)
}

// reason returns the message of a skipped test, in one line.
func reason(said string) string {
	var words []string
	for line := range strings.Lines(said) {
		if !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(strings.TrimSpace(line), "--- ") {
			words = append(words, strings.Fields(line)...)
		}
	}
	return strings.Join(words, " ")
}
