package control

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/advertise"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// A plan is made when something changed that it is made of: of Secrets and Namespaces only while an object refers to them.
func TestPoolsFollowWhatConcernsThem(t *testing.T) {
	objects, err := store.Open(engine.NewMemory(), store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}})
	if err != nil {
		t.Fatal(err)
	}
	plans := 0
	p := NewPools(objects, advertise.Box{NodeName: "gw1"}, func(*advertise.Plan) { plans++ })
	meta := func(name string) object.ObjectMeta { return object.ObjectMeta{Name: name, Namespace: "m"} }
	named := func(kind, version string) object.TypeMeta { return object.TypeMeta{Kind: kind, APIVersion: version} }
	secret := func(name string) object.Object {
		return &object.Secret{TypeMeta: named(object.KindSecret, object.APIVersionCore), Metadata: meta(name), Data: map[string][]byte{"password": []byte("between us")}}
	}
	namespace := func(name string) object.Object {
		return &object.Namespace{TypeMeta: named(object.KindNamespace, object.APIVersionCore), Metadata: object.ObjectMeta{Name: name}}
	}
	pool := &object.IPAddressPool{TypeMeta: named(object.KindIPAddressPool, object.APIVersionMetalLB), Metadata: meta("lan"), Spec: object.IPAddressPoolSpec{Addresses: []string{"192.0.2.0/28"}}}
	choosy := object.DeepCopy(pool)
	choosy.Spec.ServiceAllocation = &object.ServiceAllocation{NamespaceSelectors: []object.LabelSelector{{MatchLabels: map[string]string{"color": "blue"}}}}
	peer := &object.BGPPeer{
		TypeMeta: named(object.KindBGPPeer, object.APIVersionMetalLBPeer), Metadata: meta("tor"),
		Spec: object.BGPPeerSpec{MyASN: 64512, PeerASN: 64513, PeerAddress: "192.0.2.1", PasswordSecret: object.SecretReference{Name: "tor"}},
	}
	for _, step := range []struct {
		name  string
		write object.Object
		plans int
	}{
		{"the first one", nil, 1}, {"nothing", nil, 0}, {"a Secret of others", secret("web"), 0}, {"a Namespace", namespace("blue"), 0},
		{"a pool", pool, 1}, {"a peer with a Secret", peer, 1}, {"a Secret", secret("tor"), 1}, {"a Namespace for nobody", namespace("red"), 0},
		{"a pool for Namespaces", choosy, 1}, {"a Namespace for it", namespace("green"), 1}, {"nothing again", nil, 0},
	} {
		if step.write != nil {
			if results, err := objects.Write(store.Write{Ref: object.RefOf(step.write), Object: step.write}); err != nil || results[0].Err != nil {
				t.Fatal(step.name, err, results)
			}
		}
		plans = 0
		if _, err := p.Sync(); err != nil || plans != step.plans {
			t.Errorf("%s: %d plans, want %d: %v", step.name, plans, step.plans, err)
		}
	}
}

// The status of a Gateway that waits for an address names the pools that there are, also of those that came later.
func Test1131_gateway_that_waits_names_the_pools_of_now(t *testing.T) {
	text := strings.Replace(gatewayText, "  listeners:", "  addresses: [{value: 203.0.113.9}]\n  listeners:", 1)
	r := newGatewayRig(t)
	r.files(text)
	r.settle()
	r.files(text + "---\napiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: late}\nspec: {addresses: [192.0.2.64/30]}\n")
	if _, err := r.objects.SetPools(append(slices.Clone(r.pools), alloc.Pool{First: netip.MustParseAddr("192.0.2.64"), Last: netip.MustParseAddr("192.0.2.67")})); err != nil {
		t.Fatal(err)
	}
	r.settle()
	conditions := r.get(object.KindGateway, "edge").(*object.Gateway).Status.Conditions
	if got := fmt.Sprint(conditions); !strings.Contains(got, "203.0.113.9") || !strings.Contains(got, "192.0.2.64") {
		t.Errorf("the status does not name the pool 192.0.2.64: %s", got)
	}
}
