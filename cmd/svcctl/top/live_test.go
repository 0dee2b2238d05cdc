package top

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// terminal is a pseudo terminal with the screen that a program draws on it.
type terminal struct {
	t             *testing.T
	master, slave *os.File

	mu             sync.Mutex
	lines, columns int
	cells          [][]rune
	row, column    int
	resized        bool
	draws          int    // since the last size
	drawing        bool   // the screen has a part of a drawing
	overflow       string // what was written beyond the last column
	raw            strings.Builder
}

func openTerminal(t *testing.T, lines, columns int) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	term := &terminal{t: t, master: master, slave: slave}
	term.resize(lines, columns)
	go term.follow()
	return term
}

func (m *terminal) resize(lines, columns int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines, m.columns, m.row, m.column, m.draws, m.resized = lines, columns, 0, 0, 0, m.lines > 0
	m.cells = make([][]rune, lines)
	if err := unix.IoctlSetWinsize(int(m.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(lines), Col: uint16(columns)}); err != nil {
		m.t.Fatal(err)
	}
}

// follow draws what arrives: characters, new lines, and the sequences that a screen uses.
func (m *terminal) follow() {
	b := make([]byte, 65536)
	var left []byte
	for {
		n, err := m.master.Read(b)
		if err != nil {
			return
		}
		m.mu.Lock()
		m.raw.Write(b[:n])
		left = m.draw(append(left, b[:n]...))
		m.mu.Unlock()
	}
}

// draw returns the beginning of a character or a sequence that is not complete.
func (m *terminal) draw(b []byte) (left []byte) {
	for len(b) > 0 {
		switch {
		case b[0] == 27:
			end := slices.IndexFunc(b[min(2, len(b)):], func(c byte) bool { return c >= 0x40 && c <= 0x7e })
			if len(b) < 3 || end < 0 {
				return b
			}
			m.control(string(b[2 : end+3]))
			b = b[end+3:]
		case b[0] == '\r':
			m.column, b = 0, b[1:]
		case b[0] == '\n':
			m.row, b = m.row+1, b[1:]
		case !utf8.FullRune(b):
			return b
		default:
			r, size := utf8.DecodeRune(b)
			m.put(r)
			b = b[size:]
		}
	}
	return nil
}

func (m *terminal) control(sequence string) {
	switch sequence {
	case "H":
		m.row, m.column, m.drawing = 0, 0, true
		m.draws++
	case "K":
		if m.row < len(m.cells) {
			m.cells[m.row] = m.cells[m.row][:min(m.column, len(m.cells[m.row]))]
		}
	case "J":
		for i := m.row + 1; i < len(m.cells); i++ {
			m.cells[i] = nil
		}
		m.drawing = false
	}
}

func (m *terminal) put(r rune) {
	if m.row >= len(m.cells) || m.column+runeWidth(r) > m.columns {
		if m.resized && m.draws <= 1 {
			return // it was drawn for the size before
		}
		m.overflow = fmt.Sprintf("line %d of %d, column %d of %d: %q behind %q", m.row+1, m.lines, m.column+1, m.columns, r, string(m.cells[min(m.row, len(m.cells)-1)]))
		return
	}
	for len(m.cells[m.row]) <= m.column {
		m.cells[m.row] = append(m.cells[m.row], ' ')
	}
	m.cells[m.row][m.column] = r
	m.column += runeWidth(r)
}

func (m *terminal) screen() (text string, whole bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.overflow != "" {
		m.t.Errorf("beyond the screen: %s", m.overflow)
		m.overflow = ""
	}
	var b strings.Builder
	for _, line := range m.cells {
		b.WriteString(strings.TrimRight(string(line), " ") + "\n")
	}
	return b.String(), !m.drawing
}

// until waits for a screen: a whole one, as drawings arrive in parts.
func (m *terminal) until(what string, holds func(screen string) bool) string {
	m.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		screen, whole := m.screen()
		if whole && holds(screen) {
			return screen
		}
		if time.Now().After(end) {
			m.t.Fatalf("no screen with %s:\n%s", what, screen)
		}
	}
}

