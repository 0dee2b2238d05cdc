package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Traffic lists ports of Services with their connections, from one look through the connection tracking table:
// the answer of /svcctl/v1/traffic. The busiest ports come first. It has more than 15 fields: what one look finds.
type Traffic struct {
	// At is the time at which the table was read. Looks are shared, and made rarely where the table
	// is large.
	At time.Time `json:"at"`
	// Seconds is the time since the look before, the base of rates, 0 if there was none yet.
	Seconds float64 `json:"seconds"`
	// Tracked counts the entries of the table.
	Tracked int `json:"tracked"`
	// Node is the box, Verdict the answer of its status in one line, and States counts its Services by state (ServiceFails and
	// others); all are absent of older versions.
	Node    string         `json:"node,omitempty"`
	Verdict string         `json:"verdict,omitempty"`
	States  map[string]int `json:"states,omitempty"`
	// Totals are of all Service ports, also of those that Ports leaves out.
	Totals ServiceTraffic `json:"totals"`
	Ports  []PortTraffic  `json:"ports"`
	// Counted reports that the kernel counts connections and refusals (--traffic counters).
	Counted bool `json:"counted"`
	// Flows is set when connections are reported as they end (--traffic flows).
	Flows bool `json:"flows"`
	// NoBytes is the reason that bytes are absent, "" if they are present.
	NoBytes string `json:"noBytes,omitempty"`
	// Refusals are packets that were refused or dropped in all, by reason;
	// absent where they are not counted.
	Refusals map[string]uint64 `json:"refusals,omitempty"`
	// RefusalRates are packets a second, of reasons with any; absent where there was no look before.
	RefusalRates map[string]float64 `json:"refusalRates,omitempty"`
	// Egress has the connections that endpoints began themselves and that left with an address of their Service.
	Egress []EgressTraffic `json:"egress,omitempty"`
	// Routes are the listeners, routes and backends behind the ports of the one Service that was asked for, if it is of a Gateway.
	Routes []string `json:"routes,omitempty"`
	// More counts the ports that were left out for the limit.
	More int `json:"more,omitempty"`
	// Clients has the clients of the one Service that was asked for, if they were asked for.
	Clients *ServiceClients `json:"clients,omitempty"`
}

// ConnectionCounts counts the connections of a Service port or of one endpoint.
type ConnectionCounts struct {
	// Open counts connections that were answered and that neither side has closed.
	Open int `json:"open"`
	// Unanswered counts connections that the endpoint has not answered yet. If they stay, it is
	// dead though it is in the documents.
	Unanswered int `json:"unanswered"`
	// Rate is new connections a second, of a port as the kernel counted them, else those that
	// lasted from one look to the next; absent where there was no look before.
	Rate *float64 `json:"rate,omitempty"`
	// InRate and OutRate are bytes a second that clients and endpoints sent, with IP headers; absent where there was no look
	// before, or the kernel does not count bytes.
	InRate  *float64 `json:"bytesInRate,omitempty"`
	OutRate *float64 `json:"bytesOutRate,omitempty"`
	// FailedRate is the connections a second that an endpoint refused, or did not answer; absent where there was no look before.
	FailedRate *float64 `json:"failedRate,omitempty"`
}

// Judged is the state of a Service in one word, and the reason for which it does not answer, or answers with a warning.
type Judged struct {
	State string `json:"state,omitempty"` // ServiceAnswers and others; absent of older versions
	Why   string `json:"why,omitempty"`
}

// TrafficTotals are the kernel's counts of a Service port. They continue over a restart, but not after a crash. They are absent
// where the kernel does not count.
type TrafficTotals struct {
	// Connections counts the connections that clients made, and Refused
	// the packets that were refused or dropped without an endpoint: a client that tries again
	// counts again. Neither decreases while the Service exists.
	Connections *uint64 `json:"connections,omitempty"`
	Refused     *uint64 `json:"refused,omitempty"`
	// RefusedRate is refused packets a second; absent where there was no look before.
	RefusedRate *float64 `json:"refusedRate,omitempty"`
}

