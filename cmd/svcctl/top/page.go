package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

const (
	// nameLeast is the minimum width of the name column, in characters. A column of rank extra or higher is shown only if nameGood characters remain
	// for names.
	nameLeast, nameGood = 12, 24
	gap                 = 2
	// sparkTime is the period that a sparkline covers, sparkMarks its length in characters.
	sparkTime  = 2 * time.Minute
	sparkMarks = 12
	// patience is the time after which a missing response is shown on the screen.
	patience = 9 * time.Second
)

// column is a column of a table. Texts are truncated to its width, numbers never are. Texts are aligned left; numbers are aligned right unless left
// is set.
type column struct {
	head string
	text bool
	left bool
	// rank is the order in which columns are added while there is room, lowest first. Columns below extra may reduce the name column to nameLeast.
	rank  int
	cells []string
	width int
}

// extra is the lowest rank of the columns that are omitted on a narrow screen if they would leave fewer than nameGood characters for names.
const extra = 10

// layout returns the columns that fit, with their widths. Widths of number columns never shrink while the screen is open. The first column has the
// names.
func (l *live) layout(all []column, columns int) []column {
	for i := range all {
		c := &all[i]
		c.width = width(c.head)
		for _, cell := range c.cells {
			c.width = max(c.width, width(cell))
		}
		if !c.text {
			c.width = max(c.width, l.widths[c.head])
			l.widths[c.head] = c.width
		}
	}
	least := func(c *column, name int) int {
		switch {
		case c.rank == 0:
			return min(c.width, name, max(1, columns))
		case c.text:
			return min(c.width, 16)
		}
		return c.width
	}
	chosen := map[int]bool{}
	sum := func(name int) (n int) {
		for i := range all {
			if chosen[all[i].rank] && !(all[i].head == sumHead && chosen[rankBytes]) {
				n += gap + least(&all[i], name)
			}
		}
		return n - gap
	}
	var ranks []int
	for i := range all {
		ranks = append(ranks, all[i].rank)
	}
	slices.Sort(ranks)
	for _, rank := range ranks {
		name := nameLeast
		if rank >= extra {
			name = nameGood
		}
		if chosen[rank] = true; rank > 0 && sum(name) > columns {
			chosen[rank] = false
		}
	}
	all = slices.DeleteFunc(all, func(c column) bool { return !chosen[c.rank] || c.head == sumHead && chosen[rankBytes] })
	spare := columns - sum(nameLeast)
	for i := range all {
		if c := &all[i]; c.text {
			want, has := c.width, least(c, nameLeast)
			c.width = has + min(max(spare, 0), want-has)
			spare -= c.width - has
		}
	}
	return all
}

// rankBytes is the rank of the two columns for received and for sent bytes. If both fit, the column sumHead, which shows their sum, is omitted.
const (
	rankBytes = 10
	sumHead   = "kB/s"
)

