package top

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// Table is the last look for people, cut to a number of lines and columns; 0: to none.
func (t *Top) Table(now time.Time, lines, columns int) string {
	s := t.seen
	var sum wire.ConnectionCounts
	sum.Rate = new(float64)
	for i := range s.Ports {
		sum.Open += s.Ports[i].Open
		sum.Unanswered += s.Ports[i].Unanswered
		if r := s.Ports[i].Rate; r != nil {
			*sum.Rate += *r
		}
	}
	if s.Seconds == 0 {
		sum.Rate = nil
	}
	head := fmt.Sprintf("%s, %d open, %d unanswered, %s new/s; %s tracked in all",
		output.Count(len(s.Ports), "port"), sum.Open, sum.Unanswered, output.Rate(sum.Rate), output.Count(s.Tracked, "connection"))
	if s.More > 0 {
		head += fmt.Sprintf("; %d ports left out", s.More)
	}
	if age := now.Sub(s.At).Round(time.Second); age >= Every+time.Second {
		head += fmt.Sprintf("; read %s ago", age)
	}
	heads := []string{"SERVICE", "PROTO"}
	if columns > 0 && columns < wide { // the numbers need the room
		heads = heads[:1]
	}
	if t.q.Endpoints {
		heads = append(heads, "ENDPOINT")
	}
	heads = append(heads, "UP", "FAILED", "OPEN", "UNANSWERED", "NEW/S")
	if s.Counted {
		heads = append(heads, "CONNS", "REFUSED")
	} else if s.Flows {
		heads = append(heads, "CONNS")
	}
	bytes := s.Flows && s.NoBytes == ""
	if bytes {
		heads = append(heads, "IN", "OUT")
	}
	rows := [][]string{heads}
	row := func(service, protocol, endpoint, up string, failed uint64, c wire.ConnectionCounts, made, refused *uint64, flows wire.FlowTotals) {
		cells := []string{service, protocol}
		if columns > 0 && columns < wide {
			cells = cells[:1]
		}
		if t.q.Endpoints {
			cells = append(cells, endpoint)
		}
		cells = append(cells, up, strconv.FormatUint(failed, 10), strconv.Itoa(c.Open), strconv.Itoa(c.Unanswered), output.Rate(c.Rate))
		if made == nil {
			made = flows.Flows
		}
		if s.Counted {
			cells = append(cells, numberText(made), numberText(refused))
		} else if s.Flows {
			cells = append(cells, numberText(made))
		}
		if bytes {
			cells = append(cells, bytesText(flows.BytesIn), bytesText(flows.BytesOut))
		}
		rows = append(rows, cells)
	}
	for i := range s.Ports {
		port := &s.Ports[i]
		key := output.ServicePort(port.Namespace, port.Service, port.Port)
		up := ""
		if port.States != nil {
			up = fmt.Sprintf("%d/%d", port.States.Up, port.States.All)
		}
		row(key, port.Protocol, "", up, port.Failed, port.ConnectionCounts, port.Connections, port.Refused, port.FlowTotals)
		if !t.q.Endpoints {
			continue
		}
		for _, e := range port.Endpoints {
			name := e.Endpoint
			switch {
			case e.Relay:
				name += " (relay)"
			case e.Relayed:
				name += " (relayed)"
			case e.Leaving:
				name += " (leaving)"
			}
			row("", "", name, e.State, e.Failed, e.ConnectionCounts, nil, nil, e.FlowTotals)
		}
	}
	text := strings.Split(strings.TrimSuffix(new(output.Grid).Text(rows...), "\n"), "\n")
	text = append(append(wrapped(head, columns), ""), text...)
	title := slices.Index(text, "") + 1
	if s.Clients != nil {
		text = append(append(text, ""), strings.Split(strings.TrimSuffix(clientsTable(s.Clients), "\n"), "\n")...)
	}
	if s.NoBytes != "" && t.q.Endpoints {
		text = append(text, "", "bytes: off, because "+s.NoBytes)
	}
	if lines > 0 && len(text) > lines {
		text = text[:lines]
	}
	for i := range text {
		text[i] = strings.TrimRight(text[i], " ")
		text[i] = cut(text[i], columns)
	}
	if t.color && len(text) > title {
		text[title] = "\x1b[1m" + text[title] + "\x1b[0m"
	}
	return strings.Join(text, "\n") + "\n"
}

// wide is the number of columns from which the protocol is shown.
const wide = 100

// wrapped is a text in lines of at most so many characters, broken at blanks; 0: in one.
func wrapped(text string, columns int) (lines []string) {
	for columns > 0 && len([]rune(text)) > columns {
		at := strings.LastIndex(string([]rune(text)[:columns+1]), " ")
		if at <= 0 {
			break
		}
		lines, text = append(lines, text[:at]), text[at+1:]
	}
	return append(lines, text)
}

// cut shortens a line to a number of columns; 0: it does not.
func cut(line string, columns int) string {
	if runes := []rune(line); columns > 0 && len(runes) > columns {
		return string(runes[:columns])
	}
	return line
}

// numberText is a number that may be absent.
func numberText(n *uint64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatUint(*n, 10)
}

// bytesText is a number of bytes that may be absent: "1.5K".
func bytesText(n *uint64) string {
	if n == nil {
		return ""
	}
	number, prefix := wire.Binary(*n)
	return number + prefix
}

// clientsTable lists the clients of a Service, the busiest first.
func clientsTable(clients *wire.ServiceClients) string {
	switch {
	case !clients.Counted:
		return "Clients are counted from the next look on.\n"
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
