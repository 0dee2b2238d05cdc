package convert

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// haproxyFlags are the server parameters without a counterpart that take no value. haproxyValues are those that take one.
var (
	haproxyFlags = []string{
		"agent-check", "allow-0rtt", "check-send-proxy", "check-via-socks4", "force-sslv3", "force-tlsv10", "force-tlsv11", "force-tlsv12", "force-tlsv13", "no-agent-check",
		"no-tls-tickets", "no-verifyhost", "non-stick", "ssl-reuse", "no-ssl-reuse", "tfo", "enabled", "no-sslv3", "no-tlsv10", "no-tlsv11",
	}
	haproxyValues = []string{
		"addr", "agent-addr", "agent-inter", "agent-port", "agent-send", "alpn", "ca-file", "check-alpn", "check-proto", "check-sni", "ciphers", "ciphersuites", "cookie", "crl-file", "crt",
		"curves", "downinter", "error-limit", "fastinter", "guid", "hash-key", "id", "init-addr", "init-state", "log-bufsize", "log-proto", "max-reuse", "maxqueue", "minconn", "namespace",
		"npn", "observe", "on-error", "on-marked-up", "pool-conn-name", "pool-low-conn", "pool-max-conn", "pool-purge-delay", "proto", "redir", "resolve-net", "resolve-opts", "resolve-prefer",
		"resolvers", "sigalgs", "slowstart", "sni", "socks4", "source", "ssl-max-ver", "ssl-min-ver", "tcp-ut", "track", "verify", "verifyhost", "weight", "ws", "inter", "rise", "fall", "port",
		"usesrc", "interface", "strict-maxconn", "shard",
	}
)

// mostSlowStart is the greatest value of svcctl.io/slow-start.
const mostSlowStart = 15 * time.Minute

// A haproxyServer is a server line, with the parameters of default-server applied.
type haproxyServer struct {
	Server
	isChecked, disabled, tls, checkTLS bool
	port, proxy                        string
	c                                  check
	losses                             []string
	maxconn                            string
}

// server converts the statements server, server-template and dispatch.
func (b *haproxyBackend) server(l haproxyLine) {
	name, address, params := l.word(1), l.word(2), l.words[min(3, len(l.words)):]
	switch {
	case l.words[0] == "server-template":
		b.lose(b.v, l.line, "server-template %s: servers that are looked up by a name have no counterpart: it is left out", name)
		return
	case l.words[0] == "dispatch":
		name, address, params = "dispatch", l.word(1), nil
	case len(l.words) < 3:
		b.fail(l.line, "write server NAME ADDRESS[:PORT]")
		return
	}
	s := haproxyServer{Server: Server{Weight: 1}, c: check{}}
	if text := strings.TrimPrefix(strings.TrimPrefix(address, "ipv4@"), "ipv6@"); strings.Contains(text, "@") || strings.HasPrefix(text, "/") {
		b.lose(b.v, l.line, "server %s at %s is on no network: it is left out", name, address)
		return
	} else {
		address = text
	}
	host, port := haproxyHost(address)
	if found := b.options.Names[host]; len(found) > 0 {
		b.lose(b.v, l.line, "server %s: the name %s is now %s, and is not looked up again", name, host, found[0])
		host = found[0].String()
	}
	if addr, err := netip.ParseAddr(host); err == nil && addr.IsLoopback() {
		b.lose(b.v, l.line, "server %s at %s is the box itself, which has no counterpart: write an address that the program listens at", name, address)
		return
	}
	var err error
	if s.Addr, err = parseAddr(host); err != nil && isName(host) {
		b.errs = append(b.errs, &Error{Line: l.line, Text: fmt.Sprintf("server %s: %q is no address: it is a name, which --resolve looks up once", name, host), Name: host})
		return
	}
	if err == nil {
		err = b.portOf(&s.Server, port)
	}
	if err != nil {
		b.fail(l.line, "server %s: %v", name, err)
		return
	}
	for _, d := range b.defaults {
		b.params(&s, d.line, d.words[1:])
	}
	b.params(&s, l.line, params)
	if s.tls {
		b.lose(b.v, l.line, "server %s wants TLS that haproxy begins, which has no counterpart: it is left out", name)
		return
	}
	if len(s.losses) > 0 {
		b.lose(b.v, l.line, "server %s: what has no counterpart is left out: %s", name, strings.Join(s.losses, ", "))
	}
	if n, err := strconv.ParseUint(s.maxconn, 10, 32); err == nil {
		b.limit(b.v, l.line, s.Addr, "maxconn "+s.maxconn, n)
	}
	b.proxyProtocol(&s, name, l.line)
	if s.disabled {
		b.lose(b.v, l.line, "server %s is disabled: it has weight 0 instead of %d", name, s.Weight)
		s.Weight = 0
	}
	if s.Priority > 0 {
		if b.backups++; !b.allBackups {
			s.Priority = uint8(min(b.backups, object.MaxPriority)) // the first one that is up is used
		}
	}
	b.v.Servers = append(b.v.Servers, s.Server)
	b.checks = append(b.checks, checked{s.Server, l.line, b.checkOf(&s, l.line)})
}

