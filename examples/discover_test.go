package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"svcctl.io/svcctl/appliance/discover/dns"
	"svcctl.io/svcctl/appliance/discover/nomad"
	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/discover/targets"
	"svcctl.io/svcctl/appliance/test/providertest"
)

// TestDiscoverTargets runs the script, and reads what it writes.
func TestDiscoverTargets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.json")
	run := func(lines string) error {
		cmd := exec.Command("discover/targets.sh", "web", file)
		cmd.Stdin = strings.NewReader(lines)
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		return err
	}
	p, err := targets.New(provider.Config{URL: "file://" + file})
	if err != nil {
		t.Fatal(err)
	}
	f := providertest.Follow(t, p, "web")
	if err := run("10.1.2.11 8080\n\nfd00::1 8081\n"); err != nil {
		t.Fatal(err)
	}
	f.Answer("10.1.2.11:8080", "[fd00::1]:8081")
	for _, bad := range []string{"", "10.1.2.11\n", "10.1.2.12 80\n10.1.2.11 80 443\n"} {
		if run(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if err := run("10.1.2.12 8080\n"); err != nil {
		t.Fatal(err)
	}
	f.Answer("10.1.2.12:8080")
	if left, _ := filepath.Glob(file + ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestDiscoverZone has Knot serve the zone, on another port.
func TestDiscoverZone(t *testing.T) {
	knotd, err := exec.LookPath("knotd")
	if err != nil {
		if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") != "" {
			t.Fatal("knotd is missing: make deps")
		}
		t.Skip("knotd is missing: make deps")
	}
	port := strconv.Itoa(providertest.FreePort(t))
	dir := t.TempDir()
	for _, name := range []string{"knot.conf", "example.test.zone"} {
		text, err := os.ReadFile(filepath.Join("discover/dns", name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), strings.Replace(string(text), "@5300", "@"+port, 1))
	}
	cmd := exec.Command(knotd, "-c", "knot.conf")
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p, err := dns.New(provider.Config{URL: "dns://127.0.0.1:" + port})
	if err != nil {
		t.Fatal(err)
	}
	providertest.Follow(t, p, "_http._tcp.example.test").Answer("10.1.2.11:8080 w2", "10.1.2.12:8080 w1", "10.1.2.13:8080 w1 p1")
}

// TestDiscoverNomad has Nomad run the job, with another server in its container's place.
func TestDiscoverNomad(t *testing.T) {
	text, err := os.ReadFile("discover/web.nomad.hcl")
	if err != nil {
		t.Fatal(err)
	}
	agent := providertest.StartNomad(t, "", nil)
	var job map[string]any
	agent.Call("PUT", "/v1/jobs/parse", map[string]any{"JobHCL": string(text), "Canonicalize": true}, &job)
	var checked struct{ ValidationErrors []string }
	agent.Call("PUT", "/v1/validate/job", map[string]any{"Job": job}, &checked)
	if len(checked.ValidationErrors) > 0 {
		t.Fatalf("web.nomad.hcl: %v", checked.ValidationErrors)
	}
	task := job["TaskGroups"].([]any)[0].(map[string]any)["Tasks"].([]any)[0].(map[string]any)
	task["Driver"], task["Config"] = "raw_exec", map[string]any{"command": "/bin/sleep", "args": []string{"3600"}}
	agent.Call("PUT", "/v1/jobs", map[string]any{"Job": job}, nil)
	p, err := nomad.New(provider.Config{URL: agent.URL})
	if err != nil {
		t.Fatal(err)
	}
	providertest.Follow(t, p, "web").Changed(0, 2)
}

// TestDiscoverNames: what web.yaml asks for is what the other files have.
func TestDiscoverNames(t *testing.T) {
	text, err := os.ReadFile("discover/web.yaml")
	if err != nil {
		t.Fatal(err)
	}
	compose, err := os.ReadFile("discover/shop.compose")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Networks []string
			Labels   map[string]string
		}
		Networks map[string]any
	}
	if err := yaml.Unmarshal(compose, &file); err != nil {
		t.Fatal(err)
	}
	if s, is := file.Services["web"]; !is || len(s.Networks) != 2 || s.Labels["svcctl.io/weight"] == "" || len(file.Networks) != 2 {
		t.Errorf("shop.compose: %+v", file)
	}
	if job, err := os.ReadFile("discover/web.nomad.hcl"); err != nil || !strings.Contains(string(job), `name     = "web"`) || !strings.Contains(string(job), `provider = "nomad"`) {
		t.Errorf("web.nomad.hcl registers no web with Nomad: %v", err)
	}
	for _, word := range []string{
		"docker:com.docker.compose.project=shop,com.docker.compose.service=web?network=shop_front\n", "consul:web\n", "nomad:web\n", "dns:_http._tcp.example.test\n", "targets:web\n",
	} {
		if !strings.Contains(string(text), "svcctl.io/endpoints-from: "+word) {
			t.Errorf("web.yaml has no %s", word)
		}
	}
}
