package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Traffic lists ports of Services with their connections, from one scan of the connection tracking table:
// the answer of /svcctl/v1/traffic. The busiest ports come first. It has more than 15 fields: the results of a scan.
type Traffic struct {
	// At is the time of the scan. Clients share scans, and a large table is scanned rarely.
	At time.Time `json:"at"`
	// Seconds is the time since the previous scan, from which rates are computed; 0 in the first scan.
	Seconds float64 `json:"seconds"`
	// Tracked is the number of entries in the connection tracking table.
	Tracked int `json:"tracked"`
	// Node is the node name of the box. Verdict is the text of its status verdict, and States the number of its Services by state (ServiceFails and
	// others). Older versions do not send them.
	Node    string         `json:"node,omitempty"`
	Verdict string         `json:"verdict,omitempty"`
	States  map[string]int `json:"states,omitempty"`
	// Totals sums up all Service ports, including those that Ports leaves out.
	Totals ServiceTraffic `json:"totals"`
	Ports  []PortTraffic  `json:"ports"`
	// Counted reports that the kernel counts connections and refusals (--traffic counters).
	Counted bool `json:"counted"`
	// Flows is set when connections are reported as they end (--traffic flows).
	Flows bool `json:"flows"`
	// NoBytes is the reason that bytes are absent, "" if they are present.
	NoBytes string `json:"noBytes,omitempty"`
	// Refusals counts the packets that were refused or dropped since the start, by reason;
	// absent where they are not counted.
	Refusals map[string]uint64 `json:"refusals,omitempty"`
	// RefusalRates holds refused packets per second by reason, without zeros; absent in the first scan.
	RefusalRates map[string]float64 `json:"refusalRates,omitempty"`
	// Egress counts connections that endpoints opened themselves and that left the box with an address of their Service.
	Egress []EgressTraffic `json:"egress,omitempty"`
	// Routes lists the listeners, routes and backends of the ports of the Service in the query, if it was generated for a Gateway.
	Routes []string `json:"routes,omitempty"`
	// More counts the ports that were left out for the limit.
	More int `json:"more,omitempty"`
	// Clients has the clients of the Service in the query, if TrafficQuery.Clients is set.
	Clients *ServiceClients `json:"clients,omitempty"`
}

// ConnectionCounts counts the connections of a Service port or of one endpoint.
type ConnectionCounts struct {
	// Open counts connections that were answered and that neither side has closed.
	Open int `json:"open"`
	// Unanswered counts connections that the endpoint has not answered yet. If the number stays high, the
	// endpoint is dead although objects declare it.
	Unanswered int `json:"unanswered"`
	// Rate is the rate of new connections per second. For a port for which the kernel counts connections, it includes all of them; otherwise only
	// those that a scan found for the first time. It is absent in the first scan.
	Rate *float64 `json:"rate,omitempty"`
	// InRate and OutRate are the bytes per second sent by clients and by endpoints, including IP headers. They are absent in the first scan, and if
	// the kernel does not count bytes.
	InRate  *float64 `json:"bytesInRate,omitempty"`
	OutRate *float64 `json:"bytesOutRate,omitempty"`
	// FailedRate is the connections a second that an endpoint refused, or did not answer; absent in the first scan.
	FailedRate *float64 `json:"failedRate,omitempty"`
}

// Judged is the state of a Service in one word, and the reason for which it does not answer, or answers with a warning.
type Judged struct {
	State string `json:"state,omitempty"` // ServiceAnswers and others; absent in older versions
	Why   string `json:"why,omitempty"`
}

// TrafficTotals are the kernel's counts of a Service port. They continue over a restart, but not after a crash. They are absent
// where the kernel does not count.
type TrafficTotals struct {
	// Connections is the number of connections from clients. Refused is the number of packets that were refused or dropped because there was no
	// endpoint, including retries. Neither decreases while the Service exists.
	Connections *uint64 `json:"connections,omitempty"`
	Refused     *uint64 `json:"refused,omitempty"`
	// RefusedRate is refused packets a second; absent in the first scan.
	RefusedRate *float64 `json:"refusedRate,omitempty"`
}

