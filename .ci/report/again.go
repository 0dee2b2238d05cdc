package main

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
)

// A test that failed is run once more, by itself, when all others have ended. If it passes then, it is FLAKY: its output
// stays in the report, the closing line counts it, and the report is good. That is for what a busy machine does to a test.
// It is never done
//   - for tests of the packages underLoadOnly, and for those that print underLoad: they ask the product to lose nothing
//     under load, or while something fails, and one loss is an answer;
//   - for a package in which a test panicked, ran out of time or raced, or which was not built: the tests behind it have not
//     run;
//   - when more than maxAgain tests failed.
const (
	underLoad = "asked under load"
	maxAgain  = 5
)

var (
	underLoadOnly = regexp.MustCompile(`/appliance/(soak|bench)$`)
	ended         = regexp.MustCompile(`^(panic: |fatal error: |WARNING: DATA RACE|\*\*\* Test killed)`)
)

// split parts the arguments at "--": the command, go test with its flags, and the packages.
func split(args []string) (command, packages []string, is bool) {
	i := slices.Index(args, "--")
	if i < 1 {
		return nil, nil, false
	}
	return args[:i], args[i+1:], true
}

// run runs the tests of packages, and those that failed once more, and prints the report. It reports whether all tests
// passed in one of the runs.
func run(command, packages []string, out io.Writer) (ok bool, err error) {
	r := newResults(out)
	status, err := start(slices.Concat(command, packages), r)
	if err != nil {
		return false, err
	}
	if status != 0 && (status != 1 || r.wrong == 0) {
		fmt.Fprintf(out, "go test ended with exit status %d\n", status)
		r.close(nil)
		return false, nil
	}
	var flaky []test
	for _, t := range r.again() {
		fmt.Fprintf(out, "once more, by itself: %s %s\n", t.pkg, t.name)
		second := newResults(out)
		status, err := start(slices.Concat(command, []string{"-run", "^" + regexp.QuoteMeta(t.name) + "$", t.pkg}), second)
		if err != nil {
			return false, err
		}
		if status == 0 && second.passed > 0 && second.wrong+len(second.skipped) == 0 {
			flaky = append(flaky, t)
		}
	}
	r.forgive(flaky)
	return r.close(flaky), nil
}

// start runs a command and reads its results.
func start(command []string, r *results) (status int, err error) {
	c := exec.Command(command[0], command[1:]...)
	in, err := c.StdoutPipe()
	if err != nil {
		return 0, err
	}
	c.Stderr = c.Stdout
	if err := c.Start(); err != nil {
		return 0, err
	}
	if err := r.read(in); err != nil {
		return 0, err
	}
	var exit *exec.ExitError
	if err := c.Wait(); errors.As(err, &exit) {
		return exit.ExitCode(), nil
	} else if err != nil {
		return 0, err
	}
	return 0, nil
}

// again returns the failed tests that are run once more.
func (r *results) again() []test {
	if len(r.failed) > maxAgain {
		return nil
	}
	var again []test
	for _, t := range r.failed {
		if !r.final[t.pkg] && !r.final[t.id()] && !underLoadOnly.MatchString(t.pkg) {
			again = append(again, t)
		}
	}
	return again
}

// forgive takes flaky tests as passed, and packages as such in which no other test failed.
func (r *results) forgive(flaky []test) {
	left := map[string]bool{}
	for _, t := range r.failed {
		if !slices.Contains(flaky, t) {
			left[t.pkg] = true
		}
	}
	good := map[string]bool{}
	for _, t := range flaky {
		r.passed++
		if !left[t.pkg] && !r.final[t.pkg] {
			good[t.pkg] = true
		}
	}
	r.wrong -= len(good)
}
