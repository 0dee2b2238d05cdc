package auth

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func mkfifo(path string) error { return unix.Mkfifo(path, 0o600) }

// opened is an Authority whose clock a test sets.
type opened struct {
	*Authority
	dir   string
	clock time.Time
	log   bytes.Buffer
}

func openAuthority(t *testing.T, dir string, clock time.Time, names ...string) *opened {
	t.Helper()
	o := &opened{dir: dir, clock: clock}
	a, err := OpenAuthority(dir, names, slog.New(slog.NewTextHandler(&o.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	a.now = func() time.Time { return o.clock }
	o.Authority = a
	return o
}

// check verifies the present certificate for a name, as a client with the CA does.
func (o *opened) check(t *testing.T, ca []byte, name string) error {
	t.Helper()
	cert, err := o.Certificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("no CA")
	}
	_, err = cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: o.clock})
	return err
}

func TestAuthority(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	a := openAuthority(t, dir, time.Now(), "gw1", "192.0.2.1", "2001:db8::1", "", "0.0.0.0")
	ca := a.CA()
	for _, name := range []string{"localhost", "127.0.0.1", "::1", "gw1", "192.0.2.1", "2001:db8::1"} {
		if err := a.check(t, ca, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"gw2", "192.0.2.2", "0.0.0.0"} {
		if err := a.check(t, ca, name); err == nil {
			t.Errorf("%s is in the certificate", name)
		}
	}
	if strings.Contains(string(ca), "PRIVATE") {
		t.Error("the key of the CA is shown")
	}
	info, err := os.Stat(filepath.Join(dir, authorityName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the CA is %v: %v", info, err)
	}
	again := openAuthority(t, dir, a.clock, "gw1")
	if !bytes.Equal(again.CA(), ca) {
		t.Error("after a restart there is another CA")
	}
	if err := again.check(t, ca, "gw1"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

func TestRenewal(t *testing.T) {
	begin := time.Now()
	a := openAuthority(t, t.TempDir(), begin, "gw1")
	ca := a.CA()
	first, _ := a.Certificate(nil)
	a.clock = begin.Add(leafLife - renewBefore - time.Hour)
	if same, _ := a.Certificate(nil); same != first {
		t.Error("the certificate was renewed early")
	}
	a.clock = begin.Add(leafLife - renewBefore + time.Hour)
	if second, _ := a.Certificate(nil); second == first || second.Leaf.SerialNumber.Cmp(first.Leaf.SerialNumber) == 0 {
		t.Error("the certificate was not renewed")
	}
	// Ten years, a month at a time: a client with the CA that is current is always served.
	for a.clock.Before(begin.Add(authorityLife + leafLife)) {
		a.clock = a.clock.Add(28 * 24 * time.Hour)
		if _, err := a.Certificate(nil); err != nil {
			t.Fatal(err)
		}
		if err := a.check(t, a.CA(), "gw1"); err != nil {
			t.Errorf("after %s: %v", a.clock.Sub(begin), err)
		}
	}
	if bytes.Equal(a.CA(), ca) || strings.Count(a.log.String(), "is at its end and replaced") != 1 {
		t.Errorf("the CA at its end:\n%s", a.log.String())
	}
	// A box that wakes in the past.
	a.clock = begin.Add(-20 * 365 * 24 * time.Hour)
	if err := a.check(t, a.CA(), "gw1"); err != nil {
		t.Errorf("in the past: %v", err)
	}
}

type from struct {
	net.Conn
	at string
}

func (c from) LocalAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.at))
}

func TestAddressesThatClientsComeBy(t *testing.T) {
	a := openAuthority(t, t.TempDir(), time.Now())
	by := func(address string) *tls.Certificate {
		t.Helper()
		cert, err := a.Certificate(&tls.ClientHelloInfo{Conn: from{at: address}})
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	first := by("192.0.2.7:6443")
	if err := a.check(t, a.CA(), "192.0.2.7"); err != nil {
		t.Error(err)
	}
	if by("192.0.2.7:6443") != first || by("[::ffff:192.0.2.7]:6443") != first {
		t.Error("the same address made another certificate")
	}
	by("[fe80::1%eth0]:6443")
	for i := range 300 {
		at := netip.AddrFrom4([4]byte{10, 0, byte(i / 256), byte(i)})
		by(at.String() + ":6443")
		if err := a.check(t, a.CA(), at.String()); err != nil {
			t.Fatal(err)
		}
	}
	cert := by("127.0.0.1:6443")
	if n := len(cert.Leaf.IPAddresses); n > maxAddresses {
		t.Errorf("%d addresses in the certificate", n)
	}
	if err := a.check(t, a.CA(), "::1"); err != nil {
		t.Error(err)
	}
}

// Addresses that clients connect to never displace configured ones, however many of each there are.
func TestConfiguredAddressesStay(t *testing.T) {
	for _, count := range []int{0, maxAddresses / 2, maxAddresses, 3 * maxAddresses} {
		var names []string
		for i := range count {
			names = append(names, netip.AddrFrom4([4]byte{192, 168, byte(i / 256), byte(i)}).String())
		}
		a, err := OpenAuthority(t.TempDir(), names, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 * maxAddresses {
			a.addAddress(netip.AddrFrom4([4]byte{10, 0, byte(i / 256), byte(i)}))
		}
		cert, err := a.Certificate(&tls.ClientHelloInfo{Conn: from{at: "10.1.0.1:6443"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, address := range append(names, "127.0.0.1", "::1", "10.1.0.1") {
			if err := cert.Leaf.VerifyHostname(address); err != nil {
				t.Fatalf("%d configured addresses: %v", count, err)
			}
		}
		if n := len(cert.Leaf.IPAddresses); n > count+2+maxAddresses {
			t.Errorf("%d configured addresses: %d in the certificate", count, n)
		}
	}
}

func TestDamagedAuthority(t *testing.T) {
	dir := t.TempDir()
	openAuthority(t, dir, time.Now())
	path := filepath.Join(dir, authorityName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	openAuthority(t, other, time.Now())
	foreign, err := os.ReadFile(filepath.Join(other, authorityName))
	if err != nil {
		t.Fatal(err)
	}
	split := bytes.Index(whole, []byte("-----BEGIN PRIVATE"))
	for what, content := range map[string][]byte{
		"empty": {}, "text": []byte("hello"), "without a key": whole[:split], "without a certificate": whole[split:],
		"cut":           whole[:len(whole)-40],
		"another's key": append(bytes.Clone(whole[:split]), foreign[bytes.Index(foreign, []byte("-----BEGIN PRIVATE")):]...),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenAuthority(dir, nil, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "remove it, and a new one is created") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	certPath, keyPath := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	// write puts a new certificate into the files; files of one second may look alike.
	write := func(at time.Time) []byte {
		t.Helper()
		a := openAuthority(t, t.TempDir(), time.Now(), "gw1")
		cert, err := a.Certificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		for path, data := range map[string][]byte{
			certPath: append(encodePEM(pemCertificate, cert.Certificate[0]), encodePEM(pemCertificate, cert.Certificate[1])...),
			keyPath:  encodePEM(pemKey, key),
		} {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, at, at); err != nil {
				t.Fatal(err)
			}
		}
		return cert.Certificate[0]
	}
	if _, err := OpenFiles(certPath, keyPath, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("files that are not there")
	}
	clock := time.Now()
	first := write(clock)
	f, err := OpenFiles(certPath, keyPath, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	f.now, f.looked = func() time.Time { return clock }, clock
	shows := func(want []byte) {
		t.Helper()
		cert, err := f.Certificate(nil)
		if err != nil || !bytes.Equal(cert.Certificate[0], want) || len(cert.Certificate) != 2 {
			t.Errorf("another certificate is shown: %v", err)
		}
	}
	shows(first)
	second := write(clock.Add(time.Second))
	shows(first) // it is not looked at for each client
	clock = clock.Add(reloadInterval)
	shows(second)
	if err := os.WriteFile(keyPath, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	clock = clock.Add(reloadInterval)
	shows(second)
	if v := f.Validity(); v.Refused == nil || v.File != certPath || v.Expires.IsZero() || !v.Begins.Before(v.Expires) {
		t.Errorf("junk in place of the key: %+v", v)
	}
	if err := os.Remove(certPath); err != nil {
		t.Fatal(err)
	}
	clock = clock.Add(reloadInterval)
	shows(second)
	third := write(clock)
	clock = clock.Add(reloadInterval)
	if v := f.Validity(); v.Refused != nil { // without a client that asks
		t.Errorf("mended: %+v", v)
	}
	shows(third)
}
