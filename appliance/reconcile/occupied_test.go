package reconcile

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/sockets"
	"svcctl.io/svcctl/store"
)

// programs are the listening sockets on the host of a test.
type programs struct {
	list  []sockets.Socket
	err   error
	reads int
}

func (p *programs) listen(protocol, local string) {
	p.list = append(p.list, sockets.Socket{Protocol: protocol, Local: netip.MustParseAddrPort(local)})
}

// occupy has a rig look at these programs. The test plays portWatch, see recheck.
func (r *rig) occupy(p *programs) {
	log := slog.New(slog.NewTextHandler(&r.logged, nil))
	look := func(ports *sockets.Ports) ([]sockets.Socket, error) {
		p.reads++
		return slices.DeleteFunc(slices.Clone(p.list), func(s sockets.Socket) bool { return !ports.Has(s.Protocol, s.Local.Port()) }), p.err
	}
	owner := func(sockets.Socket) string { return "nginx (pid 812)" }
	o := &occupied{look: look, owner: owner, log: log, nodePorts: store.PortRange{First: 30000, Last: 32767}, watch: newPortWatch(look, owner, log)}
	o.reset()
	r.planner.occupied = o
}

// recheck does one look of portWatch. It reports whether that has news for the loop.
func (r *rig) recheck() bool {
	ports, waited := r.planner.occupied.watch.wanted()
	list, news := r.planner.occupied.watch.seen(&ports, waited)
	if news {
		r.takeListeners(list)
	}
	return news
}

// onPort is a Service with a node port.
func onPort(name, ip, port string) string {
	text := web(name, ip, "10.1.0.1")
	return strings.Replace(strings.Replace(text, "spec: {", "spec: {type: NodePort, ", 1), "{port: 80,", "{port: 80, nodePort: "+port+",", 1)
}

func (r *rig) messages() string {
	var all []string
	for _, p := range r.planner.allProblems() {
		all = append(all, p.Object.String()+" "+p.Field+" "+p.Message)
	}
	return strings.Join(all, "\n")
}

func TestPortThatAProgramHas(t *testing.T) {
	r := newRig(t)
	p := &programs{}
	p.listen("tcp", "0.0.0.0:30080")
	p.listen("tcp", "127.0.0.1:30081")
	p.listen("udp", "0.0.0.0:30081")
	r.occupy(p)
	r.host()
	r.write("a.yaml", onPort("a", "10.96.0.10", "30080"))
	r.write("b.yaml", onPort("b", "10.96.0.11", "30081"))
	r.step()
	r.want("10.96.0.10 . tcp . 80", "!tcp . 30080", "tcp . 30081")
	const want = "Service default/a spec.ports[0].nodePort node port 30080/tcp is not served: nginx (pid 812) listens on tcp 0.0.0.0:30080; " +
		"stop that program, or give the Service another node port"
	if got := r.messages(); got != want {
		t.Errorf("problems:\n%s\nwant\n%s", got, want)
	}
	// While nothing changes, nothing is done.
	r.recheck()
	r.step()
	if r.recheck() {
		t.Error("the same programs are news")
	}
	r.step()
	r.want("!tcp . 30080")
	p.list = p.list[1:]
	if !r.recheck() {
		t.Error("a Service that waits for a port is not tried again")
	}
	r.step()
	r.want("tcp . 30080")
	if got := r.messages(); got != "" {
		t.Errorf("problems: %s", got)
	}
	if r.recheck() {
		t.Error("there is nothing to look at again")
	}
}

// A program that ends while the news of it is on its way did not come later than the Service.
func TestProgramThatEndsAsItIsSeen(t *testing.T) {
	r := newRig(t)
	p := &programs{}
	p.listen("tcp", "192.0.2.1:30080")
	r.occupy(p)
	r.host()
	r.write("a.yaml", onPort("a", "10.96.0.10", "30080"))
	r.step()
	r.want("!tcp . 30080")
	r.recheck()
	p.list = nil
	r.step()
	r.want("tcp . 30080")
	if got := r.messages(); got != "" {
		t.Errorf("problems: %s", got)
	}
}

func TestProgramThatComesLater(t *testing.T) {
	r := newRig(t)
	p := &programs{}
	r.occupy(p)
	r.host()
	r.write("a.yaml", onPort("a", "10.96.0.10", "30080"))
	r.step()
	p.listen("tcp", "192.0.2.1:30080")
	if !r.recheck() {
		t.Fatal("a program that listens on a node port is no news")
	}
	r.step()
	const want = "nginx (pid 812) listens on tcp 192.0.2.1:30080, which is node port 30080/tcp of this Service"
	if got := r.messages(); !strings.Contains(got, want) {
		t.Errorf("problems %q, want %q", got, want)
	}
	// The Service keeps its port through changes, a host that changes, and a restart.
	r.write("a.yaml", strings.Replace(onPort("a", "10.96.0.10", "30080"), "10.1.0.1", "10.1.0.2", 1))
	r.step()
	r.host()
	r.step()
	r.want("tcp . 30080")
	r.start()
	r.occupy(p)
	r.host()
	r.write("a.yaml", onPort("a", "10.96.0.10", "30080"))
	r.step()
	r.want("tcp . 30080")
}

func TestSocketsThatCannotBeRead(t *testing.T) {
	r := newRig(t)
	r.occupy(&programs{err: errors.New("no permission")})
	r.host()
	r.write("a.yaml", onPort("a", "10.96.0.10", "30080"))
	r.step()
	r.want("tcp . 30080")
	if log := r.logged.String(); !strings.Contains(log, "no permission") {
		t.Errorf("nothing is said about it:\n%s", log)
	}
}

// Sockets are looked at when a Service asks for a port, and not else.
func TestSocketsAreReadWhenNeeded(t *testing.T) {
	r := newRig(t)
	p := &programs{}
	r.occupy(p)
	r.host()
	r.write("a.yaml", web("a", "10.96.0.10", "10.1.0.1"))
	r.step()
	if p.reads != 0 {
		t.Errorf("%d readings for a Service without node ports", p.reads)
	}
	r.write("b.yaml", onPort("b", "10.96.0.11", "30080")+"---\n"+onPort("c", "10.96.0.12", "30081"))
	r.step()
	if p.reads != 1 {
		t.Errorf("%d readings for two Services that ask for node ports at once", p.reads)
	}
	r.write("b.yaml", strings.Replace(onPort("b", "10.96.0.11", "30080"), "10.1.0.1", "10.1.0.2", 1)+"---\n"+onPort("c", "10.96.0.12", "30081"))
	r.step()
	if p.reads != 1 {
		t.Errorf("%d readings for an endpoint that changed", p.reads)
	}
}
