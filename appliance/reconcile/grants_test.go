package reconcile

import (
	"net/netip"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// What the appliance says of a Service is what it has programmed, not what the objects offer.
func TestServiceState(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("other.yaml", web("other", "10.96.0.20", "10.1.0.9"))
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1", "10.96.0.30", "10.96.0.20"))
	r.step()
	s := r.grants.State("default", "web", netip.AddrPort{})
	if len(s.Ports) != 1 {
		t.Fatalf("%+v", s)
	}
	p := s.Ports[0]
	if got := strings.Join(p.Endpoints, " "); got != "10.1.0.1:8080" {
		t.Errorf("the endpoints are %s", got)
	}
	if p.Protocol != "TCP" || p.Family != "IPv4" || len(p.Frontends) != 1 || p.Frontends[0] != "10.96.0.10:80" {
		t.Errorf("the port is %+v", p)
	}
	if s := r.grants.State("default", "none", netip.AddrPort{}); len(s.Ports) != 0 {
		t.Errorf("of nobody: %+v", s)
	}
	r.write("web.yaml", "")
	r.step()
	if s := r.grants.State("default", "web", netip.AddrPort{}); len(s.Ports) != 0 {
		t.Errorf("of one that is gone: %+v", s)
	}
}

// While rules wait to be put right, the status says that they are away.
func TestRulesAway(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	away := func() bool { return r.board.Status().RulesAway }
	if away() {
		t.Error("away before anything happened")
	}
	i := uint32(1)
	for ; r.meddle(i); i++ {
		if away() {
			t.Fatal("away after it was put right")
		}
	}
	if !away() {
		t.Error("not away while the heal is due later")
	}
	r.clock = r.clock.Add(pauseLast)
	r.step()
	if away() {
		t.Error("away after the heal")
	}
}

// A Service that a file declares and that could not be stored is told apart from one that nobody
// declares.
func TestNotStored(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	ref := func(name string) object.Ref {
		return object.Ref{Kind: object.KindService, Namespace: "default", Name: name}
	}
	r.engine.Inject(func(engine.Transaction) engine.Fault { return engine.Refuse })
	r.write("b.yaml", web("late", "10.96.0.11", "10.1.0.1"))
	r.step()
	s := r.board.NotStored(ref("late"))
	if s == nil || s.File != "b.yaml" || s.Line == 0 || !strings.Contains(s.Why, engine.ErrInjected.Error()) {
		t.Fatalf("%+v", s)
	}
	if s := r.board.NotStored(ref("none")); s != nil {
		t.Errorf("of nobody: %+v", s)
	}
	r.engine.Inject(nil)
	r.step()
	if s := r.board.NotStored(ref("late")); s != nil {
		t.Errorf("once stored: %+v", s)
	}
}
