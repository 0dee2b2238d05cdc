package convert

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// haproxyRead are the statements of a defaults section that are converted for the proxies that inherit them.
var haproxyRead = []string{
	"mode", "balance", "server", "default-server", "option httpchk", "option tcp-check", "option ssl-hello-chk", "http-check", "tcp-check", "timeout check",
	"timeout client", "timeout server", "timeout tunnel", "clitimeout", "srvtimeout", "option allbackups", "source", "bind", "disabled", "default_backend", "stick",
}

// haproxyQuiet lists statements that identify a proxy or are defaults. They are dropped without a loss.
var haproxyQuiet = []string{"description", "id", "enabled", "guid"}

// haproxyProcess lists statements about the process and its log. They are dropped without a loss, since systemd and the settings of svcctl
// serve take their place.
var haproxyProcess = []string{
	"daemon", "pidfile", "log", "log-tag", "log-format", "log-send-hostname", "user", "group", "uid", "gid", "chroot", "nbproc", "nbthread", "ulimit-n", "node", "setenv", "presetenv",
	"master-worker", "stats socket", "stats timeout", "option tcplog", "option httplog", "option dontlognull", "option logasap", "option dontlog-normal", "option log-health-checks",
	"option log-separate-errors",
}

// haproxyIsQuiet reports whether a statement is dropped without a loss: it is in haproxyQuiet or haproxyProcess.
func haproxyIsQuiet(l haproxyLine) bool {
	return slices.Contains(haproxyQuiet, l.words[0]) || slices.Contains(haproxyProcess, l.words[0]) || slices.Contains(haproxyProcess, l.words[0]+" "+l.word(1))
}

// mostIdle is the greatest value of svcctl.io/idle-timeout.
const mostIdle = 168 * time.Hour

// haproxyBackend reads the servers of one proxy, its balancing and its health checks.
type haproxyBackend struct {
	*haproxy
	v *Virtual
	p *proxy
	// front is the proxy that clients connect to, which may be p.
	front *proxy
	binds []netip.AddrPort // that front listens on

	haproxyCheck
	idles      map[string]haproxyTimeout // timeout statements, by client, server or tunnel
	allBackups bool
	defaults   []haproxyLine // default-server statements
	backups    int
	consistent haproxyLine // the statement hash-type consistent; the zero value if there is none
	checks     []checked
}

// A haproxyTimeout is the value of a timeout statement and its line number.
type haproxyTimeout struct {
	is   time.Duration
	line int
}

