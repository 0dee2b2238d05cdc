package health

import (
	"net/netip"
	"time"
)

// Kind is the protocol of a Check.
type Kind uint8

// The kinds of checks.
const (
	TCP   Kind = iota + 1 // a SYN-ACK came
	TLS                   // a handshake was done
	HTTP                  // the status is in range
	HTTPS                 // HTTP in TLS
	GRPC                  // grpc.health.v1 says SERVING
	DNS                   // an answer with NOERROR
	UDP                   // the expected answer came, or no refusal
	ICMP                  // an echo reply came
)

var kindNames = [...]string{"", TCP: "tcp", TLS: "tls", HTTP: "http", HTTPS: "https", GRPC: "grpc", DNS: "dns", UDP: "udp", ICMP: "icmp"}

// String is the kind as users write it.
func (k Kind) String() string { return kindNames[k] }

// Check is one kind of health check with its parameters and thresholds. It is comparable:
// endpoints that are asked alike are asked once.
type Check struct {
	Kind Kind
	// Path is requested by HTTP and HTTPS.
	Path string
	// Host is the HTTP header Host and the server name of TLS; "" for the address.
	Host string
	// Name is asked for by DNS, and the service name of GRPC.
	Name string
	// Status are the passing HTTP status codes, as "200-399" or "200,204,300-399".
	Status string
	// Send is the payload over UDP; Expect must be in an answer (UDP, HTTP body).
	Send, Expect string
	// Headers are header lines of an HTTP request, each ended by "\n".
	Headers string
	// Verify makes a certificate that the system does not trust a failure.
	Verify bool

	Interval, Timeout time.Duration
	// Rise and Fall are how many passes or failures in a row change the state.
	Rise, Fall int
}

// Target is an address with how it is asked. The port is 0 for ICMP.
type Target struct {
	Addr  netip.AddrPort
	Check Check
}

// State is whether a Target answers.
type State uint8

// The states.
const (
	New  State = iota // did not answer yet
	Up                // answers
	Down              // does not
)

var stateNames = [...]string{New: "new", Up: "up", Down: "down"}

// String is the state as users see it.
func (s State) String() string { return stateNames[s] }

// Outcome classifies the end of one probe.
type Outcome uint8

// The outcomes.
const (
	Pass    Outcome = iota
	Refused         // an answer that says no: a refusal, a reset, a wrong status
	Silent          // no answer within the timeout
	Void            // not made, for a reason that lies on this host: it counts for nothing
)

var outcomeNames = [...]string{Pass: "pass", Refused: "refused", Silent: "silent", Void: "void"}

// String is the outcome as metrics have it.
func (o Outcome) String() string { return outcomeNames[o] }

// Result describes the end of one probe.
type Result struct {
	Outcome Outcome
	// Why is the reason of a failure, without any byte that the server sent; "" for a pass.
	Why  string
	Took time.Duration
}

// Verdict is the state of a Target, with why.
type Verdict struct {
	State State
	// Assumed reports that the Target began as up and did not pass since.
	Assumed bool
	// Since is the begin of the state; zero when it began before this process.
	Since time.Time
	Last  Result
	// Asked reports that a probe was made since the process started, and NotMade is why the last one was not; "": it was.
	Asked   bool
	NotMade string
	// Failures and Passes count the last results in a row.
	Failures, Passes int
	// Held is the time for which a Target that went down too often has to pass before it is up; or
	// 0.
	Held time.Duration
}
