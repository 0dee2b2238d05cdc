package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// stormTimeout is how long a storm may take to be in force, on the busiest machine.
const stormTimeout = 3 * time.Minute

// stormService is the i-th of many Services, each with one endpoint, another one in each
// version.
func stormService(i, version int) string {
	name := fmt.Sprintf("storm%05d", i)
	docs := []string{
		ipv4.service(name, fmt.Sprintf("clusterIP: 172.30.%d.%d", 100+i>>8, i&0xff), "ports: [{name: p, port: 80, protocol: UDP}]"),
		ipv4.rawSlice(name, name, "p: 80/UDP", fmt.Sprintf("{addresses: [%s]}", stormEndpoint(i, version))),
	}
	return strings.Join(docs, "---\n")
}

func stormEndpoint(i, version int) string {
	return fmt.Sprintf("10.%d.%d.%d", 200+version, i>>8, i&0xff)
}

// stormed waits until Services have the endpoints of a version and no others.
func (b *box) stormed(t *testing.T, services, version int) {
	t.Helper()
	eventually(t, stormTimeout, func() error {
		if _, errOut, code := b.svcctl.Svcctl("wait", "--timeout", syncTimeout.String()); code != 0 {
			return fmt.Errorf("svcctl wait: exit code %d: %s", code, errOut)
		}
		return nil
	})
	backends := b.GW1.Nft("list", "map", "ip", "svcctl", "backends")
	have := map[string]bool{}
	for _, found := range regexp.MustCompile(` : (\S+) \. 80\b`).FindAllStringSubmatch(backends, -1) {
		have[found[1]] = true
	}
	for i := range services {
		if !have[stormEndpoint(i, version)] {
			t.Fatalf("Service %d of %d has not the endpoint of version %d:\n%.2000s", i, services, version, backends)
		}
	}
	if n := strings.Count(backends, " : 10.2"); n != services {
		t.Errorf("%d endpoints are in the map, want %d", n, services)
	}
}

// coalesced asserts that there were few transactions since a time: several changes are one.
// pace is how many snapshots there may be in a second; each may take two transactions.
func (b *box) coalesced(t *testing.T, transactions, pace int, since time.Time) {
	t.Helper()
	if most := 2 * pace * int(1+time.Since(since)/time.Second); transactions > most {
		t.Errorf("%d transactions in %v, want at most %d", transactions, time.Since(since), most)
	}
}

// TestStorm_files rewrites a thousand files, again and again.
func TestStorm_files(t *testing.T) {
	const services, versions = 1_000, 4
	b := web(t, nil, l1)
	m := b.GW1.Monitor()
	defer m.Close()
	began := time.Now()
	for version := range versions {
		for i := range services {
			b.svcctl.Manifests.Write(fmt.Sprintf("storm%05d.yaml", i), stormService(i, version))
		}
	}
	b.serves(t, "while a thousand files change")
	b.stormed(t, services, versions-1)
	b.coalesced(t, len(m.Transactions()), 250, began)
	b.serves(t, "afterwards")
}

// TestStorm_one_file has 50,000 objects in one file, of which one changes then.
func TestStorm_one_file(t *testing.T) {
	const services = 25_000
	b := web(t, nil, l1)
	docs := make([]string, services)
	for i := range docs {
		docs[i] = stormService(i, 1)
	}
	b.svcctl.Manifests.Write("storm.yaml", strings.Join(docs, "---\n"))
	b.serves(t, "while 50,000 objects come")
	b.write("web.yaml", b.webDocuments(b.L2))
	b.stormed(t, services, 1)
	b.serves(t, "with another endpoint")
	m := b.GW1.Monitor()
	defer m.Close()
	docs[7] = stormService(7, 2)
	b.svcctl.Manifests.Write("storm.yaml", strings.Join(docs, "---\n"))
	eventually(t, stormTimeout, func() error {
		if out := b.GW1.Nft("list", "map", "ip", "svcctl", "backends"); !strings.Contains(out, " : "+stormEndpoint(7, 2)+" . 80") {
			return fmt.Errorf("the changed Service has its old endpoint")
		}
		return nil
	})
	changed := 0
	for _, transaction := range m.Transactions() {
		changed += transaction.Count("add element") + transaction.Count("delete element")
	}
	if changed == 0 || changed > 8 {
		t.Errorf("%d elements were changed for one endpoint, want at most 8", changed)
	}
}

// TestStorm_writer has a file that is written to without pause. It keeps no other file
// waiting, is itself in force now and then, and in the end.
func TestStorm_writer(t *testing.T) {
	b := web(t, nil, l1)
	b.svcctl.Manifests.Write("storm.yaml", stormService(0, 0))
	b.stormed(t, 1, 0)
	m := b.GW1.Monitor()
	defer m.Close()
	began, stop, last := time.Now(), make(chan struct{}), make(chan int)
	go func() {
		path := filepath.Join(b.svcctl.Manifests.Path, "storm.yaml")
		for version := 1; ; version++ {
			if err := os.WriteFile(path, []byte(stormService(0, 1+version%50)), 0o644); err != nil {
				t.Error(err)
			}
			select {
			case <-stop:
				last <- 1 + version%50
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	for n := range 4 {
		b.rewrite("web.yaml", b.webDocuments([]*netlab.Host{b.L2, b.L1}[n%2]))
		b.serves(t, "while a file is written without pause")
	}
	eventually(t, syncTimeout, func() error {
		if out := b.GW1.Nft("list", "map", "ip", "svcctl", "backends"); strings.Contains(out, " : "+stormEndpoint(0, 0)+" . 80") {
			return fmt.Errorf("what is written without pause is never in force")
		}
		return nil
	})
	close(stop)
	b.stormed(t, 1, <-last)
	b.coalesced(t, len(m.Transactions()), 20, began)
}
