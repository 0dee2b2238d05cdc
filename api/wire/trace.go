package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// TraceQuery chooses the packets that /svcctl/v1/trace follows. What is zero is not asked.
type TraceQuery struct {
	From     netip.Prefix
	To       netip.Addr
	Port     uint16
	Protocol string // TCP, UDP or SCTP
	// Established follows packets of connections that are tracked already.
	Established bool
	// Predict asks for the path that a packet to To would take; no packet is followed.
	Predict bool
	// Count bounds the packets, Seconds the time.
	Count, Seconds int
}

// The bounds of a TraceQuery.
const (
	DefaultTraced, MaxTraced             = 5, 1000
	DefaultTraceSeconds, MaxTraceSeconds = 30, 60
)

// ErrTracing reports that a trace is under way: there is one at a time.
var ErrTracing = errors.New("another trace runs already: wait until it ends, a minute at most")

// ParseTraceQuery reads the query of /svcctl/v1/trace.
func ParseTraceQuery(values url.Values) (q TraceQuery, err error) {
	if text := values.Get("from"); text != "" {
		if q.From, err = ParseClients(text); err != nil {
			return q, fmt.Errorf("from=%w", err)
		}
	}
	if text := values.Get("to"); text != "" {
		if q.To, err = netip.ParseAddr(text); err != nil {
			return q, fmt.Errorf("to=%q: want an address", text)
		}
	}
	if text := values.Get("port"); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return q, fmt.Errorf("port=%q: want a number from 1 to 65535", text)
		}
		q.Port = uint16(port)
	}
	switch q.Protocol = strings.ToUpper(values.Get("protocol")); q.Protocol {
	case "TCP", "UDP", "SCTP":
	case "":
		if q.Port != 0 {
			q.Protocol = "TCP"
		}
	default:
		return q, fmt.Errorf("protocol=%q: want TCP, UDP or SCTP", values.Get("protocol"))
	}
	q.Established, q.Predict = values.Get("established") == "true", values.Get("predict") == "true"
	if q.Count, err = ParseBounded(values.Get("count"), DefaultTraced, MaxTraced); err != nil {
		return q, fmt.Errorf("count=%w", err)
	}
	if q.Seconds, err = ParseBounded(values.Get("seconds"), DefaultTraceSeconds, MaxTraceSeconds); err != nil {
		return q, fmt.Errorf("seconds=%w", err)
	}
	return q, q.Check()
}

// Check returns an error about values that do not go together.
func (q *TraceQuery) Check() error {
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