// read converts the statements of the proxy: first those of its defaults section, of which only the ones in haproxyRead are used, then its own.
func (b *haproxyBackend) read() {
	b.kind = "tcp"
	b.idles = map[string]haproxyTimeout{}
	balance := haproxyLine{b.p.line, []string{"balance", "roundrobin"}}
	own := b.p.ownLines()
	var servers []haproxyLine
	for _, l := range b.p.statements() {
		switch keyword := l.words[0]; keyword {
		case "mode", "bind", "disabled", "default_backend", "use_backend", "acl":
			if keyword == "acl" && own[l.line] {
				b.lose(b.v, l.line, "%s: conditions have no counterpart", l)
			}
		case "balance":
			balance = l
		case "server", "dispatch", "server-template":
			servers = append(servers, l)
		case "default-server":
			b.defaults = append(b.defaults, l)
		case "option":
			b.option(l, own[l.line])
		case "http-check", "tcp-check":
			b.checkLine(l)
		case "timeout", "clitimeout", "srvtimeout", "contimeout":
			of, text := keyword, l.word(1)
			if keyword == "timeout" {
				of, text = l.word(1), l.word(2)
			}
			d, err := haproxyTime(text)
			if err != nil {
				b.fail(l.line, "%v", err)
				continue
			}
			switch of {
			case "check":
				b.timeout, b.timeoutLine = d, l.line
			case "client", "clitimeout":
				b.idles["client"] = haproxyTimeout{d, l.line}
			case "server", "srvtimeout":
				b.idles["server"] = haproxyTimeout{d, l.line}
			case "tunnel":
				b.idles["tunnel"] = haproxyTimeout{d, l.line}
			default:
				b.loseOwn(l, own)
			}
		case "source":
			b.source(l)
		case "stick":
			b.stick(l)
		case "stick-table":
			b.stickTable(l)
		case "hash-type":
			if l.word(1) == "consistent" {
				b.consistent = l
			} else {
				b.loseOwn(l, own)
			}
		case "rate-limit":
			if l.word(1) == "sessions" && b.front == b.p {
				b.rateLimit(b.v, l)
			}
		default:
			b.loseOwn(l, own)
		}
	}
	forwards := func(l haproxyLine) bool { return l.words[0] == "option" && l.word(1) == "forwardfor" }
	if b.p.mode() == "http" && !slices.ContainsFunc(slices.Concat(b.p.statements(), b.front.statements()), forwards) {
		b.lose(b.v, b.front.line, "haproxy adds no X-Forwarded-For here, as option forwardfor is missing: the relay does")
	}
	b.request()
	b.idle()
	b.balance(balance)
	if of := b.v.Annotations[object.AnnotationBalance]; b.consistent.line > 0 && of == object.BalanceSourceHash {
		b.v.Annotations[object.AnnotationBalance] = object.BalanceMaglev
		b.lose(b.v, b.consistent.line, "%s is maglev, which hashes the client's address and port: the servers of clients are others; svcctl.io/balance source-hash keeps a client with one server", b.consistent)
	} else if b.consistent.line > 0 {
		b.lose(b.v, b.consistent.line, "%s is left out: no hash chooses the server", b.consistent)
	}
	for _, l := range servers {
		b.server(l)
	}
}

// loseOwn records a statement as lost if it is in the section of the proxy itself; own holds the line numbers of that section. Statements of a
// defaults section are recorded once, with that section.
func (b *haproxyBackend) loseOwn(l haproxyLine, own map[int]bool) {
	if own[l.line] && !haproxyIsQuiet(l) {
		b.lose(b.v, l.line, "%s has no counterpart and is left out%s", l, haproxyHint(l))
	}
}

// haproxyHint returns the end of the message about a lost statement: the consequence, or what to write instead. It returns "" if there is nothing to
// add.
func haproxyHint(l haproxyLine) string {
	switch l.words[0] {
	case "tcp-request", "http-request", "tcp-response":
		if slices.Contains(l.words, "reject") || slices.Contains(l.words, "accept") || slices.Contains(l.words, "deny") {
			return ": EVERY client may connect; write spec.loadBalancerSourceRanges, or svcctl.io/source-sets"
		}
	case "retries", "redispatch":
		return ": svcctl.io/retry-after has a silent endpoint forgotten"
	case "maxconn", "fullconn":
		return ": connections are not bounded"
	}
	return ""
}

// frontLosses records the statements of a frontend that cannot be converted as losses.
func (r *haproxy) frontLosses(p *proxy, v *Virtual) {
	for _, l := range p.lines {
		switch keyword := l.words[0]; {
		case slices.Contains([]string{"mode", "bind", "default_backend", "use_backend", "disabled"}, keyword):
		case slices.Contains(haproxyQuiet, keyword):
		case keyword == "timeout" && l.word(1) == "client" || keyword == "clitimeout": // see idle
		case keyword == "rate-limit" && l.word(1) == "sessions":
			r.rateLimit(v, l)
		case haproxyIsQuiet(l) || keyword == "option" && l.word(1) == "forwardfor" && p.mode() == "http":
		default:
			r.lose(v, l.line, "%s has no counterpart and is left out%s", l, haproxyHint(l))
		}
	}
}

