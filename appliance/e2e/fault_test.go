package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// The tests below are named by the rows of the list of faults in docs/reliability.md.

// hasReason waits until the status has a problem of a reason that says all the texts, or,
// without texts, until it has none.
func (b *box) hasReason(t *testing.T, within time.Duration, reason string, texts ...string) {
	t.Helper()
	eventually(t, within, func() error {
		problems := b.status().Problems
		for _, p := range problems {
			if p.Reason != reason {
				continue
			}
			if len(texts) == 0 {
				return fmt.Errorf("there still is %s", p)
			}
			for _, text := range texts {
				if !strings.Contains(p.Message, text) {
					return fmt.Errorf("no %q in %s", text, p)
				}
			}
			return nil
		}
		if len(texts) > 0 {
			return fmt.Errorf("no problem %s in:\n%s", reason, list(problems))
		}
		return nil
	})
}

// serves asserts that the Service of web answers in both families.
func (b *box) serves(t *testing.T, when string) {
	t.Helper()
	for _, f := range families {
		if _, err := b.IN.Ask("tcp", f.at(f.vip(41), 80)); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
}

func TestF06_directoryVanishes(t *testing.T) {
	b := web(t, nil, l1)
	dir := b.svcctl.Manifests.Path
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	b.hasReason(t, syncTimeout, "DirectoryUnavailable", "stays in force")
	b.serves(t, "without the directory")
	b.svcctl.Kill()
	b.svcctl.Start()
	b.serves(t, "after a restart without the directory")
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	b.hasReason(t, syncTimeout, "DirectoryUnavailable")
	b.rewrite("web.yaml", b.webDocuments(b.R1))
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.R1)...)
	}
}

func TestS08_secondInstanceWithDirectoriesOfItsOwn(t *testing.T) {
	b := web(t, nil, l1)
	second := b.GW1.Appliance(binary, b.flags.args()...)
	b.commitsNothing(t, "a second instance", func() { refusesToStart(t, second, "another svcctl serves in this network namespace") })
	b.serves(t, "beside a second instance")
}

func TestK03_concurrentWriters(t *testing.T) {
	b := web(t, nil, l1r1)
	b.GW1.LoadNft("table inet other {\n set s { type inet_service; }\n}\n")
	stop := make(chan struct{})
	commits := make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				commits <- n
				return
			default:
			}
			verb := []string{"add", "delete"}[n%2]
			if _, _, err := b.GW1.Run("nft", verb, "element", "inet", "other", "s", "{ 80 }"); err != nil {
				t.Error(err)
			}
			n++
		}
	}()
	sets := [][]*netlab.Host{{b.L1}, {b.R1, b.R2}, {b.R2}, {b.L1, b.L2}}
	for i := range 20 {
		b.rewrite("web.yaml", b.webDocuments(sets[i%len(sets)]...))
		for _, f := range families {
			reply, err := b.IN.Ask("tcp", f.at(f.vip(41), 80), patiently)
			if err != nil || !servedBy(reply.Server, sets[i%len(sets)]) {
				t.Errorf("change %d: answered by %q, %v", i, reply.Server, err)
			}
		}
	}
	close(stop)
	t.Logf("%d commits of another program meanwhile", <-commits)
}

func servedBy(server string, hosts []*netlab.Host) bool {
	for _, h := range hosts {
		if h.Name == server {
			return true
		}
	}
	return false
}

func TestK21_settingsChangedByOthers(t *testing.T) {
	b := web(t, nil, l1)
	b.GW1.Sysctl("net.ipv4.ip_forward", "0")
	b.hasReason(t, 15*time.Second, "Host", "net.ipv4.ip_forward is 0")
	if s := b.status(); !s.Synced {
		t.Error("a setting of the host keeps the appliance from being synced")
	}
	b.GW1.Sysctl("net.ipv4.ip_forward", "1")
	b.hasReason(t, 15*time.Second, "Host")
}

func TestK22_coexistence(t *testing.T) {
	b := newBox(t, nil)
	foreign := `table ip nat {
	chain PREROUTING {
		type nat hook prerouting priority dstnat; policy accept;
		ip daddr 192.0.2.1 tcp dport 8080 counter packets 0 bytes 0 dnat to 10.181.1.1:80
	}
	chain POSTROUTING {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr 203.0.113.0/24 counter packets 0 bytes 0 masquerade
	}
}
`
	b.GW1.LoadNft(foreign)
	b.write("web.yaml", b.webDocuments(b.L1))
	b.svcctl.Start()
	b.serves(t, "beside rules of another program")
	if reply, err := b.EXT.Ask("tcp", ipv4.at(ipv4.boxAddr(), 8080), patiently); err != nil || reply.Server != "R1" {
		t.Errorf("the other program's own address: answered by %q, %v", reply.Server, err)
	}
	b.rewrite("web.yaml", b.webDocuments(b.R2))
	b.svcctl.Kill()
	b.svcctl.Start()
	b.serves(t, "beside rules of another program, after a restart")
	if reply, err := b.EXT.Ask("tcp", ipv4.at(ipv4.boxAddr(), 8080), patiently); err != nil || reply.Server != "R1" {
		t.Errorf("the other program's own address: answered by %q, %v", reply.Server, err)
	}
	out, _, code := b.svcctl.Svcctl("doctor", "--data-dir", b.svcctl.Data, "-o", "json")
	var diagnosis struct {
		Findings []struct{ Check, Level, Message, Advice string }
	}
	if err := json.Unmarshal([]byte(out), &diagnosis); err != nil || code != 0 {
		t.Fatalf("svcctl doctor: exit code %d, %v:\n%s", code, err, out)
	}
	levels := map[string]string{}
	for _, f := range diagnosis.Findings {
		levels[f.Check] = f.Level
		if f.Check == "rulesets" && !strings.Contains(f.Message, "PREROUTING") {
			t.Errorf("svcctl doctor does not name the other program's chain: %s", f.Message)
		}
	}
	if levels["rulesets"] != "warning" || levels["kernel"] != "ok" || levels["instance"] != "ok" || levels["data"] != "ok" {
		t.Errorf("svcctl doctor finds %v", levels)
	}
}

