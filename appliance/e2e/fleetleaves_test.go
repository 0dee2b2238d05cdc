package e2e

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/appliance/test/pki"
)

// leafFleet is a fleet of which the last boxes are leaves: they reach the core boxes and not etcd.
type leafFleet struct {
	*fleet
	dir   string
	ca    *tls.Certificate
	certs map[string]*tls.Certificate // of boxes
	cores int
}

// newLeafFleet makes the fleet and starts its boxes. more gives flags of core boxes.
func newLeafFleet(t *testing.T, cores, leaves int, more ...string) *leafFleet {
	t.Helper()
	dir := t.TempDir()
	begin, end := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	ca := pki.IssueWith(t, nil, func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign }, begin, end, "fleet ca")
	l := &leafFleet{dir: dir, ca: ca, certs: map[string]*tls.Certificate{}, cores: cores}
	l.trust(t)
	for n := range cores + leaves {
		name := fmt.Sprintf("box%d", n+1)
		c := pki.Issue(t, ca, begin, end, name, fmt.Sprintf("10.9.0.%d", n+1))
		cert, key := pki.PEM(t, c)
		l.certs[name] = c
		for file, text := range map[string][]byte{name + ".crt": cert, name + ".key": key} {
			if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.fleet = layFleet(t, cores+leaves, func(n int) []string { return l.coreFlags(n, more...) })
	for n := cores; n < cores+leaves; n++ {
		l.boxes[n] = l.leaf(n)
	}
	l.etcd.LoadNft(fmt.Sprintf("table inet f { chain in { type filter hook input priority 0; ip saddr 10.9.0.%d-10.9.0.99 drop; }; }\n", cores+1))
	l.svcctlFleet("init")
	for _, b := range l.boxes {
		b.Start()
	}
	return l
}

func (l *leafFleet) path(name string) string { return filepath.Join(l.dir, name) }

func (l *leafFleet) coreFlags(n int, more ...string) []string {
	name := fmt.Sprintf("box%d", n+1)
	return append([]string{"--listen", fmt.Sprintf("10.9.0.%d:6443", n+1), "--tls-cert", l.path(name + ".crt"), "--tls-key", l.path(name + ".key"), "--leaf-cacert", l.path("ca.crt")}, more...)
}

// leaf prepares a leaf on the host of a box.
func (l *leafFleet) leaf(n int) *netlab.Appliance {
	var urls []string
	for core := range l.cores {
		urls = append(urls, fmt.Sprintf("https://10.9.0.%d:6443", core+1))
	}
	h := l.hosts[n]
	b := l.single(h, h.Name, "--fleet", "pop1", "--core", strings.Join(urls, ","), "--core-cacert", l.path("ca.crt"), "--core-cert", l.path(h.Name+".crt"), "--core-key", l.path(h.Name+".key"))
	b.Manifests.Path = ""
	return b
}

// trust writes the file of the CA, with a revocation list of some boxes.
func (l *leafFleet) trust(t *testing.T, not ...string) {
	t.Helper()
	text, _ := pki.PEM(t, l.ca)
	if len(not) > 0 {
		list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour)}
		for _, name := range not {
			list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: l.certs[name].Leaf.SerialNumber, RevocationTime: time.Now()})
		}
		der, err := x509.CreateRevocationList(rand.Reader, list, l.ca.Leaf, l.ca.PrivateKey.(crypto.Signer))
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})...)
	}
	if err := os.WriteFile(l.path("ca.new"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(l.path("ca.new"), l.path("ca.crt")); err != nil {
		t.Fatal(err)
	}
}

// follows reports which core box a leaf follows, from 0, by its report.
func (l *leafFleet) follows(n int) int {
	l.t.Helper()
	core := -1
	eventually(l.t, time.Minute, func() error {
		out, errOut, code := l.boxes[n].Svcctl("get", "boxes", "-o", "json")
		_, rest, found := strings.Cut(out, `"core": "https://10.9.0.`)
		if code != 0 || !found {
			return fmt.Errorf("get boxes: exit %d: %s%s", code, out, errOut)
		}
		core = int(rest[0]-'0') - 1
		return nil
	})
	return core
}

// allOK waits until all boxes say that they have everything.
func (l *leafFleet) allOK(n int) {
	l.t.Helper()
	eventually(l.t, time.Minute, func() error {
		out, errOut, code := l.boxes[n].Svcctl("get", "boxes")
		if code != 0 || strings.Count(out, " OK ") != len(l.boxes) {
			return fmt.Errorf("get boxes: exit %d: %s%s", code, out, errOut)
		}
		return nil
	})
}

// Test606_writes_through_a_leaf: a leaf hands changes to a core box, which believes it only if it is told to; the answer is that of the
// core box, and the journal names the leaf and its admin.
func Test606_writes_through_a_leaf(t *testing.T) {
	l := newLeafFleet(t, 1, 1)
	if out, code := l.apply(1, l.web("web")...); code == 0 || !strings.Contains(out, "box:box2 may not change") || !strings.Contains(out, "https://10.9.0.1:6443") {
		t.Fatalf("a leaf that may not write: exit %d: %s", code, out)
	}
	l.boxes[0].Stop()
	if out, code := l.apply(1, l.web("web")...); code == 0 || !strings.Contains(out, "nothing was changed") || !strings.Contains(out, "10.9.0.1:6443") {
		t.Fatalf("without a core box: exit %d: %s", code, out)
	}
	l.boxes[0] = l.box(l.hosts[0], "box1", l.coreFlags(0, "--leaf-writes")...)
	l.boxes[0].Start()
	l.state(1, "Following")
	eventually(t, time.Minute, func() error {
		out, code := l.applyWith(1, l.web("web"), "--wait=all")
		if code != 0 {
			return fmt.Errorf("apply on the leaf: exit %d: %s", code, out)
		}
		return nil
	})
	l.serves("web")
	out, _, _ := l.boxes[0].Svcctl("journal", "--limit", "20")
	if !strings.Contains(out, "box:box2:root") {
		t.Errorf("the journal does not name the admin of the leaf: %s", out)
	}
	// The same answer, and the same errors, as of the core box.
	wrong := []string{service("wrong", "ports: [{port: 99999}]")}
	core, coreCode := l.apply(0, wrong...)
	leaf, leafCode := l.apply(1, wrong...)
	_, core, _ = strings.Cut(core, "a.yaml") // each has its own
	_, leaf, _ = strings.Cut(leaf, "a.yaml")
	if core != leaf || coreCode != leafCode || coreCode == 0 {
		t.Errorf("the core box says (exit %d) %s, the leaf (exit %d) %s", coreCode, core, leafCode, leaf)
	}
	if out, errOut, code := l.boxes[1].Svcctl("delete", "svc", families[0].name("web")); code != 0 {
		t.Errorf("delete on the leaf: exit %d: %s%s", code, out, errOut)
	}
	if out, _, code := l.boxes[1].Svcctl("get", "svc", families[0].name("web")); code == 0 {
		t.Errorf("the leaf still has what was deleted through it: %s", out)
	}
	if out, _, _ := l.boxes[1].Svcctl("get", "nodes", "-o", "name"); strings.Count(out, "box") != 2 {
		t.Errorf("the Nodes are %q", out)
	}
}

// Test607_the_certificate_of_a_leaf_is_revoked: it follows no more, says why, and forwards; with its certificate it goes on.
func Test607_the_certificate_of_a_leaf_is_revoked(t *testing.T) {
	l := newLeafFleet(t, 2, 1)
	if out, code := l.apply(0, l.web("web")...); code != 0 {
		t.Fatal(out)
	}
	l.serves("web")
	end := l.keepAsking("web")
	defer end()
	l.trust(t, "box3")
	l.state(2, "CutOff")
	if out, _, _ := l.boxes[2].Svcctl("status"); !strings.Contains(out, "revoked") {
		t.Errorf("the leaf does not say why: %s", out)
	}
	if out, code := l.apply(0, l.web("meanwhile")...); code != 0 {
		t.Fatal(out)
	}
	time.Sleep(time.Second) // real time: nothing comes meanwhile
	if out, _, _ := l.boxes[2].Svcctl("get", "svc"); strings.Contains(out, "meanwhile") {
		t.Errorf("the leaf goes on to follow: %s", out)
	}
	l.trust(t)
	l.state(2, "Following")
	l.serves("meanwhile")
	l.serves("web")
}

// Test608_packets_through_a_leaf: while its core box dies, while all do, over its own restart and the flush of its tables.
func Test608_packets_through_a_leaf(t *testing.T) {
	l := newLeafFleet(t, 2, 1)
	if out, code := l.applyWith(0, l.web("web"), "--wait=all"); code != 0 {
		t.Fatal(out)
	}
	l.serves("web")
	l.allOK(2)
	end := l.keepAsking("web")
	core := l.follows(2)
	l.boxes[core].Kill()
	if out, code := l.apply(1-core, l.web("next")...); code != 0 {
		t.Fatal(out)
	}
	leaf := func(name string) {
		t.Helper()
		for _, fam := range families {
			eventually(t, time.Minute, func() error {
				vip, err := l.vip(2, fam, name)
				if err != nil {
					return err
				}
				_, err = l.clients[2].Ask("tcp", netip.AddrPortFrom(vip, 80))
				return err
			})
		}
	}
	leaf("next")
	l.boxes[1-core].Kill()
	l.state(2, "CutOff")
	end()
	l.hosts[2].LoadNft("flush ruleset\n")
	leaf("web")
	l.boxes[2].Kill()
	l.hosts[2].LoadNft("flush ruleset\n")
	l.boxes[2].Start()
	leaf("next")
	l.boxes[0].Start()
	end = l.keepAsking("web")
	defer end()
	l.boxes[1].Start()
	l.state(2, "Following")
	if out, code := l.apply(0, l.web("later")...); code != 0 {
		t.Fatal(out)
	}
	l.serves("later")
	l.allOK(2)
}
