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

// byName finds the port of a server name: by the whole name, by one label less, by several less, or the one for any.
func byName(ports map[string]*tcpPort, name string) *tcpPort {
	if p := ports[name]; p != nil && name != "" {
		return p
	}
	stars := []string{"*.", "**."}
	for _, parent, has := strings.Cut(name, "."); has; _, parent, has = strings.Cut(parent, ".") {
		for _, star := range stars {
			if p := ports[star+parent]; p != nil {
				return p
			}
		}
		stars = stars[len(stars)-1:]
	}
	return ports["*"]
}

// serverNames gives the ports by server name; nil: there are none.
func (t *tcpPort) serverNames() map[string]*tcpPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.names
}

// portNamed finds the port of the server name that a client asks for, and returns what it read of the client so far. One
// that is for no name goes to the port's own endpoints. Nil: the client is refused, or left to the next program.
func (t *tcpPort) portNamed(ctx context.Context, client *net.TCPConn, early []byte, from, asked netip.AddrPort, names map[string]*tcpPort) (*tcpPort, []byte) {
	_ = client.SetReadDeadline(time.Now().Add(helloTime))
	stop := context.AfterFunc(ctx, func() { interrupt(client) })
	name, early, err := tlsterm.ReadHello(&rereadConn{client, early})
	stop()
	_ = client.SetReadDeadline(time.Time{})
	if err != nil && handover.IsRequested(ctx) && errors.Is(err, os.ErrDeadlineExceeded) {
		t.shared.leaving.unconnected(t.current(), t.endpoints, client, from, asked, early)
		return nil, early
	}
	if err != nil {
		t.shared.failedHandshakes.Add(1)
		t.log.Debug("a client is reset: it asks for no server name", "client", from, "err", err)
		reset(client)
		return nil, early
	}
	if to := byName(names, name); to != nil {
		return to, early
	}
	if t.endpoints.none() {
		t.log.Debug("a client is refused: it asks for a server name that leads nowhere", "client", from, "name", name)
		tlsterm.RefuseName(client)
		return nil, early
	}
	return t, early
}
