package dashboard

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/wire"
)

// path is the way of packets through one port of a Service, in one family, as a picture has it.
type path struct {
	Port, Protocol, Family string
	Frontends              []node
	Endpoints              []node
	Lines                  []line // from the middle to the endpoints
	Left                   []line // from the frontends to the middle
	Height, Middle         int
	More                   int // endpoints that are left out
	// Balance is the algorithm; "" for random.
	Balance string
	// Relay is the listener of the appliance that clients of a relayed port are sent to, and how it is; "" for others.
	Relay string
	// Absent are endpoints that get no new connections, by a check or an operator.
	Absent []node
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

// node is a box of the picture.
type node struct {
	Text string
	Y    int
	// Word and Class say how it is: "open", "unanswered", "leaving" or "no traffic".
	Word, Class string
	Open        int
	// Total has its connections and bytes so far; "" where they are not counted.
	Total string
	// Weight is its weight, "" where all are equal; Health is the state of its check.
	Weight, Health string
}

// line is a line of the picture.
type line struct {
	Y1, Y2 int
	Width  float64
	Class  string
}

const (
	rowHeight = 34
	// mostNodes bounds the endpoints in a picture.
	mostNodes = 24
	maxLine   = 8.0
)

// pathsOf returns the pictures of a Service.
func pathsOf(svc *Service) []path {
	counts := map[string]wire.EndpointTraffic{}
	for _, p := range svc.Ports {
		for _, e := range p.Endpoints {
			counts[p.Port+"|"+p.Protocol+"|"+e.Endpoint] = e
		}
	}
	checks := map[string]*wire.EndpointHealth{}
	for i := range svc.State.Health {
		h := &svc.State.Health[i]
		checks[h.Port+"|"+h.Protocol+"|"+h.Endpoint] = h
	}
	var paths []path
	for i := range svc.State.Ports {
		port := &svc.State.Ports[i]
		p := path{Port: port.Name, Protocol: port.Protocol, Family: port.Family}
		if port.Balance != "random" { // which is the default
			p.Balance = port.Balance
		}
		endpoints := port.AllEndpoints()
		var nodes []node
		most := 1
		for _, at := range endpoints {
			e := counts[port.Name+"|"+port.Protocol+"|"+at]
			n := nodeOf(at, e)
			if w, has := port.Weights[at]; has {
				n.Weight = strconv.Itoa(int(w))
			}
			n.Health, _ = healthText(checks[port.Name+"|"+port.Protocol+"|"+at])
			nodes = append(nodes, n)
			most = max(most, e.Open)
		}
		if port.Relay != "" {
			relay := nodeOf(port.Relay, counts[port.Name+"|"+port.Protocol+"|"+port.Relay])
			p.Relay = relay.Text + ", " + relay.Word
		}
		p.Absent = absent(svc.State.Health, port, endpoints)
		if len(nodes) > mostNodes { // the busiest of them
			slices.SortStableFunc(nodes, func(a, b node) int { return cmp.Compare(b.Open, a.Open) })
			nodes, p.More = nodes[:mostNodes], len(nodes)-mostNodes
		}
		for _, at := range port.Frontends {
			p.Frontends = append(p.Frontends, node{Text: frontendText(at)})
		}
		rows := max(len(p.Frontends), len(nodes), 1)
		p.Height, p.Middle = rows*rowHeight, rows*rowHeight/2
		spread(p.Frontends, p.Height)
		spread(nodes, p.Height)
		p.Endpoints = nodes
		for _, f := range p.Frontends {
			p.Left = append(p.Left, line{Y1: f.Y, Y2: p.Middle, Width: 1.5, Class: "way"})
		}
		for _, e := range nodes {
			p.Lines = append(p.Lines, line{Y1: p.Middle, Y2: e.Y, Width: 1 + (maxLine-1)*float64(e.Open)/float64(most), Class: "way " + e.Class})
		}
		paths = append(paths, p)
	}
	return paths
}

// absent are the checked endpoints of a port that get no new connections.
func absent(checks []wire.EndpointHealth, port *wire.PortState, used []string) (nodes []node) {
	for i := range checks {
		h := &checks[i]
		is6 := strings.HasPrefix(h.Endpoint, "[")
		if h.Port != port.Name || h.Protocol != port.Protocol || is6 != (port.Family == "IPv6") || slices.Contains(used, h.Endpoint) {
			continue
		}
		n := node{Text: h.Endpoint, Class: "bad"}
		n.Word, n.Class = healthText(h)
		nodes = append(nodes, n)
	}
	return nodes
}

// healthText returns the state of an endpoint's check; "" without a check.
func healthText(h *wire.EndpointHealth) (text, class string) {
	if h == nil {
		return "", ""
	}
	text, class = h.State, "good"
	if h.State != "up" {
		class = "bad"
	}
	if h.Why != "" {
		text += ": " + h.Why
	}
	if h.Failures > 1 {
		text += ", " + wire.Grouped(h.Failures) + " times"
	}
	return text, class
}

func nodeOf(at string, e wire.EndpointTraffic) node {
	n := node{Text: at, Word: "no traffic", Class: "idle", Open: e.Open, Total: totalText(&e.FlowTotals)}
	switch {
	case e.Unanswered > 0 && e.Open == 0:
		n.Word, n.Class = wire.Count(e.Unanswered, "connection")+" unanswered", "bad"
	case e.Open > 0:
		n.Word, n.Class = wire.Grouped(e.Open)+" open", "good"
	}
	return n
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

// bytesText is a number of bytes with a binary unit: "1.5 KiB".
func bytesText(n uint64) string {
	number, prefix := wire.Binary(n)
	if prefix == "" {
		return number + " B"
	}
	return number + " " + prefix + "iB"
}

// frontendText names a frontend; that of a node port begins with its colon.
func frontendText(at string) string {
	if strings.HasPrefix(at, ":") {
		return "node port " + at[1:]
	}
	return at
}

// spread puts boxes at equal distances.
func spread(nodes []node, height int) {
	for i := range nodes {
		nodes[i].Y = (2*i + 1) * height / (2 * len(nodes))
	}
}
