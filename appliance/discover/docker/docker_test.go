package docker

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/discover/remote"
	"svcctl.io/svcctl/appliance/test/providertest"
)

// daemon is a Docker daemon, or Podman's service, in a network namespace and a directory of its own.
type daemon struct {
	t       testing.TB
	tool    string // docker or podman
	dir     string
	socket  string
	options []string // of the tool
	running *exec.Cmd
}

// app is the program of the container: a server, a health check, which has no result before it is allowed to, and the end at SIGTERM.
const app = `package main

import ("os"; "os/signal"; "syscall"; "time")

func main() {
	if len(os.Args) > 1 {
		if os.Args[1] != "x" { os.WriteFile("/" + os.Args[1], nil, 0o600); return }
		for ; ; time.Sleep(50 * time.Millisecond) {
			if _, err := os.Stat("/allow"); err == nil { break }
		}
		if _, err := os.Stat("/sick"); err == nil { os.Exit(1) }
		return
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	<-end
}
`

func program(t testing.TB, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err == nil && os.Geteuid() == 0 && !testing.Short() {
		return
	}
	if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") != "" {
		t.Fatalf("%s needs root and is installed by make deps", name)
	}
	t.Skipf("%s needs root and is installed by make deps", name)
}

// start runs a daemon that has the image app.
func start(t testing.TB, tool string) *daemon {
	program(t, map[string]string{"docker": "dockerd", "podman": "podman"}[tool])
	dir, err := os.MkdirTemp("", tool) // short: it has sockets
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, tool: tool, dir: dir, socket: filepath.Join(dir, "sock")}
	t.Cleanup(func() {
		d.stop()
		// What a daemon mounted is in the way.
		mounts, _ := os.ReadFile("/proc/self/mounts")
		for line := range strings.Lines(string(mounts)) {
			if fields := strings.Fields(line); strings.HasPrefix(fields[1], dir+"/") {
				_ = syscall.Unmount(fields[1], syscall.MNT_DETACH)
			}
		}
		_ = os.RemoveAll(dir)
	})
	d.options = []string{"-H", "unix://" + d.socket}
	if tool == "podman" {
		config := filepath.Join(dir, "containers.conf")
		write(t, config, "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\nlog_driver = \"k8s-file\"\n[engine]\nevents_logger = \"file\"\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n[network]\nnetwork_config_dir = \""+dir+"/networks\"\n")
		d.options = []string{"--root", dir + "/root", "--runroot", dir + "/run", "--storage-driver", "vfs", "--tmpdir", dir + "/tmp"}
		t.Setenv("CONTAINERS_CONF", config)
	}
	d.launch()
	write(t, filepath.Join(dir, "app.go"), app)
	build := exec.Command("go", "build", "-o", filepath.Join(dir, "app"), filepath.Join(dir, "app.go"))
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command("tar", "-C", dir, "-cf", filepath.Join(dir, "app.tar"), "app").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	d.run("import", "-c", "ENTRYPOINT [\"/app\"]", filepath.Join(dir, "app.tar"), "app:1")
	return d
}

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// launch starts the daemon and waits until it answers.
func (d *daemon) launch() {
	d.t.Helper()
	args := []string{"dockerd", "--iptables=false", "--ip6tables=false", "--storage-driver=vfs", "--data-root=" + d.dir + "/root", "--exec-root=" + d.dir + "/run", "--pidfile=" + d.dir + "/pid", "-H", "unix://" + d.socket}
	if d.tool == "podman" {
		args = append(append([]string{"podman"}, d.options...), "system", "service", "--time=0", "unix://"+d.socket)
	}
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	d.running = exec.Command(args[0], args[1:]...)
	d.running.Stdout, d.running.Stderr = log, log
	d.running.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	if err := d.running.Start(); err != nil {
		d.t.Fatal(err)
	}
	// Ports are published on its loopback address.
	if out, err := exec.Command("nsenter", "--net=/proc/"+strconv.Itoa(d.running.Process.Pid)+"/ns/net", "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		d.t.Fatalf("%v: %s", err, out)
	}
	client, err := remote.NewClient(remote.Server{URL: "unix://" + d.socket})
	if err != nil {
		d.t.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // real time: another program starts
		resp, err := client.Get(context.Background(), "/_ping", nil, nil)
		if err == nil {
			resp.Body.Close()
			return
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(filepath.Join(d.dir, "log"))
			d.t.Fatalf("%s does not answer: %v\n%s", args[0], err, text)
		}
	}
}

