package kubectl

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/api/conformance/served"
)

// modFile has the versions that kubectl is built of: that of the module, or kubernetes-1.36.mod with KUBERNETES=1.36.
var modFile = func() string {
	if minor := os.Getenv("KUBERNETES"); minor != "" {
		return "kubernetes-" + minor + ".mod"
	}
	return "go.mod"
}()

// version returns the expected version of the program: that of k8s.io/kubectl in modFile.
var version = sync.OnceValue(func() string {
	text, err := os.ReadFile(modFile)
	if err != nil {
		panic(err)
	}
	m := regexp.MustCompile(`(?m)^\tk8s\.io/kubectl v0\.(\S+)$`).FindSubmatch(text)
	if m == nil {
		panic(modFile + " does not require k8s.io/kubectl")
	}
	return "v1." + string(m[1])
})

// atLeast is the minimum of kubectl invocations in the scripts.
const atLeast = 100

var against = flag.String("against", "", "run the scripts against the server of this kubeconfig `FILE`, those that need svcctl itself left out")

func TestMain(m *testing.M) {
	if flag.Parse(); *against != "" {
		os.Exit(m.Run())
	}
	served.Main(m)
}

// world is the environment of the scripts.
type world struct {
	appliance  *served.Appliance // nil with -against
	kubeconfig string
	path       string // of programs
	home       string // where kubectl keeps what it has discovered
}

func TestScripts(t *testing.T) {
	scripts, err := load()
	if err != nil {
		t.Fatal(err)
	}
	invocations := 0
	for _, s := range scripts {
		invocations += s.invocations()
	}
	if invocations < atLeast {
		t.Errorf("the scripts hold %d invocations of kubectl, want at least %d", invocations, atLeast)
	}
	w := newWorld(t)
	t.Run("together", func(t *testing.T) { w.runAll(t, scripts, false) })
	t.Run("alone", func(t *testing.T) { w.runAll(t, scripts, true) })
	fmt.Printf("%d invocations of kubectl %s in %d scripts\n", invocations, version(), len(scripts))
}

func (w *world) runAll(t *testing.T, scripts []*script, alone bool) {
	for _, s := range scripts {
		if s.alone != alone {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			if !alone {
				t.Parallel()
			}
			if w.appliance == nil && s.ours {
				t.Skip("it needs svcctl itself")
			}
			w.run(t, s)
		})
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	flags := "-s -w"
	for _, pkg := range []string{"k8s.io/client-go/pkg/version", "k8s.io/component-base/version"} {
		flags += fmt.Sprintf(" -X %s.gitVersion=%s", pkg, version())
	}
	kubectl := served.Build(t, "kubectl", ".", "./program", "-modfile", modFile, "-ldflags", flags)
	w := &world{home: t.TempDir(), kubeconfig: *against}
	if *against == "" {
		w.appliance = served.New(t, "--allow-mass-removal")
		w.appliance.Start()
		w.kubeconfig = w.appliance.Kubeconfig
	}
	w.path = filepath.Dir(kubectl) + ":" + os.Getenv("PATH")
	if w.appliance != nil { // scripts run svcctl by this name
		dir := t.TempDir()
		if err := os.Symlink(w.appliance.Program, filepath.Join(dir, "svcctl")); err != nil {
			t.Fatal(err)
		}
		w.path = dir + ":" + w.path
	}
	return w
}

// run is one script under way.
type run struct {
	*world
	t          testing.TB
	script     *script
	dir        string
	namespace  string
	background map[string]*background
}

// background is a command that runs beside the script.
type background struct {
	cmd            *exec.Cmd
	stdout, stderr buffer
	exited         chan struct{}
}

