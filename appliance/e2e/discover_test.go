package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// targets is a file of targets that a test writes.
type targets struct {
	t    *testing.T
	path string
}

func newTargets(t *testing.T) *targets {
	return &targets{t, filepath.Join(t.TempDir(), "targets.json")}
}

// set replaces the file: jobs with their addresses and ports.
func (f *targets) set(jobs map[string][]string) {
	f.t.Helper()
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	groups := []group{}
	for job, list := range jobs {
		groups = append(groups, group{list, map[string]string{"job": job}})
	}
	text, err := json.Marshal(groups)
	if err != nil {
		f.t.Fatal(err)
	}
	f.write(string(text))
}

func (f *targets) write(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.path+".new", []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(f.path+".new", f.path); err != nil {
		f.t.Fatal(err)
	}
}

// servers are targets of a job at hosts.
func servers(f family, port uint16, hosts ...*netlab.Host) (list []string) {
	for _, at := range f.on(port, hosts...) {
		list = append(list, at.String())
	}
	return list
}

func (f family) discovered(name, from, vip string) string {
	return strings.Replace(f.service(name, "clusterIP: "+vip, "ports: [{name: p80, port: 80}]"), "metadata:\n", "metadata:\n  annotations: {svcctl.io/endpoints-from: \""+from+"\"}\n", 1)
}

// sliceVersions are the names and versions of all EndpointSlices.
func (b *box) sliceVersions() string {
	b.t.Helper()
	var list struct {
		Items []struct {
			Metadata struct{ Name, ResourceVersion string }
		}
	}
	if err := b.svcctl.Read("/apis/discovery.k8s.io/v1/endpointslices", &list); err != nil {
		b.t.Fatal(err)
	}
	var versions strings.Builder
	for _, slice := range list.Items {
		fmt.Fprintln(&versions, slice.Metadata.Name, slice.Metadata.ResourceVersion)
	}
	return versions.String()
}

// Endpoints follow a provider; a kill of discover and its start change nothing; while the provider is away nothing changes, over a
// reboot of the box too, and of 10,000 connections none fails.
func Test976_endpoints_outlive_provider_discover_and_box(t *testing.T) {
	b := newBox(t, nil)
	file := newTargets(t)
	jobs := func(hosts ...*netlab.Host) map[string][]string {
		all := map[string][]string{}
		for _, f := range families {
			all[f.name("web")] = servers(f, 80, hosts...)
		}
		return all
	}
	file.set(jobs(b.L1))
	b.write("web.yaml", func(f family) []string {
		return []string{f.discovered("web", "targets:"+f.name("web"), f.vip(1))}
	})
	b.svcctl.Start()
	discover := b.svcctl.Discoverer("--from", "targets+file://"+file.path, "--from", "dns")
	discover.Launch()
	reaches := func(when string, hosts ...*netlab.Host) {
		t.Helper()
		for _, f := range families {
			eventually(t, time.Minute, func() error {
				err := b.tryReaches(b.IN, "tcp", f.at(f.vip(1), 80), plain, f.on(80, hosts...)...)
				if err != nil {
					return fmt.Errorf("%s: %w", when, err)
				}
				return nil
			})
		}
	}
	reaches("at first", b.L1)
	file.set(jobs(b.L1, b.R1))
	reaches("with a second server", b.L1, b.R1)

	before := b.sliceVersions()
	b.commitsNothing(t, "a kill and a start of discover", func() {
		discover.Kill()
		discover.Launch()
		file.set(jobs(b.R1, b.L1)) // the same in another order
	})
	if after := b.sliceVersions(); after != before {
		t.Errorf("a kill and a start of discover changed slices:\n%swere\n%s", after, before)
	}

	file.write("[{") // cut
	b.hasProblem(t, "Service default/"+families[0].name("web"), "EndpointsStale")
	if log := discover.Log(); !strings.Contains(log, "a provider has no answer that can be used") || !strings.Contains(log, file.path) {
		t.Errorf("the log of discover has no reason:\n%s", log)
	}
	b.svcctl.Kill()
	b.GW1.Nft("flush", "ruleset") // the box is booted
	discover.Kill()
	if err := os.Remove(file.path); err != nil {
		t.Fatal(err)
	}
	discover.Launch() // before serve
	b.svcctl.Start()
	for _, f := range families {
		if tally := b.IN.AskMany(5000, "tcp", f.at(f.vip(1), 80), patiently); len(tally.Failures) > 0 {
			t.Errorf("while the provider is away: %s", tally)
		}
	}
	reaches("while the provider is away", b.L1, b.R1)
	if after := b.sliceVersions(); after != before {
		t.Errorf("a provider that is away changed slices:\n%swere\n%s", after, before)
	}
	file.set(jobs(b.R1))
	reaches("when it is back", b.R1)
}

