package dashboard

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// path is the picture of how packets pass through one port of a Service in one IP family: frontends, the port, endpoints, and lines between them.
type path struct {
	Port, Protocol, Family string
	Frontends              []node
	Endpoints              []node
	Balance                string // "random" by default
	Up, All                int    // numbers of endpoints: usable ones, and all
	More                   int    // number of endpoints that the picture leaves out
	// Relay is the address of the listener to which the kernel redirects clients of a relayed port, with its number of open connections; "" for other
	// ports.
	Relay string
	// Height is the height of the wide picture, and Middle the vertical position of its center. Tall is the height of the narrow one, and Knee the
	// vertical position at which its lines meet.
	Height, Middle, Tall, Knee int
}

// Target returns the destination for a trace of the port's packets, ADDRESS:PORT/PROTOCOL; "" for a port with only node ports and
// ranges.
func (p path) Target() string {
	for _, f := range p.Frontends {
		if _, err := netip.ParseAddrPort(f.Text); err == nil {
			return f.Text + "/" + strings.ToLower(p.Protocol)
		}
	}
	return ""
}

// Label describes the picture for screen readers.
func (p path) Label() string {
	var from, dead []string
	for _, f := range p.Frontends {
		from = append(from, f.Text)
	}
	for _, e := range p.Endpoints {
		if e.Dead {
			dead = append(dead, e.Text)
		}
	}
	text := cmp.Or(strings.Join(from, ", "), "No address") + " lead to " + wire.Count(p.All, "endpoint")
	if len(dead) > 0 {
		text += "; not serving: " + strings.Join(dead, ", ")
	}
	return text
}

// node is a frontend or an endpoint in the picture. An endpoint is also a row of the table of endpoints.
type node struct {
	Text string
	// Dead is set if no new connections go to the endpoint, or if it refuses or does not answer them. Class is the CSS class, up or dn (down). Word
	// is the state in one or two words, and Check the result of the health check, or of the clients' connections.
	Dead               bool
	Class, Word, Check string
	Open, Unanswered   int
	Rate, Failed       *float64
	Total, Weight      string // Total is "" if not counted; Weight is "" if all weights are equal
	Width              string // of the line that leads to the endpoint
	Y, Low             int    // vertical position in the wide picture, and in the narrow one
	Beat               *beat
}

// Short returns Check, truncated to the room in the picture and enclosed in Unicode characters that isolate its text direction (FSI and PDI).
func (n node) Short() string {
	const room = 44
	text := []rune(n.Check)
	if len(text) > room {
		text = append(text[:room-1], '…')
	}
	return "\u2068" + string(text) + "\u2069"
}

// IsLong reports whether the address needs a smaller font.
func (n node) IsLong() bool { return len(n.Text) > 34 }

const (
	wideRow, tallRow       = 66, 70
	frontRow, tallFrontRow = 58, 40
	// mostNodes bounds the endpoints in a picture.
	mostNodes = 24
	maxLine   = 16.0
)

// pathsOf returns the pictures of a Service.
func pathsOf(svc *Service, now time.Time) []path {
	counts := map[string]wire.EndpointTraffic{}
	for _, p := range svc.Ports {
		for _, e := range p.Endpoints {
			counts[p.Port+"|"+p.Protocol+"|"+e.Endpoint] = e
		}
	}
	var paths []path
	for i := range svc.State.Ports {
		port := &svc.State.Ports[i]
		p := path{Port: port.Name, Protocol: port.Protocol, Family: port.Family, Balance: cmp.Or(port.Balance, "random")}
		key := port.Name + "|" + port.Protocol + "|"
		checks := map[string][]*wire.EndpointHealth{}
		for k := range svc.State.Health {
			if h := &svc.State.Health[k]; h.Port == port.Name && h.Protocol == port.Protocol && strings.HasPrefix(h.Endpoint, "[") == (port.Family == "IPv6") {
				checks[h.Endpoint] = append(checks[h.Endpoint], h)
			}
		}
		used := port.AllEndpoints()
		all := slices.Clone(used)
		for at := range checks {
			if !slices.Contains(used, at) {
				all = append(all, at)
			}
		}
		slices.SortFunc(all, byAddress)
		var nodes []node
		for _, at := range all {
			n := nodeOf(at, counts[key+at], checks[at], slices.Contains(used, at))
			if w, has := port.Weights[at]; has {
				n.Weight = strconv.Itoa(int(w))
			}
			if len(checks[at]) > 0 || len(svc.Down[at]) > 0 {
				n.Beat = beatOf(svc.Down[at], svc.Known, now)
			}
			if p.All++; !n.Dead {
				p.Up++
			}
			nodes = append(nodes, n)
		}
		if port.Relay != "" {
			p.Relay = port.Relay + ", " + wire.Grouped(counts[key+port.Relay].Open) + " open"
		}
		if len(nodes) > mostNodes { // dead ones, and the busiest
			slices.SortStableFunc(nodes, func(a, b node) int {
				return cmp.Or(-compareBool(a.Dead, b.Dead), cmp.Compare(b.Open, a.Open))
			})
			nodes, p.More = nodes[:mostNodes], len(nodes)-mostNodes
		}
		for _, at := range port.Frontends {
			p.Frontends = append(p.Frontends, node{Text: frontendText(at)})
		}
		p.Endpoints = nodes
		p.place()
		paths = append(paths, p)
	}
	return paths
}

