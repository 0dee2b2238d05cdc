package e2e

import (
	"fmt"
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
	stop    func() string
	hosts   []*netlab.Host
	clients []*netlab.Host
	boxes   []*netlab.Appliance
	server  *netlab.Host
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
	f.stop = f.etcd.Background("etcd", "--data-dir", f.dir, "--listen-client-urls", "http://10.9.0.100:2379,http://127.0.0.1:2379",
		"--advertise-client-urls", fleetEtcd, "--listen-peer-urls", "http://127.0.0.1:2380")
	eventually(f.t, time.Minute, func() error {
		_, _, err := f.etcdctl("endpoint", "health")
		return err
	})
}

func (f *fleet) etcdctl(args ...string) (string, string, error) {
	return f.etcd.Run("env", append([]string{"ETCDCTL_API=3", "etcdctl", "--command-timeout", "2s"}, args...)...)
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
	file := filepath.Join(f.t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(documents, "---\n")), 0o600); err != nil {
		f.t.Fatal(err)
	}
	out, errOut, code := f.boxes[n].Svcctl("apply", "-f", file)
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
	out, errOut, code := f.boxes[n].Svcctl("get", "svc", fam.name(name), "-o", "jsonpath={.spec.clusterIP}")
	if code != 0 {
		return netip.Addr{}, fmt.Errorf("exit %d: %s", code, errOut)
	}
	return netip.ParseAddr(strings.TrimSpace(out))
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
		out, _, _ := f.boxes[n].Svcctl("status", "-o", "json")
		if !strings.Contains(strings.ReplaceAll(out, " ", ""), `"state":"`+want+`"`) {
			return fmt.Errorf("box %d is not %s: %s", n+1, want, out)
		}
		return nil
	})
}

func Test455_objects_of_one_box_are_served_by_all(t *testing.T) {
	f := newFleet(t, 3)
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("web")
	for n := range f.boxes {
		for _, fam := range families {
			a, errA := f.vip(0, fam, "web")
			b, errB := f.vip(n, fam, "web")
			if errA != nil || errB != nil || a != b {
				t.Errorf("box 1 has %s and box %d %s (%v, %v)", a, n+1, b, errA, errB)
			}
		}
	}
	// Each has its Node, and keeps those of the others.
	eventually(t, time.Minute, func() error {
		for n := range f.boxes {
			if out, _, _ := f.boxes[n].Svcctl("get", "nodes", "-o", "name"); strings.Count(out, "box") != 3 {
				return fmt.Errorf("box %d has the Nodes %q", n+1, out)
			}
		}
		return nil
	})
	eventually(t, time.Minute, func() error {
		out, errOut, code := f.boxes[2].Svcctl("get", "boxes")
		if code != 0 || strings.Count(out, " OK ") != 3 {
			return fmt.Errorf("svcctl get boxes: exit %d: %s%s", code, out, errOut)
		}
		return nil
	})
	// What a selector finds is written by the box that has the turn, whoever that is.
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {app: sel}}\nspec: {nodeName: box2, containers: [{name: c, image: i, ports: [{containerPort: 80}]}]}\n" +
		"status: {phase: Running, podIP: 10.1.0.11, podIPs: [{ip: 10.1.0.11}], conditions: [{type: Ready, status: \"True\"}]}\n"
	svc := service("sel", "ipFamilies: [IPv4]", "selector: {app: sel}", "ports: [{port: 80}]")
	if out, code := f.apply(1, svc, pod); code != 0 {
		t.Fatal(out)
	}
	out, _, _ := f.boxes[2].Svcctl("get", "svc", "sel", "-o", "jsonpath={.spec.clusterIP}")
	f.servesAt(netip.AddrPortFrom(netip.MustParseAddr(strings.TrimSpace(out)), 80))
	if out, _, _ := f.boxes[0].Svcctl("get", "endpointslices", "-o", "jsonpath={.items[*].endpoints[*].zone}"); !strings.Contains(out, "z-box2") {
		t.Errorf("the endpoint on box2 has not its zone: %q", out)
	}
	if out, code := f.apply(1, "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: b}\n"); code == 0 || !strings.Contains(out, "fleet") {
		t.Errorf("a Secret: exit %d: %s", code, out)
	}
}

func Test456_etcd_goes_and_every_box_forwards(t *testing.T) {
	f := newFleet(t, 2)
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("web")
	end := f.keepAsking("web")
	f.stop()
	for n := range f.boxes {
		f.state(n, "CutOff")
	}
	for _, fam := range families {
		out, _, _ := f.boxes[0].Svcctl("get", "svc", fam.name("web"), "-o", "jsonpath={.spec.clusterIP}")
		f.servesAt(netip.AddrPortFrom(netip.MustParseAddr(strings.TrimSpace(out)), 80))
	}
	if out, _, _ := f.boxes[0].Svcctl("explain", "svc/"+families[0].name("web")); !strings.Contains(out, "cut off from etcd") {
		t.Errorf("explain does not say that the box is cut off: %s", out)
	}
	if out, code := f.apply(0, f.web("other")...); code == 0 || !strings.Contains(out, "cut off from etcd") {
		t.Errorf("a write without etcd: exit %d: %s", code, out)
	}
	end()
	// The box heals its tables without etcd.
	f.hosts[0].LoadNft("flush ruleset\n")
	f.serves("web")
	// A start without etcd begins with the replica, on a kernel that has nothing.
	f.boxes[1].Kill()
	f.hosts[1].LoadNft("flush ruleset\n")
	f.boxes[1].Start()
	f.serves("web")
	end = f.keepAsking("web")
	defer end()
	f.startEtcd()
	for n := range f.boxes {
		f.state(n, "Following")
	}
	eventually(t, time.Minute, func() error {
		if out, code := f.apply(1, f.web("later")...); code != 0 {
			return fmt.Errorf("a write after etcd came back: exit %d: %s", code, out)
		}
		return nil
	})
	f.serves("later")
}

