package auth

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/pki"
)

func TestLeaves(t *testing.T) {
	now := time.Now()
	sign := func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign }
	ca := pki.IssueWith(t, nil, sign, now.Add(-time.Hour), now.Add(time.Hour), "ca")
	other := pki.IssueWith(t, nil, sign, now.Add(-time.Hour), now.Add(time.Hour), "other")
	issue := func(by *tls.Certificate, name string) *x509.Certificate {
		return pki.Issue(t, by, now.Add(-time.Hour), now.Add(time.Minute), name).Leaf
	}
	path := filepath.Join(t.TempDir(), "ca.crt")
	clock := now
	authority := func(of *tls.Certificate) []byte { text, _ := pki.PEM(t, of); return text }
	revoking := func(by *tls.Certificate, certs ...*x509.Certificate) []byte {
		list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: now, NextUpdate: now.Add(time.Hour)}
		for _, c := range certs {
			list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: now})
		}
		der, err := x509.CreateRevocationList(rand.Reader, list, by.Leaf, by.PrivateKey.(crypto.Signer))
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
	}
	write := func(texts ...[]byte) {
		t.Helper()
		if err := os.WriteFile(path, slices.Concat(texts...), 0o600); err != nil {
			t.Fatal(err)
		}
		clock = clock.Add(leavesInterval)
	}
	write(authority(ca))
	l, err := OpenLeaves(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l.now = func() time.Time { return clock }
	is := func(c *x509.Certificate, want string) {
		t.Helper()
		u, err := l.Verify([]*x509.Certificate{c})
		if want == "" {
			if !errors.Is(err, ErrCertificate) {
				t.Errorf("%s is %+v, %v", c.Subject, u, err)
			}
			return
		}
		if err != nil || u.Role != Box || u.BoxName() != want {
			t.Errorf("%s is %+v, %v", c.Subject, u, err)
		}
	}
	gw1, gw2 := issue(ca, "gw1"), issue(ca, "gw2")
	is(gw1, "gw1")
	is(issue(other, "gw1"), "")
	is(issue(ca, "a:b"), "")
	server := pki.IssueWith(t, ca, func(*x509.Certificate) {}, now.Add(-2*time.Hour), now.Add(-time.Hour), "gw3").Leaf
	is(server, "") // expired
	write(authority(ca), revoking(ca, gw1))
	is(gw1, "")
	is(gw2, "gw2")
	write(authority(ca), revoking(other, gw2)) // not of an issuer in the file: not used, and what was there stays
	is(gw1, "")
	is(gw2, "gw2")
	write([]byte("nothing"))
	is(gw2, "gw2")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	clock = clock.Add(leavesInterval)
	is(gw2, "")
	write(authority(other))
	is(gw2, "")
	write(authority(ca))
	is(gw1, "gw1")
	clock = clock.Add(2 * time.Minute)
	is(gw1, "")
	if b := Behind(User{Name: "box:gw1", Role: Box}, "root"); b.Name != "box:gw1:root" || b.Role != Admin || b.BoxName() != "" {
		t.Errorf("an admin behind a leaf is %+v", b)
	}
	for _, text := range []string{"", "nothing", string(revoking(ca))} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenLeaves(path, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "CA of leaves") {
			t.Errorf("%q gave %v", text, err)
		}
	}
}
