package wire

import "net/netip"

// TraceQuery chooses the packets that /svcctl/v1/trace follows. What is zero is not asked.
type TraceQuery struct {
	From     netip.Prefix
	To       netip.Addr
	Port     uint16
	Protocol string // TCP, UDP or SCTP
	// Established follows packets of connections that are tracked already.
	Established bool
	// Predict tells what would become of a packet to To, and follows none.
	Predict bool
	// Count is how many packets, Seconds how long at most.
	Count, Seconds int
}

// The states of a TraceLine.
const (
	TraceGood = "good"
	TraceWarn = "warning"
	TraceBad  = "bad"
	TraceNote = "note"
)

// TracedPacket is the story of one packet: a line of the answer of /svcctl/v1/trace.
type TracedPacket struct {
	What     string      `json:"what"` // "203.0.113.2:43882 -> 10.96.0.10:80/TCP, SYN, came in by ext0"
	From     string      `json:"from"`
	To       string      `json:"to"`
	Protocol string      `json:"protocol"`
	Lines    []TraceLine `json:"lines"`
	// Steps are the decisions of the kernel, those of other programs' tables included.
	Steps []TraceStep `json:"steps"`
}

// TraceLine is a sentence of the story.
type TraceLine struct {
	State string `json:"state"` // good, warning, bad or note
	Text  string `json:"text"`
	Where string `json:"where,omitempty"` // the chains, as "prerouting -> pick-3"
}

// TraceStep is a decision of a rule, or of the policy of a chain.
type TraceStep struct {
	Table   string `json:"table"` // "ip svcctl"
	Chain   string `json:"chain"`
	Rule    uint64 `json:"rule,omitempty"` // its handle
	Verdict string `json:"verdict"`        // "goto pick-3"
	Policy  bool   `json:"policy,omitempty"`
}