// byAddress compares two texts of the form ADDRESS:PORT by number, and other texts alphabetically.
func byAddress(a, b string) int {
	x, errX := netip.ParseAddrPort(a)
	if y, errY := netip.ParseAddrPort(b); errX == nil && errY == nil {
		return x.Compare(y)
	}
	return strings.Compare(a, b)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// place sets the coordinates of all nodes, and the widths of lines.
func (p *path) place() {
	p.Height = max(len(p.Endpoints)*wideRow, len(p.Frontends)*frontRow, 2*wideRow) + 4
	p.Middle = p.Height / 2
	for i := range p.Frontends {
		p.Frontends[i].Y = p.Middle + (2*i+1-len(p.Frontends))*frontRow/2
		p.Frontends[i].Low = 18 + i*tallFrontRow
	}
	p.Knee = 20 + len(p.Frontends)*tallFrontRow
	most := 0.0
	for _, e := range p.Endpoints {
		most = max(most, weightOf(&e))
	}
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		e.Y = p.Middle + (2*i+1-len(p.Endpoints))*wideRow/2
		e.Low = p.Knee + 55 + i*tallRow
		e.Width = "2"
		if most > 0 {
			e.Width = short(2 + (maxLine-2)*weightOf(e)/most)
		}
	}
	p.Tall = p.Knee + 30 + max(len(p.Endpoints), 1)*tallRow
}

// weightOf returns the traffic that determines the width of a line: the rate of new connections or, if there are none, a thousandth of the number of
// open ones.
func weightOf(n *node) float64 {
	if n.Rate != nil && *n.Rate > 0 {
		return *n.Rate
	}
	return float64(n.Open) / 1000
}

// Way returns the SVG path of a line in the wide picture: from a frontend to the port, or from the port to an endpoint.
func (p path) Way(n node, frontend bool) string {
	if frontend {
		return fmt.Sprintf("M362 %d C420 %d 410 %d 452 %d", n.Y, n.Y, p.Middle, p.Middle)
	}
	return fmt.Sprintf("M532 %d C610 %d 620 %d 700 %d", p.Middle, p.Middle, n.Y, n.Y)
}

// nodeOf returns the node of an endpoint. used is set when new connections go to it.
func nodeOf(at string, e wire.EndpointTraffic, checks []*wire.EndpointHealth, used bool) node {
	n := node{Text: at, Class: "up", Word: "Not checked", Open: e.Open, Unanswered: e.Unanswered, Rate: e.Rate, Failed: e.FailedRate, Total: totalText(&e.FlowTotals)}
	for _, h := range checks {
		switch text := checkText(h); {
		case h.State == wire.HealthDown || h.State == wire.HealthOut:
			n.Dead, n.Word, n.Check = true, "Down", text
			if h.State == wire.HealthOut {
				n.Word = "Taken out"
			}
		case n.Dead:
		case h.State == wire.HealthUp:
			n.Word, n.Check = "Up", cmp.Or(n.Check, text)
		default:
			n.Word, n.Check = "New", cmp.Or(n.Check, text)
		}
	}
	if !used && !n.Dead {
		n.Dead, n.Word = true, "Not used"
	}
	if n.Check == "" && e.Unanswered > 0 && e.Open == 0 {
		n.Dead, n.Word, n.Check = true, "No answer", wire.Count(e.Unanswered, "connection")+" unanswered"
	}
	if n.Dead {
		n.Class = "dn"
	}
	return n
}

// checkText returns the last result of a health check: "connection refused, 20 times", "OK in 3 ms".
func checkText(h *wire.EndpointHealth) string {
	if h.State == wire.HealthOut {
		return "taken out by svcctl out"
	}
	text := h.Why
	switch {
	case text != "" && h.Failures > 1:
		text += ", " + wire.Grouped(h.Failures) + " times"
	case text == "" && h.State == wire.HealthUp && h.Took > 0:
		text = "OK in " + took(time.Duration(h.Took))
	case text == "" && h.State == wire.HealthUp:
		text = "OK"
	}
	return text
}

// took formats the duration of a health check.
func took(d time.Duration) string {
	if d < time.Millisecond {
		return "under 1 ms"
	}
	return strconv.Itoa(int(d/time.Millisecond)) + " ms"
}

// totalText counts connections and bytes: "12, 3.4 MiB in, 120 MiB out".
func totalText(t *wire.FlowTotals) string {
	if t.Flows == nil {
		return ""
	}
	text := wire.Grouped(int(*t.Flows))
	if t.BytesIn != nil && t.BytesOut != nil {
		text += ", " + bytesText(*t.BytesIn) + " in, " + bytesText(*t.BytesOut) + " out"
	}
	return text
}

// bytesText returns a number of bytes with a binary unit: "1.5 KiB".
func bytesText(n uint64) string {
	number, prefix := wire.Binary(n)
	if prefix == "" {
		return number + " B"
	}
	return number + " " + prefix + "iB"
}

// frontendText returns the text of a frontend. A node port, which is written as ":30080", becomes "node port 30080".
func frontendText(at string) string {
	if strings.HasPrefix(at, ":") {
		return "node port " + at[1:]
	}
	return at
}
