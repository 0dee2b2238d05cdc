package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ServiceState is the state of one Service on this box: the answer of
// /svcctl/v1/service.
type ServiceState struct {
	// Ports are the Service's ports, once for each family that it is served in.
	Ports []PortState `json:"ports"`
	// InsideOnly are the frontends that only the box and internal clients reach: "10.96.0.10:80".
	InsideOnly []string `json:"insideOnly,omitempty"`
	// Unanswered are addresses of the Service for which no neighbor gets an answer.
	Unanswered []Unanswered `json:"unanswered,omitempty"`
	// Health has the states of endpoints with health checks, and of endpoints taken out by an annotation.
	Health []EndpointHealth `json:"health,omitempty"`
	// Announcements lists the addresses of the Service that lie in a pool, and how they are announced.
	Announcements []Announcement `json:"announcements,omitempty"`
	// Certificates lists the certificates that clients of its ports with TLS get.
	Certificates []ServiceCertificate `json:"certificates,omitempty"`
	// Declared is the source, file and line in a fleet that declare the Service, whichever box reads them: "lb:web.yaml:7", or
	// "lb:web.yaml" while the line is not known; "" if no file of a source declares it.
	Declared string `json:"declared,omitempty"`
	// Rollout is the rollout that changes the Service, as programmed on this box; nil if there is none.
	Rollout *ServiceRollout `json:"rollout,omitempty"`
	// NotStored is the position of the file content that declares the Service, if the appliance could not store it yet; otherwise nil.
	NotStored *NotStored `json:"notStored,omitempty"`
	// Bridged lists endpoints that get no answer if a connection of theirs to the Service is balanced to themselves.
	Bridged []BridgedEndpoint `json:"bridged,omitempty"`
	// Unrouted lists addresses of the Service to which the box has no route: its own programs do not reach them.
	Unrouted []string `json:"unrouted,omitempty"`
}

// BoxAddress is an address of the box.
type BoxAddress struct {
	Address string `json:"address"`
	// NodePorts is set when node ports answer there.
	NodePorts bool `json:"nodePorts,omitempty"`
}

// BridgedEndpoint is an endpoint behind a Linux bridge of the box for which br_netfilter passes bridged frames to the netfilter rules for routed
// packets.
type BridgedEndpoint struct {
	Address string `json:"address"`
	Bridge  string `json:"bridge"`
	// Setting is the sysctl that enables this behavior.
	Setting string `json:"setting"`
}

// ServiceCertificate is a certificate that clients of relayed ports get.
type ServiceCertificate struct {
	Secret  string    `json:"secret"` // "namespace/name"
	Names   []string  `json:"names"`
	Expires time.Time `json:"expires"`
}

// String formats Secret, names and expiry in one line.
func (c ServiceCertificate) String() string {
	return c.Secret + ", for " + strings.Join(c.Names, ", ") + ", until " + c.Expires.UTC().Format("2006-01-02 15:04 UTC")
}

// PortState is a port of a Service in one family. It has more than 15 fields: one for each property that clients show.
type PortState struct {
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol"` // TCP, UDP or SCTP
	Family   string `json:"family"`   // IPv4 or IPv6
	// Frontends are the addresses and node ports that the Service has got, of those that it
	// requests: "10.96.0.10:80", ":30080".
	Frontends []string `json:"frontends"`
	// Endpoints lists the endpoints that get new connections, such as "10.1.2.11:8080". Local lists those on this box, which frontends with traffic
	// policy Local use.
	Endpoints []string `json:"endpoints"`
	Local     []string `json:"local,omitempty"`
	// Balance is the balancing algorithm. Weights maps endpoints to their weights, if those are not 1.
	Balance string            `json:"balance,omitempty"`
	Weights map[string]uint16 `json:"weights,omitempty"`
	// Shares maps endpoints to their present share of the new connections, from 0 to 1. It is set only if shares vary, with open connections or
	// during a slow start. Starting lists the endpoints in slow start.
	Shares   map[string]float64 `json:"shares,omitempty"`
	Starting []string           `json:"starting,omitempty"`
	// Refused is the share of new connections that are refused, from 0 to 1: the share of backends without a usable endpoint.
	Refused float64 `json:"refused,omitempty"`
	// Adopted are the frontends whose TCP connections go on when another box takes over.
	Adopted []string `json:"adopted,omitempty"`
	// Fast is set when packets of established connections bypass rules and routing; otherwise Slow is the reason.
	Fast bool   `json:"fast,omitempty"`
	Slow string `json:"slow,omitempty"`
	// Relay is the address of the appliance's listener to which the kernel redirects clients; "" if the kernel translates addresses itself.
	Relay string `json:"relay,omitempty"`
	// RelayLoad counts the connections of the listener in Relay; nil if there is none.
	RelayLoad *RelayLoad `json:"relayLoad,omitempty"`
	// Client is the client in the query; Chosen has its endpoint at each frontend.
	Client string   `json:"client,omitempty"`
	Chosen []Chosen `json:"chosen,omitempty"`
}