func TestK24_killedDuringAColdStart(t *testing.T) {
	b := newBox(t, nil)
	for i := range 20 {
		b.svcctl.Manifests.Write(fmt.Sprintf("%02d.yaml", i), strings.Join(b.many(ipv4, i*50, 50), "---\n"))
	}
	b.write("web.yaml", b.webDocuments(b.L1))
	for i := range 12 {
		b.svcctl.Launch()
		time.Sleep(time.Duration(20+i*45) * time.Millisecond) // real time: it is killed at another moment each time
		b.svcctl.Kill()
		// What is programmed is whole: if there is anything, everything that was first is.
		if strings.Contains(b.GW1.Nft("list", "tables"), ipv4.table()) {
			b.serves(t, fmt.Sprintf("killed after %d ms", 20+i*45))
		}
	}
	b.svcctl.Start()
	if n := len(b.clusterIPs(t, ipv4)); n != 1001 {
		t.Errorf("%d Services are served, want 1001", n)
	}
	b.serves(t, "in the end")
}

func TestP01_signalsAtAnyMoment(t *testing.T) {
	b := web(t, nil, l1)
	for i, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGTERM, syscall.SIGTERM, syscall.SIGINT, syscall.SIGTERM} {
		b.write("more.yaml", func(f family) []string { return b.many(f, i*50, 50) })
		time.Sleep(time.Duration(i) * 40 * time.Millisecond) // real time: before, during and after the change
		b.svcctl.Signal(syscall.SIGHUP)
		b.svcctl.Signal(s)
		if state := b.svcctl.Wait(); !state.Success() {
			t.Errorf("%s: %v, want success", s, state)
		}
		b.serves(t, "after "+s.String())
		b.svcctl.Start()
	}
}

func TestP04_stoppedForAWhile(t *testing.T) {
	b := web(t, nil, l1)
	b.freeze(t)
	b.serves(t, "while it is stopped")
	b.GW1.Nft("flush", "ruleset")
	b.write("web.yaml", b.webDocuments(b.R1))
	time.Sleep(3 * time.Second) // real time: it is stopped for a while
	b.svcctl.Signal(syscall.SIGCONT)
	eventually(t, syncTimeout, func() error {
		for _, f := range families {
			if reply, err := b.IN.Ask("tcp", f.at(f.vip(41), 80), netlab.Within(time.Second)); err != nil || reply.Server != "R1" {
				return fmt.Errorf("answered by %q, %v", reply.Server, err)
			}
		}
		return nil
	})
	if !b.svcctl.Running() {
		t.Error("it ended")
	}
}

func TestP05_fewFileDescriptors(t *testing.T) {
	b := newBox(t, nil)
	b.svcctl.Wrapper = []string{"prlimit", "--nofile=40:40"}
	b.write("web.yaml", b.webDocuments(b.L1))
	for i := range 60 { // more directories than descriptors
		dir := filepath.Join(b.svcctl.Manifests.Path, fmt.Sprintf("dir%02d", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "s.yaml"), []byte(strings.Join(b.many(ipv4, i, 1), "---\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b.svcctl.Start()
	for range 30 { // clients that hold what is left
		c, err := net.Dial("unix", b.svcctl.Socket)
		if err != nil {
			break
		}
		defer c.Close()
	}
	b.write("web.yaml", b.webDocuments(b.R1))
	eventually(t, time.Minute, func() error {
		reply, err := b.IN.Ask("tcp", ipv4.at(ipv4.vip(41), 80))
		if err != nil || reply.Server != "R1" {
			return fmt.Errorf("answered by %q, %v", reply.Server, err)
		}
		return nil
	})
}

func TestP06_interfacesComeLate(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: NodePort", "clusterIP: "+f.vip(41), nodePorts(f, 30080)), f.slice("web", "p80: 80", b.L1),
		}
	})
	b.GW1.SetDown("ext0")
	b.GW1.RemoveAddr("ext0", netlab.BoxAddr4+"/24")
	b.svcctl.Start()
	b.serves(t, "with an interface that is down")
	b.GW1.SetUp("ext0")
	b.GW1.AddAddr("ext0", netlab.BoxAddr4+"/24")
	b.GW1.Route("default", "192.0.2.254")
	eventually(t, syncTimeout, func() error {
		_, err := b.EXT.Ask("tcp", ipv4.at(ipv4.boxAddr(), 30080))
		return err
	})
}