// rateLimit converts "rate-limit sessions RATE".
func (r *haproxy) rateLimit(v *Virtual, l haproxyLine) {
	n, err := strconv.ParseUint(l.word(2), 10, 32)
	if err != nil {
		r.fail(l.line, "rate-limit sessions %q is no number", l.word(2))
		return
	}
	r.rate(v, l.line, l.String(), n)
}

const annotationIdle = "svcctl.io/idle-timeout"

// idle sets the idle timeout of connections to "timeout tunnel". Without that statement it uses the longer of "timeout client" (of the frontend) and
// "timeout server".
func (b *haproxyBackend) idle() {
	if b.front != b.p {
		delete(b.idles, "client")
	}
	for _, l := range b.front.statements() {
		if text := l.words[len(l.words)-1]; b.front != b.p && (l.words[0] == "timeout" && l.word(1) == "client" || l.words[0] == "clitimeout") {
			d, err := haproxyTime(text)
			if err != nil {
				b.fail(l.line, "%v", err)
			}
			b.idles["client"] = haproxyTimeout{d, l.line}
		}
	}
	longer, is := b.idles["tunnel"]
	if !is {
		if longer = b.idles["client"]; b.idles["server"].is > longer.is {
			longer = b.idles["server"]
		}
	}
	d, line := longer.is, longer.line
	if d == 0 {
		return
	}
	to := min(max(d.Round(time.Second), time.Second), mostIdle)
	if to != d {
		b.lose(b.v, line, "silent connections end after whole seconds, at most 168h: after %s, not after %s", short(to), short(d))
	}
	b.v.Annotations[annotationIdle] = short(to)
}

// option converts an option statement. own is set if it is in the section itself and not in its defaults.
func (b *haproxyBackend) option(l haproxyLine, own bool) {
	switch l.word(1) {
	case "httpchk":
		b.kind = "http"
		b.chk = haproxyRequest{"OPTIONS", "/", l.line} // configuration.txt, option httpchk
		switch len(l.words) {
		case 2:
		case 3:
			b.chk.path = l.word(2)
		default:
			b.chk.method, b.chk.path = l.word(2), l.word(3)
		}
		b.headers(l)
	case "tcp-check":
		b.kind = "tcp"
	case "ssl-hello-chk":
		b.kind, b.path = "tls", ""
	case "allbackups":
		b.allBackups = true
	case "mysql-check", "pgsql-check", "redis-check", "smtpchk", "ldap-check", "external-check", "spop-check":
		b.kind = "tcp"
		b.lose(b.v, l.line, "option %s: servers are asked whether they accept connections, and nothing more", l.word(1))
	case "forwardfor":
		if own && b.p.mode() != "http" {
			b.lose(b.v, l.line, "%s is for mode http", l)
		}
	default:
		if own && !haproxyIsQuiet(l) {
			b.lose(b.v, l.line, "%s has no counterpart and is left out", l)
		}
	}
}

// checkLine converts http-check and tcp-check statements.
func (b *haproxyBackend) checkLine(l haproxyLine) {
	switch rest := l.words[1:]; {
	case l.words[0] == "http-check" && l.word(1) == "expect" && l.word(2) == "status":
		b.status = l.word(3)
	case l.words[0] == "http-check" && l.word(1) == "send":
		b.send.line = l.line
		for i := 1; i < len(rest); i++ {
			value := ""
			if i+1 < len(rest) {
				value = rest[i+1]
			}
			switch rest[i] {
			case "meth":
				b.send.method = value
			case "uri":
				b.send.path = value
			case "ver":
			case "hdr":
				if strings.EqualFold(value, "host") && i+2 < len(rest) {
					b.host = rest[i+2]
				} else {
					b.lose(b.v, l.line, "the header %s of checks is left out", value)
				}
				i++
			default:
				b.lose(b.v, l.line, "%s %s of checks has no counterpart", rest[i], value)
			}
			i++
		}
	case l.word(1) == "connect":
		b.connect(l)
	case l.word(1) == "comment":
	case l.words[0] == "http-check" && l.word(1) == "disable-on-404":
		b.lose(b.v, l.line, "%s has no counterpart: 404 is a failure", l)
	default:
		b.lose(b.v, l.line, "%s has no counterpart: it is not part of the check", l)
	}
}

