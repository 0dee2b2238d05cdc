package convert

import (
	"cmp"
	"fmt"
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
		name, value, is := strings.Cut(text, ":")
		switch {
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
