package parts

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/appliance/test/pki"

	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// certificateOf is a Secret with a certificate that ends then.
func certificateOf(t *testing.T, version string, end time.Time) *object.Secret {
	t.Helper()
	cert, key := pki.PEM(t, pki.Issue(t, nil, end.Add(-1000*24*time.Hour), end, "a"))
	s := &object.Secret{Type: object.SecretTLS, Data: map[string][]byte{object.TLSCert: cert, object.TLSKey: key}}
	s.Metadata.ResourceVersion = version
	return s
}

// withTLS is a Service with TLS at its port.
func withTLS() reconcile.Service {
	at := netip.MustParseAddrPort("192.0.2.1:10270")
	return reconcile.Service{
		Key: "default/web", Ports: []nft.ServicePort{{ID: "default/web", Protocol: nft.TCP, Relay: [nft.NumPools]netip.AddrPort{at, at},
			Frontends: []nft.Frontend{{Addr: netip.MustParseAddr("10.96.0.1"), Port: 443}}}},
		Settings: resolve.Settings{Relay: &resolve.Relay{Fronts: map[string]*annotation.Front{"default/web": {Key: annotation.TLSSecret, Secrets: []string{"default/tls"}, Policy: &annotation.Policy{Min: tls.VersionTLS12, Max: tls.VersionTLS13}}}}},
	}
}

func keyPair(secret string) resolve.Need {
	return resolve.Need{Kind: resolve.NeedKeyPair, Name: secret}
}

// Clients keep their session tickets as long as nothing changes that they get.
func TestFrontsStay(t *testing.T) {
	secret := certificateOf(t, "1", time.Now().Add(time.Hour))
	r := NewRelay(slog.New(slog.DiscardHandler), func(string) *object.Secret { return secret }, nil, nil)
	plan := func() *tls.Config {
		t.Helper()
		if state := r.fronts.state(keyPair("default/tls")); state.Missing {
			t.Fatalf("%+v", state)
		}
		r.Planned(nil, []reconcile.Service{withTLS()})
		ports := r.redirected["default/web"]
		if len(ports) == 0 || ports[0].Front == nil || ports[0].Front.TLS == nil {
			t.Fatalf("%+v", ports)
		}
		return ports[0].Front.TLS
	}
	first := plan()
	if plan() != first {
		t.Error("another configuration, and nothing has changed")
	}
	secret = certificateOf(t, "2", time.Now().Add(2*time.Hour))
	if plan() == first {
		t.Error("the same configuration with another certificate")
	}
	if list := r.CertificatesOf("default/web"); len(list) != 1 || list[0].Secret != "default/tls" || list[0].Names[0] != "a" {
		t.Errorf("%+v", list)
	}
	// A Service without its settings is not served.
	svc := withTLS()
	svc.Relay = nil
	r.Planned(nil, []reconcile.Service{svc})
	if ports := r.redirected["default/web"]; len(ports) != 0 {
		t.Errorf("relayed in the clear: %+v", ports)
	}
	// A Secret that no Service needs any more is dropped; the other use of it stays.
	r.fronts.state(resolve.Need{Kind: resolve.NeedAuthority, Name: "default/tls"})
	r.Close(resolve.Need{Kind: resolve.NeedAuthority, Name: "default/tls"})
	if list := r.fronts.keeper.Pairs(); len(list) != 1 {
		t.Errorf("with the CA, the certificate is dropped: %v", list)
	}
	if r.Close(keyPair("default/tls")); len(r.fronts.keeper.Pairs())+len(r.fronts.made)+len(r.fronts.secrets) != 0 {
		t.Errorf("left over: %+v", r.fronts)
	}
}

// Test1014_unusable_version_of_a_Secret: while the last usable certificate serves, its Service answers, in an earlier version; from its end on it does not.
func Test1014_unusable_version_of_a_Secret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secret := certificateOf(t, "1", time.Now().Add(time.Hour))
		f := newFronts(func(string) *object.Secret { return secret })
		if state := f.state(keyPair("default/tls")); state.Missing || !state.Serves || state.Wrong != "" {
			t.Fatalf("%+v", state)
		}
		secret = certificateOf(t, "2", time.Now().Add(48*time.Hour))
		secret.Data[object.TLSKey] = nil
		if state := f.state(keyPair("default/tls")); state.Missing || !state.Serves || state.Wrong == "" {
			t.Errorf("the certificate before serves: %+v", state)
		}
		time.Sleep(time.Hour)
		if state := f.state(keyPair("default/tls")); state.Missing || state.Serves || state.Wrong == "" {
			t.Errorf("the certificate before has expired: %+v", state)
		}
	})
}

// Services are planned again when their certificates are about to end, and when they end.
func TestCertificatesWakeTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		begin := time.Now()
		secret := certificateOf(t, "1", begin.Add(30*day))
		r := NewRelay(slog.New(slog.DiscardHandler), func(string) *object.Secret { return secret }, nil, nil)
		r.fronts.state(keyPair("default/tls"))
		r.Planned(nil, []reconcile.Service{withTLS()})
		ctx, stop := context.WithCancel(t.Context())
		var woken []string
		go func() {
			r.Attach(func(needs ...resolve.Need) {
				woken = append(woken, fmt.Sprint(time.Since(begin).Round(time.Minute), needs[0].Name, len(needs)))
				r.fronts.state(keyPair("default/tls"))
				r.Planned(nil, []reconcile.Service{withTLS()})
			})
			_ = r.watchTime(ctx)
		}()
		time.Sleep(60 * day)
		synctest.Wait()
		stop()
		synctest.Wait()
		if got, want := fmt.Sprint(woken), "[384h0m0sdefault/tls1 720h0m0sdefault/tls1]"; got != want {
			t.Errorf("woken %s, want %s", got, want)
		}
	})
}