// line formats row i of a table; the header if i is -1.
func line(columns []column, i int) string {
	var b strings.Builder
	for n := range columns {
		c := &columns[n]
		cell := c.head
		if i >= 0 {
			cell = c.cells[i]
		}
		cell = cut(cell, c.width)
		blanks := strings.Repeat(" ", c.width-width(cell))
		if n > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
		if c.text || c.left {
			b.WriteString(cell + blanks)
		} else {
			b.WriteString(blanks + cell)
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// draw returns the lines of the screen.
func (l *live) draw(lines, columns int) []string {
	if l.helping {
		return fit(strings.Split(helpText, "\n"), lines, columns)
	}
	head := l.head(columns)
	head = head[:min(len(head), max(2, lines/3))]
	room := max(1, lines-len(head)-1)
	body := make([]string, room)
	switch {
	case l.list != nil:
		copy(body, l.service(room, columns))
	case room > 3:
		copy(body, l.ports(room-1, columns))
		body[room-1] = l.why(columns)
	default:
		copy(body, l.ports(room, columns))
	}
	return fit(slices.Concat(head, body, []string{l.bar(columns)}), lines, columns)
}

// why returns a line with the reason why the selected Service does not answer or has a warning; "" if there is none.
func (l *live) why(columns int) string {
	p := l.selected()
	if p == nil || p.Why == "" {
		return ""
	}
	sign, code := signOf(p.State)
	return l.paint(code, cut(strings.TrimSpace(sign+" "+p.Namespace+"/"+p.Service+": "+output.Printable(p.Why)), columns))
}

// fit truncates lines to the size of the screen. Lines with colors must already fit.
func fit(text []string, lines, columns int) []string {
	text = text[:min(len(text), lines)]
	for i := range text {
		if !strings.Contains(text[i], "\x1b") {
			text[i] = cut(text[i], columns)
		}
	}
	return text
}

// head returns the top lines of the screen: the state of the box and its traffic.
func (l *live) head(columns int) (text []string) {
	s := l.seen
	sign, code := "", ""
	switch {
	case s.Verdict == "": // of an older version
	case s.States[wire.ServiceFails] > 0:
		sign, code = signOf(wire.ServiceFails)
	case s.States[wire.ServiceStale]+s.States[wire.ServiceWarning] > 0:
		sign, code = signOf(wire.ServiceWarning)
	default:
		sign, code = "✓", output.Green
	}
	verdict := strings.Join(slices.DeleteFunc([]string{s.Node, s.At.In(l.now.Location()).Format(time.TimeOnly), s.Verdict}, func(s string) bool { return s == "" }), "  ")
	for _, line := range wrapped(strings.TrimSpace(sign+" "+output.Printable(verdict)), columns) {
		text = append(text, l.paint(code, line))
	}
	t := &s.Totals
	words := []string{rateWord(t.Rate, "new/s"), rateWord(t.RefusedRate, "refused/s"), rateWord(t.FailedRate, "failed/s"), wire.Grouped(t.Open) + " open"}
	if t.Unanswered > 0 {
		words = append(words, wire.Grouped(t.Unanswered)+" unanswered")
	}
	if t.InRate != nil && t.OutRate != nil {
		words = append(words, rateWord(new((*t.InRate+*t.OutRate)/1000), "kB/s"))
	}
	words = slices.DeleteFunc(words, func(s string) bool { return s == "" })
	text = append(text, wrapped(strings.Join(words, "  "), columns)...)
	age := l.now.Sub(s.At).Round(time.Second)
	switch waits := !l.asked.IsZero() && l.now.Sub(l.asked) >= patience; {
	case l.failure != nil || waits:
		why := fmt.Sprintf("✗ no answer: the numbers are %s old, of %s", output.Span(age), s.At.In(l.now.Location()).Format(time.TimeOnly))
		if l.failure != nil {
			why += " (" + output.OneLine(l.failure.Error()) + ")"
		}
		for _, line := range wrapped(why, columns) {
			text = append(text, l.paint(output.Red, line))
		}
	case age >= Every+2*time.Second:
		text[len(text)-1] += fmt.Sprintf("  (%s ago)", output.Span(age))
	}
	return text
}

// rateWord formats a rate with its unit; "" if r is nil.
func rateWord(r *float64, unit string) string {
	if r == nil {
		return ""
	}
	return wire.Rate(*r) + " " + unit
}

// signOf returns the symbol and the color for the state of a Service; both are "" for a Service that answers.
func signOf(state string) (sign, color string) {
	switch state {
	case wire.ServiceFails:
		return "✗", output.Red
	case wire.ServiceStale, wire.ServiceWarning:
		return "▲", output.Yellow
	case wire.ServiceIdle:
		return "–", ""
	case wire.ServiceSettling:
		return "…", ""
	}
	return "", ""
}

// paint returns text in a color if the screen has colors; otherwise it returns text unchanged.
func (l *live) paint(code, text string) string {
	if !l.color || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// keyOf returns a key that identifies the row of a port across responses.
func keyOf(p *wire.PortTraffic) string {
	return output.ServicePort(p.Namespace, p.Service, p.Port) + " " + p.Protocol
}

// ports returns the lines of the list: a header, and the rows around the selected one.
func (l *live) ports(room, columns int) []string {
	s := l.seen
	type rowOf struct {
		port     *wire.PortTraffic
		endpoint *wire.EndpointTraffic
	}
	var rows []rowOf
	at := l.at()
	l.rows = nil
	for i := range s.Ports {
		l.rows = append(l.rows, keyOf(&s.Ports[i]))
		rows = append(rows, rowOf{&s.Ports[i], nil})
		for k := range s.Ports[i].Endpoints {
			if l.q.Endpoints {
				rows = append(rows, rowOf{&s.Ports[i], &s.Ports[i].Endpoints[k]})
			}
		}
	}
	if len(rows) == 0 {
		text := "There is no Service."
		if l.q.Filter != "" {
			text = "No Service has " + l.q.Filter + " in its name. Esc ends the filter."
		}
		return []string{"", text}
	}
	if at = min(at, len(l.rows)-1); l.cursor != "" && !slices.Contains(l.rows, l.cursor) {
		l.cursor = l.rows[at] // the row is gone: the one in its place
	}
	at = l.at()
	chosen := slices.IndexFunc(rows, func(r rowOf) bool { return keyOf(r.port) == l.rows[at] })
	l.page = max(1, room-1)
	first := max(0, min(chosen-l.page/2, len(rows)-l.page))
	rows = rows[first:min(len(rows), first+l.page)]
	table := []column{
		{head: "SERVICE", text: true, rank: 0}, {head: "ADDRESS", text: true, rank: 13}, {head: "UP", rank: 1}, {head: "NEW/S", rank: 2}, {head: "REFUSED/S", rank: 4},
		{head: "FAILED/S", rank: 5}, {head: "OPEN", rank: 3}, {head: "UNANSWERED", rank: 14}, {head: "CONNS", rank: 15}, {head: sumHead, rank: 6},
		{head: "IN kB/s", rank: rankBytes}, {head: "OUT kB/s", rank: rankBytes}, {head: "LAST 2 MIN", rank: 12}, {head: "CHECK", text: true, rank: 16},
	}
	for _, r := range rows {
		var cells []string
		if e := r.endpoint; e != nil {
			cells = []string{"  " + endpointName(e), "", e.State, rateCell(e.Rate), "", rateCell(e.FailedRate), strconv.Itoa(e.Open), strconv.Itoa(e.Unanswered), numberCell(e.Flows)}
			cells = append(append(cells, bytesCells(&e.ConnectionCounts)...), "", "")
		} else {
			p := r.port
			conns := p.Connections
			if conns == nil {
				conns = p.Flows
			}
			cells = []string{
				output.ServicePort(p.Namespace, p.Service, p.Port), addressCell(p), upText(p), rateCell(p.Rate), rateCell(p.RefusedRate), rateCell(p.FailedRate),
				strconv.Itoa(p.Open), strconv.Itoa(p.Unanswered), numberCell(conns),
			}
			cells = append(append(cells, bytesCells(&p.ConnectionCounts)...), sparkline(l.rates[keyOf(p)], s.At), cmp.Or(output.Printable(p.Check), "–"))
		}
		for i := range table {
			table[i].cells = append(table[i].cells, cells[i])
		}
	}
	table = l.layout(table, columns-2)
	text := []string{l.paint(output.Bold, "  "+line(table, -1))}
	for i, r := range rows {
		sign, code := signOf(r.port.State)
		if r.endpoint != nil {
			sign, code = "", ""
			if r.endpoint.State == wire.HealthDown {
				sign, code = "✗", output.Red
			}
		}
		row := cmp.Or(sign, " ") + " " + line(table, i)
		if first+i == chosen {
			row = "\x1b[7m" + row + strings.Repeat(" ", max(0, columns-width(row))) + "\x1b[0m"
		} else {
			row = l.paint(code, row)
		}
		text = append(text, row)
	}
	return text
}

// service returns the lines of a Service page: why the Service does not answer, each port with its endpoints, and the clients.
func (l *live) service(room, columns int) []string {
	name := l.q.Namespace + "/" + l.q.Service
	var text []string
	for i := range l.seen.Ports {
		p := &l.seen.Ports[i]
		if i == 0 {
			sign, code := signOf(p.State)
			title := cmp.Or(sign, "✓") + " " + name + " "
			switch {
			case p.Why != "":
				title += "– " + output.Printable(p.Why)
			case p.State == wire.ServiceAnswers || p.State == "":
				title += "answers"
			}
			for _, line := range wrapped(title, columns) {
				text = append(text, l.paint(cmp.Or(code, output.Bold), line))
			}
		}
		text = append(text, "")
		text = append(text, wrapped(l.portTitle(p), columns)...)
		text = append(text, l.endpoints(p, columns)...)
	}
	if len(l.seen.Ports) == 0 {
		text = append(text, name+" has no port in the kernel: `svcctl explain svc/"+l.q.Service+" -n "+l.q.Namespace+"` gives the reason")
	}
	if l.seen.Clients != nil {
		text = append(append(text, ""), strings.Split(strings.TrimSuffix(output.TrimLines(clientsTable(l.seen.Clients)), "\n"), "\n")...)
	}
	for i := range l.seen.Egress {
		text = append(append(text, ""), wrapped("Its endpoints leave with "+l.seen.Egress[i].Text(), columns)...)
	}
	for _, route := range l.seen.Routes {
		text = append(append(text, ""), wrapped(output.Printable(route), columns)...)
	}
	if l.seen.NoBytes != "" {
		text = append(append(text, ""), wrapped("Bytes are not counted: "+l.seen.NoBytes, columns)...)
	}
	l.most = max(0, len(text)-room)
	l.first = min(l.first, l.most)
	l.page = room
	return text[l.first:min(len(text), l.first+room)]
}

// portTitle returns the line above the endpoints of a port.
func (l *live) portTitle(p *wire.PortTraffic) string {
	words := []string{strings.TrimSpace(p.Port + " " + p.Protocol), strings.Join(p.Frontends, ", ")}
	if p.Check != "" {
		words = append(words, "check "+output.Printable(p.Check))
	}
	if p.States != nil {
		words = append(words, upText(p)+" up")
	}
	words = append(words, rateWord(p.Rate, "new/s"), rateWord(p.RefusedRate, "refused/s"), wire.Grouped(p.Open)+" open")
	if p.Connections != nil && p.Refused != nil {
		words = append(words, fmt.Sprintf("%s, %s refused so far", wire.Count(int(*p.Connections), "connection"), wire.Grouped(int(*p.Refused))))
	}
	return strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), "  ")
}

// endpoints returns a line for each endpoint of a port, with its state and the result of its last check.
func (l *live) endpoints(p *wire.PortTraffic, columns int) (text []string) {
	if len(p.Endpoints) == 0 {
		return []string{"  no endpoint"}
	}
	table := []column{
		{head: "ENDPOINT", text: true, rank: 0}, {head: "STATE", left: true, rank: 1}, {head: "SINCE", rank: 3}, {head: "CHECKED IN", rank: 13}, {head: "NEW/S", rank: 2},
		{head: "FAILED/S", rank: 6}, {head: "FAILED", rank: 12}, {head: "OPEN", rank: 4}, {head: "UNANSWERED", rank: 5}, {head: sumHead, rank: 7},
		{head: "IN kB/s", rank: rankBytes}, {head: "OUT kB/s", rank: rankBytes}, {head: "CHECK", text: true, rank: 14},
	}
	why := map[int]string{}
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		state, since, took, check := cmp.Or(e.State, "–"), "–", "–", "–"
		for k := range l.health {
			h := &l.health[k]
			if h.Port != p.Port || h.Protocol != p.Protocol || h.Endpoint != e.Endpoint {
				continue
			}
			state, check = h.State, output.Printable(h.Check)
			if h.Since != nil {
				since = output.Span(l.now.Sub(*h.Since))
			}
			if h.Took > 0 {
				took = output.Roughly(time.Duration(h.Took)).String()
			}
			if text := output.Printable(h.Reasons()); text != "" && why[i] == "" {
				why[i] = strings.TrimSuffix(check+": "+text, ": ")
			}
		}
		if e.Why != "" && why[i] == "" {
			why[i] = output.Printable(e.Why)
		}
		cells := []string{endpointName(e), state, since, took, rateCell(e.Rate), rateCell(e.FailedRate), strconv.FormatUint(e.Failed, 10), strconv.Itoa(e.Open), strconv.Itoa(e.Unanswered)}
		cells = append(append(cells, bytesCells(&e.ConnectionCounts)...), check)
		for n := range table {
			table[n].cells = append(table[n].cells, cells[n])
		}
	}
	table = l.layout(table, columns-2)
	text = []string{l.paint(output.Bold, "  "+line(table, -1))}
	for i := range p.Endpoints {
		sign, code := " ", ""
		if p.Endpoints[i].State == wire.HealthDown {
			sign, code = "✗", output.Red
		}
		text = append(text, l.paint(code, sign+" "+line(table, i)))
		if why[i] != "" {
			for _, line := range wrapped(why[i], max(1, columns-6)) {
				text = append(text, "      "+line)
			}
		}
	}
	return text
}

// bar returns the last line of the screen: the keys, and the position of the selected row.
func (l *live) bar(columns int) string {
	switch {
	case l.typing:
		return cut("filter: "+l.q.Filter+"_   Enter keeps it  Esc ends it", columns)
	case l.list != nil:
		return "Esc back  c clients  ↑↓ scroll  ? help  q quit"
	}
	if columns < 50 {
		return "? help  q quit"
	}
	text := "↑↓ move  Enter open  / filter  by " + l.q.Sort
	if l.q.Filter != "" {
		text += ", with " + l.q.Filter
	}
	where := fmt.Sprintf("%d/%d", min(l.at()+1, len(l.rows)), len(l.rows)+l.seen.More)
	const more = "  ? help  q quit  "
	return cut(text, columns-width(more)-len(where)) + more + where
}

// helpText is the help page, which explains keys and columns.
const helpText = `svcctl top: traffic of Services, now

  ↑ ↓ Page keys   move; Home and End: the first and the last row
  Enter           open a Service: each endpoint, its state and last check
  c               clients of the Service, the busiest first
  Esc             back; ends a filter
  /               filter by a text in NAMESPACE/NAME:PORT; with * a pattern
  e               show endpoints in the list
  s o r u f b n   order by state, open, rate, unanswered, refused, bytes, name
  q               quit

✗ does not answer   ▲ warning   – no endpoint on purpose   … waits for endpoints

  UP          endpoints that are not known to be down, of all ready ones
  NEW/S       new connections a second
  REFUSED/S   packets a second that were refused, as there is no endpoint
  FAILED/S    connections a second that an endpoint refused or never answered
  OPEN        connections that neither side has closed
  kB/s        1,000 bytes a second, both directions; – where not counted

status finds a problem, explain gives the reason, trace proves it.
A key returns.`

// rateCell formats a rate as a cell; "–" for nil.
func rateCell(r *float64) string {
	if r == nil {
		return "–"
	}
	return output.Rate(r)
}

// numberCell formats a number as a cell; "–" for nil.
func numberCell(n *uint64) string { return cmp.Or(numberText(n), "–") }

// bytesCells returns three cells in kB/s: the sum of both directions, in, and out. They are "–" if the bytes are not counted.
func bytesCells(c *wire.ConnectionCounts) []string {
	if c.InRate == nil || c.OutRate == nil {
		return []string{"–", "–", "–"}
	}
	in, out := *c.InRate/1000, *c.OutRate/1000
	return []string{output.Rate(new(in + out)), output.Rate(&in), output.Rate(&out)}
}

// addressCell returns the first address of a port, and the number of the others.
func addressCell(p *wire.PortTraffic) string {
	switch len(p.Frontends) {
	case 0:
		return "–"
	case 1:
		return p.Frontends[0]
	}
	return fmt.Sprintf("%s +%d", p.Frontends[0], len(p.Frontends)-1)
}

// sparkline draws the rates of the last two minutes, scaled to the highest.
func sparkline(samples []sample, now time.Time) string {
	var sums [sparkMarks]float64
	var counts [sparkMarks]int
	highest := 0.0
	for _, s := range samples {
		i := sparkMarks - 1 - int(now.Sub(s.at)*sparkMarks/sparkTime)
		if i < 0 || i >= sparkMarks {
			continue
		}
		sums[i] += s.rate
		counts[i]++
	}
	for i := range sums {
		highest = max(highest, sums[i]/float64(max(1, counts[i])))
	}
	marks := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for i := range sums {
		switch {
		case counts[i] == 0:
			b.WriteByte(' ')
		case highest == 0:
			b.WriteRune(marks[0])
		default:
			b.WriteRune(marks[int(sums[i]/float64(counts[i])/highest*float64(len(marks)-1)+0.5)])
		}
	}
	return b.String()
}
