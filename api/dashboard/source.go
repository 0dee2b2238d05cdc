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
	// Busiest returns the Services with the most new connections first, at most so many, without those that have no traffic.
	Busiest(most int) ([]Row, error)
	// Service returns a Service, nil when there is none of that name.
	Service(namespace, name string) (*Service, error)
	// Box returns the numbers of the box.
	Box() (Box, error)
	// Graph returns the traffic of the last 15 minutes, or of a day, of a Service, "namespace/name", or of all ("").
	Graph(service string, day bool) wire.TrafficGraph
	// Happened returns the newest events, the newest first, of a Service or of all (""), with changes of objects for admins.
	Happened(namespace, name string, since time.Duration, limit int, admin bool) []Event
	Connections(wire.ConnectionQuery) (*wire.Connections, error)
	Allocations() wire.Allocations
	// Journal gives the newest changes, the oldest first.
	Journal(limit int) ([]wire.JournalEntry, error)
	// Trace calls each for every packet that it follows, until the number or the time of the query is reached or ctx is done; or it predicts the
	// path of one packet. While another trace is under way it returns wire.ErrTracing.
	Trace(ctx context.Context, q wire.TraceQuery, each func(wire.TracedPacket)) error
}

// Query chooses the Services of a list.
type Query struct {
	Namespace string
	// Search is a part of a name or of an address; "" for all.
	Search string
	State  string // one of states
	Sort   string // one of sorts
	Page   int    // from 1
}

// PageRows is the number of Services on a page.
const PageRows = 100

// MostClients bounds the clients on the page of a Service.
const MostClients = 20

// The orders of a list. byState has Services in trouble first.
const (
	byState   = "state"
	byName    = "name"
	byOpen    = "open"
	byRate    = "rate"
	byRefused = "refused"
)

var sorts = []string{byState, byName, byOpen, byRate, byRefused}

// The choices of a list by state.
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
	// Up counts, of All endpoints, those that new connections go to and that no check found down; -1 when no port of the Service is served.
	Up, All int
	// Unchecked is set for a Service with endpoints and without health checks.
	Unchecked bool
	// State is one of wire.ServiceAnswers and the like, Reason and Why those of the worst problem.
	State, Reason, Why string
	wire.ServiceTraffic
	// Graph is its traffic of the last 15 minutes.
	Graph wire.TrafficGraph
}

// Box has the numbers of the overview.
type Box struct {
	wire.ServiceTraffic       // of all Services
	Tracked, MostTracked int  // tracked connections, and the most that the kernel tracks; 0: unknown
	Counted              bool // the kernel counts connections and refusals
	Announced, Addresses int  // numbers of addresses that are announced, and that are to be
}

// Event is an entry of the history: a change of state, with its time and text.
type Event struct {
	At    time.Time
	Level string // good, warn, bad; "": a change of objects
	Text  string
	Mark  bool // it is shown in graphs
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
	Routes   []string // of a Gateway, see wire.Traffic
	Problems []wire.Problem
	// File and Line are where it is declared; "" for a Service of the API.
	File string
	Line int
	// Managers own fields of it (metadata.managedFields).
	Managers    []string
	Annotations map[string]string
	// Checks are the lines of `svcctl explain` about it, in order.
	Checks []Check
	// Down has the times in which endpoints were down, by address and port, as far as that is known: from Known on.
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