// portOf sets the port of a server, which may be relative to the port that the client connected to, such as +80.
func (b *haproxyBackend) portOf(s *Server, text string) (err error) {
	distance, err := strconv.ParseInt(text, 10, 17)
	switch isRelative := strings.ContainsAny(text, "+-"); {
	case text == "":
		return nil
	case !isRelative || err != nil:
		s.Port, err = ParsePort(text)
		return err
	}
	s.Offset = int32(distance)
	for _, bind := range b.binds {
		if port := int32(bind.Port()) + s.Offset; port < 1 || port > 65535 {
			return fmt.Errorf("%q leads from port %d to none: want ports from 1 to 65535", text, bind.Port())
		}
	}
	return nil
}

// isName reports whether a text can be a host name: letters, digits, and - . _, at least one of them a letter.
func isName(text string) bool {
	letter := false
	for _, c := range text {
		switch {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
			letter = true
		case c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_':
		default:
			return false
		}
	}
	return letter
}

// proxyProtocol sets the version of the PROXY protocol header that is sent to servers. A Service has one version, that of its first server; a
// different setting of another server is recorded as lost.
func (b *haproxyBackend) proxyProtocol(s *haproxyServer, name string, line int) {
	switch all := b.v.Annotations[object.AnnotationProxyProtocol]; {
	case s.proxy == all:
	case len(b.v.Servers) == 0:
		b.v.Annotations[object.AnnotationProxyProtocol] = s.proxy
	case all == "":
		b.lose(b.v, line, "server %s wants the header of the PROXY protocol (%s), which those before it do not get: it gets none, as all servers of a Service", name, s.proxy)
	case s.proxy == "":
		b.lose(b.v, line, "server %s wants no header of the PROXY protocol: it gets %s, as all servers of a Service", name, all)
	default:
		b.lose(b.v, line, "server %s wants %s of the PROXY protocol: it gets %s, as all servers of a Service", name, s.proxy, all)
	}
}

// haproxyHost splits ADDRESS[:PORT]. In an IPv6 address without brackets, the text after the last colon is the port, as in haproxy.
func haproxyHost(text string) (host, port string) {
	if rest, is := strings.CutPrefix(text, "["); is {
		host, port, _ = strings.Cut(rest, "]")
		return host, strings.TrimPrefix(port, ":")
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return text, ""
	}
	return text[:i], text[i+1:]
}

// checkOf returns the health check of a server, nil if it has none.
func (b *haproxyBackend) checkOf(s *haproxyServer, line int) check {
	if !s.isChecked {
		return nil
	}
	c := maps.Clone(s.c)
	kind := b.kind
	switch {
	case (s.checkTLS || b.checkTLS) && kind == "http":
		kind = "https"
	case s.checkTLS || b.checkTLS:
		kind = "tls"
	}
	port := cmp.Or(b.port, s.port)
	if b.v.Annotations[object.AnnotationProxyProtocol] != "" && port == "" && kind != "tcp" {
		b.lose(b.v, line, "checks send no header of the PROXY protocol, which server %s waits for: it is asked whether it accepts connections, and nothing more", s.Addr)
		kind = "tcp"
	}
	c[""] = kind + port
	if kind == "http" || kind == "https" {
		c[""] += b.path
		if b.host != "" {
			c["host"] = b.host
		}
		if b.status != "" {
			c["status"] = b.status
		}
	}
	if _, has := c["interval"]; !has {
		c["interval"] = "2s" // configuration.txt, inter; also the default of rise and fall
	}
	if b.timeoutLine > 0 {
		b.bounded(b.v, c, b.timeoutLine, "timeout", b.timeout, leastTimeout, mostTimeout)
	} else { // configuration.txt, timeout check: without it a check takes as long as inter
		if interval, _ := time.ParseDuration(c["interval"]); interval != defaultTimeout {
			c["timeout"] = short(min(interval, mostTimeout))
		}
	}
	return c
}

