package fleet_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/object"
)

// patience is how long something that must come is waited for.
const patience = time.Minute

// shared is the etcd of all tests that need only a fleet of their own in it. It starts with the first of them.
var shared struct {
	start  sync.Once
	etcd   *cluster
	fleets atomic.Int64
}

func TestMain(m *testing.M) {
	netlab.Parallel(4) // they wait for leases and elections
	code := m.Run()
	if shared.etcd != nil {
		shared.etcd.kill(0)
		if err := os.RemoveAll(shared.etcd.dirs[0]); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

// apart are the tests that run beside others already.
var apart sync.Map

// besideOthers has a test run in parallel with the others, once.
func besideOthers(t testing.TB) {
	if p, is := t.(interface{ Parallel() }); is {
		if _, again := apart.LoadOrStore(t, true); !again {
			p.Parallel()
		}
	}
}

// cluster is etcd with some members, on loopback addresses, and a fleet in it.
type cluster struct {
	t       testing.TB
	fleet   string
	urls    []string
	dirs    []string
	args    [][]string
	members []*exec.Cmd
}

// etcdProgram returns the path of the distribution's etcd. The test runs beside others from here on: it has no t.Setenv, and
// what it changes for its boxes it changes in them, not in the package.
func etcdProgram(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: tests with -short start no etcd")
	}
	besideOthers(t)
	program, err := exec.LookPath("etcd")
	if err != nil {
		if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") != "" {
			t.Fatal(err)
		}
		t.Skip("etcd is not installed: .ci/deps etcd")
	}
	return program
}

// startEtcd starts members of an etcd, and ends them with the test.
func startEtcd(t testing.TB, members int) *cluster {
	t.Helper()
	program := etcdProgram(t)
	var dirs []string
	for range members {
		dirs = append(dirs, t.TempDir())
	}
	c := newCluster(t, program, dirs...)
	t.Cleanup(func() {
		for i := range c.members {
			c.kill(i)
		}
	})
	for i := range members {
		c.start(i)
	}
	c.ready()
	return c
}

// ownFleet returns a fleet of the test alone in the etcd that tests share. A test that stops, changes or compacts etcd, or that
// reads all of it, has startEtcd instead.
func ownFleet(t testing.TB) *cluster {
	t.Helper()
	program := etcdProgram(t)
	shared.start.Do(func() {
		dir, err := os.MkdirTemp("", "svcctl-fleet-")
		if err != nil {
			t.Fatal(err)
		}
		shared.etcd = newCluster(t, program, dir)
		shared.etcd.start(0)
		shared.etcd.ready()
	})
	if shared.etcd == nil {
		t.Fatal("the shared etcd did not start")
	}
	return &cluster{t: t, fleet: fmt.Sprintf("test%d", shared.fleets.Add(1)), urls: shared.etcd.urls}
}

// newCluster returns a cluster with a member for each data directory, none of which is started.
func newCluster(t testing.TB, program string, dirs ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, fleet: "test", dirs: dirs}
	ports := freePorts(t, 2*len(dirs))
	var peers []string
	for i := range dirs {
		peers = append(peers, fmt.Sprintf("m%d=http://127.0.0.1:%d", i, ports[len(dirs)+i]))
	}
	for i, dir := range dirs {
		url, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[i]), fmt.Sprintf("http://127.0.0.1:%d", ports[len(dirs)+i])
		c.urls = append(c.urls, url)
		c.args = append(c.args, []string{
			program, "--unsafe-no-fsync", // members are killed, not machines
			"--name", fmt.Sprintf("m%d", i), "--data-dir", dir, "--listen-client-urls", url, "--advertise-client-urls", url,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", strings.Join(peers, ","),
		})
		c.members = append(c.members, nil)
	}
	return c
}

// key returns the key in etcd of a key of the fleet.
func (c *cluster) key(name string) string { return "svcctl/" + c.fleet + "/" + name }

func (c *cluster) start(i int) {
	c.t.Helper()
	cmd := exec.Command(c.args[i][0], c.args[i][1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.members[i] = cmd
}

func (c *cluster) kill(i int) {
	if cmd := c.members[i]; cmd != nil {
		cmd.Process.Kill()
		cmd.Wait()
		c.members[i] = nil
	}
}

// ready waits until etcd answers a linearizable read.
func (c *cluster) ready() {
	c.t.Helper()
	client := c.client()
	eventually(c.t, "etcd answers", func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		defer cancel()
		_, err := client.Get(ctx, "x")
		return err == nil
	})
}

func (c *cluster) client() *clientv3.Client {
	c.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: c.urls, DialTimeout: time.Second, Logger: zap.NewNop()})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { client.Close() })
	return client
}

