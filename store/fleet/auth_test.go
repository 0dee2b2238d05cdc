package fleet_test

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet"
)

// startMutualTLS starts an etcd that asks for certificates, with the files of the CA and of a client.
func startMutualTLS(t *testing.T) (c *cluster, ca, client string) {
	t.Helper()
	dir := t.TempDir()
	ca, server, client := makeCertificates(t, dir)
	c = startEtcd(t, 1)
	c.kill(0)
	url := strings.Replace(c.urls[0], "http:", "https:", 1)
	for i, arg := range c.args[0] {
		if arg == c.urls[0] {
			c.args[0][i] = url
		}
	}
	c.args[0] = append(c.args[0], "--client-cert-auth", "--trusted-ca-file", ca, "--cert-file", server+".crt", "--key-file", server+".key")
	if err := os.RemoveAll(c.dirs[0]); err != nil {
		t.Fatal(err)
	}
	c.start(0)
	c.urls = []string{url}
	return c, ca, client
}

// boxWithCertificate starts such an etcd, and a box of a fleet in it, which has Service web.
func boxWithCertificate(t *testing.T) (c *cluster, ca string, a *box) {
	t.Helper()
	c, ca, client := startMutualTLS(t)
	cfg := c.config("a")
	cfg.TLS = clientTLS(t, ca, client)
	eventually(t, "the fleet is made", func() bool {
		_, err := fleet.Init(t.Context(), cfg, "")
		return err == nil || errors.Is(err, fleet.ErrExists)
	})
	a = c.open(cfg, storeConfig)
	if err := a.create("web"); err != nil {
		t.Fatal(err)
	}
	return c, ca, a
}

// A box without a certificate that etcd trusts is told so; one with it joins.
func Test468_mutual_TLS(t *testing.T) {
	c, ca, _ := boxWithCertificate(t)
	without := c.config("b")
	without.TLS = clientTLS(t, ca, "")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // real time: etcd does not let it in meanwhile
	defer cancel()
	if e, err := fleet.Joined(ctx, without); err == nil {
		e.Close()
		t.Error("a box without a certificate joined")
	}
	if _, err := fleet.Init(ctx, without, ""); err == nil {
		t.Error("a box without a certificate made a fleet")
	}
}

