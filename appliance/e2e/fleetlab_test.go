package e2e

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// fleet are boxes that share their objects in an etcd of one member. Each box has a client whose
// gateway it is; the server inside sends replies through the box that masquerades.
type fleet struct {
	t       *testing.T
	lab     *netlab.Lab
	etcd    *netlab.Host
	dir     string // of etcd
	pid     string // the file with its process ID
	stop    func() string
	fsync   bool // etcd syncs its files: without it, a disk that stalls for 6 s beside a build fails no test
	hosts   []*netlab.Host
	clients []*netlab.Host
	boxes   []*netlab.Appliance
	server  *netlab.Host
	inside  *netlab.Segment
}

const fleetEtcd = "http://10.9.0.100:2379"

// newFleet makes a fleet and starts its boxes, each with the flags that more gives for its number, from 0.
func newFleet(t *testing.T, boxes int, more ...func(n int) []string) *fleet {
	t.Helper()
	f := layFleet(t, boxes, more...)
	f.svcctlFleet("init")
	for _, b := range f.boxes {
		b.Start()
	}
	return f
}

// layFleet is newFleet, but nobody has made the fleet yet, and no box runs.
func layFleet(t *testing.T, boxes int, more ...func(n int) []string) *fleet {
	t.Helper()
	t.Parallel()
	l := netlab.New(t)
	if _, err := exec.LookPath("etcd"); err != nil {
		t.Fatal("etcd is not installed: .ci/deps etcd etcdctl")
	}
	f := &fleet{t: t, lab: l, etcd: l.Host("etcd"), server: l.Host("server"), dir: filepath.Join(t.TempDir(), "etcd")}
	control := l.Segment("control").Attach(f.etcd, "eth0", "10.9.0.100/24")
	inside := l.Segment("inside").Attach(f.server, "eth0", "10.1.0.11/24", "fd00:10:1::11/64")
	f.inside = inside
	f.server.Serve("tcp", 80)
	f.startEtcd()
	for n := 1; n <= boxes; n++ {
		h, client := l.Router(fmt.Sprintf("box%d", n)), l.Host(fmt.Sprintf("client%d", n))
		control.Attach(h, "ctl0", fmt.Sprintf("10.9.0.%d/24", n))
		inside.Attach(h, "int0", fmt.Sprintf("10.1.0.%d/24", n), fmt.Sprintf("fd00:10:1::%d/64", n))
		l.Segment(fmt.Sprintf("lan%d", n)).
			Attach(h, "lan0", fmt.Sprintf("192.0.%d.1/24", n+1), fmt.Sprintf("2001:db8:%d::1/64", n)).
			Attach(client, "eth0", fmt.Sprintf("192.0.%d.9/24", n+1), fmt.Sprintf("2001:db8:%d::9/64", n))
		client.Route("0.0.0.0/0", fmt.Sprintf("192.0.%d.1", n+1))
		client.Route("::/0", fmt.Sprintf("2001:db8:%d::1", n))
		f.hosts, f.clients = append(f.hosts, h), append(f.clients, client)
		var flags []string
		for _, of := range more {
			flags = append(flags, of(n-1)...)
		}
		f.boxes = append(f.boxes, f.box(h, h.Name, flags...))
	}
	return f
}

// box prepares the appliance on a host.
func (f *fleet) box(h *netlab.Host, name string, more ...string) *netlab.Appliance {
	b := f.single(h, name, append([]string{"--fleet", "pop1", "--etcd", fleetEtcd}, more...)...)
	b.Manifests.Path = ""
	return b
}

// single prepares a box of its own on a host.
func (f *fleet) single(h *netlab.Host, name string, more ...string) *netlab.Appliance {
	return h.Appliance(binary, append([]string{"--node-name", name, "--zone", "z-" + name, "--service-cluster-ip-range", "172.30.0.0/16,fd00:172:30::/112",
		"--cluster-cidr", "10.0.0.0/8,fd00:10::/32"}, more...)...)
}

func (f *fleet) startEtcd() {
	f.t.Helper()
	f.pid = f.dir + ".pid"
	exec := `echo $$ >"$0"; exec etcd "$@"`
	if !f.fsync {
		exec = `echo $$ >"$0"; exec etcd --unsafe-no-fsync "$@"`
	}
	f.stop = f.etcd.Background("sh", "-c", exec, f.pid, "--data-dir", f.dir, "--listen-client-urls", "http://10.9.0.100:2379,http://127.0.0.1:2379",
		"--advertise-client-urls", fleetEtcd, "--listen-peer-urls", "http://127.0.0.1:2380")
	eventually(f.t, time.Minute, func() error {
		answer, err := f.etcd.Get(netip.MustParseAddrPort("10.9.0.100:2379"), "/health")
		if err == nil && answer.Status != http.StatusOK {
			err = fmt.Errorf("etcd is not healthy: %d %s", answer.Status, answer.Body)
		}
		return err
	})
}

