package wire

import "time"

// States of EndpointHealth.
const (
	HealthUp       = "up"
	HealthDown     = "down"
	HealthNew      = "new"       // did not answer yet
	HealthOut      = "out"       // taken out by an annotation
	HealthNotAsked = "not asked" // no check was made yet; or, with Why, none can be made on this host, or there are too many
)

// CheckOfFailures is EndpointHealth.Check of an endpoint without a health check that accepts no connection of the box,
// after connections of clients to it failed.
const CheckOfFailures = "failed clients"

// Probed is what a connection of the box to an endpoint came to.
type Probed struct {
	Port     string   `json:"port,omitempty"`
	Protocol string   `json:"protocol"`
	Endpoint string   `json:"endpoint"` // 10.1.2.11:8080
	Took     Duration `json:"took"`
	// Why is the failure; absent: it was accepted.
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

// EndpointHealth is the state of one endpoint of a Service port, by one check.
type EndpointHealth struct {
	Service  string `json:"service"` // namespace/name
	Port     string `json:"port,omitempty"`
	Protocol string `json:"protocol"` // TCP, UDP or SCTP
	Endpoint string `json:"endpoint"` // 10.1.2.11:8080
	State    string `json:"state"`    // up, down, new, out or "not asked"
	// Since is the begin of the state; absent: before this process.
	Since *time.Time `json:"since,omitempty"`
	// Check is as the Service's annotation has it, http:8080/healthz, or as the one that does what a
	// readiness probe says. An endpoint whose Pod has several probes is there for each.
	Check string `json:"check,omitempty"`
	// Took is the duration of the last check, and Why its failure.
	Took Duration `json:"took,omitempty"`
	Why  string   `json:"why,omitempty"`
	// Failures and Passes count the last results in a row; one of them is 0.
	Failures int `json:"failures,omitempty"`
	Passes   int `json:"passes,omitempty"`
	// Held is for how long an endpoint has to answer before it is up again, as it fell too often.
	Held Duration `json:"held,omitempty"`
	// Ejected reports that svcctl.io/eject takes an endpoint out while it is down.
	Ejected bool `json:"ejected,omitempty"`
}