// AllEndpoints returns Endpoints and Local, each once, sorted as text.
func (p *PortState) AllEndpoints() []string {
	all := slices.Concat(p.Endpoints, p.Local)
	slices.Sort(all)
	return slices.Compact(all)
}

// RelayLoad counts the connections, and the clients of UDP, of a relayed port.
type RelayLoad struct {
	// Taken is the number of connections, or UDP clients, accepted since the program began to serve the port. FailedConnects is the number of failed
	// attempts to connect to an endpoint.
	Taken          int64 `json:"taken"`
	FailedConnects int64 `json:"failedConnects"`
	// Open is the number of open connections, or UDP clients, of each endpoint, such as "10.1.2.11:8080".
	Open map[string]int `json:"open"`
}

// Chosen is the endpoint that a new connection of a client gets at a frontend, if the client
// is not remembered by session affinity.
type Chosen struct {
	Frontend string `json:"frontend"`
	// Endpoint is "" if it is random, or depends on a client port that was not given.
	Endpoint string `json:"endpoint,omitempty"`
	// Refused is set for a client in the share of a backend without a usable endpoint.
	Refused bool `json:"refused,omitempty"`
	// Excluded is set for a client whose packets are dropped: source ranges, source sets or the restriction to inside clients exclude it.
	Excluded bool `json:"excluded,omitempty"`
}

// Unanswered is an address in the network of one of the box's interfaces that is not assigned to any of them. Neighbors that ask for it by ARP or NDP
// get no answer.
type Unanswered struct {
	Address   string   `json:"address"`
	Interface string   `json:"interface"`
	Network   string   `json:"network"` // 192.0.2.0/24
	Services  []string `json:"services,omitempty"`
}

// NotStored is the position of a document in a file that could not be stored yet, and the reason.
type NotStored struct {
	File string `json:"file"`
	Line int    `json:"line,omitempty"`
	Why  string `json:"why"`
}

// Setup has the directories of an appliance, its certificate and its unanswered addresses: the
// answer of /svcctl/v1/setup, for svcctl doctor.
type Setup struct {
	DataDir   string   `json:"dataDir"`
	Manifests []string `json:"manifests"`
	// Certificate is the certificate in use at --listen; nil if there is no such listener.
	Certificate *Certificate `json:"certificate,omitempty"`
	// Unanswered lists the first addresses of Services for which neighbors get no answer, and
	// MoreUnanswered counts the others.
	Unanswered     []Unanswered `json:"unanswered,omitempty"`
	MoreUnanswered int          `json:"moreUnanswered,omitempty"`
	// Addresses lists the addresses of the box, loopback included.
	Addresses []BoxAddress `json:"addresses,omitempty"`
}

// Certificate is a certificate in use.
type Certificate struct {
	File    string    `json:"file,omitempty"` // "": made by the appliance
	Expires time.Time `json:"expires"`
	// Problem is why it should be looked at: it ends soon, or its successor cannot be used.
	Problem string `json:"problem,omitempty"`
	// Advice is a sentence with what to do about it.
	Advice string `json:"advice,omitempty"`
	// Bad is set when clients are refused, or the next start will fail.
	Bad bool `json:"bad,omitempty"`
}

// States of EndpointHealth.
const (
	HealthUp       = "up"
	HealthDown     = "down"
	HealthNew      = "new"       // did not answer yet
	HealthOut      = "out"       // taken out by an annotation
	HealthNotAsked = "not asked" // not checked yet; if Why is set, it cannot be checked on this host, or there are too many
)

// CheckOfFailures is the value of EndpointHealth.Check for an endpoint without a health check that is down because
// clients, and then the box itself, failed to connect to it.
const CheckOfFailures = "failed clients"

// Probed is the result of connecting from the box to an endpoint.
type Probed struct {
	Port     string   `json:"port,omitempty"`
	Protocol string   `json:"protocol"`
	Endpoint string   `json:"endpoint"` // 10.1.2.11:8080
	Took     Duration `json:"took"`
	// Why is the reason of the failure; absent if the endpoint accepted the connection.
	Why string `json:"why,omitempty"`
}