// FlowTotals count connections, and their bytes, that began since the appliance listens to the kernel's messages about them,
// those that are open included. They never go back. They are absent without --traffic flows.
type FlowTotals struct {
	Flows *uint64 `json:"flows,omitempty"`
	// BytesIn counts the bytes that clients sent, and BytesOut those of endpoints, with IP headers; absent where the
	// kernel does not count them.
	BytesIn  *uint64 `json:"bytesIn,omitempty"`
	BytesOut *uint64 `json:"bytesOut,omitempty"`
}

// EndpointStates counts the endpoints of a Service port.
type EndpointStates struct {
	// Up counts those that are not known to be down, of All that its documents call ready; absent of UDP relays and
	// older versions.
	Up  int `json:"up"`
	All int `json:"all"`
}

// ServiceTraffic is the traffic of all ports of a Service together.
type ServiceTraffic struct {
	ConnectionCounts
	TrafficTotals
}

// PortTraffic is a port of a Service, both families together.
type PortTraffic struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Port      string `json:"port,omitempty"`
	Protocol  string `json:"protocol"`
	// Frontends are what clients connect to: "192.0.2.10:80", or ":30080" of a node port; those of load balancers come first.
	Frontends []string `json:"frontends,omitempty"`
	// Check is the health check of its endpoints: "http:8080/healthz".
	Check string `json:"check,omitempty"`
	// Judged is of its Service, all ports together.
	Judged
	ConnectionCounts
	TrafficTotals
	FlowTotals
	// Failed counts the connections that an endpoint refused, or did not answer until the kernel forgot them, since the
	// appliance started. A client that resets its own SYN counts as refused.
	Failed    uint64            `json:"failed"`
	States    *EndpointStates   `json:"states,omitempty"`
	Endpoints []EndpointTraffic `json:"endpoints,omitempty"`
	History   []TrafficSample   `json:"history,omitempty"`
}

// EndpointTraffic is an endpoint of a Service port.
type EndpointTraffic struct {
	Endpoint string `json:"endpoint"` // "10.1.2.11:8080"
	ConnectionCounts
	FlowTotals
	// Failed is that of PortTraffic, of this endpoint.
	Failed uint64 `json:"failed"`
	// State is HealthDown or HealthOut, or absent, and Why the reason.
	State string `json:"state,omitempty"`
	Why   string `json:"why,omitempty"`
	// Leaving reports that it gets no new connections any more.
	Leaving bool `json:"leaving,omitempty"`
	// Relay reports that it is the appliance's own listener, which makes the connections to endpoints.
	Relay bool `json:"relay,omitempty"`
	// Relayed reports that it is such an endpoint: Open has the connections to it, or the clients of UDP, which
	// the listener has too.
	Relayed bool `json:"relayed,omitempty"`
}

// TrafficSample has the counts of an earlier reading.
type TrafficSample struct {
	At   time.Time `json:"at"`
	Open int       `json:"open"`
	Rate *float64  `json:"rate,omitempty"`
}

// Connections are tracked connections: the answer of /svcctl/v1/conns.
type Connections struct {
	At          time.Time    `json:"at"`
	Connections []Connection `json:"connections"`
	// More counts the connections that were left out for the limit.
	More int `json:"more,omitempty"`
}