func (w *world) run(t *testing.T, s *script) {
	r := &run{world: w, t: t, script: s, dir: t.TempDir(), namespace: "t-" + s.name, background: map[string]*background{}}
	for name, content := range s.files {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(r.expand(content)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(r.stopBackground)
	if _, stderr, exit := r.execute("kubectl create namespace " + r.namespace); exit != 0 {
		t.Fatalf("make the script's namespace: %s", stderr)
	}
	if _, stderr, exit := r.execute("kubectl config view --raw --flatten > kubeconfig && KUBECONFIG=kubeconfig kubectl config set-context --current --namespace=" + r.namespace); exit != 0 {
		t.Fatalf("make the script's kubeconfig: %s", stderr)
	}
	for _, step := range s.steps {
		if err := r.do(step); err != nil {
			t.Errorf("%s.txt:%d: %s %s %s\n%v", s.name, step.line, step.verb, step.name, step.command, err)
		}
	}
}

// expand replaces the variables of scripts.
func (r *run) expand(text string) string {
	pairs := []string{"$NS", r.namespace, "$KUBECTL_VERSION", version()}
	if r.appliance != nil {
		pairs = append(pairs, "$MANIFESTS", r.appliance.Manifests)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// do does a step, until it is as it should be or its time is over.
func (r *run) do(s step) error {
	switch s.verb {
	case "restart":
		r.appliance.Stop()
		r.appliance.Start()
		return nil
	case "kill":
		r.appliance.Kill()
		r.appliance.Start()
		return nil
	case "&":
		return r.start(s)
	}
	within := s.within
	if s.verb != "$" && within == 0 {
		within = time.Minute
	}
	for deadline := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		err := r.try(s)
		if err == nil || !time.Now().Before(deadline) {
			return err
		}
	}
}

func (r *run) try(s step) error {
	if s.verb == "$" {
		stdout, stderr, exit := r.execute(s.command)
		return s.verify(stdout, stderr, exit, r.expand)
	}
	b := r.background[s.name]
	if b == nil {
		return errors.New("no such command in the background")
	}
	if s.verb == "output" {
		return s.verify(b.stdout.String(), b.stderr.String(), s.exit, r.expand)
	}
	select {
	case <-b.exited:
		return s.verify(b.stdout.String(), b.stderr.String(), b.cmd.ProcessState.ExitCode(), r.expand)
	default:
		return fmt.Errorf("it has not ended\nstdout:\n%s\nstderr:\n%s", b.stdout.String(), b.stderr.String())
	}
}

// command is a command of the shell in the script's surroundings.
func (r *run) command(line string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", r.expand(line))
	cmd.Dir = r.dir
	env := map[string]string{
		"PATH": r.path, "HOME": r.home, "KUBECONFIG": filepath.Join(r.dir, "kubeconfig"), "NS": r.namespace, "TZ": "UTC", "TERM": "dumb",
	}
	if _, err := os.Stat(env["KUBECONFIG"]); err != nil {
		env["KUBECONFIG"] = r.kubeconfig
	}
	if r.appliance != nil {
		env["MANIFESTS"], env["SVCCTL_SOCKET"] = r.appliance.Manifests, r.appliance.Socket
	}
	for _, key := range slices.Sorted(maps.Keys(env)) {
		cmd.Env = append(cmd.Env, key+"="+env[key])
	}
	// A group of its own, so that what the shell started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// commandTimeout is longer than any command of the scripts takes.
const commandTimeout = time.Minute

func (r *run) execute(line string) (stdout, stderr string, exit int) {
	var out, errOut bytes.Buffer
	cmd := r.command(line)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	timer := time.AfterFunc(commandTimeout, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer timer.Stop()
	_ = cmd.Wait() // the exit code tells
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

func (r *run) start(s step) error {
	b := &background{cmd: r.command(s.command), exited: make(chan struct{})}
	b.cmd.Stdout, b.cmd.Stderr = &b.stdout, &b.stderr
	if err := b.cmd.Start(); err != nil {
		return err
	}
	r.background[s.name] = b
	go func() {
		defer close(b.exited)
		_ = b.cmd.Wait() // the exit code is in cmd.ProcessState
	}()
	return nil
}

func (r *run) stopBackground() {
	for _, b := range r.background {
		_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
		<-b.exited
	}
}

// buffer is a bytes.Buffer that may be read while it is written.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
