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
	"svcctl.io/svcctl/appliance/sockets"
	"svcctl.io/svcctl/store/object"
)

// portView sees at which node ports programs of the host listen. Check.looking guards it.
type portView struct {
	read  func() ([]sockets.Socket, error)
	owner func(sockets.Socket) string // the program, "" when it is not known
	at    time.Time                   // of seen
	seen  listeners
}

// listeners are the sockets in the range of node ports, as of one moment. They are not changed.
type listeners struct {
	sockets []sockets.Socket
	owners  map[sockets.Socket]string // of those that were asked for
}

func newPortView(nodePorts config.PortRange) *portView {
	var ports sockets.Ports
	for _, protocol := range []string{"tcp", "udp"} {
		ports.AddRange(protocol, nodePorts.First, nodePorts.Last)
	}
	view := sockets.NewView()
	return &portView{read: func() ([]sockets.Socket, error) { return view.Listening(&ports) }, owner: sockets.Owner}
}

// look returns the listeners for a Service that a client writes, and whether they are others than before; node ports
// answer on the addresses on. A Service that names no node port needs none.
func (w *portView) look(svc *object.Service, on []netip.Addr) (seen listeners, changed bool) {
	asks := func(p object.ServicePort) bool { return p.NodePort != 0 }
	if svc == nil || !slices.ContainsFunc(svc.Spec.Ports, asks) {
		return w.seen, false
	}
	if time.Since(w.at) > believed {
		w.seen, w.at, changed = w.now(), time.Now(), true
	}
	for _, p := range svc.Spec.Ports {
		s, found := w.seen.at(on, cmp.Or(p.Protocol, object.ProtocolTCP), uint16(p.NodePort))
		if _, known := w.seen.owners[s]; !asks(p) || !found || known {
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
	all, err := w.read()
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

// at returns the socket of a program that listens at a node port on one of some addresses.
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

// refuse returns an error that names the program listening at a node port; nil when none does.
func (l listeners) refuse(on []netip.Addr, protocol string, port uint16) error {
	if s, found := l.at(on, protocol, port); found {
		return fmt.Errorf("%s listens on %s: stop that program, or ask for another port", cmp.Or(l.owners[s], "another program"), s)
	}
	return nil
}