// Connection is one tracked connection through a Service.
type Connection struct {
	ID        uint32 `json:"id"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Port      string `json:"port,omitempty"`
	Protocol  string `json:"protocol"`
	Client    string `json:"client"`   // "203.0.113.2:43882"
	To        string `json:"to"`       // what the client connected to
	Endpoint  string `json:"endpoint"` // the answering side
	// RelayedTo are the endpoints of a relayed connection, whose Endpoint is the appliance's own listener: those that the
	// appliance has connections to for it.
	RelayedTo []string `json:"relayedTo,omitempty"`
	// Out reports that the endpoint began it, and leaves with an address of the Service: To, as Client sees it.
	Out bool `json:"out,omitempty"`
	// As is the source address that the endpoint sees, where that is not the client's.
	As string `json:"as,omitempty"`
	// State is the TCP state, as conntrack names it.
	State    string `json:"state,omitempty"`
	Answered bool   `json:"answered"`
	// Fast is set when its packets pass rules and routing by (--fast-path), or another program's flowtable forwards them.
	Fast bool `json:"fast,omitempty"`
	// Expires is the silence, in seconds, after which it is forgotten.
	Expires int `json:"expires"`
}

// TrafficQuery chooses and sorts the rows of Traffic.
type TrafficQuery struct {
	Namespace string `query:"namespace"` // "": all
	Service   string `query:"name"`      // "": all
	// Filter chooses ports of Services by their names; see TrafficFilter.
	Filter string `query:"filter"`
	// Sort is one of TrafficSorts.
	Sort string `query:"sort" default:"open"`
	// Limit is the most ports, and the most clients.
	Limit     int  `query:"limit" default:"100" least:"1" most:"10000"`
	Endpoints bool `query:"endpoints"` // with endpoints
	History   bool `query:"history"`   // with earlier readings
	Clients   bool `query:"clients"`   // with clients of the one Service that is named
	// Source has Egress be about this host alone, with its uplink.
	Source netip.Addr `query:"source" want:"an address"`
}

// Complete returns an error about values that are out of bounds, or do not go together.
func (q *TrafficQuery) Complete() error {
	switch {
	case !slices.Contains(TrafficSorts(), q.Sort):
		return fmt.Errorf("sort=%q: want %s", q.Sort, strings.Join(TrafficSorts(), ", "))
	case q.Clients && (q.Namespace == "" || q.Service == ""):
		return errors.New("clients=true: they are those of one Service: give namespace and name")
	case len(q.Filter) > MaxTrafficFilter:
		return fmt.Errorf("filter: it is %d bytes long, %d is the most", len(q.Filter), MaxTrafficFilter)
	}
	return nil
}

// ClientTraffic has the connections of one client of a Service.
type ClientTraffic struct {
	Client     string `json:"client"` // its address
	Open       int    `json:"open"`
	Unanswered int    `json:"unanswered"`
}

// ServiceClients are the clients of a Service, the busiest first.
type ServiceClients struct {
	// Counted reports that the newest look has them: they are counted for Services that are asked for, from the next look on.
	Counted bool            `json:"counted"`
	Clients []ClientTraffic `json:"items"`
	More    int             `json:"more,omitempty"` // left out for the limit
}

// TrafficSorts lists the columns that traffic is sorted by, the largest first; name is alphabetical. With state Services that do
// not answer come first, then those with a warning, then the others by open connections.
func TrafficSorts() []string {
	return []string{"open", "rate", "unanswered", "refused", "name", "state", "bytes"}
}

// MaxTrafficFilter bounds a filter, in bytes: longer than any name of a port.
const MaxTrafficFilter = 512

// TrafficFilter reports whether a port of a Service, "namespace/name" or "namespace/name:port", is one that a filter chooses: a
// part of that, or, with *, which stands for any text, all of it. "" chooses all.
func TrafficFilter(filter, port string) bool {
	first, rest, pattern := strings.Cut(strings.ToLower(filter), "*")
	if !pattern {
		return strings.Contains(port, first)
	}
	port, found := strings.CutPrefix(port, first)
	parts := strings.Split(rest, "*")
	for _, part := range parts[:len(parts)-1] {
		if !found {
			return false
		}
		_, port, found = strings.Cut(port, part)
	}
	return found && strings.HasSuffix(port, parts[len(parts)-1])
}

// ConnectionQuery chooses connections.
type ConnectionQuery struct {
	Namespace, Service string // "": all
	Endpoint           netip.AddrPort
	EndpointAddr       netip.Addr
	Client             netip.Prefix
	Limit              int
}

// TrafficGraph is traffic over time, of a Service or of all.
type TrafficGraph struct {
	From   time.Time // of the first point
	Step   time.Duration
	Points []TrafficPoint
}

// TrafficPoint is the mean of a step: connections a second, and open ones. Known is set where they were read.
type TrafficPoint struct {
	Known                      bool
	New, Refused, Failed, Open float64
}
