package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/relay/tlsterm"
)

// helloTime bounds the wait for a client's ClientHello.
const helloTime = 10 * time.Second

// byName finds the port of a server name: by the whole name, by one label less, or the one for any.
func byName(ports map[string]*tcpPort, name string) *tcpPort {
	if p := ports[name]; p != nil && name != "" {
		return p
	}
	if _, parent, has := strings.Cut(name, "."); has {
		if p := ports["*."+parent]; p != nil {
			return p
		}
	}
	return ports["*"]
}

// serverNames gives the ports by server name; nil: there are none.
func (t *tcpPort) serverNames() map[string]*tcpPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.names
}

// setNames makes the ports by server name those of p, which keep their connections. The caller holds the lock.
func (t *tcpPort) setNames(p Port) {
	names := map[string]*tcpPort{}
	for _, n := range p.Names {
		n.Port.Listen, n.Port.Frontends, n.Port.via = p.Listen, p.Frontends, p.ID+" "+n.ServerName
		n.Port.Logged = p.Logged
		sub := t.names[n.ServerName]
		if sub == nil || sub.port.ID != n.Port.ID {
			sub = t.relay.portOf(n.Port)
		} else {
			sub.update(n.Port)
		}
		names[n.ServerName] = sub
	}
	for name, sub := range t.names {
		if names[name] != sub {
			sub.retire()
			t.failedConnects.Add(sub.failedConnects.Load()) // a count never falls
		}
	}
	if t.names = names; len(names) == 0 {
		t.names = nil
	}
}

// serveNamed passes a client on by the server name that it asks for. One that is for no name goes to the
// port's own endpoints.
func (t *tcpPort) serveNamed(ctx context.Context, client *net.TCPConn, early []byte, from, asked netip.AddrPort, names map[string]*tcpPort) {
	_ = client.SetReadDeadline(time.Now().Add(helloTime))
	stop := context.AfterFunc(ctx, func() { interrupt(client) })
	name, early, err := tlsterm.ReadHello(&rereadConn{client, early})
	stop()
	_ = client.SetReadDeadline(time.Time{})
	if err != nil && handover.IsRequested(ctx) && errors.Is(err, os.ErrDeadlineExceeded) {
		t.relay.leaving.unconnected(t, client, from, asked, early)
		return
	}
	if err != nil {
		t.relay.failedHandshakes.Add(1)
		t.log.Debug("a client is reset: it asks for no server name", "client", from, "err", err)
		reset(client)
		return
	}
	to := byName(names, name)
	if to == nil {
		if t.endpoints.none() {
			t.log.Debug("a client is refused: it asks for a server name that leads nowhere", "client", from, "name", name)
			tlsterm.RefuseName(client)
			return
		}
		to = t
	}
	to.serveHere(ctx, client, early, from, asked)
}
