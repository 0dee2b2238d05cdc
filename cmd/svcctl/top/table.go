package top

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// Table formats the last response as text, for output that is not a terminal.
func (t *Top) Table(now time.Time) string {
	s := t.seen
	head := fmt.Sprintf("%s, %d open, %d unanswered, %s new/s; %s tracked in all",
		output.Count(len(s.Ports)+s.More, "port"), s.Totals.Open, s.Totals.Unanswered, output.Rate(s.Totals.Rate), output.Count(s.Tracked, "connection"))
	if s.More > 0 {
		head += fmt.Sprintf("; %d ports left out", s.More)
	}
	if age := now.Sub(s.At).Round(time.Second); age >= Every+time.Second {
		head += fmt.Sprintf("; read %s ago", age)
	}
	heads := []string{"SERVICE", "PROTO"}
	if t.q.Endpoints {
		heads = append(heads, "ENDPOINT")
	}
	heads = append(heads, "UP", "FAILED", "OPEN", "UNANSWERED", "NEW/S")
	if s.Counted {
		heads = append(heads, "CONNS", "REFUSED")
	} else if s.Flows {
		heads = append(heads, "CONNS")
	}
	bytes := s.NoBytes == ""
	if s.Flows && bytes {
		heads = append(heads, "IN", "OUT")
	}
	if bytes {
		heads = append(heads, "IN/S", "OUT/S")
	}
	rows := [][]string{heads}
	row := func(service, protocol, endpoint, up string, failed uint64, c wire.ConnectionCounts, made, refused *uint64, flows wire.FlowTotals) {
		cells := []string{service, protocol}
		if t.q.Endpoints {
			cells = append(cells, endpoint)
		}
		cells = append(cells, up, strconv.FormatUint(failed, 10), strconv.Itoa(c.Open), strconv.Itoa(c.Unanswered), output.Rate(c.Rate))
		made = cmp.Or(made, flows.Flows)
		if s.Counted {
			cells = append(cells, numberText(made), numberText(refused))
		} else if s.Flows {
			cells = append(cells, numberText(made))
		}
		if s.Flows && bytes {
			cells = append(cells, bytesText(flows.BytesIn), bytesText(flows.BytesOut))
		}
		if bytes {
			cells = append(cells, rateText(c.InRate), rateText(c.OutRate))
		}
		rows = append(rows, cells)
	}
	for i := range s.Ports {
		port := &s.Ports[i]
		key := output.ServicePort(port.Namespace, port.Service, port.Port)
		row(key, port.Protocol, "", upText(port), port.Failed, port.ConnectionCounts, port.Connections, port.Refused, port.FlowTotals)
		if !t.q.Endpoints {
			continue
		}
		for i := range port.Endpoints {
			e := &port.Endpoints[i]
			row("", "", endpointName(e), e.State, e.Failed, e.ConnectionCounts, nil, nil, e.FlowTotals)
		}
	}
	text := output.TrimLines(new(output.Grid).Text(rows...))
	if title, rest, _ := strings.Cut(text, "\n"); t.color {
		text = "\x1b[1m" + title + "\x1b[0m\n" + rest
	}
	text = head + "\n\n" + text + egressTable(s.Egress)
	text += strings.Join(append(s.Routes, ""), "\n")
	if s.Clients != nil {
		text += "\n" + clientsTable(s.Clients)
	}
	if s.NoBytes != "" && t.q.Endpoints {
		text += "\nbytes are not counted: " + s.NoBytes + "\n"
	}
	return text
}

// endpointName returns the address of an endpoint, followed by "(relay)", "(relayed)" or "(leaving)" if that applies.
func endpointName(e *wire.EndpointTraffic) string {
	switch {
	case e.Relay:
		return e.Endpoint + " (relay)"
	case e.Relayed:
		return e.Endpoint + " (relayed)"
	case e.Leaving:
		return e.Endpoint + " (leaving)"
	}
	return e.Endpoint
}

// upText returns how many of a port's endpoints are up, such as "2/3"; "" if that is not available.
func upText(port *wire.PortTraffic) string {
	if port.States == nil {
		return ""
	}
	return fmt.Sprintf("%d/%d", port.States.Up, port.States.All)
}

// numberText formats a number; "" for nil.
func numberText(n *uint64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatUint(*n, 10)
}

// bytesText formats a number of bytes with a binary prefix, such as "1.5K"; "" for nil.
func bytesText(n *uint64) string {
	if n == nil {
		return ""
	}
	number, prefix := wire.Binary(*n)
	return number + prefix
}

// rateText formats bytes per second; "-" for nil, as before the second scan.
func rateText(r *float64) string {
	if r == nil {
		return "-"
	}
	return bytesText(new(uint64(*r)))
}

// clientsTable formats the clients of a Service as a table, most connections first.
func clientsTable(clients *wire.ServiceClients) string {
	switch {
	case !clients.Counted:
		return "Clients are counted from the next reading on.\n"
	case len(clients.Clients) == 0:
		return "No client is connected.\n"
	}
	rows := [][]string{{"CLIENT", "OPEN", "UNANSWERED"}}
	for _, c := range clients.Clients {
		rows = append(rows, []string{c.Client, strconv.Itoa(c.Open), strconv.Itoa(c.Unanswered)})
	}
	text := new(output.Grid).Text(rows...)
	if clients.More > 0 {
		text += fmt.Sprintf("%d more: raise --limit\n", clients.More)
	}
	return text
}
