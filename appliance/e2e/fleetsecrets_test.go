package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/appliance/test/pki"
)

// keyText is a key of a fleet, as a line of its file.
func keyText(of byte) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{of}, 32)) + "\n"
}

// overTLS connects by TLS, and reports who answers behind the certificate.
func overTLS(from *netlab.Host, ca *issuer, at netip.AddrPort) (serial, server string, err error) {
	var raw net.Conn
	err = from.Do(func() (err error) {
		raw, err = (&net.Dialer{Timeout: time.Minute}).DialContext(context.Background(), "tcp", at.String())
		return err
	})
	if err != nil {
		return "", "", err
	}
	defer raw.Close()
	if err := raw.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return "", "", err
	}
	c := tls.Client(raw, &tls.Config{RootCAs: pki.Pool(ca.cert), ServerName: "www.example.com"})
	if err := c.Handshake(); err != nil {
		return "", "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n') // the server speaks first
	return c.ConnectionState().PeerCertificates[0].SerialNumber.String(), line, err
}

// Test570_one_Secret_ends_TLS_on_all_boxes: a Secret of one box is the certificate on both, and nothing of it is in etcd. A
// box that lacks the key of a newer version says so, serves the one before it, and changes nothing until the key is there.
func Test570_one_Secret_ends_TLS_on_all_boxes(t *testing.T) {
	dir := t.TempDir()
	keys := func(n int) string { return filepath.Join(dir, fmt.Sprintf("box%d.key", n+1)) }
	give := func(n int, text string) {
		t.Helper()
		if err := os.WriteFile(keys(n)+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(keys(n)+".new", keys(n)); err != nil {
			t.Fatal(err)
		}
	}
	give(0, keyText(1))
	give(1, keyText(1))
	f := newFleet(t, 2, func(n int) []string { return []string{"--fleet-key-file", keys(n)} })
	ca := newIssuer(t, "ca")
	first, second, third := ca.issue("www.example.com"), ca.issue("www.example.com"), ca.issue("www.example.com")
	documents := []string{secretDocument("www", first)}
	for _, fam := range families {
		documents = append(documents, fam.annotated("web", []string{"svcctl.io/tls-secret: www"}, "ports: [{name: t, port: 443}]"), fam.slice("web", "t: 80", f.server))
	}
	if out, code := f.apply(0, documents...); code != 0 {
		t.Fatal(out)
	}
	var vips []netip.AddrPort
	for _, fam := range families {
		vip, err := f.vip(0, fam, "web")
		if err != nil {
			t.Fatal(err)
		}
		vips = append(vips, netip.AddrPortFrom(vip, 443))
	}
	serves := func(n int, pair issued) {
		t.Helper()
		for _, vip := range vips {
			eventually(t, time.Minute, func() error {
				serial, server, err := overTLS(f.clients[n], ca, vip)
				if err == nil && (serial != pair.serial(t) || !strings.Contains(server, f.server.Name)) {
					err = fmt.Errorf("serial %s, want %s; answer %q", serial, pair.serial(t), server)
				}
				if err != nil {
					return fmt.Errorf("the client of box %d at %s: %w", n+1, vip, err)
				}
				return nil
			})
		}
	}
	serves(0, first)
	serves(1, first)
	if out, code := f.apply(1, secretDocument("www", second)); code != 0 {
		t.Fatal(out)
	}
	serves(0, second)
	serves(1, second)

	give(1, keyText(2)) // another one
	if out, code := f.apply(0, secretDocument("www", third)); code != 0 {
		t.Fatal(out)
	}
	serves(0, third)
	f.state(1, "KeyMissing")
	serves(1, second)
	f.says(1, []string{"status"}, "KeyMissing", "Secret default/www cannot be read", "--fleet-key-file")
	if out, code := f.apply(1, service("never", "ports: [{port: 80}]")); code == 0 || !strings.Contains(out, "--fleet-key-file") {
		t.Errorf("a write on the box without the key: exit %d: %s", code, out)
	}
	give(1, keyText(2)+keyText(1))
	f.state(1, "Following")
	serves(1, third)
	if out, code := f.apply(1, service("again", "ports: [{port: 80}]")); code != 0 {
		t.Error(out)
	}
	// Box 1 seals by key 1, and the last commit of that Secret was its.
	if out := f.svcctlFleet("reseal", "--fleet-key-file", keys(0)); !strings.Contains(out, "has 1 value sealed by key") || !strings.Contains(out, "; 0 of them") {
		t.Errorf("svcctl fleet reseal: %s", out)
	}
	if out := f.svcctlFleet("upgrade"); !strings.Contains(out, ", and this version makes no newer one") {
		t.Errorf("svcctl fleet upgrade: %s", out)
	}
	// A box that leaves has its Secrets open.
	f.boxes[1].Stop()
	if out, errOut, err := f.hosts[1].Run(binary, "fleet", "leave", f.boxes[1].Data, "--fleet-key-file", keys(1)); err != nil || !strings.Contains(out, "1 Secret") {
		t.Fatalf("svcctl fleet leave: %v: %s%s", err, out, errOut)
	}
	alone := f.single(f.hosts[1], "box2")
	alone.Data, alone.Manifests.Path = f.boxes[1].Data, ""
	alone.Start()
	serves(1, third)
	f.stop()
	for _, pair := range []issued{first, second, third} {
		f.hasNothingOf(pair.key)
	}
}

// hasNothingOf asserts that no file of etcd has a private key, as PEM or as Secrets have it.
func (f *fleet) hasNothingOf(key string) {
	f.t.Helper()
	block, _ := pem.Decode([]byte(key))
	line := strings.Split(key, "\n")[1]
	coded := base64.StdEncoding.EncodeToString([]byte(key))
	secret := 0
	err := filepath.WalkDir(f.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		secret += bytes.Count(text, []byte("object/Secret/default/www"))
		for what, part := range map[string][]byte{"DER": block.Bytes, "PEM": []byte(line), "base64": []byte(coded[40:80])} {
			if bytes.Contains(text, part) {
				f.t.Errorf("%s has the key as %s", path, what)
			}
		}
		return nil
	})
	if err != nil || secret == 0 {
		f.t.Errorf("the Secret is %d times in etcd's files, %v", secret, err)
	}
}