// source converts a source statement, the address from which haproxy connects to servers.
func (b *haproxyBackend) source(l haproxyLine) {
	if i := slices.Index(l.words, "usesrc"); i >= 0 && (l.word(i+1) == "clientip" || l.word(i+1) == "client") {
		b.v.KeepsClient = true
		return
	}
	b.lose(b.v, l.line, "%s has no counterpart: servers see the address of the box that is next to them", l)
}

// haproxyBalance maps balance algorithms to those of svcctl.
var haproxyBalance = map[string]string{
	"roundrobin": object.BalanceRoundRobin, "static-rr": object.BalanceRoundRobin, "source": object.BalanceSourceHash, "random": object.BalanceRandom,
	"leastconn": object.BalanceLeastConnection,
}

func (b *haproxyBackend) balance(l haproxyLine) {
	name, _, _ := strings.Cut(l.word(1), "(")
	if name == "hash" && l.word(2) == "src" {
		name = "source"
	}
	if algorithm, known := haproxyBalance[name]; known {
		b.v.Annotations[object.AnnotationBalance] = algorithm
		return
	}
	b.lose(b.v, l.line, "%s has no counterpart: servers are drawn at random, by weight", l)
}

// stickTable converts a stick table: its expiry becomes the time for which a client stays with its server (session affinity).
func (b *haproxyBackend) stickTable(l haproxyLine) {
	kind, seconds := "", int64(0)
	for i := 1; i+1 < len(l.words); i++ {
		switch l.words[i] {
		case "type":
			kind = l.words[i+1]
		case "expire":
			d, err := haproxyTime(l.words[i+1])
			if err != nil {
				b.fail(l.line, "%v", err)
			}
			seconds = max(1, int64(d/time.Second))
		}
	}
	if kind != "ip" && kind != "ipv6" {
		b.lose(b.v, l.line, "%s has no counterpart: clients are remembered by their addresses alone", l)
		return
	}
	if _, is := b.p.last("stick"); !is {
		b.lose(b.v, l.line, "%s has no counterpart: nothing is counted for each client", l)
		return
	}
	if seconds == 0 {
		seconds = 10800 // until the table is full, there
		b.lose(b.v, l.line, "stick-table without expire: clients keep their server for 3 hours")
	}
	b.affinity(b.v, l.line, seconds)
}

func (b *haproxyBackend) stick(l haproxyLine) {
	if l.word(1) == "on" && (l.word(2) == "src" || l.word(2) == "dst") && len(l.words) == 3 {
		if l.word(2) == "dst" {
			b.lose(b.v, l.line, "%s has no counterpart: clients are remembered by their own addresses", l)
		}
		return
	}
	b.lose(b.v, l.line, "%s has no counterpart", l)
}

// haproxyCheck has the health check of a proxy's servers, from the statements of the proxy.
type haproxyCheck struct {
	kind, path, host, status string         // kind: tcp, tls, http
	port                     string         // the port for the checks of all servers, such as :8008
	checkTLS, connects       bool           // checkTLS: the check uses TLS; connects: there is a tcp-check connect or http-check connect
	chk, send                haproxyRequest // the requests of option httpchk (chk) and of http-check send (send)
	timeout                  time.Duration
	timeoutLine              int
}

// A haproxyRequest is the request of an HTTP health check. An empty field was not given.
type haproxyRequest struct {
	method, path string
	line         int
}

