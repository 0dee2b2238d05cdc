package apiserver

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// announcing has announcements that do not change, and problems.
type announcing struct {
	api.Backend
	items    []wire.Announcement
	problems []wire.Problem
}

func (a *announcing) List() wire.Announcements      { return wire.Announcements{Items: a.items} }
func (a *announcing) Of(string) []wire.Announcement { return nil }
func (a *announcing) Report(wire.AnnouncerReport)   {}
func (a *announcing) Status() wire.Status           { return wire.Status{Problems: a.problems} }
func (a *announcing) Watch(context.Context, bool, func(wire.AnnouncementsEvent) error) error {
	return nil
}

// What is announced where is told by Service, in the namespace of the pool; what is refused makes the configuration
// invalid.
func TestStatesOfMetalLB(t *testing.T) {
	addr := netip.MustParseAddr
	cfg := store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}}
	cfg.Pools = slices.Grow(cfg.Pools, 2)[:2]
	cfg.Pools[0].First, cfg.Pools[0].Last, cfg.Pools[0].Name = addr("192.0.2.10"), addr("192.0.2.20"), "lb/lan"
	cfg.Pools[1].First, cfg.Pools[1].Last = addr("2001:db8::10"), addr("2001:db8::20")
	objects, err := store.Open(engine.NewMemory(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	early, late := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), time.Date(2026, 3, 1, 13, 0, 0, 0, time.UTC)
	a := &announcing{items: []wire.Announcement{
		{Address: "192.0.2.10", Services: []string{"default/web"}, Places: []wire.Place{
			{By: "l2 eth1", State: "announced", Since: late}, {By: "l2 eth0", State: "announced", Since: early}, {By: "l2 eth2", State: "standby", Since: early},
			{By: "bgp tor-2", State: "down", Since: late}, {By: "bgp tor-1", State: "announced", Since: late}, {By: "bgp tor-3", State: "unsent"}, {By: "bgp tor-4", State: "drained"},
		}},
		{Address: "2001:db8::10", Services: []string{"default/dns", "default/web"}, Places: []wire.Place{{By: "l2 eth0", State: "announced", Since: late}}},
		{Address: "192.0.2.11", Services: []string{"default/idle"}, Withheld: "no ready endpoint"},
	}}
	s := states{store: objects, backend: a, announced: a, node: "gw1", began: early}
	kinds := s.kinds()
	l2 := map[string]*object.ServiceL2Status{}
	for _, o := range kinds[object.KindServiceL2Status]() {
		l2[o.(*object.ServiceL2Status).Status.ServiceName] = o.(*object.ServiceL2Status)
	}
	web := l2["web"]
	if len(l2) != 2 || web == nil || l2["dns"] == nil {
		t.Fatalf("on segments are %v", l2)
	}
	if !slices.Equal(web.Status.Interfaces, []object.InterfaceInfo{{Name: "eth0"}, {Name: "eth1"}}) || web.Status.Node != "gw1" || web.Metadata.Namespace != "lb" ||
		!web.Metadata.CreationTimestamp.Equal(early) || web.Metadata.Labels["metallb.io/service-name"] != "web" || !strings.HasPrefix(web.Metadata.Name, "l2-") {
		t.Errorf("web is %+v", web)
	}
	if l2["dns"].Metadata.Namespace != "metallb-system" || l2["dns"].Metadata.Name == web.Metadata.Name || l2["dns"].Metadata.UID == web.Metadata.UID {
		t.Errorf("dns is %+v", l2["dns"])
	}
	bgp := kinds[object.KindServiceBGPStatus]()
	if len(bgp) != 1 || !slices.Equal(bgp[0].(*object.ServiceBGPStatus).Status.Peers, []string{"tor-1", "tor-2"}) {
		t.Errorf("to peers: %+v", bgp)
	}
	results := func() (text []string) {
		for _, o := range kinds[object.KindConfigurationState]() {
			c := o.(*object.ConfigurationState)
			text = append(text, c.Metadata.Name+" "+c.Status.Result+" "+c.Status.ErrorSummary+" "+c.Status.Conditions[0].Type+"="+c.Status.Conditions[0].Status+" "+c.Status.Conditions[0].Reason)
		}
		return text
	}
	if got := results(); !slices.Equal(got, []string{"controller Valid  poolReconcilerValid=True Reconciled", "speaker-gw1 Valid  configReconcilerValid=True Reconciled"}) {
		t.Errorf("%q", got)
	}
	a.problems = []wire.Problem{
		{Object: "BGPPeer lb/tor", Field: "spec.vrf", Message: "not served", Severity: wire.SeverityError},
		{Object: "Service default/web", Field: "spec", Message: "none of it", Severity: wire.SeverityError},
		{Object: "IPAddressPool lb/lan", Field: "spec", Message: "a warning", Severity: "warning"},
		{Object: "Community lb/names", Field: "spec", Message: "none", Severity: wire.SeverityError},
	}
	if got := results(); !slices.Equal(got, []string{"controller Valid  poolReconcilerValid=True Reconciled", "speaker-gw1 Invalid BGPPeer lb/tor: spec.vrf: not served\nCommunity lb/names: spec: none configReconcilerValid=False ConfigurationError"}) {
		t.Errorf("%q", got)
	}
	if none := (&states{store: objects, backend: a}); len(none.onSegments())+len(none.toPeers()) != 0 {
		t.Error("where nothing is announced, something is")
	}
}