func (f *fleet) etcdctl(args ...string) (string, string, error) {
	return f.etcd.Run("env", append([]string{"ETCDCTL_API=3", "etcdctl", "--command-timeout", "1m"}, args...)...)
}

// svcctlFleet runs svcctl fleet beside etcd.
func (f *fleet) svcctlFleet(word string, args ...string) string {
	f.t.Helper()
	out, _, err := f.etcd.Run(binary, append([]string{"fleet", word, "--fleet", "pop1", "--etcd", fleetEtcd}, args...)...)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// apply applies documents through a box, and gives what it said.
func (f *fleet) apply(n int, documents ...string) (string, int) {
	f.t.Helper()
	return f.applyWith(n, documents)
}

func (f *fleet) applyWith(n int, documents []string, flags ...string) (string, int) {
	f.t.Helper()
	file := filepath.Join(f.t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(documents, "---\n")), 0o600); err != nil {
		f.t.Fatal(err)
	}
	out, errOut, code := f.boxes[n].Svcctl("apply", append([]string{"-f", file}, flags...)...)
	return out + errOut, code
}

// web is a Service whose endpoint is the server, in both families.
func (f *fleet) web(name string) (documents []string) {
	for _, fam := range families {
		documents = append(documents, fam.service(name, "ports: [{name: t, port: 80}]"), fam.slice(name, "t: 80", f.server))
	}
	return documents
}

// vip is the cluster IP that a box has of a Service.
func (f *fleet) vip(n int, fam family, name string) (netip.Addr, error) {
	var service struct{ Spec struct{ ClusterIP string } }
	if err := f.boxes[n].Read("/api/v1/namespaces/default/services/"+fam.name(name), &service); err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(service.Spec.ClusterIP)
}

// serves asserts that the client of each box reaches the server by the Service, at the address that the
// first box has for it.
func (f *fleet) serves(name string) {
	f.t.Helper()
	for _, fam := range families {
		want, err := f.vip(0, fam, name)
		if err != nil {
			f.t.Fatal(err)
		}
		f.servesAt(netip.AddrPortFrom(want, 80))
	}
}

func (f *fleet) servesAt(vip netip.AddrPort) {
	f.t.Helper()
	for n, client := range f.clients {
		eventually(f.t, time.Minute, func() error {
			reply, err := client.Ask("tcp", vip)
			if err != nil {
				return fmt.Errorf("the client of box %d asks %s: %w", n+1, vip, err)
			}
			if reply.Server != f.server.Name {
				return fmt.Errorf("%s answers for %s", reply.Server, vip)
			}
			return nil
		})
	}
}

// keepAsking has the clients of all boxes connect to a Service all the time, in both families, until end is called:
// no connection may have failed.
func (f *fleet) keepAsking(name string) (end func()) {
	f.t.Helper()
	f.t.Log("asked under load: a failure counts at once")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var asked, failed atomic.Int64
	for _, fam := range families {
		vip, err := f.vip(0, fam, name)
		if err != nil {
			f.t.Fatal(err)
		}
		for n, client := range f.clients {
			wg.Go(func() {
				for times := 0; ; times++ {
					reply, err := client.Ask("tcp", netip.AddrPortFrom(vip, 80), patiently)
					switch {
					case err != nil:
						f.t.Errorf("connection %d of the client of box %d to %s: %v", times, n+1, vip, err)
						failed.Add(1)
					case reply.Server != f.server.Name:
						f.t.Errorf("%s answers for %s", reply.Server, vip)
					}
					asked.Add(1)
					select {
					case <-stop:
						return
					case <-time.After(20 * time.Millisecond):
					}
				}
			})
		}
	}
	ended := false
	end = func() {
		f.t.Helper()
		if ended {
			return
		}
		ended = true
		close(stop)
		wg.Wait()
		f.t.Logf("%d connections, %d failed", asked.Load(), failed.Load())
	}
	f.t.Cleanup(end) // before the lab goes
	return end
}

// state waits until a box says how it stands to its fleet.
func (f *fleet) state(n int, want string) {
	f.t.Helper()
	eventually(f.t, time.Minute, func() error {
		body, err := f.boxes[n].Get("/svcctl/v1/status")
		if !strings.Contains(string(body), `"state":"`+want+`"`) {
			return fmt.Errorf("box %d is not %s: %v: %s", n+1, want, err, body)
		}
		return nil
	})
}