// One Service of 400 that is emptied has no endpoints after 30 s. Services that are emptied together are held, wait fails, confirm
// --removals lets them go.
func Test977_held_endpoints_are_confirmed(t *testing.T) {
	const n = 400
	b := newBox(t, nil)
	file := newTargets(t)
	f := families[0]
	jobs := map[string][]string{}
	var documents []string
	for i := range n {
		name := fmt.Sprintf("s%d", i)
		jobs[name] = servers(f, 80, b.L1)
		documents = append(documents, f.discovered(name, "targets:"+name, fmt.Sprintf("172.30.%d.%d", 1+i/200, 1+i%200)))
	}
	file.set(jobs)
	b.svcctl.Manifests.Write("all.yaml", strings.Join(documents, "---\n"))
	b.svcctl.Start()
	b.svcctl.Discoverer("--from", "targets+file://"+file.path).Launch()
	slices := func() int { return strings.Count(b.sliceVersions(), "s") }
	eventually(t, 2*time.Minute, func() error {
		if got := slices(); got != n {
			return fmt.Errorf("%d slices, want %d", got, n)
		}
		return nil
	})
	one := jobs["s7"]
	delete(jobs, "s7")
	file.set(jobs)
	emptied := time.Now()
	b.hasProblem(t, "Service default/"+f.name("s7"), "EndpointsEmpty", "targets:s7")
	eventually(t, 3*time.Minute, func() error {
		if got := slices(); got != n-1 {
			return fmt.Errorf("%d slices, want %d, one of %d Services was emptied", got, n-1, n)
		}
		return nil
	})
	if after := time.Since(emptied); after < 30*time.Second {
		t.Errorf("the endpoint of one of %d Services left after %v of empty answers", n, after)
	}
	jobs["s7"] = one
	file.set(jobs)
	eventually(t, 2*time.Minute, func() error {
		if got := slices(); got != n {
			return fmt.Errorf("%d slices, want %d, when it is back", got, n)
		}
		return nil
	})
	file.set(nil)
	b.hasProblem(t, "", "MassRemovalHeld", "400 of 400 Services")
	if _, errOut, code := b.svcctl.Svcctl("wait", "--for", "synced", "--timeout", "1m"); code == 0 || !strings.Contains(errOut, "svcctl confirm --removals") {
		t.Errorf("wait --for synced: exit %d, %s", code, errOut)
	}
	if got := slices(); got != n {
		t.Errorf("%d slices are left while they are held", got)
	}
	out, errOut, code := b.svcctl.Svcctl("confirm", "--removals", "--yes")
	if code != 0 || !strings.Contains(out, "400 Services released") {
		t.Errorf("confirm --removals: exit %d, %s%s", code, out, errOut)
	}
	eventually(t, 2*time.Minute, func() error {
		if got := slices(); got != 0 {
			return fmt.Errorf("%d slices are left after the release", got)
		}
		return nil
	})
}