// stop ends the daemon, and Docker's containers with it.
func (d *daemon) stop() {
	if d.running == nil {
		return
	}
	if d.tool == "podman" {
		d.try("rm", "-af", "-t", "0")
	}
	_ = d.running.Process.Signal(syscall.SIGTERM)
	_ = d.running.Wait()
	d.running = nil
}

func (d *daemon) try(args ...string) (string, error) {
	if d.tool == "podman" { // the tool has the daemon's namespace
		args = slices.Concat([]string{"--net=/proc/" + strconv.Itoa(d.running.Process.Pid) + "/ns/net", "podman"}, d.options, args)
		out, err := exec.Command("nsenter", args...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	tool := "/usr/bin/docker" // of the package
	if _, err := os.Stat(tool); err != nil {
		tool = "docker"
	}
	out, err := exec.Command(tool, append(slices.Clone(d.options), args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// run is a command of docker or podman.
func (d *daemon) run(args ...string) string {
	d.t.Helper()
	out, err := d.try(args...)
	if err != nil {
		d.t.Fatalf("%s %v: %v: %s", d.tool, args, err, out)
	}
	return out
}

// up starts a container of app=web, and returns its address.
func (d *daemon) up(name string, args ...string) string {
	d.t.Helper()
	d.run(slices.Concat([]string{"run", "-d", "--name", name, "-l", "app=web"}, args, []string{"app:1"})...)
	return d.address(name, "")
}

// address is the one in a network; "": in its only one.
func (d *daemon) address(name, network string) string {
	d.t.Helper()
	format := "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
	if network != "" {
		format = "{{(index .NetworkSettings.Networks \"" + network + "\").IPAddress}}"
	}
	return d.run("inspect", "-f", format, name)
}

func (d *daemon) open() *Provider {
	d.t.Helper()
	p, err := New(provider.Config{URL: "unix://" + d.socket, Node: "box1"})
	if err != nil {
		d.t.Fatal(err)
	}
	return p.(*Provider)
}

// tools runs a test with Docker and with Podman.
func tools(t *testing.T, test func(t *testing.T, d *daemon)) {
	for _, tool := range []string{"docker", "podman"} {
		t.Run(tool, func(t *testing.T) { test(t, start(t, tool)) })
	}
}

func Test983_docker_containers(t *testing.T) {
	tools(t, func(t *testing.T, d *daemon) {
		d.run("network", "create", "front")
		p := d.open()
		f := providertest.Follow(t, p, "app=web")
		front := providertest.Follow(t, p, "app=web?network=front")
		other := providertest.Follow(t, p, "app=other")
		f.Answer()
		front.Answer()
		a := d.up("web1")
		f.Answer(a + " box1/")
		d.run("pause", "web1")
		f.Answer(a + " down box1/")
		d.run("unpause", "web1")
		f.Answer(a + " box1/")
		b := d.up("web2", "-l", "svcctl.io/weight=7", "-l", "svcctl.io/priority=2", "-l", "svcctl.io/zone=z")
		f.Answer(a+" box1/", b+" w7 p2 box1/z")
		d.run("stop", "web2")
		f.Answer(a + " box1/")
		d.run("start", "web2")
		b = d.address("web2", "")
		f.Answer(a+" box1/", b+" w7 p2 box1/z")
		d.run("kill", "web2")
		f.Answer(a + " box1/")
		d.run("rm", "-f", "web2")
		c := d.up("web3", "--network", "front")
		f.Answer(a+" box1/", c+" box1/")
		front.Answer(c + " box1/")
		d.run("network", "connect", "front", "web1")
		f.Fails("container web1: is in the networks ")
		front.Answer(d.address("web1", "front")+" box1/", c+" box1/")
		d.run("network", "disconnect", "front", "web1")
		f.Answer(a+" box1/", c+" box1/")
		front.Answer(c + " box1/")
		d.run("rm", "-f", "web1", "web3")
		f.Answer()
		front.Answer()
		if all := append(front.Failures(), other.Failures()...); len(all) > 0 {
			t.Errorf("failures: %v", all)
		}
		for _, answer := range f.Answers() {
			if !answer.Proved {
				t.Fatal("an answer of the daemon is not proved")
			}
		}
	})
}

func Test983_docker_health(t *testing.T) {
	tools(t, func(t *testing.T, d *daemon) {
		f := providertest.Follow(t, d.open(), "app=web")
		check := func() {}
		var args []string
		if d.tool == "podman" { // its timers are systemd's
			args = []string{"--health-cmd", `["/app", "x"]`, "--health-interval", "disable", "--health-retries", "1", "--health-start-period", "0s"}
			check = func() { _, _ = d.try("healthcheck", "run", "web1") }
		} else {
			d.run("import", "-c", `ENTRYPOINT ["/app"]`, "-c", `HEALTHCHECK --interval=2s --retries=1 CMD ["/app", "x"]`, filepath.Join(d.dir, "app.tar"), "app:1")
		}
		a := d.up("web1", args...)
		f.Answer(a + " down box1/") // starting
		d.run("exec", "web1", "/app", "allow")
		check()
		f.Answer(a + " box1/")
		d.run("exec", "web1", "/app", "sick")
		check()
		f.Answer(a + " down box1/")
	})
}

// The compose file of the examples has as many endpoints as it has containers, in the network that their Service asks for.
func Test1020_containers_of_a_compose_file(t *testing.T) {
	program(t, "docker-compose")
	d := start(t, "docker")
	const examples = "../../../examples/discover/"
	service, err := os.ReadFile(examples + "web.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, question, _ := strings.Cut(string(service), "docker:")
	question, _, _ = strings.Cut(question, "\n")
	image := filepath.Join(d.dir, "image.yaml")
	write(t, image, "services: {web: {image: \"app:1\"}}\n")
	compose := func(args ...string) {
		t.Helper()
		cmd := exec.Command("docker-compose", append([]string{"-p", "shop", "-f", examples + "shop.compose", "-f", image}, args...)...)
		cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+d.socket)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("docker-compose %v: %v: %s", args, err, out)
		}
	}
	f := providertest.Follow(t, d.open(), question)
	f.Answer()
	endpoints := func() (all []string) {
		for _, id := range strings.Fields(d.run("ps", "-q", "--filter", "label=com.docker.compose.service=web")) {
			all = append(all, d.address(id, "shop_front")+" w2 box1/")
		}
		return all
	}
	for _, n := range []int{3, 1, 2} {
		compose("up", "-d", "--scale", fmt.Sprint("web=", n))
		all := endpoints()
		if len(all) != n {
			t.Fatalf("%v, want %d", all, n)
		}
		f.Answer(all...)
	}
	compose("restart", "-t", "1")
	f.Answer(endpoints()...)
	compose("down", "-t", "1")
	f.Answer()
	if failed := f.Failures(); len(failed) > 0 {
		t.Errorf("failures: %v", failed)
	}
}

// An end is effective although the list has the container for some time after it.
func Test983_docker_containers_that_die(t *testing.T) {
	d := start(t, "docker")
	f := providertest.Follow(t, d.open(), "app=web")
	f.Answer()
	for i := range 8 {
		name := fmt.Sprint("web3", i)
		a := d.up(name)
		f.Answer(a + " box1/")
		d.run("kill", name)
		f.Answer()
	}
	d.up("again", "--restart", "always")
	a := d.address("again", "")
	f.Answer(a + " box1/")
	pid := d.run("inspect", "-f", "{{.State.Pid}}", "again")
	n, err := strconv.Atoi(pid)
	if err != nil || n < 2 {
		t.Fatal(pid)
	}
	if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// The daemon counts a restart before the container has an address.
	for now := pid; now == pid || now == "0"; now = d.run("inspect", "-f", "{{.State.Pid}}", "again") {
		time.Sleep(50 * time.Millisecond) // real time: another program
	}
	f.Answer(d.address("again", "") + " box1/")
}

func Test985_docker_failures_are_no_answers(t *testing.T) {
	d := start(t, "docker")
	proxy := providertest.NewProxy(t, "unix", d.socket)
	p, err := New(provider.Config{Env: map[string]string{"DOCKER_HOST": "tcp" + strings.TrimPrefix(proxy.URL, "http")}})
	if err != nil {
		t.Fatal(err)
	}
	a := d.up("web1")
	f := providertest.Follow(t, p, "app=web")
	f.Answer(a)
	providertest.Faults(t, proxy, f)
	f.Answer(a)
	proxy.Delay(2 * time.Second)
	b := d.up("web2")
	f.Answer(a, b)
	proxy.Break(nil)
	d.run("network", "create", "late")
	d.stop()
	f.Fails("")
	d.launch()
	f.Answer() // without restart, its containers are gone
	d.run("start", "web1")
	f.Answer(d.address("web1", ""))
	d.run("rm", "-f", "web1", "web2")
	f.Answer()
}

// Podman's containers go on without its service: while that is away, and when it is back, nothing changes.
func Test985_podman_failures_are_no_answers(t *testing.T) {
	d := start(t, "podman")
	proxy := providertest.NewProxy(t, "unix", d.socket)
	p, err := New(provider.Config{Env: map[string]string{"CONTAINER_HOST": "tcp" + strings.TrimPrefix(proxy.URL, "http")}})
	if err != nil {
		t.Fatal(err)
	}
	a := d.up("web1")
	f := providertest.Follow(t, p, "app=web")
	f.Answer(a)
	providertest.Faults(t, proxy, f)
	f.Answer(a)
	proxy.Break(nil)
	before := len(f.Answers())
	_ = d.running.Process.Signal(syscall.SIGTERM)
	_ = d.running.Wait()
	f.Fails("")
	f.Fresh(func() { d.launch() })
	for _, answer := range f.Answers()[before:] {
		if text := providertest.Text(answer); text != a {
			t.Errorf("over a restart of the service: %q, want %q", text, a)
		}
	}
	b := d.up("web2")
	f.Answer(a, b)
	d.run("rm", "-f", "-t", "0", "web1")
	f.Answer(b)
}

func TestPublished(t *testing.T) {
	d := start(t, "docker")
	p := d.open()
	published := func(params string) *providertest.Following {
		return providertest.FollowQuestion(t, p, provider.Question{Name: "app=web", Params: params, Port: 8080})
	}
	f, host := published("published="), published("published=192.0.2.7")
	d.up("web1", "-p", "127.0.0.1:9001:8080", "-p", "9009:9090")
	d.up("web2", "-p", "9002:8080")
	if own, err := p.hostAddress(""); err == nil { // of the default route of the host of the test
		f.Answer("127.0.0.1:9001 box1/", own+":9002 box1/")
	} else {
		f.Fails("the host has no default route")
	}
	host.Answer("127.0.0.1:9001 box1/", "192.0.2.7:9002 box1/")
	providertest.Follow(t, p, "app=web?published=").Fails("needs a targetPort")
	d.run("rm", "-f", "web1", "web2")
	d.up("web3", "--network", "host")
	if u, err := url.Parse("tcp://192.0.2.8:2375"); err == nil {
		p.host = u.Hostname()
	}
	providertest.Follow(t, p, "app=web").Answer("192.0.2.8 box1/")
}

// What the daemon has is unknown for a time when its events stop: a container may have ended then.
func TestStreamEnds(t *testing.T) {
	var mu sync.Mutex
	state, events := "running", make(chan string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch r.URL.Path {
		case "/containers/json":
			fmt.Fprintf(w, `[{"Id": "c1", "Names": ["/a"], "Labels": {"app": "web"}, "State": %q, "Status": "Up 1 second", "NetworkSettings": {"Networks": {"bridge": {"IPAddress": "10.0.0.1"}}}}]`, state)
		case "/events":
			if r.URL.Query().Get("since") == "" {
				t.Error("events from before the list are not asked for")
			}
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			mu.Unlock()
			defer mu.Lock()
			for {
				select {
				case e := <-events:
					if e == "" {
						return
					}
					fmt.Fprintln(w, e)
					w.(http.Flusher).Flush()
				case <-r.Context().Done():
					return
				}
			}
		}
	}))
	t.Cleanup(server.Close)
	p, err := New(provider.Config{URL: "tcp" + strings.TrimPrefix(server.URL, "http")})
	if err != nil {
		t.Fatal(err)
	}
	f := providertest.Follow(t, p, "app=web")
	f.Answer("10.0.0.1")
	send := func(action string) {
		events <- fmt.Sprintf(`{"Type": "container", "Action": %q, "Actor": {"ID": "c1", "Attributes": {"app": "web", "name": "a"}}}`, action)
	}
	send("exec_start: /app x")
	send("die")
	f.Answer() // the list has it as running
	send("start")
	f.Answer("10.0.0.1")
	events <- ""
	f.Fails("the daemon closed it")
	f.Answer("10.0.0.1")
	events <- "{"
	f.Fails("not as expected")
	mu.Lock()
	state = "exited"
	mu.Unlock()
	f.Answer()
}

// A daemon of Docker 29 or later serves the versions of a range, and its answers have more and fewer fields than those of Docker 20.
func Test1087_newer_versions_of_the_API(t *testing.T) {
	for _, tt := range []struct{ oldest, newest, asked int }{{24, 41, 41}, {44, 52, 52}, {44, 55, 55}, {44, 99, 55}} {
		t.Run(fmt.Sprintf("1.%d", tt.newest), func(t *testing.T) {
			healths := []string{"starting", "healthy", "unhealthy", "none"}
			list := `[`
			for i, health := range healths {
				status := "Up 3 minutes" + map[string]string{"starting": " (health: starting)", "healthy": " (healthy)", "unhealthy": " (unhealthy)"}[health]
				list += fmt.Sprintf(`{"Id": "c%[1]d", "Names": ["/shop-web-%[1]d"], "Image": "app:1", "ImageID": "sha256:7d5e", "ImageManifestDescriptor": {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "sha256:7d5e", "size": 527},
					"Command": "/app", "Created": 1763042201, "Ports": [{"IP": "::", "PrivatePort": 8080, "PublicPort": 9001, "Type": "tcp"}], "Labels": {"app": "web"}, "State": "running", "Status": %[2]q,
					"HostConfig": {"NetworkMode": "front", "Annotations": {"io.example/a": "b"}}, "Health": {"Status": %[3]q, "FailingStreak": 0},
					"NetworkSettings": {"Networks": {"front": {"IPAMConfig": null, "Links": null, "Aliases": null, "DriverOpts": null, "GwPriority": 0, "NetworkID": "9c1f", "EndpointID": "77aa", "Gateway": "172.30.9.1", "IPAddress": "172.30.9.1%[1]d", "MacAddress": "66:5d:37:0c:21:0%[1]d", "IPPrefixLen": 24, "IPv6Gateway": "", "GlobalIPv6Address": "", "GlobalIPv6PrefixLen": 0, "DNSNames": null}}}, "Mounts": []},`, i, status, health)
			}
			list = strings.TrimSuffix(list, ",") + "]"
			events := make(chan string)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Api-Version", fmt.Sprint("1.", tt.newest))
				w.Header().Set("Server", "Docker/29.0.0 (linux)")
				rest, versioned := strings.CutPrefix(r.URL.Path, fmt.Sprintf("/v1.%d", tt.asked))
				switch {
				case r.URL.Path == "/_ping":
				case !versioned:
					w.WriteHeader(400)
					fmt.Fprintf(w, `{"message": "client version is not supported. Minimum supported API version is 1.%d"}`, tt.oldest)
				case rest == "/containers/json":
					fmt.Fprint(w, list)
				case rest == "/events":
					w.Header().Set("Content-Type", "application/x-ndjson")
					w.(http.Flusher).Flush()
					for {
						select {
						case e := <-events:
							fmt.Fprintln(w, e)
							w.(http.Flusher).Flush()
						case <-r.Context().Done():
							return
						}
					}
				}
			}))
			t.Cleanup(server.Close)
			p, err := New(provider.Config{URL: "tcp" + strings.TrimPrefix(server.URL, "http")})
			if err != nil {
				t.Fatal(err)
			}
			f := providertest.Follow(t, p, "app=web?network=front")
			f.Answer("172.30.9.10 down", "172.30.9.11", "172.30.9.12 down", "172.30.9.13")
			events <- `{"Type": "container", "Action": "die", "Actor": {"ID": "c1", "Attributes": {"app": "web", "exitCode": "137", "image": "app:1", "name": "shop-web-1"}}, "scope": "local", "time": 1763042300, "timeNano": 1763042300417331290}`
			f.Answer("172.30.9.10 down", "172.30.9.12 down", "172.30.9.13")
			if failed := f.Failures(); len(failed) > 0 {
				t.Errorf("failures: %v", failed)
			}
		})
	}
}

