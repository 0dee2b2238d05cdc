package parts

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// discovering is a Discovered of a store with n Services that name the provider consul.
func discovering(t testing.TB, n int) (d *Discovered, write func(object.Object), services []reconcile.Service) {
	t.Helper()
	objects, err := store.Open(engine.NewMemory(), store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}})
	if err != nil {
		t.Fatal(err)
	}
	write = func(o object.Object) {
		t.Helper()
		results, err := objects.Write(store.Write{Ref: object.RefOf(o), Object: o})
		if err == nil {
			err = results[0].Err
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		svc := &object.Service{TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: "v1"}}
		svc.Metadata.Namespace, svc.Metadata.Name = "default", fmt.Sprintf("s%d", i)
		svc.Metadata.Annotations = map[string]string{annotation.EndpointsFrom: fmt.Sprintf("consul:s%d", i)}
		svc.Spec.Type = object.TypeClusterIP
		svc.Spec.Ports = []object.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}}
		write(svc)
		services = append(services, reconcile.Service{Key: "default/" + svc.Metadata.Name})
	}
	d = NewDiscovered(objects, &Providers{})
	d.Planned(nil, services)
	return d, write, services
}

// leaseOf is the Lease of a process that asks consul, with its report.
func leaseOf(report string) *object.Lease {
	holder, lasts := "gw1", int32(60)
	o := &object.Lease{TypeMeta: object.TypeMeta{Kind: object.KindLease, APIVersion: "coordination.k8s.io/v1"}}
	o.Metadata.Namespace, o.Metadata.Name = annotation.DiscoverLeaseNamespace, annotation.DiscoverLeasePrefix+"consul"
	o.Metadata.Annotations = map[string]string{annotation.EndpointsState: report}
	o.Spec = object.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &lasts}
	return o
}

// Problems follow the Leases, the Services and the time, and nothing else.
func TestDiscovered(t *testing.T) {
	d, write, services := discovering(t, 2)
	var loop wakes
	d.Attach(loop.changed)
	now := time.Now()
	look := func(when string, after time.Duration, reason string, due bool) {
		t.Helper()
		now = now.Add(after)
		if at := d.look(now); at.IsZero() == due {
			t.Errorf("%s: due %v", when, at)
		}
		got := ""
		if all := d.Problems(); len(all) == 2 {
			got = all[0].Reason
		} else if len(all) > 0 {
			t.Errorf("%s: %d problems", when, len(all))
		}
		if got != reason {
			t.Errorf("%s: %q, want %q", when, got, reason)
		}
	}
	look("at the start", 0, "", true)
	look("no process asks", discoverPatience+time.Second, reasonEndpointsNotRead, false)
	write(leaseOf(`{"kind": "consul", "services": 2}`))
	look("a process asks", 0, "", true)
	write(leaseOf(`{"kind": "consul", "services": 2, "states": [{"state": "stale", "why": "refused", "since": "2026-01-02T03:04:05Z", "services": 2}]}`))
	look("it has no answer", 0, reasonEndpointsStale, true)
	d.Planned(nil, services)
	other := leaseOf("")
	other.Metadata.Name = "other"
	write(other)
	if d.outdated {
		t.Error("the same Services are new ones")
	}
	look("something else changes", time.Second, reasonEndpointsStale, true)
	write(leaseOf(`{"kind": "consul", "services": 2}`))
	look("it has an answer", 0, "", true)
	look("its Lease is over", time.Minute, reasonEndpointsStale, false)
}

// BenchmarkDiscovered is what a change of the store costs that is about no Lease, with 10,000 Services that name a provider.
func BenchmarkDiscovered(b *testing.B) {
	d, write, _ := discovering(b, 10_000)
	write(leaseOf(`{"kind": "consul", "services": 10000, "states": [{"state": "stale", "why": "refused", "since": "2026-01-02T03:04:05Z", "services": 10000}]}`))
	for b.Loop() {
		d.look(time.Now())
	}
}