// The reason why a provider has no answer is wherever people look for it, and is gone from there with the failure.
func Test1089_reasons_are_where_people_look(t *testing.T) {
	b := newBox(t, flags{"listen": {"127.0.0.1:6444"}, "metrics-listen": {metricsAddr}})
	file := newTargets(t)
	f := families[0]
	good := map[string][]string{"web": servers(f, 80, b.L1)}
	file.set(good)
	b.svcctl.Manifests.Write("web.yaml", f.discovered("web", "targets:web", f.vip(1)))
	b.svcctl.Start()
	discover := b.svcctl.Discoverer("--from", "targets+file://"+file.path)
	discover.Launch()
	eventually(t, time.Minute, func() error { return b.tryReaches(b.IN, "tcp", f.at(f.vip(1), 80), plain, f.on(80, b.L1)...) })
	verb := func(args ...string) func() (string, error) {
		return func() (string, error) {
			out, errOut, _ := b.svcctl.Svcctl(args[0], args[1:]...)
			return out + errOut, nil
		}
	}
	page := func(path string) func() (string, error) {
		return func() (string, error) {
			resp := b.api(t).start("GET", path, "")
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			return html.UnescapeString(string(text)), err
		}
	}
	svc := "svc/" + f.name("web")
	const failing = "targets has no answer since"
	places := map[string]func() (string, error){
		"status": verb("status"), "explain": verb("explain", svc), "describe": verb("describe", svc), "journal": verb("journal", svc),
		"first page": page("/dashboard/"), "page of one": page("/dashboard/services/default/" + f.name("web")),
	}
	// all waits until each place has the reason or none has it.
	all := func(has bool) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			var wrong []error
			for name, read := range places {
				if !has && name != "status" && name != "explain" {
					continue // the past is there, too
				}
				text, err := read()
				if err != nil || (strings.Contains(text, failing) && strings.Contains(text, file.path)) != has {
					wrong = append(wrong, fmt.Errorf("%s has the reason: %t, %v\n%s", name, !has, err, text))
				}
			}
			if len(wrong) > 0 {
				return errors.Join(wrong...)
			}
			n, err := b.tryMetric(`svcctl_problems{reason="EndpointsStale",severity="warning"}`)
			if (n == 1) != has {
				return fmt.Errorf("svcctl_problems is %d, %v", n, err)
			}
			return nil
		})
	}
	file.write("[{")
	all(true)
	if log := discover.Log(); !strings.Contains(log, "a provider has no answer that can be used") || !strings.Contains(log, file.path) {
		t.Errorf("the log of discover has no reason:\n%s", log)
	}
	if out, err := verb("get", svc, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)(); out != "True" {
		t.Errorf("Ready is %q, %v: its endpoints serve", out, err)
	}
	file.set(good)
	all(false)
}

// A Service without YAML, from one command. One that names a provider which nothing asks is taken with a warning that has the way out.
func Test1090_expose_from_a_provider(t *testing.T) {
	b := newBox(t, nil)
	file := newTargets(t)
	file.set(map[string][]string{"web": servers(ipv4, 8080, b.L1, b.R1)})
	b.svcctl.Start()
	verb := func(args ...string) string {
		t.Helper()
		out, errOut, code := b.svcctl.Svcctl(args[0], args[1:]...)
		if code != 0 {
			t.Fatalf("svcctl %v: exit %d: %s%s", args, code, out, errOut)
		}
		return out + errOut
	}
	if text := verb("expose", "early", "--port", "80", "--from", "targets:early", "--apply"); !strings.Contains(text, `"targets" is asked by no process: start it with`) {
		t.Errorf("without svcctl discover: %s", text)
	}
	b.svcctl.Discoverer("--from", "targets+file://"+file.path, "--from", "dns").Launch()
	text := verb("expose", "web", "--port", "80:8080", "--from", "targets:web", "--apply")
	vip := verb("get", "svc", "web", "-o", "jsonpath={.spec.clusterIP}")
	at := netip.MustParseAddrPort(vip + ":80")
	eventually(t, time.Minute, func() error { return b.tryReaches(b.IN, "tcp", at, plain, ipv4.on(8080, b.L1, b.R1)...) })
	if strings.Contains(text, "provider") {
		t.Errorf("a provider that is asked: %s", text)
	}
	const unknown = `"eu" is no provider of svcctl discover: it has dns, targets (--from)`
	eventually(t, time.Minute, func() error {
		if text := verb("expose", "db", "--port", "80", "--from", "eu:db", "--apply"); !strings.Contains(text, unknown) {
			return fmt.Errorf("an unknown provider: %s", text)
		}
		return nil
	})
	b.hasProblem(t, "Service default/db", "EndpointsNotRead", unknown)
	// An endpoint leaves and comes back; the Service is changed to a provider that does not exist, and keeps what it has.
	file.set(map[string][]string{"web": servers(ipv4, 8080, b.R1)})
	eventually(t, time.Minute, func() error { return b.tryReaches(b.IN, "tcp", at, plain, ipv4.on(8080, b.R1)...) })
	if text := verb("expose", "web", "--port", "80:8080", "--from", "wbe:web", "--apply"); !strings.Contains(text, `"wbe" is no provider`) {
		t.Errorf("a mistake in writing: %s", text)
	}
	b.hasProblem(t, "Service default/web", "EndpointsNotRead", `"wbe" is no provider`)
	if err := b.tryReaches(b.IN, "tcp", at, plain, ipv4.on(8080, b.R1)...); err != nil {
		t.Errorf("after a mistake in writing: %v", err)
	}
}

