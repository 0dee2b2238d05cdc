package e2e

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// commandBlock matches the blocks of commands of a page of the manual that are to be run, with the exit status that they have: "```sh exit 1".
var commandBlock = regexp.MustCompile("(?ms)^```sh(?: exit (\\d+))?\n(.*?)^```$")

// Test926_commands_of_the_manual_run runs the blocks of commands of each page, one after the other, as they stand there, on a box with
// the files and objects that the pages name. A tutorial begins with an empty box.
func Test926_commands_of_the_manual_run(t *testing.T) {
	netlab.New(t) // it skips the test, or fails it, without root
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	generated, err := filepath.Glob(filepath.Join(root, "docs", "reference", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	programs := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(programs, "svcctl")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(programs, "sudo"), []byte("#!/bin/sh\nexec \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	files := filepath.Join(t.TempDir(), "files")
	if out, err := exec.Command("bash", "testdata/manualfiles.sh", programs, root, files).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	blocks := 0
	for _, page := range append(pages, generated...) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		found := commandBlock.FindAllStringSubmatch(string(text), -1)
		if len(found) == 0 {
			continue
		}
		blocks += len(found)
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for i, m := range found {
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d.sh", i)), []byte(m[2]), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			world := exec.Command("bash", "testdata/manual.sh", programs, root, files, dir)
			if strings.Contains(string(text), " - a tutorial: ") {
				world.Args = append(world.Args, "empty")
			}
			world.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
			output, err := os.Create(filepath.Join(t.TempDir(), "output")) // programs that go on do not keep it open for the test
			if err != nil {
				t.Fatal(err)
			}
			defer output.Close()
			world.Stdout, world.Stderr = output, output
			if err := world.Run(); err != nil {
				why, _ := os.ReadFile(output.Name())
				t.Errorf("%v\n%s", err, why)
			}
			for i, m := range found {
				file := filepath.Join(dir, fmt.Sprintf("%02d.sh", i))
				code, _ := os.ReadFile(file + ".code")
				if want := cmp.Or(m[1], "0"); strings.TrimSpace(string(code)) != want {
					out, _ := os.ReadFile(file + ".out")
					t.Errorf("docs: %s: exit status %q, want %s:\n%s\n%s", name, code, want, m[2], out)
				}
			}
		})
	}
	if blocks < 60 {
		t.Errorf("only %d blocks of commands are run", blocks)
	}
}
