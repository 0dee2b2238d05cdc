package relay

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// The protocols of a Port.
const (
	TCP  = "tcp"
	UDP  = "udp"
	SCTP = "sctp" // not relayed: reported as a Problem
)

// Port is a way to one pool of endpoints: a node port on one loopback address, or frontends that
// the kernel redirects to a listener of the relay.
// It has more than 15 fields: it is all that Services say of a port, as one value that is compared.
type Port struct {
	ID       string         // "namespace/name/port", for problems and the log
	Listen   netip.AddrPort // a loopback address and the node port, or the listener of the relay
	Protocol string         // TCP or UDP
	// Frontends are the addresses whose clients the kernel redirects to Listen; the zero Addr
	// stands for any address. Nil: Listen is a node port on loopback.
	Frontends []netip.AddrPort
	// ProxyFrom are the balancers whose TCP connections begin with a header of the PROXY protocol.
	ProxyFrom []netip.Prefix
	// Endpoints get new connections. A node port on loopback without any, and without Names, has no listener.
	Endpoints []netip.AddrPort
	Pick      Pick
	// Serving are endpoints that keep their connections besides.
	Serving []netip.AddrPort
	// Ended are endpoints whose TCP connections are reset.
	Ended []netip.AddrPort
	// Drain is after how long TCP connections of an endpoint are reset that is in neither; nil: never.
	Drain   *time.Duration
	Connect Connect
	// IdleTimeout resets TCP connections over which nothing came for that time; 0: none.
	IdleTimeout time.Duration
	// Logged includes its clients in EndpointsOf.
	Logged bool
	// Front handles TLS and HTTP; nil: bytes are passed on as they are.
	Front *Front
	// Names has the endpoints by server name; clients without a server name get the port's own.
	Names []Named

	// via distinguishes ports of the same ID and Listen: for one of Names, the port that has it and its server name.
	via string
}

// Pick is the algorithm by which a new connection gets its endpoint.
type Pick struct {
	By Algorithm
	// Weights has the weights of the endpoints, in their order; nil: all are alike.
	Weights []uint16
	// Refused is the part of new connections, from 0 to 1, that is refused.
	Refused float64
	// Choose, when not nil, returns the endpoint of a new connection by its client and the address that it connected
	// to, the zero AddrPort for one that is refused. When it is not ok, or that endpoint did not accept the connection,
	// By picks one.
	Choose func(client, asked netip.AddrPort) (endpoint netip.AddrPort, ok bool)
	// Affinity is the time that a client keeps its endpoint after its last new connection;
	// 0: no affinity. A client is an address (spec.sessionAffinity: ClientIP).
	Affinity time.Duration
}

// Algorithm picks an endpoint when neither Choose nor affinity does.
type Algorithm uint8

const (
	// Random draws by weight.
	Random Algorithm = iota
	// RoundRobin gives turns: in the order of the addresses, or where weights differ in the smooth order of nginx
	// (ngx_http_upstream_round_robin.c).
	RoundRobin
	// LeastConnection picks the endpoint with the fewest open connections for its weight; of several, in turn.
	// Connections of all Ports of the same ID and protocol count, from when their endpoint is picked.
	LeastConnection
)

// Connect has the parameters of TCP connections to endpoints.
type Connect struct {
	// Retries bounds the other endpoints that are tried for a connection that one did not accept
	// within Timeout, by default 5 s.
	Retries int
	Timeout time.Duration
	// ProxyProtocol is the version of the PROXY protocol whose header an endpoint gets before what
	// the client sends: 1 or 2; 0: none.
	ProxyProtocol int
	// Transparent has an endpoint see the client's address as the source (IP_TRANSPARENT), which needs
	// routes that deliver its answers here. One of another family than the client's, or that is the client
	// itself, sees the box.
	Transparent bool
}

// keeps reports whether connections to an endpoint live on.
func (p *Port) keeps(endpoint netip.AddrPort) bool {
	return slices.Contains(p.Endpoints, endpoint) || slices.Contains(p.Serving, endpoint)
}

func (p *Port) key() key { return key{p.ID, p.Protocol, p.Listen, p.via} }

// redirected reports whether the kernel sends clients to the port.
func (p *Port) redirected() bool { return p.Frontends != nil }

// Problem is a Port without a listener.
type Problem struct {
	ID      string
	Listen  netip.AddrPort
	Reason  string // one of the Reason constants
	Message string
}

// The reasons of Problems.
const (
	ReasonListen      = "LoopbackListenFailed" // retried every few seconds
	ReasonNotLoopback = "NotLoopback"          // the address to listen on is no loopback address
	ReasonProtocol    = "ProtocolNotRelayed"   // neither TCP nor UDP
)

// Front is the handling of TLS and HTTP between the clients of a port and its endpoints. Bytes go through the program then.
type Front struct {
	// TLS ends the TLS of clients; nil: they speak in the clear.
	TLS *tls.Config
	// BackendTLS begins TLS with endpoints; nil: they are spoken to in the clear.
	BackendTLS *tls.Config
	// HTTP has requests passed on one by one, which name the client in their header. An endpoint takes
	// ResponseTimeout at most to begin its answer.
	HTTP            bool
	ResponseTimeout time.Duration
	// Hosts are the hosts whose requests are passed on; nil: all are.
	Hosts []string
	// HTTP2 has requests passed on over HTTP/2 without TLS.
	HTTP2 bool
}

// Named has the endpoints for the clients of a port that ask for a server name.
type Named struct {
	// ServerName is in lower case; "*.example.com" stands for all names with one label more, "**.example.com" with one or
	// more, "*" for any
	// and for none.
	ServerName string
	// Port has the endpoints and their options; its Listen and Frontends are those of the port that names it.
	Port Port
}

// socketKey identifies a listening socket.
type socketKey struct {
	protocol string
	at       netip.AddrPort
}

// name names the socket to systemd.
func (k socketKey) name() string {
	return fmt.Sprintf("relay-%s-%s-%d", k.protocol, strings.ReplaceAll(k.at.Addr().String(), ":", "-"), k.at.Port())
}

// key identifies a listener: a change of it takes a new one.
type key struct {
	id, protocol string
	listen       netip.AddrPort
	via          string // Port.via
}
