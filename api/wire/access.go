package wire

import (
	"cmp"
	"time"
)

// The reasons of a Failure that are about the user.
const ()

// TokenRequest is the body of POST /svcctl/v1/token.
type TokenRequest struct {
	Role     string   `json:"role,omitempty"`     // admin, endpoints or reader; empty: the role of the requesting user
	Duration Duration `json:"duration,omitempty"` // how long it is to be valid; 0 is an hour
	Name     string   `json:"name,omitempty"`     // what it is for, as the journal shows it
}

// Token is the answer to a TokenRequest.
type Token struct {
	Token   string    `json:"token"`
	User    string    `json:"user"` // its holder
	Role    string    `json:"role"`
	Expires time.Time `json:"expires"` // in UTC
}

// Revoked is the answer to DELETE /svcctl/v1/token: all earlier tokens are invalid.
type Revoked struct {
	Revoked bool `json:"revoked"`
	// Pending is where and why they are still valid; "": nowhere.
	Pending string `json:"pending,omitempty"`
}

// Endpoint is the TLS endpoint of the API: the answer to /svcctl/v1/endpoint.
type Endpoint struct {
	// Server is the URL for clients on this host.
	Server string `json:"server"`
	// CertificateAuthority is the certificate of the server's own CA in PEM; empty if the
	// operator provides the server's certificate.
	CertificateAuthority string `json:"certificateAuthority,omitempty"`
}

// JournalEntry is one change of an object: a line of the answer to /svcctl/v1/journal.
type JournalEntry struct {
	Revision  uint64    `json:"revision"`
	Time      time.Time `json:"time"` // in UTC
	Verb      string    `json:"verb"` // create, update or delete; patch and apply where a client asked for it
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	// The author: a user of the API with field manager and User-Agent, a file, or a
	// controller of the appliance.
	User       string `json:"user,omitempty"`
	Manager    string `json:"manager,omitempty"`
	Agent      string `json:"agent,omitempty"`
	File       string `json:"file,omitempty"`
	Controller string `json:"controller,omitempty"`
}

// Author returns the author: "root (kubectl-edit)", a file, or "the endpoints controller".
func (e *JournalEntry) Author() string {
	switch {
	case e.Controller != "":
		return "the " + e.Controller + " controller"
	case e.User != "" && e.Manager != "":
		return e.User + " (" + e.Manager + ")"
	}
	return cmp.Or(e.User, e.File, "svcctl")
}

// History is what happened on this box: the answer to /svcctl/v1/history.
type History struct {
	At time.Time `json:"at"` // the clock of the box, in UTC
	// From is the time from which on it is known.
	From    time.Time      `json:"from"`
	Entries []HistoryEntry `json:"entries"` // the oldest first
}

// HistoryEntry is a change of a problem, of the health of an endpoint, of a Service, or of an announcement; several of one
// cause within seconds are one entry. Changes of objects are in the journal.
type HistoryEntry struct {
	Time time.Time `json:"time"` // in UTC
	Kind string    `json:"kind"` // problem, endpoint, condition (of Services) or announcement
	// Severity is error or warning for a fault, "" for its end, or for good news.
	Severity string `json:"severity,omitempty"`
	// Text is the whole in words: "10.1.2.12:8080 of shop/web and 10 others went down: connection refused".
	Text string `json:"text"`
	// Services are the first that it is about, "namespace/name", and Concerned counts all.
	Services  []string `json:"services,omitempty"`
	Concerned int      `json:"concerned,omitempty"`
}