// freePorts are ports of this test alone until it ends. They are below those that the kernel gives by itself, and no other
// test process has them: the name of an abstract socket reserves each.
func freePorts(t testing.TB, n int) (ports []int) {
	t.Helper()
	const from, to = 10000, 32768
	for port := from + os.Getpid()*64%(to-from); len(ports) < n; port = from + (port-from+1)%(to-from) {
		reserved, err := net.Listen("unix", fmt.Sprintf("@svcctl-test-port-%d", port))
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			reserved.Close()
			continue
		}
		l.Close()
		t.Cleanup(func() { reserved.Close() })
		ports = append(ports, port)
	}
	return ports
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// box is a store of a fleet.
type box struct {
	*store.Store
	engine *fleet.Engine
	cfg    fleet.Config
	stop   func()
}

func (c *cluster) config(name string) fleet.Config {
	return fleet.Config{
		Fleet: c.fleet, Box: name, Endpoints: c.urls, Dir: filepath.Join(c.t.TempDir(), "data"), Settings: []byte(`{"ranges":"10.96.0.0/16"}`),
		Log: slog.New(slog.NewTextHandler(testLog{c.t}, &slog.HandlerOptions{Level: slog.LevelDebug})), Readable: store.KnowsKey, Secret: store.IsSecretKey, Conversion: fleet.Conversion{Restored: func(key string, value, now []byte) ([]byte, error) {
			return store.ForRestore(key, value, now, "node", noSource)
		}},
	}
}

func noSource(string) string { return "" }

type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	if os.Getenv("SVCCTL_TEST_LOG") != "" {
		fmt.Fprint(os.Stderr, l.t.Name(), " ", string(b))
	}
	return len(b), nil
}

// init makes the fleet.
func (c *cluster) init() {
	c.t.Helper()
	if _, err := fleet.Init(c.t.Context(), c.config("init"), ""); err != nil {
		c.t.Fatal(err)
	}
}

var storeConfig = store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}

// join is a new box.
func (c *cluster) join(name string) *box {
	c.t.Helper()
	return c.open(c.config(name), storeConfig)
}

// twoBoxes returns two boxes of a fleet of the test alone, which both have some Services.
func twoBoxes(t *testing.T, services ...string) (c *cluster, a, b *box) {
	t.Helper()
	c = ownFleet(t)
	a, b = c.twoBoxes(t, services...)
	return c, a, b
}

// twoBoxes makes the fleet and starts two boxes, which both have some Services.
func (c *cluster) twoBoxes(t *testing.T, services ...string) (a, b *box) {
	t.Helper()
	c.init()
	a, b = c.join("a"), c.join("b")
	if len(services) > 0 {
		if err := a.create(services...); err != nil {
			t.Fatal(err)
		}
		same(t, a, b)
	}
	return a, b
}

func (c *cluster) open(cfg fleet.Config, of store.Config) *box {
	c.t.Helper()
	e, err := fleet.Joined(c.t.Context(), cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.run(e, cfg, of)
}

// run starts the tasks of a box that is open.
func (c *cluster) run(e *fleet.Engine, cfg fleet.Config, of store.Config) *box {
	c.t.Helper()
	s, err := store.Open(e, of)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, 2)
	go func() { e.Run(ctx); done <- struct{}{} }()
	go func() { s.Follow(ctx); done <- struct{}{} }()
	b := &box{Store: s, engine: e, cfg: cfg}
	stopped := false
	b.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		<-done
		<-done
		if err := e.Close(); err != nil {
			c.t.Errorf("close %s: %v", cfg.Box, err)
		}
	}
	c.t.Cleanup(b.stop)
	return b
}

func service(name string) *object.Service {
	return &object.Service{
		TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Namespace: "default", Name: name},
		Spec:     object.ServiceSpec{Ports: []object.ServicePort{{Port: 80}}},
	}
}

func serviceRef(name string) object.Ref {
	return object.Ref{Kind: object.KindService, Namespace: "default", Name: name}
}

// create creates Services in one commit.
func (b *box) create(names ...string) error {
	var writes []store.Write
	for _, name := range names {
		writes = append(writes, store.Write{Ref: serviceRef(name), Object: service(name), Create: true, By: store.Caller{User: "test"}})
	}
	results, err := b.Write(writes...)
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// clusterIP is that of a Service; "" when there is none.
func (b *box) clusterIP(name string) string {
	o, _ := b.Get(serviceRef(name))
	if o == nil {
		return ""
	}
	return o.(*object.Service).Spec.ClusterIP
}
