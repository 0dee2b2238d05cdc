package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// TraceQuery chooses the packets that Trace follows. Zero fields choose all.
type TraceQuery struct {
	From     Clients    `query:"from" want:"an address or a prefix as 203.0.113.0/24"`
	To       netip.Addr `query:"to" want:"an address"`
	Port     uint16     `query:"port" least:"1" most:"65535"`
	Protocol string     `query:"protocol"` // TCP, UDP or SCTP; "": TCP with a port, else all
	// Established follows packets of connections that are tracked already.
	Established bool `query:"established"`
	// Predict computes the path that a packet to To would take; no packet is followed.
	Predict bool `query:"predict"`
	// Count bounds the packets, Seconds the time.
	Count   int `query:"count" default:"5" least:"1" most:"1000"`
	Seconds int `query:"seconds" default:"30" least:"1" most:"60"`
}

// ErrTracing reports that a trace is under way: there is one at a time.
var ErrTracing error = Conflict("another trace runs already: wait until it ends, a minute at most")

// Complete sets the protocol of a port, and returns an error about values that do not go together.
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

// Clients is a prefix of clients. As text it is a prefix or an address.
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

// ParseBounded reads a number from 1 to most; "" is def.
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
