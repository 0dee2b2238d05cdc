package convert

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// haproxyCheck has the statements of a proxy about the checks of its servers.
type haproxyCheck struct {
	kind, path, host, status string         // kind: tcp, tls, http
	port                     string         // of all servers, as :8008
	checkTLS, connects       bool           // the check begins TLS; tcp-check or http-check connect is there
	chk, send                haproxyRequest // option httpchk, http-check send
	timeout                  time.Duration
	timeoutLine              int
}

// A haproxyRequest is what a check by HTTP asks; "" where nothing is said.
type haproxyRequest struct {
	method, path string
	line         int
}

// headers reads the header lines that old configurations have behind the version of option httpchk.
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

// connect reads what http-check connect and tcp-check connect say of the connection of a check.
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

// request sets what a check by HTTP asks for: the fields of http-check send, and of option httpchk for absent ones.
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

// The annotations of relayed Services.
const (
	annotationProxyMode       = "svcctl.io/proxy-mode"
	annotationBackendProtocol = "svcctl.io/backend-protocol"
	annotationTLSSecret       = "svcctl.io/tls-secret"
)

// notRelayed returns why a frontend has no counterpart; "": it has. HTTP is relayed to one backend, without looking at
// requests: what chooses by them, or answers them, would be served by the wrong servers.
func (r *haproxy) notRelayed(p *proxy, mode string) string {
	switch mode {
	case "tcp":
		return ""
	case "http":
	default:
		return "it is in mode " + mode + ", which is not imported"
	}
	servers := slices.ContainsFunc(p.lines, func(l haproxyLine) bool { return l.words[0] == "server" || l.words[0] == "default_backend" })
	own := map[int]bool{}
	for _, l := range p.lines {
		own[l.line] = true
	}
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

// certificateOf returns a name for the Secret of a bind's certificate: that of its file; "": it names none.
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