// headers reads the request headers that follow the HTTP version in option httpchk, a form from before haproxy 2.2.
func (b *haproxyBackend) headers(l haproxyLine) {
	for i, text := range strings.FieldsFunc(strings.Join(l.words[min(4, len(l.words)):], " "), func(c rune) bool { return c == '\r' || c == '\n' }) {
		switch name, value, is := strings.Cut(text, ":"); {
		case i == 0 && !is: // HTTP/1.1
		case strings.EqualFold(strings.TrimSpace(name), "host"):
			b.host = strings.TrimSpace(value)
		default:
			b.lose(b.v, l.line, "the header %s of checks is left out", strings.TrimSpace(name))
		}
	}
}

// connect reads the parameters of http-check connect and tcp-check connect: port and TLS of a health check.
func (b *haproxyBackend) connect(l haproxyLine) {
	if b.connects {
		b.lose(b.v, l.line, "%s has no counterpart: a check is one connection", l)
		return
	}
	b.connects = true
	for i := 2; i < len(l.words); i++ {
		switch word := l.words[i]; word {
		case "default", "linger":
		case "ssl":
			b.checkTLS = true
		case "port":
			i++
			n, err := ParsePort(l.word(i))
			if err != nil {
				b.fail(l.line, "%v", err)
			}
			b.port = fmt.Sprintf(":%d", n)
		case "comment":
			i++
		case "addr", "sni", "alpn", "proto":
			i++
			b.lose(b.v, l.line, "%s %s of checks has no counterpart", word, l.word(i))
		default:
			b.lose(b.v, l.line, "%s of checks has no counterpart", word)
		}
	}
}

// request sets the request of an HTTP health check: fields of http-check send take precedence over those of option httpchk.
func (b *haproxyBackend) request() {
	if b.kind != "http" {
		return
	}
	method, path, line := cmp.Or(b.send.method, b.chk.method), cmp.Or(b.send.path, b.chk.path), cmp.Or(b.send.line, b.chk.line)
	if method != "GET" {
		b.lose(b.v, line, "checks ask with GET, not with %s", method)
	}
	switch {
	case path == "/" || path == "*":
		b.path = ""
	case strings.HasPrefix(path, "/"):
		b.path = path
	default:
		b.fail(line, "the path %q of a check does not begin with /", path)
	}
}

// notRelayed returns the reason why a frontend in the given mode cannot be converted, or "" if it can. Modes other than tcp and http are not
// supported. HTTP is relayed to one backend without routing, so a frontend that chooses a server by the request or answers requests itself cannot be
// converted.
func (r *haproxy) notRelayed(p *proxy, mode string) string {
	switch mode {
	case "tcp":
		return ""
	case "http":
	default:
		return "it is in mode " + mode + ", which is not imported"
	}
	servers := slices.ContainsFunc(p.lines, func(l haproxyLine) bool { return l.words[0] == "server" || l.words[0] == "default_backend" })
	own := p.ownLines()
	for _, l := range p.statements() {
		switch first := l.words[0]; {
		case first == "use_backend" && len(l.words) > 2, first == "use-server":
			return fmt.Sprintf("it chooses by requests (%s), and the relay passes all of them on to one backend", l)
		case first == "redirect" || first == "http-request" && (l.word(1) == "redirect" || l.word(1) == "return" || l.word(1) == "deny" || l.word(1) == "auth"):
			return fmt.Sprintf("it answers requests itself (%s), and the relay passes all of them on", l)
		case first == "stats" && own[l.line] && !servers:
			return "it serves the statistics of haproxy: `svcctl dashboard`, `svcctl top` and --metrics-listen have those of svcctl"
		}
	}
	return ""
}

// certificateOf returns a name for the Secret with the certificate of a bind statement, derived from the certificate's file name. It returns "" if
// the statement names no certificate.
func certificateOf(words []string) string {
	i := slices.Index(words, "crt")
	if i < 0 || i+1 >= len(words) {
		return ""
	}
	base := strings.TrimRight(words[i+1], "/")
	base = base[strings.LastIndexByte(base, '/')+1:]
	for _, suffix := range []string{".pem", ".crt", ".cert"} {
		base = strings.TrimSuffix(base, suffix)
	}
	return new(reading).name(base)
}
