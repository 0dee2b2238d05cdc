package served

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const (
	// binVariable is a directory of programs that were built before. Without it, they are
	// built here.
	binVariable = "SVCCTL_CONFORMANCE_BIN"
	// binaryVariable is the absolute path of the svcctl to test. Without it, svcctl is one of
	// those programs.
	binaryVariable = "SVCCTL_BINARY"
)

func program(t testing.TB) string {
	t.Helper()
	path := os.Getenv(binaryVariable)
	if path == "" {
		return Build(t, "svcctl", root(t), "./cmd/svcctl")
	}
	if _, err := os.Stat(path); err != nil || !filepath.IsAbs(path) {
		t.Fatalf("%s=%s is not the absolute path of a program", binaryVariable, path)
	}
	return path
}

// Build gives the path of a program, building it when it is not there yet: the package of
// the module in a directory, as a static program. The go command keeps what has not
// changed. Programs lie beside each other in bin/conformance of the repository.
func Build(t testing.TB, name, module, pkg string, flags ...string) string {
	t.Helper()
	if dir := os.Getenv(binVariable); dir != "" {
		return filepath.Join(dir, name)
	}
	module, err := filepath.Abs(module)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root(t), "bin", "conformance", name)
	cmd := exec.Command("go", append(append([]string{"build", "-o", path}, flags...), pkg)...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return path
}

// root is the root of the repository: the directory that holds cmd/svcctl.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "svcctl")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			err = fmt.Errorf("no directory above the test holds cmd/svcctl")
			break
		}
		dir = filepath.Dir(dir)
	}
	t.Fatal(err)
	return ""
}