// Probes is the answer of /svcctl/v1/probe.
type Probes struct {
	Endpoints []Probed `json:"endpoints"`
}

// Health is the answer of /svcctl/v1/health.
type Health struct {
	Endpoints []EndpointHealth `json:"endpoints"`
}

// EndpointHealth is the state of one endpoint of a Service port according to one health check.
type EndpointHealth struct {
	Service  string `json:"service"` // namespace/name
	Port     string `json:"port,omitempty"`
	Protocol string `json:"protocol"` // TCP, UDP or SCTP
	Endpoint string `json:"endpoint"` // 10.1.2.11:8080
	State    string `json:"state"`    // up, down, new, out or "not asked"
	// Since is the start of the state; absent if that was before this process.
	Since *time.Time `json:"since,omitempty"`
	// Check is the health check as written in the Service's annotation, such as http:8080/healthz, or the equivalent of a readiness probe. If the
	// endpoint's Pod has several probes, the endpoint is listed once for each.
	Check string `json:"check,omitempty"`
	// Took is the duration of the last check. Why is the reason of its failure; absent if it succeeded.
	Took Duration `json:"took,omitempty"`
	Why  string   `json:"why,omitempty"`
	// Failures and Passes count the last results in a row; one of them is 0.
	Failures int `json:"failures,omitempty"`
	Passes   int `json:"passes,omitempty"`
	// Held is the time for which an endpoint that went down too often has to answer before it is up again.
	Held Duration `json:"held,omitempty"`
	// Ejected reports that svcctl.io/eject takes an endpoint out while it is down.
	Ejected bool `json:"ejected,omitempty"`
}

// Reasons describes why an endpoint is down or out, with the number of consecutive failures and the time for which it must pass its check.
func (e *EndpointHealth) Reasons() string {
	var words []string
	if e.Why != "" {
		words = append(words, e.Why)
	}
	if e.Failures > 1 {
		words = append(words, fmt.Sprintf("%d times", e.Failures))
	}
	if e.Held > 0 {
		words = append(words, fmt.Sprintf("fell often: has to answer for %s", time.Duration(e.Held)))
	}
	if e.State == HealthOut {
		words = append(words, "annotation svcctl.io/out")
	}
	return strings.Join(words, ", ")
}

// Environment are the environment variables for the Services of a namespace: the answer
// to /svcctl/v1/env.
type Environment struct {
	Namespace string     `json:"namespace"`
	Variables []Variable `json:"variables"` // ordered by Service; names are unique
}

// Variable is an environment variable.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// The kinds of a Pool.
const (
	PoolClusterIP    = "clusterIP"
	PoolNodePort     = "nodePort" // node ports and health-check node ports
	PoolLoadBalancer = "loadBalancer"
)

// Allocations are the ranges of addresses and ports with the holders of their values: the
// answer to /svcctl/v1/alloc.
type Allocations struct {
	Pools []Pool `json:"pools"`
	// Disagreements are the differences between allocations and Services.
	Disagreements []Disagreement `json:"disagreements"`
}

// Pool is one range.
type Pool struct {
	Kind   string `json:"kind"`             // clusterIP, nodePort or loadBalancer
	Family string `json:"family,omitempty"` // IPv4 or IPv6; left out for ports
	Range  string `json:"range"`            // 10.96.0.0/16, 30000-32767, 198.51.100.0-198.51.100.9
	// Name names the IPAddressPool, as metallb-system/lan; left out for ranges of flags.
	Name string `json:"name,omitempty"`
	// Internal is set if only internal clients can reach the addresses.
	Internal bool `json:"internal,omitempty"`
	// Size is the number of values in the range. Used is the number of allocated values; a node port counts once for all protocols. For an IPv6 /64
	// the numbers exceed 2^53, so that some JSON readers lose precision.
	Size uint64 `json:"size"`
	Used uint64 `json:"used"`
	// Held is the number of holders. Holders may have fewer, because a page of the dashboard lists only the first.
	Held int `json:"-"`
	// Holders are sorted by value. They include those outside the range, allocated before
	// the range was changed.
	Holders []Holder `json:"holders"`
}

// Holder is an allocated value with the Services that hold it.
type Holder struct {
	Value    string   `json:"value"`    // 10.96.0.10, TCP 30080
	Services []string `json:"services"` // default/web; several share a load balancer IP
	// Outside means that the value is not in the range.
	Outside bool `json:"outside,omitempty"`
}

// Disagreement is a value that is allocated to a Service which does not have it, or that
// a Service has without an allocation.
type Disagreement struct {
	Kind     string `json:"kind"` // see Pool.Kind
	Value    string `json:"value"`
	Service  string `json:"service"`
	Problem  string `json:"problem"`
	Repaired bool   `json:"repaired,omitempty"`
}