// has waits for a text.
func (m *terminal) has(text string) string {
	m.t.Helper()
	return m.until(fmt.Sprintf("%q", text), func(screen string) bool { return strings.Contains(screen, text) })
}

// lacks waits until a text is gone.
func (m *terminal) lacks(text string) string {
	m.t.Helper()
	return m.until(fmt.Sprintf("no %q", text), func(screen string) bool { return !strings.Contains(screen, text) })
}

// drawn waits until the program has drawn for the size of now: what it drew before may go beyond that.
func (m *terminal) drawn() {
	m.t.Helper()
	m.until("two drawings after the size changed", func(string) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.draws > 2
	})
}

func (m *terminal) press(keys string) {
	m.t.Helper()
	if _, err := m.master.WriteString(keys); err != nil {
		m.t.Fatal(err)
	}
}

// box answers requests for traffic and health.
type box struct {
	mu     sync.Mutex
	ports  []wire.PortTraffic
	health []wire.EndpointHealth
	asked  []string // queries
	fails  bool
	socket string
}

func (b *box) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func rateOf(r float64) *float64 { return &r }
func countOf(n uint64) *uint64  { return &n }
func newBox(t *testing.T) *box {
	b := &box{socket: filepath.Join(t.TempDir(), "s")}
	port := func(namespace, service, port string, new, open int) wire.PortTraffic {
		return wire.PortTraffic{
			Namespace: namespace, Service: service, Port: port, Protocol: "TCP", Frontends: []string{"192.0.2.10:80", "10.96.0.10:80"}, Check: "http:8080/healthz",
			ConnectionCounts: wire.ConnectionCounts{Open: open, Rate: rateOf(float64(new)), InRate: rateOf(float64(new) * 1000), OutRate: rateOf(float64(new) * 20_500), FailedRate: rateOf(0)},
			TrafficTotals:    wire.TrafficTotals{Connections: countOf(uint64(min(open*1000, 99999))), Refused: countOf(0), RefusedRate: rateOf(0)},
			States:           &wire.EndpointStates{Up: 2, All: 2}, Judged: wire.Judged{State: wire.ServiceAnswers},
		}
	}
	dead := port("billing", "invoices", "", 37, 0)
	dead.States, dead.Judged, dead.RefusedRate = &wire.EndpointStates{}, wire.Judged{State: wire.ServiceFails, Why: "it has no endpoint"}, rateOf(37)
	web := port("shop", "web", "http", 1210, 1203)
	web.States, web.Judged = &wire.EndpointStates{Up: 2, All: 3}, wire.Judged{State: wire.ServiceWarning, Why: "1 of 3 endpoints is down and gets no new connections"}
	web.FailedRate = rateOf(0.5)
	for i, state := range []string{"", "", wire.HealthDown} {
		web.Endpoints = append(web.Endpoints, wire.EndpointTraffic{
			Endpoint: fmt.Sprintf("10.1.2.%d:8080", 11+i), State: state, ConnectionCounts: wire.ConnectionCounts{Open: 600 * (1 - i/2), Rate: rateOf(605)},
		})
		since := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
		h := wire.EndpointHealth{Service: "shop/web", Port: "http", Protocol: "TCP", Endpoint: fmt.Sprintf("10.1.2.%d:8080", 11+i), State: wire.HealthUp, Since: &since, Check: "http:8080/healthz", Took: wire.Duration(1234567)}
		if state != "" {
			h.State, h.Why, h.Failures = state, "connection refused", 12
		}
		b.health = append(b.health, h)
	}
	b.ports = []wire.PortTraffic{dead, web, port("shop", strings.Repeat("long-name-", 30), strings.Repeat("p", 300), 1, 12345678)}
	for i := range 40 {
		b.ports = append(b.ports, port("default", fmt.Sprintf("s%02d", i), "", 3, 40-i))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/svcctl/v1/traffic", func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.fails {
			http.Error(w, "stopped \x1b[2J", http.StatusServiceUnavailable)
			return
		}
		var q wire.TrafficQuery
		_ = wire.ReadQuery(r.URL.Query(), &q)
		b.asked = append(b.asked, q.Sort)
		seen := wire.Traffic{
			At: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), Seconds: 2, Node: "gw1", Verdict: "1 of 43 Services does not answer; 1 has a warning", States: map[string]int{wire.ServiceFails: 1, wire.ServiceWarning: 1},
			Totals: wire.ServiceTraffic{
				ConnectionCounts: wire.ConnectionCounts{Open: 17806, Unanswered: 2, Rate: rateOf(1827), InRate: rateOf(1e6), OutRate: rateOf(2e7), FailedRate: rateOf(0.5)},
				TrafficTotals:    wire.TrafficTotals{RefusedRate: rateOf(37)},
			},
		}
		for _, p := range b.ports {
			name := p.Namespace + "/" + p.Service
			if q.Service != "" && q.Service != p.Service || !wire.TrafficFilter(q.Filter, name) {
				continue
			}
			if !q.Endpoints {
				p.Endpoints = nil
			}
			seen.Ports = append(seen.Ports, p)
		}
		if q.Clients {
			seen.Clients = &wire.ServiceClients{Counted: true, Clients: []wire.ClientTraffic{{Client: "203.0.113.7", Open: 118}}}
		}
		_ = json.NewEncoder(w).Encode(seen)
	})
	mux.HandleFunc("/svcctl/v1/health", func(w http.ResponseWriter, _ *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		_ = json.NewEncoder(w).Encode(wire.Health{Endpoints: b.health})
	})
	ln, err := net.Listen("unix", b.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(func() { _ = server.Close() })
	return b
}