// params applies the parameters of a server or default-server line.
func (b *haproxyBackend) params(s *haproxyServer, line int, words []string) {
	lost := func(text string) { s.losses = addOnce(s.losses, text) }
	for i := 0; i < len(words); i++ {
		word, value := words[i], ""
		takes := slices.Contains(haproxyValues, word) || word == "on-marked-down" || word == "maxconn"
		if takes {
			if i++; i >= len(words) {
				b.fail(line, "%s of a server needs a value", word)
				return
			}
			value = words[i]
		}
		switch word {
		case "check", "no-check":
			s.isChecked = word == "check"
		case "backup":
			s.Priority = 1
		case "no-backup":
			s.Priority = 0
		case "disabled", "enabled":
			s.disabled = word == "disabled"
		case "ssl", "no-ssl":
			s.tls = word == "ssl"
		case "check-ssl", "no-check-ssl":
			s.checkTLS = word == "check-ssl"
		case "no-send-proxy", "no-send-proxy-v2", "no-send-proxy-v2-ssl", "no-send-proxy-v2-ssl-cn":
			s.proxy = ""
		case "send-proxy":
			s.proxy = "v1"
		case "send-proxy-v2", "send-proxy-v2-ssl", "send-proxy-v2-ssl-cn":
			s.proxy = "v2"
		case "weight":
			n, err := strconv.ParseUint(value, 10, 16)
			if err != nil || n > 256 {
				b.fail(line, "the weight %q is no number from 0 to 256", value)
			}
			s.Weight = uint16(n)
		case "port":
			if n, err := ParsePort(value); err != nil {
				b.fail(line, "%v", err)
			} else if n != s.Port {
				s.port = fmt.Sprintf(":%d", n)
			}
		case "inter":
			d, err := haproxyTime(value)
			if err != nil {
				b.fail(line, "%v", err)
			}
			b.bounded(b.v, s.c, line, "interval", d, leastInterval, mostInterval)
		case "slowstart":
			d, err := haproxyTime(value)
			if err != nil {
				b.fail(line, "%v", err)
			}
			to := max(time.Second, min(d.Round(time.Second), mostSlowStart))
			if to != d {
				b.lose(b.v, line, "a slow start takes %s to %s: it is %s, not %s", time.Second, short(mostSlowStart), short(to), short(d))
			}
			b.v.Annotations[object.AnnotationSlowStart] = short(to)
		case "rise", "fall":
			n, err := strconv.ParseInt(value, 10, 32)
			if err != nil || n < 1 {
				b.fail(line, "%s %q is no number", word, value)
			}
			b.times(b.v, s.c, line, map[string]string{"rise": "healthy-threshold", "fall": "unhealthy-threshold"}[word], n)
		case "on-marked-down":
			if value == "shutdown-sessions" {
				s.c["on-down"] = "reset"
			} else {
				lost(word + " " + value)
			}
		case "verify":
			if value != "none" { // no certificate is verified here
				lost(word + " " + value)
			}
		case "maxconn":
			s.maxconn = value
			if _, err := strconv.ParseUint(value, 10, 32); err != nil {
				b.fail(line, "maxconn %q is no number", value)
			}
		case "id", "guid":
		default:
			switch {
			case takes:
				lost(word + " " + value)
			case slices.Contains(haproxyFlags, word):
				lost(word)
			default:
				b.fail(line, "%q is not understood in a server", word)
				return
			}
		}
	}
}