// FlowTotals counts the connections, and their bytes, that began after the appliance started to read conntrack events. Open connections are included.
// The counts never decrease. They are absent without --traffic flows.
type FlowTotals struct {
	Flows *uint64 `json:"flows,omitempty"`
	// BytesIn and BytesOut are the bytes sent by clients and by endpoints, including IP headers. They are absent if the kernel does not count bytes.
	BytesIn  *uint64 `json:"bytesIn,omitempty"`
	BytesOut *uint64 `json:"bytesOut,omitempty"`
}

// EndpointStates counts the endpoints of a Service port.
type EndpointStates struct {
	// All is the number of endpoints that are ready according to their objects. Up is the number of those that are not down as far as the appliance
	// has found. Both are absent for UDP relays and in older versions.
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
	// Frontends lists the addresses that clients connect to: "192.0.2.10:80", or ":30080" for a node port. Load balancer IPs come first.
	Frontends []string `json:"frontends,omitempty"`
	// Check is the health check of its endpoints: "http:8080/healthz".
	Check string `json:"check,omitempty"`
	// Judged is the state of the Service, all its ports together.
	Judged
	ConnectionCounts
	TrafficTotals
	FlowTotals
	// Failed is the number of connections since the appliance started that an endpoint refused, or did not answer until the conntrack entry expired.
	// Connections that the client reset before the answer are included.
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
	// Failed is the number of failed connections to this endpoint; see PortTraffic.
	Failed uint64 `json:"failed"`
	// State is HealthDown or HealthOut, and Why its reason. Both are absent for other states.
	State string `json:"state,omitempty"`
	Why   string `json:"why,omitempty"`
	// Leaving is set if the endpoint no longer gets new connections.
	Leaving bool `json:"leaving,omitempty"`
	// Relay is set if this is not an endpoint but the listener of the appliance's relay, which connects to the endpoints.
	Relay bool `json:"relay,omitempty"`
	// Relayed is set if this is an endpoint behind a relay. Open is then the number of the relay's connections to it, or of its UDP clients. The
	// entry of the relay counts these connections too.
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
	Endpoint  string `json:"endpoint"` // address and port of the endpoint
	// RelayedTo lists the endpoints to which the relay has connections for this one, if Endpoint is the listener of the appliance's relay.
	RelayedTo []string `json:"relayedTo,omitempty"`
	// Out is set if the endpoint opened the connection to Client. To is then the address of the Service that Client sees as the source.
	Out bool `json:"out,omitempty"`
	// As is the source address that the endpoint sees, where that is not the client's.
	As string `json:"as,omitempty"`
	// State is the TCP state, as conntrack names it.
	State    string `json:"state,omitempty"`
	Answered bool   `json:"answered"`
	// Fast is set when its packets bypass rules and routing (--fast-path), or another program's flowtable forwards them.
	Fast bool `json:"fast,omitempty"`
	// Expires is the time without packets, in seconds, after which the kernel removes the entry.
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
	// Limit bounds the number of ports, and that of clients.
	Limit     int  `query:"limit" default:"100" least:"1" most:"10000"`
	Endpoints bool `query:"endpoints"` // include endpoints
	History   bool `query:"history"`   // include earlier scans
	Clients   bool `query:"clients"`   // include clients; requires Namespace and Service
	// Source restricts Traffic.Egress to this host, and requests its uplink; see EgressSource.
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
	// Counted is set if the latest scan counted clients. It does so only for Services with a previous request for their clients.
	Counted bool            `json:"counted"`
	Clients []ClientTraffic `json:"items"`
	More    int             `json:"more,omitempty"` // number of clients beyond the limit
}

// TrafficSorts lists the columns by which traffic can be sorted, in descending order; name is sorted alphabetically. By state, Services that do not
// answer come first, then those with a warning, then the rest by open connections.
func TrafficSorts() []string {
	return []string{"open", "rate", "unanswered", "refused", "name", "state", "bytes"}
}

// MaxTrafficFilter bounds the length of a filter in bytes. It is greater than the length of any Service port's name.
const MaxTrafficFilter = 512

// TrafficFilter reports whether a filter selects a Service port, "namespace/name" or "namespace/name:port". A filter without * matches any part of
// the text. A filter with *, which stands for any text, must match the whole. "" matches everything.
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
	From   time.Time // time of the first point
	Step   time.Duration
	Points []TrafficPoint
}

// TrafficPoint holds averages over one step: New, Refused and Failed in connections per second, and Open in connections. The first field is set if
// there was a scan during the step.
type TrafficPoint struct {
	Known                      bool
	New, Refused, Failed, Open float64
}
