package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Test923_versions_of_packages_sort: dpkg orders what is built of successive commits, with releases, candidates and without any tag.
func Test923_versions_of_packages_sort(t *testing.T) {
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("SKIPPED: dpkg compares the versions, and this is no Debian")
	}
	const early, late = "1790000000", "1790009999"
	var before string
	for _, c := range []struct{ described, epoch string }{
		{"ab601cb", early}, // by its time: a hash does not count
		{"35c601cb", late},
		{"35c601cb-dirty", late},
		{"v0.9.0", early},
		{"v1.5.0-rc1", early},
		{"1.5.0-rc1-3-g35c601c", early},
		{"1.5.0", early},
		{"1.5.0-12-g35c601c", early},
		{"1.5.0-12-g35c601c-dirty", early},
		{"1.5.1-rc2", early},
		{"1.5.1", early},
		{"1.10.0", early},
	} {
		out, err := exec.Command("../package/version", c.described, c.epoch).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		// As nfpm writes it with version_schema semver.
		version := strings.TrimSpace(string(out))
		number, candidate, is := strings.Cut(version, "-")
		if is {
			version = number + "~" + candidate
		}
		version += "-1"
		if before != "" && exec.Command("dpkg", "--compare-versions", before, "lt", version).Run() != nil {
			t.Errorf("%s of %s is not after %s", version, c.described, before)
		}
		before = version
	}
}

// Test924_a_release_is_whole builds the release of a small repository, whose packages and site are made by stand-ins, and verifies it.
func Test924_a_release_is_whole(t *testing.T) {
	dir := t.TempDir()
	build, err := filepath.Abs("build")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("RELEASE", build)
	t.Setenv("GOFLAGS", "-buildvcs=false")
	sh(t, dir, `
		git init -q repository && cd repository
		mkdir -p .ci/release .ci/package/site && cp "$SCRIPT" "$RELEASE" .ci/release/
		cat >.ci/package/build <<'SH'
#!/bin/sh
for file in a.deb a.rpm a.tar.gz a.oci.tar a.cdx.json; do echo "$1" >"$2/$file"; done
echo old >"$2/SHA256SUMS"
SH
		chmod +x .ci/package/build
		printf 'module site\n\ngo 1.26\n' >.ci/package/site/go.mod
		printf 'package main\n\nimport "os"\n\nfunc main() { os.Mkdir(os.Args[2], 0o755); os.WriteFile(os.Args[2]+"/index.html", nil, 0o644) }\n' >.ci/package/site/main.go
		commit() { git add . && git -c user.name=t -c user.email=t@example.com commit -q --allow-empty -m "$1"; }
		commit first && git tag v1.2.2
		commit "relay: close idle connections" && git tag v1.2.3
		cd .. && ssh-keygen -q -t ed25519 -N '' -C key -f key
		echo "release@svcctl.io namespaces=\"svcctl-release\" $(cat key.pub)" >signers
		SIGNING_KEY=$PWD/key repository/.ci/release/build v1.2.3 dist
		repository/.ci/release/build v1.2.3 again
		cmp dist/SHA256SUMS again/SHA256SUMS
		if repository/.ci/release/build v1.2.3 dist; then echo "a directory with files is taken"; exit 1; fi`)
	sums, err := os.ReadFile(filepath.Join(dir, "dist", "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.deb", "a.rpm", "a.tar.gz", "a.oci.tar", "a.cdx.json", "svcctl-1.2.3-site.tar.gz", "NOTES.md"} {
		if !strings.Contains(string(sums), "  "+name+"\n") {
			t.Errorf("SHA256SUMS does not have %s:\n%s", name, sums)
		}
	}
	notes, err := os.ReadFile(filepath.Join(dir, "dist", "NOTES.md"))
	if err != nil || !strings.Contains(string(notes), "## Changes since 1.2.2\n\n- relay: close idle connections\n") || strings.Contains(string(notes), "- first") {
		t.Errorf("%v: %s", err, notes)
	}
	verify := exec.Command(filepath.Join(dir, "repository/.ci/release/verify"), "1.2.3", filepath.Join(dir, "dist"))
	verify.Env = append(os.Environ(), "SIGNERS="+filepath.Join(dir, "signers"))
	if out, err := verify.CombinedOutput(); err != nil || !strings.Contains(string(out), "the same 7 files, byte for byte") {
		t.Errorf("%v\n%s", err, out)
	}
}
