package e2e

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// verbs runs verbs of the program against the box, with files of their own.
type verbs struct {
	*box
	dir string
}

func (b *box) verbs(t *testing.T) *verbs { return &verbs{b, t.TempDir()} }

// file writes a file and gives its path.
func (v *verbs) file(name, content string) string {
	v.t.Helper()
	path := filepath.Join(v.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		v.t.Fatal(err)
	}
	return path
}

// does runs a verb, which has to end with an exit code, and gives what it printed.
func (v *verbs) does(code int, verb string, args ...string) string {
	v.t.Helper()
	out, errOut, got := v.svcctl.Svcctl(verb, args...)
	if got != code {
		v.t.Errorf("svcctl %s %v: exit code %d, want %d\n%s%s", verb, args, got, code, out, errOut)
	}
	return out + errOut
}

// says is does for an output that has to contain texts.
func (v *verbs) says(code int, texts []string, verb string, args ...string) {
	v.t.Helper()
	out := v.does(code, verb, args...)
	for _, text := range texts {
		if !strings.Contains(out, text) {
			v.t.Errorf("svcctl %s %v does not say %q:\n%s", verb, args, text, out)
		}
	}
}

// Test146_apply_is_what_the_dry_run_said takes a Service from a dry run to the packets and
// away again, without a file of the appliance.
func Test146_apply_is_what_the_dry_run_said(t *testing.T) {
	b := newBox(t, nil)
	b.svcctl.Start()
	v := b.verbs(t)
	documents := func(name string, of func(f family) []string) string { return v.file(name, both(of)) }
	path := documents("web.yaml", func(f family) []string {
		return []string{f.service("web", "type: NodePort", "ports: [{name: p80, port: 80}]"), f.slice("web", "p80: 80", b.L1)}
	})
	const values = `-o=jsonpath={range .items[*]}{.spec.clusterIP} {.spec.ports[0].nodePort},{end}`
	promised := v.does(0, "apply", "-f", path, "--dry-run", values)
	v.says(0, []string{"No resources found in default namespace."}, "get", "svc")
	before := b.GW1.Nft("list", "ruleset")
	v.says(1, []string{"+++ MERGED/v1.Service.default." + ipv4.name("web")}, "diff", "-f", path)
	if b.GW1.Nft("list", "ruleset") != before {
		t.Error("a dry run or a diff changed the rules")
	}

	v.says(0, []string{"service/" + ipv4.name("web") + " created"}, "apply", "-f", path, "--wait")
	if got := v.does(0, "apply", "-f", path, values); got != promised {
		t.Errorf("the dry run said %s, and it is %s", promised, got)
	}
	vips := map[family]string{}
	for _, f := range families {
		vips[f] = v.does(0, "get", "svc", f.name("web"), "-o", "jsonpath={.spec.clusterIP}")
		b.reaches(t, b.IN, "tcp", f.at(vips[f], 80), plain, f.on(80, b.L1)...)
		v.does(0, "explain", "svc/"+f.name("web"))
		v.says(0, []string{"is Service default/" + f.name("web"), "✓ port 80/TCP has 1 endpoint, all ready"}, "explain", f.at(vips[f], 80).String())
		v.does(0, "wait", "svc/"+f.name("web"), "--for=ready")
	}

	b.commitsNothing(t, "applying the same again", func() {
		v.says(0, []string{"service/" + ipv4.name("web") + " unchanged"}, "apply", "-f", path)
		v.does(0, "diff", "-f", path)
	})

	documents("web.yaml", func(f family) []string {
		return []string{f.service("web", "type: NodePort", "ports: [{name: p80, port: 80}]"), f.slice("web", "p80: 80", b.R1)}
	})
	v.says(1, []string{"-  - " + b.L1.Addr4().String(), "+  - " + b.R1.Addr4().String()}, "diff", "-f", path)
	v.does(0, "apply", "-f", path, "--wait=1m")
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(vips[f], 80), plain, f.on(80, b.R1)...)
	}
	v.says(0, []string{"Endpoints:                " + b.R1.Addr4().String() + ":80", "in force"}, "describe", "svc", ipv4.name("web"))
	v.does(0, "admin", "alloc", "check")

	v.does(0, "delete", "-f", path)
	v.does(0, "wait", "--for=synced")
	for _, f := range families {
		if err := b.notListed(t, f, f.at(vips[f], 0).Addr()); err != nil {
			t.Errorf("after it was deleted: %v", err)
		}
		v.says(1, []string{"✗ no Service answers at " + vips[f]}, "explain", vips[f])
	}
}

// Test148_verbs_and_files: what a file declares is the file's; a set that is applied with
// --prune is what its files say, and nothing else goes.
func Test148_verbs_and_files(t *testing.T) {
	b := newBox(t, flags{"listen": {"127.0.0.1:6444"}})
	b.svcctl.Manifests.Write("filed.yaml", service("filed", "type: ClusterIP", "ports: [{port: 80}]"))
	b.svcctl.Start()
	v := b.verbs(t)

	filed := v.file("filed.yaml", service("filed", "type: NodePort", "ports: [{port: 80}]"))
	v.says(1, []string{filed + ":", "filed.yaml"}, "apply", "-f", filed)
	v.says(1, []string{filed + ":"}, "apply", "-f", filed, "--force-conflicts")
	v.says(1, []string{b.svcctl.Manifests.Path + "/filed.yaml"}, "delete", "svc", "filed")

	one := v.file("one.yaml", service("one", "ports: [{port: 80}]")+"---\n"+strings.ReplaceAll(ipv4.slice("one", `"": 80`, b.L1), "one-4", "one"))
	two := v.file("two.yaml", service("two", "ports: [{port: 80}]"))
	v.does(0, "apply", "-f", one, "-f", two, "--applyset", "shop")
	v.does(0, "apply", "-f", v.file("three.yaml", service("three", "ports: [{port: 80}]")))
	v.says(0, []string{"service/two pruned"}, "apply", "-f", one, "--prune", "--applyset", "shop", "--wait")
	v.says(0, []string{"service/filed\nservice/one\nservice/three\n"}, "get", "svc", "-o", "name")

	// The same from elsewhere, with a token.
	kubeconfig := v.does(0, "admin", "kubeconfig")
	ca, err := base64.StdEncoding.DecodeString(caInKubeconfig.FindStringSubmatch(kubeconfig)[1])
	if err != nil {
		t.Fatal(err)
	}
	token := v.file("token", v.does(0, "admin", "token", "--role", "reader"))
	remote := []string{"--server", "127.0.0.1:6444", "--token-file", token, "--ca", v.file("ca.crt", string(ca))}
	run := func(args ...string) (string, error) {
		out, errOut, err := b.GW1.Run(binary, append(args, remote...)...)
		return out + errOut, err
	}
	if out, err := run("get", "svc", "-o", "name"); err != nil || out != "service/filed\nservice/one\nservice/three\n" {
		t.Errorf("over TLS: %v: %s", err, out)
	}
	if out, err := run("delete", "svc", "one"); err == nil || !strings.Contains(out, "forbidden") {
		t.Errorf("a reader deletes: %v: %s", err, out)
	}
	if out, err := run("apply", "-f", one); err == nil || !strings.Contains(out, "forbidden") {
		t.Errorf("a reader applies: %v: %s", err, out)
	}
	if out, _ := run("status", "-o", "json"); !strings.Contains(out, `"nodeName": "gw1"`) {
		t.Errorf("status over TLS: %s", out)
	}
}