// BenchmarkEvents is the time from the start and from the end of a container, by the daemon's clock, to the answer.
func BenchmarkEvents(b *testing.B) {
	d := start(b, "docker")
	f := providertest.Follow(b, d.open(), "app=web")
	var started, ended []time.Duration
	note := func(to *[]time.Duration, name, field string, at time.Time) {
		since, err := time.Parse(time.RFC3339Nano, d.run("inspect", "-f", "{{.State."+field+"}}", name))
		if err != nil {
			b.Fatal(err)
		}
		*to = append(*to, at.Sub(since))
	}
	base := d.up("web0") + " box1/"
	f.Answer(base)
	for b.Loop() {
		name := fmt.Sprint("web", len(started)+1)
		d.run("create", "--name", name, "-l", "app=web", "app:1")
		n := len(f.Answers())
		d.run("start", name)
		note(&started, name, "StartedAt", f.Changed(n, 2))
		n = len(f.Answers())
		d.run("kill", name)
		note(&ended, name, "FinishedAt", f.Changed(n, 1))
	}
	for unit, all := range map[string][]time.Duration{"start": started, "die": ended} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms-"+unit+"-p50")
		b.ReportMetric(float64(all[len(all)-1].Microseconds())/1000, "ms-"+unit+"-max")
	}
}