// TraceQuery selects the packets that a trace follows. A zero From, To or Port matches all.
type TraceQuery struct {
	From     Clients    `query:"from" want:"an address or a prefix as 203.0.113.0/24"`
	To       netip.Addr `query:"to" want:"an address"`
	Port     uint16     `query:"port" least:"1" most:"65535"`
	Protocol string     `query:"protocol"` // TCP, UDP or SCTP; "" means TCP if Port is set, else all
	// Established selects packets of already tracked connections instead of the first packets of new ones.
	Established bool `query:"established"`
	// Predict computes the path that a packet to To would take; no packet is followed.
	Predict bool `query:"predict"`
	// Count bounds the number of packets. Seconds bounds the duration of the trace.
	Count   int `query:"count" default:"5" least:"1" most:"1000"`
	Seconds int `query:"seconds" default:"30" least:"1" most:"60"`
}

// ErrTracing means that another trace is running; only one can run at a time.
var ErrTracing error = Conflict("another trace runs already: wait until it ends, a minute at most")

// Complete sets Protocol to TCP if only a port is given. It returns an error about invalid combinations of values.
func (q *TraceQuery) Complete() error {
	switch q.Protocol = strings.ToUpper(q.Protocol); q.Protocol {
	case "TCP", "UDP", "SCTP":
	case "":
		if q.Port != 0 {
			q.Protocol = "TCP"
		}
	default:
		return fmt.Errorf("protocol=%q: want TCP, UDP or SCTP", q.Protocol)
	}
	switch {
	case q.Predict && (!q.To.IsValid() || q.Port == 0):
		return errors.New("a prediction is of a packet to an address with a port: give to and port")
	case q.Predict && q.From.IsValid() && !q.From.IsSingleIP():
		return fmt.Errorf("from=%q: a prediction is of the packet of one client: want an address", q.From)
	case q.From.IsValid() && q.From.Addr().Is4In6() || q.To.Is4In6():
		return errors.New("from and to: write an IPv4 address as such")
	case q.From.IsValid() && q.To.IsValid() && q.From.Addr().Is4() != q.To.Is4():
		return errors.New("from and to: one address is IPv4 and the other IPv6")
	}
	return nil
}

// Clients is a prefix of client addresses. Its text form is a prefix or a single address.
type Clients struct{ netip.Prefix }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Clients) UnmarshalText(text []byte) (err error) {
	c.Prefix, err = ParseClients(string(text))
	return err
}

// ParseClients reads an address or a prefix.
func ParseClients(text string) (netip.Prefix, error) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix, nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q: want an address or a prefix as 203.0.113.0/24", text)
	}
	return netip.PrefixFrom(addr, addr.BitLen()), nil
}

// ParseBounded parses a number from 1 to most. It returns def for "".
func ParseBounded(text string, def, most int) (int, error) {
	if text == "" {
		return def, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("%q: want a number from 1 to %d", text, most)
	}
	return n, nil
}

// The states of a TraceLine.
const (
	TraceGood = "good"
	TraceWarn = "warning"
	TraceBad  = "bad"
	TraceNote = "note"
)

// TracedPacket is the path of one packet through the rules: a line of the answer of /svcctl/v1/trace.
type TracedPacket struct {
	What     string      `json:"what"` // "203.0.113.2:43882 -> 10.96.0.10:80/TCP, SYN, came in by ext0"
	From     string      `json:"from"`
	To       string      `json:"to"`
	Protocol string      `json:"protocol"`
	Service  string      `json:"service,omitempty"` // "default/web"
	Port     string      `json:"port,omitempty"`    // name of the Service port
	Lines    []TraceLine `json:"lines"`
	// Steps are the decisions of the kernel, those of other programs' tables included.
	Steps []TraceStep `json:"steps"`
}

// TraceLine is a sentence about the path of a packet.
type TraceLine struct {
	State string `json:"state"` // good, warning, bad or note
	Text  string `json:"text"`
	Where string `json:"where,omitempty"` // the chains, as "prerouting -> pick-3"
}

// TraceStep is a decision of a rule, or of the policy of a chain.
type TraceStep struct {
	Table   string `json:"table"` // "ip svcctl"
	Chain   string `json:"chain"`
	Rule    uint64 `json:"rule,omitempty"` // handle of the rule
	Verdict string `json:"verdict"`        // "goto pick-3"
	Policy  bool   `json:"policy,omitempty"`
}
