package dashboard

import (
	"context"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// Source provides the content of the pages. Its methods may be called concurrently.
type Source interface {
	Status() wire.Status
	// Services returns the Services that match a Query.
	Services(Query) (*Services, error)
	// Busiest returns at most the given number of Services, those with the most new connections first. It leaves out Services without traffic.
	Busiest(most int) ([]Row, error)
	// Service returns a Service, nil when there is none of that name.
	Service(namespace, name string) (*Service, error)
	// Box returns the numbers of the box.
	Box() (Box, error)
	// Graph returns the traffic of the last 15 minutes or of a day, of the Service "namespace/name", or of all Services if that is "".
	Graph(service string, day bool) wire.TrafficGraph
	// Happened returns the newest events of a Service, or of all Services (""), newest first. For admins they include changes of objects.
	Happened(namespace, name string, since time.Duration, limit int, admin bool) []Event
	Connections(wire.ConnectionQuery) (*wire.Connections, error)
	Allocations() wire.Allocations
	// Journal returns the newest changes of objects, at most limit, oldest first.
	Journal(limit int) ([]wire.JournalEntry, error)
	// Trace calls each for every packet that it follows, until the packet count or the time in the query is reached or ctx is done. If the query asks
	// for a prediction, it instead calls each once with the predicted path of a packet. It returns wire.ErrTracing while another trace is running.
	Trace(ctx context.Context, q wire.TraceQuery, each func(wire.TracedPacket)) error
}

// Query chooses the Services of a list.
type Query struct {
	Namespace string
	// Search is a part of a name or of an address; "" for all.
	Search string
	State  string // one of states
	Sort   string // one of sorts
	Page   int    // number of the page, from 1
}

// PageRows is the number of Services on a page.
const PageRows = 100

// MostClients bounds the clients on the page of a Service.
const MostClients = 20

// The sort orders of a list of Services. byState puts Services with problems first.
const (
	byState   = "state"
	byName    = "name"
	byOpen    = "open"
	byRate    = "rate"
	byRefused = "refused"
)

var sorts = []string{byState, byName, byOpen, byRate, byRefused}

// The state filters of a list of Services.
const (
	stateBad       = "bad"
	stateWarn      = "warning"
	stateGood      = "good"
	stateUnchecked = "unchecked"
)

var states = []string{"", stateBad, stateWarn, stateGood, stateUnchecked}

// Services is one page of the list of Services, and the size of the list.
type Services struct {
	Rows       []Row
	Total      int // number of Services that match the Query
	Namespaces []string
}

// Row is a Service in a list.
type Row struct {
	Namespace, Name, Type string
	Addresses             []string // cluster IPs, external and load balancer IPs
	Ports                 []string // "80/TCP", "80:30080/TCP"
	// Up is the number of endpoints that get new connections and that no health check found down, and All the number of all endpoints. Up is -1 if no
	// port of the Service is served.
	Up, All int
	// Unchecked is set for a Service with endpoints and without health checks.
	Unchecked bool
	// State is a state of a Service in package wire, such as wire.ServiceAnswers. Reason and Why are the reason and message of its worst problem.
	State, Reason, Why string
	wire.ServiceTraffic
	// Graph is its traffic of the last 15 minutes.
	Graph wire.TrafficGraph
}

// Box has the numbers of the overview.
type Box struct {
	wire.ServiceTraffic       // totals of all Services
	Tracked, MostTracked int  // tracked connections, and the most that the kernel tracks; 0: unknown
	Counted              bool // whether the kernel counts connections and refusals
	Announced, Addresses int  // numbers of announced addresses and of those to announce
}

// Event is an entry of the history: a change of state, with its time and text.
type Event struct {
	At    time.Time
	Level string // good, warn, bad; "": a change of objects
	Text  string
	Mark  bool // shown as a mark in graphs
}

// Span is a time in which an endpoint was down.
type Span struct {
	From, To time.Time
	Why      string
}

// Service has everything that the page of a Service shows.
type Service struct {
	Row
	State    wire.ServiceState
	Clients  wire.ServiceClients // at most MostClients
	Ports    []wire.PortTraffic
	Routes   []string // routes, if it serves a Gateway; see wire.Traffic
	Problems []wire.Problem
	// File and Line are the position of the manifest that declares the Service; File is "" if it was created through the API.
	File string
	Line int
	// Managers own fields of it (metadata.managedFields).
	Managers    []string
	Annotations map[string]string
	// Checks are the lines of `svcctl explain` about it, in order.
	Checks []Check
	// Down holds the periods during which endpoints were down, keyed by ADDRESS:PORT. The record begins at the time in the next field.
	Down  map[string][]Span
	Known time.Time
}

// Check is a finding of explain.
type Check struct {
	Level   string // good, warn or bad
	Text    string
	Details []string
	Next    string // what to do; "": nothing
}