// run has `svcctl top` on a terminal. quits ends it by q and returns its error.
func run(t *testing.T, b *box, term *terminal, of wire.ObjectQuery) (quits func() error) {
	t.Helper()
	now := time.Date(2026, 1, 1, 12, 0, 1, 0, time.UTC)
	done := make(chan error, 1)
	top := New(client.New(b.socket), of, Options{By: "state", Limit: 100, Color: true})
	go func() { done <- top.Live(t.Context(), term.slave, term.slave, func() time.Time { return now }) }()
	return func() error {
		term.press("q")
		return <-done
	}
}

// The keys of top on a terminal of 80 columns: numbers and the summary are whole, names are cut.
func Test932_top_on_a_terminal(t *testing.T) {
	b, term := newBox(t), openTerminal(t, 24, 80)
	quits := run(t, b, term, wire.ObjectQuery{})
	golden(t, "screen-80.txt", term.has("s15"))
	term.press("\x1b[B\r") // to the second row, and into it
	golden(t, "service-80.txt", term.has("connection refused, 12 times"))
	term.press("c")
	term.has("203.0.113.7")
	term.press("\x1b") // back, on the row that was selected
	term.has("2/43")
	term.press("\x1b[6~\x1b[6~\x1b[6~") // Page Down
	term.has("43/43")
	term.has("s39")
	term.press("\x1b[H")
	term.has("1/43")
	term.press("\x1bOB\x1b[A\x1b[B") // arrows, as terminals in another mode send them
	term.has("2/43")
	term.press("/s1")
	term.has("filter: s1_")
	term.lacks("invoices")
	term.press("\r")
	term.has("by state, with s1")
	term.press("\x1b\x1b[H")
	term.has("invoices")
	for key, by := range map[string]string{"o": "open", "r": "rate", "u": "unanswered", "f": "refused", "b": "bytes", "n": "name", "s": "state"} {
		term.press(key)
		term.has("by " + by)
		term.until("sorted by "+by, func(string) bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.asked[len(b.asked)-1] == by
		})
	}
	term.press("e")
	term.has("10.1.2.13:8080")
	term.press("?")
	term.has("A key returns.")
	term.press("?")
	term.has("invoices")
	if err := quits(); err != nil {
		t.Error(err)
	}
	term.until("the terminal given back as it was", func(string) bool {
		term.mu.Lock()
		defer term.mu.Unlock()
		raw := term.raw.String()
		return strings.HasPrefix(raw, "\x1b[?1049h\x1b[?25l") && strings.HasSuffix(raw, "\x1b[?25h\x1b[?1049l")
	})
}

