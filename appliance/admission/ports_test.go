package admission

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/sockets"
	"svcctl.io/svcctl/store/object"
)

func TestPortCheck(t *testing.T) {
	p := &programs{}
	p.listen("tcp", "0.0.0.0:30080")
	p.listen("tcp", "127.0.0.1:30081")
	p.listen("udp", "192.0.2.1:30082")
	p.listen("tcp", "192.0.2.9:30083") // no node port answers there
	view, on := p.view(), []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	refuse := func(protocol string, port uint16) error {
		seen, _ := view.look(&object.Service{Spec: object.ServiceSpec{Ports: []object.ServicePort{{Protocol: protocol, NodePort: int32(port)}}}}, on)
		return seen.refuse(on, protocol, port)
	}
	for _, test := range []struct {
		protocol string
		port     uint16
		want     string
	}{
		{"TCP", 30080, "nginx (pid 812) listens on tcp 0.0.0.0:30080: stop that program, or ask for another port"},
		{"UDP", 30080, ""},
		{"TCP", 30081, ""},
		{"TCP", 30082, ""},
		{"UDP", 30082, "nginx (pid 812) listens on udp 192.0.2.1:30082: stop that program, or ask for another port"},
		{"TCP", 30083, ""},
		{"SCTP", 30080, ""},
		{"TCP", 30084, ""},
	} {
		got := ""
		if err := refuse(test.protocol, test.port); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s %d: %q, want %q", test.protocol, test.port, got, test.want)
		}
	}
	if p.reads > 2 {
		t.Errorf("looked %d times", p.reads)
	}
	reads := p.reads
	view.at = time.Time{}
	if _, changed := view.look(&object.Service{Spec: object.ServiceSpec{Ports: []object.ServicePort{{Protocol: "TCP", Port: 30080}}}}, on); changed || p.reads != reads {
		t.Error("looked for a Service that names no node port")
	}
	// The same at an address of the host, for a Service that may have one.
	p.listen("tcp", "192.0.2.1:22")
	check := &host{facts: resolve.Facts{Networks: resolve.Networks{Host: map[netip.Addr]string{on[0]: "an address of this host"}}}, nodePorts: on}
	svc := &object.Service{
		Metadata: object.ObjectMeta{Annotations: map[string]string{resolve.AnnotationHostAddress: "true"}},
		Spec:     object.ServiceSpec{ExternalIPs: []string{"192.0.2.1"}, Ports: []object.ServicePort{{Protocol: "TCP", Port: 22}}},
	}
	check.listeners, _ = view.look(svc, on)
	for addr, want := range map[string]string{"192.0.2.1": "nginx (pid 812) listens on tcp 192.0.2.1:22: stop that program, or ask for another port", "198.51.100.1": ""} {
		got := ""
		if err := check.HostPort(netip.MustParseAddr(addr), "TCP", 22); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("port 22 of %s: %q, want %q", addr, got, want)
		}
	}
	view.at, p.err = time.Time{}, errors.New("no tcp_diag")
	if err := refuse("TCP", 30080); err != nil {
		t.Errorf("refused without knowing: %v", err)
	}
}

// programs are the listening sockets on the host of a test.
type programs struct {
	list  []sockets.Socket
	err   error
	reads int
}

// view sees them; all are nginx.
func (p *programs) view() *portView {
	w := &portView{
		read:  func(*sockets.Ports) ([]sockets.Socket, error) { p.reads++; return slices.Clone(p.list), p.err },
		owner: func(sockets.Socket) string { return "nginx (pid 812)" },
	}
	w.always.AddRange("tcp", 30000, 32767)
	w.always.AddRange("udp", 30000, 32767)
	return w
}

func (p *programs) listen(protocol, local string) {
	p.list = append(p.list, sockets.Socket{Protocol: protocol, Local: netip.MustParseAddrPort(local)})
}