func Test457_one_box_is_cut_off(t *testing.T) {
	f := newFleet(t, 2)
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("web")
	end := f.keepAsking("web")
	defer end()
	f.hosts[1].SetDown("ctl0")
	f.state(1, "CutOff")
	if out, code := f.apply(0, f.web("meanwhile")...); code != 0 {
		t.Fatal(out)
	}
	out, errOut, code := f.boxes[1].Svcctl("get", "svc")
	if code != 0 || strings.Contains(out, "meanwhile") {
		t.Errorf("a read on the box that is cut off: exit %d: %s%s", code, out, errOut)
	}
	f.hosts[1].SetUp("ctl0")
	f.state(1, "Following")
	f.serves("meanwhile")
	f.serves("web")
}

func Test458_a_snapshot_of_etcd_is_restored_under_the_boxes(t *testing.T) {
	f := newFleet(t, 2)
	if out, code := f.apply(0, f.web("old")...); code != 0 {
		t.Fatal(out)
	}
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	if _, _, err := f.etcdctl("snapshot", "save", snapshot); err != nil {
		t.Fatal(err)
	}
	if out, code := f.apply(0, f.web("new")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("new")
	var lost []netip.AddrPort
	for _, fam := range families {
		vip, err := f.vip(0, fam, "new")
		if err != nil {
			t.Fatal(err)
		}
		lost = append(lost, netip.AddrPortFrom(vip, 80))
	}
	end := f.keepAsking("old")
	defer end()
	f.stop()
	if err := os.RemoveAll(f.dir); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.etcdctl("snapshot", "restore", snapshot, "--data-dir", f.dir); err != nil {
		t.Fatal(err)
	}
	f.startEtcd()
	for n := range f.boxes {
		f.state(n, "WentBack")
	}
	for _, vip := range lost { // nothing leaves the kernel on its account
		f.servesAt(vip)
	}
	if out, code := f.apply(0, f.web("never")...); code == 0 || !strings.Contains(out, "svcctl fleet accept") {
		t.Errorf("a write while etcd is not believed: exit %d: %s", code, out)
	}
	if out, errOut, code := f.boxes[0].Svcctl("fleet", "accept"); code != 0 {
		t.Fatalf("svcctl fleet accept: exit %d: %s%s", code, out, errOut)
	}
	for n := range f.boxes {
		f.state(n, "Following")
	}
	f.serves("old")
	for n, client := range f.clients {
		eventually(t, time.Minute, func() error {
			if reply, err := client.Ask("tcp", lost[0]); err == nil {
				return fmt.Errorf("%s still answers the client of box %d", reply.Server, n+1)
			}
			return nil
		})
	}
	if out, code := f.apply(1, f.web("after")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("after")
}

func Test459_an_emptied_prefix_is_held(t *testing.T) {
	f := newFleet(t, 1)
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	f.serves("web")
	backup := filepath.Join(t.TempDir(), "backup")
	f.svcctlFleet("backup", backup)
	vip, err := f.vip(0, families[0], "web")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.etcdctl("del", "--prefix", "svcctl/"); err != nil {
		t.Fatal(err)
	}
	f.state(0, "Emptied")
	f.servesAt(netip.AddrPortFrom(vip, 80))
	// A fleet that is made anew is another one, until the box is told.
	f.svcctlFleet("init", "--from", backup)
	f.state(0, "OtherFleet")
	f.servesAt(netip.AddrPortFrom(vip, 80))
	f.boxes[0].Stop()
	if err := os.Rename(f.boxes[0].Data, f.boxes[0].Data+".old"); err != nil {
		t.Fatal(err)
	}
	f.boxes[0].Start()
	f.state(0, "Following")
	if again, err := f.vip(0, families[0], "web"); err != nil || again != vip {
		t.Errorf("web has %s after the restore, and had %s (%v)", again, vip, err)
	}
	f.serves("web")
}

func Test460_boxes_that_do_not_fit_are_named(t *testing.T) {
	f := newFleet(t, 1)
	if out, code := f.apply(0, f.web("web")...); code != 0 {
		t.Fatal(out)
	}
	other := f.lab.Router("other")
	f.lab.Segment("more").Attach(other, "x0", "10.8.0.1/24").Attach(f.etcd, "eth1", "10.8.0.100/24")
	other.Route("10.9.0.100/32", "10.8.0.100")
	namesake := f.box(other, "box1")
	namesake.Start()
	f.boxes = append(f.boxes, namesake)
	f.state(1, "Namesake")
	if out, code := f.apply(1, f.web("never")...); code == 0 || !strings.Contains(out, "named box1") {
		t.Errorf("a write of a namesake: exit %d: %s", code, out)
	}
	namesake.Kill()
	differs := f.box(other, "box9", "--service-node-port-range", "31000-31999")
	differs.Start()
	f.boxes[1] = differs
	f.state(1, "Differs")
	if out, code := f.apply(1, f.web("never")...); code == 0 || !strings.Contains(out, "31000-31999") {
		t.Errorf("a write of a box with other settings: exit %d: %s", code, out)
	}
	if out, _, _ := differs.Svcctl("get", "svc", "-o", "name"); !strings.Contains(out, families[0].name("web")) {
		t.Errorf("a box with other settings has %q", out)
	}
	f.boxes, f.clients = f.boxes[:1], f.clients[:1]
	f.serves("web")
}
