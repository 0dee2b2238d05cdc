package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestVerify publishes a release of a small repository and verifies it, as it is and after each change that must be found.
func TestVerify(t *testing.T) {
	for _, program := range []string{"git", "ssh-keygen", "bash", "sha256sum"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: run make deps", err)
		}
	}
	for _, c := range []struct {
		name   string
		change string // a command in the directory of the release
		wants  string
		fails  bool
	}{
		{name: "published", wants: "the same 2 files, byte for byte"},
		{name: "one file downloaded", change: "rm b.tar.gz", wants: "the same 2 files, byte for byte"},
		{name: "changed file", change: "echo x >>a.deb", wants: "do not install", fails: true},
		{name: "changed file and sums", change: "echo x >>a.deb; sha256sum a.deb b.tar.gz >SHA256SUMS", wants: "not signed by a key of svcctl", fails: true},
		{name: "other key", change: "rm SHA256SUMS.sig; ssh-keygen -q -Y sign -f ../other -n svcctl-release SHA256SUMS", wants: "not signed by a key of svcctl", fails: true},
		{name: "other namespace", change: "rm SHA256SUMS.sig; ssh-keygen -q -Y sign -f ../key -n file SHA256SUMS", wants: "not signed by a key of svcctl", fails: true},
		{name: "not of the source", change: "echo x >>a.deb; sha256sum a.deb b.tar.gz >SHA256SUMS; rm SHA256SUMS.sig; ssh-keygen -q -Y sign -f ../key -n svcctl-release SHA256SUMS",
			wants: "not what v1.2.3 builds", fails: true},
		{name: "no signature", change: "rm SHA256SUMS.sig", wants: "has no SHA256SUMS.sig", fails: true},
		{name: "no tag", change: "git -C ../repository tag -d v1.2.3", wants: "no tag v1.2.3", fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			sh(t, dir, `
				git init -q repository && cd repository
				mkdir -p .ci/release && cp "$SCRIPT" .ci/release/verify
				echo one >source
				printf '#!/bin/sh\nmkdir -p "$2"; cp source "$2/a.deb"; echo "$1" >"$2/b.tar.gz"; cd "$2"; sha256sum a.deb b.tar.gz >SHA256SUMS\n' >build
				chmod +x build
				git add . && git -c user.name=t -c user.email=t@example.com commit -q -m one && git tag v1.2.3
				echo two >source
				git -c user.name=t -c user.email=t@example.com commit -q -a -m two
				cd ..
				for key in key other; do ssh-keygen -q -t ed25519 -N '' -C "$key" -f $key; done
				echo "release@svcctl.io namespaces=\"svcctl-release\" $(cat key.pub)" >signers
				mkdir dist && cd dist && echo one >a.deb && echo 1.2.3 >b.tar.gz && sha256sum a.deb b.tar.gz >SHA256SUMS
				ssh-keygen -q -Y sign -f ../key -n svcctl-release SHA256SUMS`)
			if c.change != "" {
				sh(t, filepath.Join(dir, "dist"), c.change)
			}
			cmd := exec.Command(filepath.Join(dir, "repository/.ci/release/verify"), "1.2.3", filepath.Join(dir, "dist"))
			cmd.Env = append(os.Environ(), "SIGNERS="+filepath.Join(dir, "signers"), "BUILD=./build")
			out, err := cmd.CombinedOutput()
			if !strings.Contains(string(out), c.wants) || (err != nil) != c.fails {
				t.Errorf("%v, want a failure: %t, and %q:\n%s", err, c.fails, c.wants, out)
			}
		})
	}
}

// sh runs commands in a directory.
func sh(t *testing.T, dir, commands string) {
	t.Helper()
	script, err := filepath.Abs("verify")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-e", "-c", commands)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "SCRIPT="+script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