// A wide terminal has more columns, and one that is resized is drawn again.
func Test933_top_on_terminals_of_other_widths(t *testing.T) {
	t.Parallel()
	b, term := newBox(t), openTerminal(t, 12, 160)
	quits := run(t, b, term, wire.ObjectQuery{})
	golden(t, "screen-160.txt", term.has("CHECK"))
	term.press("\x1b[B\r")
	golden(t, "service-160.txt", term.has("CHECKED IN"))
	term.press("\x7f")
	term.has("2/43")
	for _, columns := range []int{40, 30, 132, 20, 8} {
		term.resize(10, columns)
		term.drawn()
		term.until(fmt.Sprintf("%d columns", columns), func(screen string) bool {
			return strings.Contains(screen, "gw1") && (columns < 20 || strings.Contains(screen, "q quit"))
		})
	}
	term.resize(24, 80)
	term.drawn()
	term.has("REFUSED/S")
	if err := quits(); err != nil {
		t.Error(err)
	}
}

// The screen stays while the appliance is away, and shows how old its numbers are; text of others does not act on the terminal.
func Test934_top_while_the_appliance_is_away(t *testing.T) {
	t.Parallel()
	b, term := newBox(t), openTerminal(t, 24, 80)
	b.set(func() {
		b.ports[1].Why = "\x1b[31mשלום" + strings.Repeat("x", 300) + "\x07 日本語 e\u0301 \u202eabc"
		b.ports[1].Check = "exec:\x1b[2Jשלום"
		b.health[2].Why = "refused\r\n\x1b[H" + strings.Repeat("\u202eשלום ", 60)
	})
	quits := run(t, b, term, wire.ObjectQuery{})
	term.has("shop/web")
	b.set(func() { b.fails = true })
	screen := term.has("no answer: the numbers are 1s old, of 12:00:00")
	if !strings.Contains(screen, "invoices") {
		t.Errorf("the last numbers are gone:\n%s", screen)
	}
	b.set(func() { b.fails = false })
	term.lacks("no answer")
	term.press("\x1b[B\r")
	screen = term.has("12 times")
	if strings.ContainsRune(screen, '\u202e') || !strings.Contains(screen, "✗ 10.1.2.13:8080") || !strings.Contains(screen, "gw1") {
		t.Errorf("a message acts on the terminal:\n%s", screen)
	}
	term.mu.Lock()
	raw := term.raw.String()
	term.mu.Unlock()
	if strings.Contains(raw, "\x1b[2J") || strings.Contains(raw, "\x07") {
		t.Error("control characters of a message are written to the terminal")
	}
	if err := quits(); err != nil {
		t.Error(err)
	}
}

// The keys of terminals, also of several characters and of some at once.
func TestKeys(t *testing.T) {
	for text, want := range map[string][]key{
		"q": {'q'}, "\x1b": {keyEscape}, "\x1b[A": {keyUp}, "\x1bOB": {keyDown}, "\x1b[5~x": {keyPageUp, 'x'}, "\x1b[1;5C": {keyOther}, "\x1b\x1b": {keyEscape, keyEscape},
		"\x1b[Z/a": {keyOther, '/', 'a'}, "\r\n": {keyEnter, '\n'}, "\x1b[99": {keyOther},
	} {
		if got := keysOf([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// A sparkline has a mark for each ten seconds, against the highest.
func TestSparkline(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var samples []sample
	for i := range 6 {
		samples = append(samples, sample{now.Add(-time.Duration(10*i) * time.Second), float64(100 - 20*i)})
	}
	for _, c := range []struct {
		samples []sample
		want    string
	}{{nil, "            "}, {samples, "      ▁▂▄▅▇█"}, {[]sample{{now, 0}, {now.Add(-3 * time.Minute), 9}}, "           ▁"}} {
		if got := sparkline(c.samples, now); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
