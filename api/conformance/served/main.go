package served

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

const (
	requirePrivileged = "SVCCTL_REQUIRE_PRIVILEGED"
	insideVariable    = "SVCCTL_CONFORMANCE_INSIDE"
)

// Main runs the tests of a package in a new network namespace, which ends with them, and
// exits. It is all that TestMain has to do.
func Main(m *testing.M) {
	switch {
	case os.Getenv(insideVariable) == "1":
		if err := furnish(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	case os.Geteuid() != 0:
		fmt.Fprintln(os.Stderr, "SKIPPED, NOTHING WAS TESTED: the appliance needs root and a network namespace: run `sudo make conformance`")
		if os.Getenv(requirePrivileged) == "1" {
			fmt.Fprintln(os.Stderr, requirePrivileged+"=1 forbids to skip")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(inside())
}

// inside runs this program again in a new network namespace and gives its exit code.
func inside() int {
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	case err != nil:
		fmt.Fprintf(os.Stderr, "run the tests in a network namespace: %v\n", err)
		return 1
	}
	return 0
}

// furnish gives the namespace its interfaces.
func furnish() error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "ext0", "type", "veth", "peer", "name", "far0"},
		{"link", "set", "far0", "up"},
		{"link", "set", "ext0", "up"},
		{"address", "add", "192.0.2.1/24", "dev", "ext0"},
		{"address", "add", "2001:db8::1/64", "dev", "ext0", "nodad"},
		{"route", "add", "default", "via", "192.0.2.254"},
		{"route", "add", "default", "via", "2001:db8::fe"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
	}
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+key, []byte("1"), 0o644); err != nil {
			return fmt.Errorf("let the namespace forward: %w", err)
		}
	}
	return nil
}
