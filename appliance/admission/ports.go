package admission

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/sockets"
	"svcctl.io/svcctl/store/object"
)

// portView sees at which node ports, and ports of the host's addresses, programs of the host listen. Check.looking guards it.
type portView struct {
	read   func(*sockets.Ports) ([]sockets.Socket, error)
	owner  func(sockets.Socket) string // the program, "" when it is not known
	always sockets.Ports               // node ports
	at     time.Time                   // of seen
	looked sockets.Ports               // the ports of seen
	seen   listeners
}

// listeners are sockets as of one moment. They are not changed.
type listeners struct {
	sockets []sockets.Socket
	owners  map[sockets.Socket]string // of those that were asked for
}

func newPortView(nodePorts config.PortRange) *portView {
	w := &portView{read: sockets.NewView().Listening, owner: sockets.Owner}
	for _, protocol := range []string{"tcp", "udp"} {
		w.always.AddRange(protocol, nodePorts.First, nodePorts.Last)
	}
	return w
}

// askedPort is a port of the host that a Service asks for, at some of its addresses.
type askedPort struct {
	protocol string
	port     uint16
	on       []netip.Addr
}

// asked returns the ports of the host that a Service asks for; node ports answer on the addresses on.
func asked(svc *object.Service, on []netip.Addr) (ports []askedPort) {
	if svc == nil {
		return nil
	}
	var own []netip.Addr
	if svc.Metadata.Annotations[resolve.AnnotationHostAddress] == "true" {
		for _, text := range svc.Spec.ExternalIPs {
			if addr, err := netip.ParseAddr(text); err == nil {
				own = append(own, addr)
			}
		}
	}
	for _, p := range svc.Spec.Ports {
		protocol := strings.ToLower(cmp.Or(p.Protocol, object.ProtocolTCP))
		if protocol == "sctp" {
			continue // its sockets are not known
		}
		if p.NodePort != 0 {
			ports = append(ports, askedPort{protocol, uint16(p.NodePort), on})
		}
		if len(own) > 0 {
			ports = append(ports, askedPort{protocol, uint16(p.Port), own})
		}
	}
	return ports
}

// look returns the listeners for a Service that a client writes, and whether they are others than before; node ports
// answer on the addresses on. A Service that asks for no port of the host needs none.
func (w *portView) look(svc *object.Service, on []netip.Addr) (seen listeners, changed bool) {
	ports := asked(svc, on)
	unknown := func(p askedPort) bool { return !w.looked.Has(p.protocol, p.port) }
	if len(ports) == 0 {
		return w.seen, false
	}
	if time.Since(w.at) > believed || slices.ContainsFunc(ports, unknown) {
		w.looked = w.always
		for _, p := range ports {
			w.looked.Add(p.protocol, p.port)
		}
		w.seen, w.at, changed = w.now(), time.Now(), true
	}
	for _, p := range ports {
		s, found := w.seen.at(p.on, p.protocol, p.port)
		if _, known := w.seen.owners[s]; !found || known {
			continue
		}
		w.seen.owners = maps.Clone(w.seen.owners)
		w.seen.owners[s], changed = w.owner(s), true
	}
	return w.seen, changed
}

// now reads the listeners; none when the host cannot be seen.
func (w *portView) now() listeners {
	seen := listeners{owners: map[sockets.Socket]string{}}
	all, err := w.read(&w.looked)
	if err != nil {
		return seen
	}
	seen.sockets = all
	for _, s := range all {
		if owner, known := w.seen.owners[s]; known {
			seen.owners[s] = owner
		}
	}
	return seen
}

// at returns the socket of a program that listens at a port on one of some addresses.
func (l listeners) at(on []netip.Addr, protocol string, port uint16) (sockets.Socket, bool) {
	for _, s := range l.sockets {
		if s.Protocol != strings.ToLower(protocol) || s.Local.Port() != port {
			continue
		}
		if slices.ContainsFunc(on, func(a netip.Addr) bool { return s.Covers(netip.AddrPortFrom(a, port)) }) {
			return s, true
		}
	}
	return sockets.Socket{}, false
}

// refuse returns an error that names the program listening at a port; nil when none does.
func (l listeners) refuse(on []netip.Addr, protocol string, port uint16) error {
	if s, found := l.at(on, protocol, port); found {
		return fmt.Errorf("%s listens on %s: stop that program, or ask for another port", cmp.Or(l.owners[s], "another program"), s)
	}
	return nil
}