// haproxySections lists the sections of haproxy.cfg that define no proxies.
var haproxySections = []string{
	"global", "peers", "resolvers", "userlist", "mailers", "cache", "program", "ring", "http-errors", "fcgi-app", "log-forward", "log-profile", "crt-store", "traces", "acme",
}

// parse splits the text into sections.
func (r *haproxy) parse(text string) {
	var section *proxy
	line := 0
	for l := range strings.Lines(text) {
		line++
		words, err := haproxyWords(l)
		if err != "" {
			r.fail(line, "%s", err)
			continue
		}
		if len(words) == 0 || slices.Contains([]string{".diag", ".notice", ".warning"}, words[0]) { // messages that haproxy prints when it starts
			continue
		}
		switch keyword := words[0]; {
		case strings.HasPrefix(keyword, "."):
			r.fail(line, "%s: conditions are not followed: write out the branch that holds", keyword)
		case slices.Contains([]string{"frontend", "backend", "listen", "defaults"}, keyword):
			section = r.open(line, words)
		case slices.Contains(haproxySections, keyword) && !(keyword == "traces" && section != nil && section.kind == "global"): // a statement there
			section = &proxy{kind: keyword, line: line, name: strings.Join(words[1:], " ")}
			r.proxies = append(r.proxies, section)
		case section == nil:
			r.fail(line, "%q is not understood outside of a section", keyword)
		default:
			section.lines = append(section.lines, haproxyLine{line, words})
		}
	}
}

// open returns a new proxy for the section that the line begins, with the defaults section that it inherits from.
func (r *haproxy) open(line int, words []string) *proxy {
	p := &proxy{kind: words[0], line: line, from: r.last}
	if len(words) > 1 {
		p.name = words[1]
	}
	rest := words[min(2, len(words)):]
	if i := slices.Index(rest, "from"); i >= 0 {
		if i+1 == len(rest) || r.defaults[rest[i+1]] == nil {
			r.fail(line, "%s from which defaults? There are none of this name above", p.kind)
			return p
		}
		p.from = r.defaults[rest[i+1]]
		rest = slices.Delete(slices.Clone(rest), i, i+2)
	}
	if p.kind == "defaults" {
		if !slices.Contains(words, "from") {
			p.from = nil
		}
		r.last = p
		if p.name != "" {
			r.defaults[p.name] = p
		}
	} else if p.name == "" {
		r.fail(line, "%s has no name", p.kind)
	}
	for _, address := range rest { // as old versions had it: listen NAME ADDRESS
		p.lines = append(p.lines, haproxyLine{line, []string{"bind", address}})
	}
	if p.kind == "backend" || p.kind == "listen" {
		if other := r.named[p.name]; other != nil {
			r.fail(line, "there is %s %s in line %d already", other.kind, p.name, other.line)
		}
		r.named[p.name] = p
	}
	r.proxies = append(r.proxies, p)
	return p
}

// haproxyEscapes maps the letters behind \ in haproxy.cfg to control characters.
var haproxyEscapes = map[byte]byte{'r': '\r', 'n': '\n', 't': '\t'}

// haproxyWords splits a line into words. # begins a comment, and \ quotes the next character.
func haproxyWords(l string) (words []string, err string) {
	var word strings.Builder
	started := false
	end := func() {
		if started {
			words = append(words, word.String())
			word.Reset()
			started = false
		}
	}
	var quote byte
	for i := 0; i < len(l); i++ {
		switch c := l[i]; {
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\' && quote != '\'' && i+1 < len(l) && l[i+1] != '\n':
			i++
			started = true
			if control, is := haproxyEscapes[l[i]]; is {
				word.WriteByte(control)
			} else {
				word.WriteByte(l[i])
			}
		case c == '\\' && quote != '\'':
			return nil, "a line continued in the next one is not supported: write it as one line"
		case quote != 0:
			word.WriteByte(c)
		case c == '"' || c == '\'':
			quote, started = c, true
		case c == '#':
			end()
			return words, ""
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			end()
		default:
			started = true
			word.WriteByte(c)
		}
	}
	if quote != 0 {
		return nil, "a quote is not closed"
	}
	end()
	return words, ""
}