// startRoles starts an etcd that gives the boxes, by their certificate, a role for the keys of the fleet, with a client that may all.
func startRoles(t *testing.T) (c *cluster, ca, client string, admin *clientv3.Client) {
	t.Helper()
	c, ca, client = startMutualTLS(t)
	admin, err := clientv3.New(clientv3.Config{Endpoints: c.urls, TLS: clientTLS(t, ca, client), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	const user, role = testUser, testRole
	ctx := t.Context()
	var errs []error
	must := func(_ any, err error) { errs = append(errs, err) }
	eventually(t, "etcd answers", func() bool { _, err := admin.Get(ctx, "x"); return err == nil })
	must(admin.UserAdd(ctx, "root", "secret"))
	must(admin.RoleAdd(ctx, "root"))
	must(admin.UserGrantRole(ctx, "root", "root"))
	must(admin.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true}))
	must(admin.RoleAdd(ctx, role))
	must(admin.RoleGrantPermission(ctx, role, "svcctl/test/", clientv3.GetPrefixRangeEnd("svcctl/test/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	must(admin.UserGrantRole(ctx, user, role))
	must(admin.AuthEnable(ctx))
	if err := errors.Join(append(errs, admin.Close())...); err != nil {
		t.Fatal(err)
	}
	admin, err = clientv3.New(clientv3.Config{Endpoints: c.urls, TLS: clientTLS(t, ca, client), Username: "root", Password: "secret", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close() })
	return c, ca, client, admin
}

// testRole is the role of the boxes.
const testRole = "pop"

// The role of a box is taken from its user while it is connected: it says so and what to do, refuses writes, and
// has all that it had. With the role it goes on.
func Test561_the_role_of_a_box_is_revoked(t *testing.T) {
	c, ca, client, admin := startRoles(t)
	of := func(name string) fleet.Config {
		cfg := c.config(name)
		cfg.TLS = clientTLS(t, ca, client)
		return cfg
	}
	const user, role = testUser, testRole
	ctx := t.Context()
	if _, err := fleet.Init(ctx, of("init"), ""); err != nil {
		t.Fatal(err)
	}
	a := c.open(of("a"), storeConfig)
	if err := a.create("web"); err != nil {
		t.Fatal(err)
	}
	address := a.clusterIP("web")
	if _, err := admin.UserRevokeRole(ctx, user, role); err != nil {
		t.Fatal(err)
	}
	var away *engine.AwayError
	told := func(text string) bool {
		return strings.Contains(text, "permission denied") && strings.Contains(text, "may read and write svcctl/test/") && !strings.Contains(text, "does not answer")
	}
	if err := a.create("never"); !errors.As(err, &away) || !told(err.Error()) {
		t.Errorf("a write of a box that may not gave %v", err)
	}
	eventually(t, "the box says why", func() bool { s := a.engine.State(); return s.Kind == fleet.CutOff && told(s.Why) })
	if err := a.Fresh(ctx); !errors.As(err, &away) || !told(err.Error()) {
		t.Errorf("a fresh read of a box that may not gave %v", err)
	}
	if a.clusterIP("web") != address || a.clusterIP("never") != "" {
		t.Error("what was in force is not there any more")
	}
	a.stop()
	a = c.open(a.cfg, storeConfig)
	if a.clusterIP("web") != address {
		t.Error("a start without the role has lost what was in force")
	}
	if _, err := admin.UserGrantRole(ctx, user, role); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the box may write again", func() bool { return a.create("again") == nil })
	if kind := a.engine.State().Kind; kind != fleet.Following {
		t.Errorf("with its role the box is %s", kind)
	}
}

// A box whose certificate etcd does not trust any more says that, refuses writes, and has all that it had.
func Test563_the_certificate_of_a_box_is_revoked(t *testing.T) {
	c, ca, a := boxWithCertificate(t)
	address := a.clusterIP("web")
	trusts := func(who string) {
		for i, arg := range c.args[0] {
			if arg == "--trusted-ca-file" {
				c.args[0][i+1] = who
			}
		}
		c.kill(0) // with all connections
		c.start(0)
	}
	other, _, _ := makeCertificates(t, t.TempDir())
	trusts(other)
	eventually(t, "the box says why", func() bool {
		s := a.engine.State()
		return s.Kind == fleet.CutOff && strings.Contains(s.Why, "certificate")
	})
	var away *engine.AwayError
	eventually(t, "a write is refused with that", func() bool {
		err := a.create("never")
		return errors.As(err, &away) && strings.Contains(err.Error(), "certificate")
	})
	if a.clusterIP("web") != address {
		t.Error("what was in force is not there any more")
	}
	trusts(ca)
	eventually(t, "the box may write again", func() bool { return a.create("again") == nil })
}

// A certificate that etcd trusts and gives no role takes the place of the one of a box, and is corrected: the box shows what it has
// now, although its connection is good.
func Test659_the_certificate_of_a_box_is_corrected(t *testing.T) {
	c, ca, client, _ := startRoles(t)
	pair := func(of string) *tls.Certificate {
		pair, err := tls.LoadX509KeyPair(of+".crt", of+".key")
		if err != nil {
			t.Fatal(err)
		}
		return &pair
	}
	var has atomic.Pointer[tls.Certificate] // the files of the box
	has.Store(pair(client))
	cfg := c.config("a")
	cfg.TLS = clientTLS(t, ca, "")
	cfg.TLS.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return has.Load(), nil }
	if _, err := fleet.Init(t.Context(), cfg, ""); err != nil {
		t.Fatal(err)
	}
	a := c.open(cfg, storeConfig)
	if err := a.create("web"); err != nil {
		t.Fatal(err)
	}
	has.Store(pair(filepath.Join(filepath.Dir(client), "stranger")))
	c.kill(0) // with all connections
	c.start(0)
	eventually(t, "the box says why", func() bool {
		s := a.engine.State()
		return s.Kind == fleet.CutOff && strings.Contains(s.Why, "permission denied")
	})
	if a.clusterIP("web") == "" {
		t.Error("what was in force is not there any more")
	}
	has.Store(pair(client))
	eventually(t, "the box may write again", func() bool { return a.create("again") == nil })
}
