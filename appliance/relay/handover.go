package relay

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"syscall"
	"time"
)

// State hands a Relay over to the next program: descriptors by their numbers, each with its use.
type State struct {
	Listeners []HeldListener `json:"listeners,omitempty"`
	Ports     []HeldPort     `json:"ports,omitempty"`

	conns []syscall.Conn // are not closed as long as there is the State
}

// HeldListener is a listening socket.
type HeldListener struct {
	Protocol string         `json:"protocol"`
	At       netip.AddrPort `json:"at"`
	FD       int            `json:"fd"`
}

// HeldPort is a Port with its connections, or flows of UDP.
type HeldPort struct {
	ID         string         `json:"id"`
	Protocol   string         `json:"protocol"`
	Listen     netip.AddrPort `json:"listen"`
	Redirected bool           `json:"redirected,omitempty"`
	// Via distinguishes ports of the same ID and Listen: see Port.
	Via string `json:"via,omitempty"`
	// Turn is the endpoint that had the last turn, and Owed what each is owed in turns by weight, in parts of a
	// turn. Clients are those that keep their endpoint.
	Turn        netip.AddrPort             `json:"turn"`
	Owed        map[netip.AddrPort]float64 `json:"owed,omitempty"`
	Clients     []HeldClient               `json:"clients,omitempty"`
	Connections []HeldConnection           `json:"connections,omitempty"`
	Flows       []HeldFlow                 `json:"flows,omitempty"`
}

// HeldClient is a client with session affinity.
type HeldClient struct {
	Client   netip.Addr     `json:"client"`
	Endpoint netip.AddrPort `json:"endpoint"`
	Until    time.Time      `json:"until"`
}

// HeldConnection is a connection of a client.
type HeldConnection struct {
	Client int `json:"client"`
	// From is the client, if that was read, and Asked what it had sent to. They count while it has no
	// endpoint: Endpoint is 0 then.
	From     netip.AddrPort `json:"from"`
	Asked    netip.AddrPort `json:"asked"`
	Endpoint int            `json:"endpoint,omitempty"`
	To       netip.AddrPort `json:"to"`
	There    HeldWay        `json:"there"`
	Back     HeldWay        `json:"back"`
}

// HeldWay is one direction of a connection: whether its end came, whether that was passed on, and what else
// came and was not passed on yet.
type HeldWay struct {
	Ended bool   `json:"ended,omitempty"`
	Done  bool   `json:"done,omitempty"`
	Rest  []byte `json:"rest,omitempty"`
}

// HeldFlow is a client of UDP with its socket to an endpoint.
type HeldFlow struct {
	FD       int            `json:"fd"`
	Client   netip.AddrPort `json:"client"`
	Endpoint netip.AddrPort `json:"endpoint"`
	Replied  bool           `json:"replied,omitempty"`
}

// ParseState reads a State.
func ParseState(text []byte) (*State, error) {
	s := &State{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("relayed connections of the program before are lost: %w", err)
	}
	return s, nil
}

// Descriptors returns all descriptors in the state.
func (s *State) Descriptors() (all []int) {
	for _, l := range s.Listeners {
		all = append(all, l.FD)
	}
	for _, p := range s.Ports {
		for _, c := range p.Connections {
			if all = append(all, c.Client); c.Endpoint != 0 {
				all = append(all, c.Endpoint)
			}
		}
		for _, f := range p.Flows {
			all = append(all, f.FD)
		}
	}
	return all
}

// hold keeps a socket open and returns its descriptor.
func (s *State) hold(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	if err := raw.Control(func(n uintptr) { fd = int(n) }); err != nil {
		return 0, err
	}
	s.conns = append(s.conns, c)
	return fd, nil
}