// Answers with everything that a provider may have by mistake.
func Test984_hostile_answers(t *testing.T) {
	b := newBox(t, nil)
	file := newTargets(t)
	f := families[0]
	b.svcctl.Manifests.Write("all.yaml", f.discovered("web", "targets:web", "172.30.9.1")+"---\n"+f.discovered("fine", "targets:fine", "172.30.9.2")+"---\n"+f.discovered("other", "targets:other", "172.30.9.3"))
	good := servers(f, 80, b.L1)
	long := strings.Repeat("x", 10_000)
	group := func(labels string, list ...string) string {
		text, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"targets": %s, "labels": {%s}}`, text, labels)
	}
	fine := group(`"job": "fine"`, good...)
	b.svcctl.Start()
	b.svcctl.Discoverer("--from", "targets+file://"+file.path).Launch()
	file.write("[" + group(`"job": "web", "zone": "`+long+`", "node": "`+long+`"`,
		"127.0.0.1:80", "169.254.1.1:80", "[fe80::1]:80", "[fe80::1%25eth0]:80", "224.0.0.1:80", "0.0.0.0:80", "255.255.255.255:80",
		"172.30.9.1:80", "172.30.9.3:80", good[0], good[0]) + "," +
		group(`"job": "web", "weight": "7"`, good[0]) + "," + group(`"job": "`+long+`"`, good...) + "," + fine + "]")
	reaches := func(vip string) {
		t.Helper()
		eventually(t, time.Minute, func() error { return b.tryReaches(b.IN, "tcp", f.at(vip, 80), plain, f.on(80, b.L1)...) })
	}
	reaches("172.30.9.2")
	reaches("172.30.9.1")
	b.hasProblem(t, "Service default/"+f.name("web"), "BadEndpointAddress", "127.0.0.1")

	endpoints := func() int {
		out, errOut, code := b.svcctl.Svcctl("get", "endpointslices", "-A", "-l", "kubernetes.io/service-name="+f.name("web"), "-o", `jsonpath={range .items[*].endpoints[*]}{.addresses[0]}{"\n"}{end}`)
		if code != 0 {
			t.Fatal(errOut)
		}
		return strings.Count(out, "\n")
	}
	many := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("10.77.%d.%d:80", i/200, 1+i%200))
		}
		return "[" + group(`"job": "web"`, list...) + "," + fine + "]"
	}
	file.write(many(3000))
	eventually(t, 2*time.Minute, func() error {
		if n := endpoints(); n != 3000 {
			return fmt.Errorf("%d endpoints of 3000", n)
		}
		return nil
	})
	file.write(many(10_001))
	b.hasProblem(t, "Service default/"+f.name("web"), "EndpointsStale", "10001 endpoints")
	if n := endpoints(); n != 3000 {
		t.Errorf("%d endpoints after an answer that is too large", n)
	}
	are := func(what string, want int) {
		t.Helper()
		eventually(t, 2*time.Minute, func() error {
			if n := endpoints(); n != want {
				return fmt.Errorf("%d endpoints of %d %s", n, want, what)
			}
			return nil
		})
	}
	file.write(many(1))
	are("before it flaps", 1)
	written := func() (n int) {
		out, errOut, code := b.svcctl.Svcctl("journal", "svc/"+f.name("web"), "-o", "json", "--limit", "10000")
		if code != 0 {
			t.Fatal(errOut)
		}
		for line := range strings.Lines(out) {
			if strings.Contains(line, `"svcctl-discover"`) && strings.Contains(line, `"EndpointSlice"`) {
				n++
			}
		}
		return n
	}
	before, began := written(), time.Now()
	if before < 30 { // 3,000 endpoints were in as many slices
		t.Fatalf("the journal has %d writes of slices", before)
	}
	for i := range 400 {
		file.write(many(1 + i%2*50))
		time.Sleep(10 * time.Millisecond) // real time: it flaps for some seconds
	}
	file.write(many(7))
	are("after a provider that flapped", 7)
	if n := written() - before; n > 5*int(time.Since(began)/time.Second+1)+2 {
		t.Errorf("%d writes of one slice in %v", n, time.Since(began))
	}
	reaches("172.30.9.2")
}

// Of two processes one asks a provider, over TLS with a token of the role endpoints too; the other one takes over a minute after the
// first one is gone. With a token that was revoked it ends.
func Test979_one_process_asks_a_provider(t *testing.T) {
	const listen = "127.0.0.1:6443"
	b := newBox(t, flags{"listen": {listen}})
	file := newTargets(t)
	f := families[0]
	file.set(map[string][]string{"web": servers(f, 80, b.L1)})
	b.svcctl.Manifests.Write("web.yaml", f.discovered("web", "targets:web", f.vip(1)))
	b.svcctl.Start()
	verb := func(args ...string) string {
		t.Helper()
		out, errOut, code := b.svcctl.Svcctl(args[0], args[1:]...)
		if code != 0 {
			t.Fatalf("svcctl %v: exit %d: %s", args, code, errOut)
		}
		return out
	}
	dir := t.TempDir()
	keep := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	token, ca := keep("token", verb("admin", "token", "--role", "endpoints")), filepath.Join(b.svcctl.Data, "keys", "ca.pem")
	remote := b.svcctl.Discoverer("--from", "targets+file://"+file.path, "--server", listen, "--token-file", token, "--ca", ca)
	remote.Env = []string{"SVCCTL_NODE_NAME=other"}
	holder := func() string {
		out, _, _ := b.svcctl.Svcctl("get", "lease", "discover-targets", "-n", "kube-system", "-o", "jsonpath={.spec.holderIdentity}")
		return out
	}
	is := func(what string, holds string, hosts ...*netlab.Host) {
		t.Helper()
		eventually(t, 3*time.Minute, func() error {
			if got := holder(); got != holds {
				return fmt.Errorf("%s: %q holds the Lease, want %q", what, got, holds)
			}
			return b.tryReaches(b.IN, "tcp", f.at(f.vip(1), 80), plain, f.on(80, hosts...)...)
		})
	}
	remote.Launch()
	is("alone", "other", b.L1)
	local := b.svcctl.Discoverer("--from", "targets+file://"+file.path)
	local.Env = []string{"SVCCTL_NODE_NAME=gw1"}
	local.Launch()
	file.set(map[string][]string{"web": servers(f, 80, b.L1, b.R1)})
	is("with another one", "other", b.L1, b.R1)
	verb("admin", "token", "--revoke-all")
	if state := remote.Wait(); state.ExitCode() != 1 || !strings.Contains(remote.Log(), "svcctl admin token --role endpoints") {
		t.Errorf("with a token that was revoked: %v", state)
	}
	file.set(map[string][]string{"web": servers(f, 80, b.R1)})
	is("after the first one", "gw1", b.R1)
}

// In a fleet one box asks a provider for all boxes. While etcd is away nothing changes, and what came meanwhile is written when it is back;
// another box asks when the first one has stopped.
func Test1018_a_fleet_asks_a_provider_once(t *testing.T) {
	f := newFleet(t, 2)
	file, fam := newTargets(t), families[0]
	second := f.lab.Host("second")
	f.inside.Attach(second, "eth0", "10.1.0.12/24")
	second.Route("0.0.0.0/0", "10.1.0.1")
	second.Serve("tcp", 80)
	at := netip.MustParseAddrPort("172.30.9.1:80")
	follow := func(servers ...string) { file.set(map[string][]string{"web": servers}) }
	answers := func(when, server string) {
		t.Helper()
		for n, client := range f.clients {
			eventually(t, 3*time.Minute, func() error {
				if reply, err := client.Ask("tcp", at); err != nil || reply.Server != server {
					return fmt.Errorf("%s: the client of box %d has an answer of %q (%v), want %s", when, n+1, reply.Server, err, server)
				}
				return nil
			})
		}
	}
	follow("10.1.0.11:80")
	if out, code := f.apply(0, fam.discovered("web", "targets:web", "172.30.9.1")); code != 0 {
		t.Fatal(out)
	}
	var discover []*netlab.Appliance
	for n, b := range f.boxes {
		d := b.Discoverer("--from", "targets+file://"+file.path, "--node-name", f.hosts[n].Name)
		d.Launch()
		discover = append(discover, d)
	}
	answers("at first", f.server.Name)
	field := func(path string) string {
		t.Helper()
		out, errOut, code := f.boxes[1].Svcctl("get", "lease", "discover-targets", "-n", "kube-system", "-o", "jsonpath={"+path+"}")
		if code != 0 {
			t.Fatal(errOut)
		}
		return out
	}
	holder := 0
	if field(".spec.holderIdentity") == f.hosts[1].Name {
		holder = 1
	}
	f.stop()
	follow("10.1.0.12:80")
	f.state(holder, "CutOff")
	answers("without etcd", f.server.Name)
	f.startEtcd()
	answers("with etcd again", second.Name)
	discover[holder].Kill()
	follow("10.1.0.11:80")
	answers("after the box that asked", f.server.Name)
	if got, want := field(".spec.holderIdentity"), f.hosts[1-holder].Name; got != want {
		t.Errorf("%q holds the Lease, want %q", got, want)
	}
}
