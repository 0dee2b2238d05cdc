package dashboard

import (
	"context"

	"svcctl.io/svcctl/api/wire"
)

// Source provides the content of the pages. Its methods may be called concurrently.
type Source interface {
	Status() wire.Status
	// Services returns the Services that match a Query.
	Services(Query) (*Services, error)
	// Busiest returns at most that many of the first Services in an order (one of those of a list)
	// among the listed ones, with their History.
	Busiest(order string, most int, listed func(*wire.ServiceTraffic) bool) ([]Row, error)
	// Service is nil when there is none of that name.
	Service(namespace, name string) (*Service, error)
	Connections(wire.ConnectionQuery) (*wire.Connections, error)
	Allocations() wire.Allocations
	// Journal gives the newest changes, the oldest first.
	Journal(limit int) ([]wire.JournalEntry, error)
	// Trace follows packets, until there were so many, the time is over, or ctx is done, or predicts one. While another trace is
	// under way it returns wire.ErrTracing.
	Trace(ctx context.Context, q wire.TraceQuery, each func(wire.TracedPacket)) error
}

// Query chooses the Services of a list.
type Query struct {
	Namespace string
	// Search is a part of a name or of an address; "" for all.
	Search string
	// Problems leaves out Services that nothing is wrong with.
	Problems bool
	Sort     string // one of sorts
	Page     int    // from 1
}

// PageRows is the number of Services on a page.
const PageRows = 100

// MostClients bounds the clients on the page of a Service.
const MostClients = 20

// The orders of a list.
const (
	byName       = "name"
	byOpen       = "open"
	byRate       = "rate"
	byUnanswered = "unanswered"
	byRefused    = "refused"
)

var sorts = []string{byName, byOpen, byRate, byUnanswered, byRefused}

// Services are a page of a list.
type Services struct {
	Rows       []Row
	Total      int // that match
	Namespaces []string
}

// Row is a Service in a list.
type Row struct {
	Namespace, Name, Type string
	Addresses             []string // cluster IPs, external and load balancer IPs
	Ports                 []string // "80/TCP", "80:30080/TCP"
	// Endpoints are addresses that new connections go to; -1 where there are none to have.
	Endpoints int
	// State is one of wire.ServiceAnswers and the like, and Why the message of the worst problem.
	State, Why string
	wire.ServiceTraffic
	// History has the findings of the last looks, the oldest first; lists do not have it.
	History []wire.TrafficSample
}

// Service has everything that the page of a Service shows.
type Service struct {
	Row
	State    wire.ServiceState
	Clients  wire.ServiceClients // at most MostClients
	Ports    []wire.PortTraffic
	Problems []wire.Problem
	// File and Line are where it is declared; "" for a Service of the API.
	File string
	Line int
	// Managers own fields of it (metadata.managedFields).
	Managers    []string
	Annotations map[string]string
	// Checks are the lines of `svcctl explain` about it, in order.
	Checks []Check
}

// Check is a finding of explain.
type Check struct {
	Level   string // good, warn or bad
	Text    string
	Details []string
	Next    string // what to do; "": nothing
}
