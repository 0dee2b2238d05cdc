package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// HAProxy reads a haproxy.cfg and converts its proxies in TCP mode. Everything else is recorded as losses.
func HAProxy(text string, options Options) (*Imported, error) {
	r := &haproxy{reading: reading{options: options}, named: map[string]*proxy{}, defaults: map[string]*proxy{}}
	r.parse(text)
	r.read()
	return r.result()
}

// read parses and converts the sections. Nothing is converted if there is a syntax error.
func (r *haproxy) read() {
	if len(r.errs) > 0 {
		return
	}
	for _, p := range r.proxies {
		r.front(p)
		for _, l := range p.lines {
			if n := haproxyArguments[l.words[0]]; n > 0 && len(l.words) > n+1 {
				r.lose(nil, l.line, "%q behind %s is left out: it is no part of that statement", strings.Join(l.words[n+1:], " "), strings.Join(l.words[:n+1], " "))
			}
		}
	}
	for _, p := range r.proxies {
		if p.kind == "backend" && p.name != "" && !p.used {
			r.lose(nil, p.line, "backend %s is left out: no frontend that is imported leads to it alone", p.name)
		}
	}
	slices.SortStableFunc(r.out.Losses, func(a, b Loss) int { return a.Line - b.Line })
}

type haproxy struct {
	reading
	proxies  []*proxy
	named    map[string]*proxy // backend and listen sections, by name
	defaults map[string]*proxy // defaults sections, by name
	last     *proxy            // the latest defaults section, which applies to the sections after it
	told     bool              // the loss about addresses that must be routed to the box is recorded
	anyTold  bool              // the loss about bind * is recorded
}

// A proxy is a section of haproxy.cfg: frontend, backend, listen, defaults or another one.
type proxy struct {
	kind, name string // kind is the section's keyword: frontend, backend, listen, defaults, global or another one
	line       int
	from       *proxy // the defaults section that applies to the proxy
	lines      []haproxyLine
	used       bool // whether the proxy is imported
}

// haproxyLine is a line in a section, split into words.
type haproxyLine struct {
	line  int
	words []string
}

// word returns the word at an index, "" when there is none.
func (l haproxyLine) word(i int) string {
	if i < len(l.words) {
		return l.words[i]
	}
	return ""
}

// String returns the words on one line, with control characters escaped as in haproxy.cfg. It leaves out the arguments that may be a password.
func (l haproxyLine) String() string {
	text := strings.NewReplacer("\r", `\r`, "\n", `\n`, "\t", `\t`).Replace(strings.Join(l.words, " "))
	if strings.HasPrefix(text, "stats auth ") || strings.HasPrefix(text, "tcp-check send") {
		text = strings.Join(l.words[:min(2, len(l.words))], " ")
	}
	return text
}

// statements returns the lines that apply to a proxy: first those of its defaults, then its own.
func (p *proxy) statements() []haproxyLine {
	if p.from == nil {
		return p.lines
	}
	return slices.Concat(p.from.statements(), p.lines)
}

// ownLines returns the numbers of the lines of the section itself, without its defaults.
func (p *proxy) ownLines() map[int]bool {
	own := map[int]bool{}
	for _, l := range p.lines {
		own[l.line] = true
	}
	return own
}

// last returns the last statement that has one of the keywords, in the proxy or its defaults, and whether there is one.
func (p *proxy) last(keywords ...string) (found haproxyLine, is bool) {
	for _, l := range p.statements() {
		if slices.Contains(keywords, l.words[0]) {
			found, is = l, true
		}
	}
	return found, is
}

// mode returns the mode of the proxy, "tcp" unless it is set.
func (p *proxy) mode() string {
	if l, is := p.last("mode"); is {
		return l.word(1)
	}
	return "tcp" // configuration.txt, mode
}

// front converts a frontend or listen section and the backend that it uses to Services.
func (r *haproxy) front(p *proxy) {
	switch p.kind {
	case "backend":
		return // its frontends read it
	case "defaults":
		r.loseSection(p, func(keyword string) bool { return slices.Contains(haproxyRead, keyword) })
		return
	case "frontend", "listen":
	default:
		r.loseSection(p, func(string) bool { return false })
		return
	}
	before := len(r.out.Virtuals)
	defer func() { r.described(len(r.out.Virtuals) > before) }()
	mode := p.mode()
	if why := r.notRelayed(p, mode); why != "" {
		r.lose(nil, p.line, "%s %s is left out: %s", p.kind, p.name, why)
		return
	}
	if _, is := p.last("disabled"); is {
		r.lose(nil, p.line, "%s %s is left out: it is disabled", p.kind, p.name)
		return
	}
	v := &Virtual{Line: p.line, Annotations: map[string]string{}}
	back := p
	if _, leads := p.last("default_backend", "use_backend"); leads || p.kind == "frontend" {
		if back = r.backendOf(p, v); back == nil {
			return
		}
	}
	if mode == "http" {
		v.Annotations[object.AnnotationProxyMode], v.Annotations[object.AnnotationBackendProtocol] = "userspace", "http"
		r.lose(v, p.line, "mode http is the relay: requests are passed on one by one over HTTP/1.1, with X-Forwarded-For, -Proto and -Port")
	}
	binds := r.binds(p, v)
	if binds == nil {
		r.lose(nil, p.line, "%s %s is left out: no address of it has a counterpart", p.kind, p.name)
		return
	}
	back.used = true
	b := &haproxyBackend{haproxy: r, v: v, p: back, front: p, binds: binds}
	b.read()
	if p != back {
		r.frontLosses(p, v)
	}
	r.publish(v, p.name, binds, b.checks)
}

// haproxyArguments maps statements to the number of words that they take behind the keyword.
var haproxyArguments = map[string]int{"mode": 1, "default_backend": 1, "timeout": 2}

// loseSection records one loss for a section that is not converted, with the statements in it. It leaves out those for which read returns
// true, as they are converted.
func (r *haproxy) loseSection(p *proxy, read func(keyword string) bool) {
	var inside []string
	for _, l := range p.lines {
		what := l.words[0]
		if what == "option" || what == "timeout" || what == "no" || what == "stats" {
			what = strings.TrimSpace(what + " " + l.word(1))
		}
		if !read(what) && !haproxyIsQuiet(l) && !slices.Contains(inside, what) {
			inside = append(inside, what)
		}
	}
	if len(inside) > 0 {
		r.lose(nil, p.line, "%s has no counterpart and is left out: %s", strings.TrimSpace(p.kind+" "+p.name), strings.Join(inside, ", "))
	}
}

// backendOf returns the backend that a frontend or listen section uses unconditionally: that of the first use_backend without a condition, else that
// of default_backend, else the listen section itself. If there is none, it returns nil and records a loss.
func (r *haproxy) backendOf(p *proxy, v *Virtual) *proxy {
	to, isUnconditional := haproxyLine{}, false
	var conditions []haproxyLine
	for _, l := range p.statements() {
		switch {
		case l.words[0] != "use_backend":
		case isUnconditional:
			r.lose(v, l.line, "%s is never reached: use_backend %s before it has no condition", l, to.word(1))
		case len(l.words) == 2 && !strings.Contains(l.word(1), "%["):
			to, isUnconditional = l, true
		default:
			conditions = append(conditions, l)
		}
	}
	l, is := to, isUnconditional
	if !is {
		l, is = p.last("default_backend")
	}
	if !is && p.kind == "frontend" {
		for _, l := range conditions {
			r.lose(nil, l.line, "%s is not followed: conditions are not looked at here", l)
		}
		r.lose(nil, p.line, "frontend %s is left out: it has no backend that all connections go to, and conditions are not looked at here", p.name)
		return nil
	}
	name := p.name
	if is {
		name = l.word(1)
	}
	for _, l := range conditions {
		r.lose(v, l.line, "%s is not followed: all connections go to %s", l, name)
	}
	if !is {
		return p
	}
	back := r.named[l.word(1)]
	switch {
	case back == nil:
		r.fail(l.line, "there is no backend %s", l.word(1))
	case back.mode() != p.mode():
		r.lose(nil, p.line, "%s %s is left out: its backend %s is in mode %s", p.kind, p.name, back.name, back.mode())
		back = nil
	}
	return back
}

// haproxyBindWords are the parameters of bind that take a value.
var haproxyBindWords = []string{
	"accept-netscaler-cip", "alpn", "backlog", "ca-file", "ca-ignore-err", "ca-sign-file", "ca-sign-pass", "ca-verify-file", "ciphers", "ciphersuites", "client-sigalgs", "crl-file", "crt",
	"crt-ignore-err", "crt-list", "curves", "ecdhe", "expose-fd", "gid", "group", "guid-prefix", "id", "idle-ping", "interface", "label", "level", "maxconn", "mode", "mss", "name", "namespace", "nice",
	"npn", "ocsp-update", "proto", "process", "quic-cc-algo", "quic-socket", "severity-output", "shards", "sigalgs", "ssl-max-ver", "ssl-min-ver", "tcp-ut", "thread", "tls-ticket-keys", "uid", "user", "verify", "tcp-md5sig", "default-crt",
}

// binds returns the addresses and ports that a proxy listens on; nil if none has a counterpart. The zero Addr is every address of the box.
func (r *haproxy) binds(p *proxy, v *Virtual) (list []netip.AddrPort) {
	for _, l := range p.lines {
		if l.words[0] != "bind" {
			continue
		}
		if len(l.words) < 2 {
			r.fail(l.line, "bind what? An address and a port are missing")
			continue
		}
		secret := ""
		if slices.Contains(l.words[2:], "ssl") || strings.HasPrefix(l.word(1), "quic") {
			if secret = certificateOf(l.words[2:]); secret == "" || strings.HasPrefix(l.word(1), "quic") {
				r.lose(v, l.line, "bind %s ends TLS, and names no certificate with crt: clients are not served there; name a Secret in "+object.AnnotationTLSSecret, l.word(1))
				continue
			}
		}
		for i := 2; i < len(l.words); i++ {
			text := l.words[i]
			if slices.Contains(haproxyBindWords, text) && i+1 < len(l.words) {
				i++
				text += " " + l.words[i]
			}
			switch {
			case strings.HasPrefix(text, "name "), strings.HasPrefix(text, "id "), text == "v4v6":
			case secret != "" && text == "ssl": // with its crt
			case secret != "" && strings.HasPrefix(text, "crt "):
				r.lose(v, l.line, "%s: TLS ends here with the Secret %s, and clients are refused until it is there: `kubectl create secret tls %s --cert FILE --key FILE`, or one in a file of manifests", text, secret, secret)
			case text == "accept-proxy":
				r.lose(v, l.line, "accept-proxy: the header of the PROXY protocol is not taken off, the servers get it")
			default:
				r.lose(v, l.line, "%s of bind has no counterpart and is left out", text)
			}
		}
		for address := range strings.SplitSeq(l.word(1), ",") {
			for _, b := range r.bind(l.line, v, address) {
				if secret != "" {
					v.Annotations[object.AnnotationTLSSecret+"."+strconv.Itoa(int(b.Port()))] = secret
				}
				list = append(list, b)
			}
		}
	}
	return list
}

// bind parses [ADDRESS]:PORT[-PORT], as in a bind statement.
func (r *haproxy) bind(line int, v *Virtual, text string) (list []netip.AddrPort) {
	six := strings.HasPrefix(text, "ipv6@")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "ipv4@"), "ipv6@")
	if strings.Contains(text, "@") || strings.HasPrefix(text, "/") {
		r.lose(v, line, "bind %s is no address of a network: it is left out", text)
		return nil
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		r.fail(line, "%q has no port: write ADDRESS:PORT", text)
		return nil
	}
	var addrs []netip.Addr
	switch host := text[:i]; host {
	case "", "*", "0.0.0.0", "::", "[::]":
		for _, addr := range r.options.Addresses {
			if host == "" || host == "*" || addr.Is4() != strings.Contains(host, ":") {
				if !six || addr.Is6() {
					addrs = append(addrs, addr)
				}
			}
		}
		if len(addrs) == 0 {
			addrs = []netip.Addr{{}}
		}
	default:
		if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil && addr.IsLoopback() {
			r.lose(v, line, "bind %s is for programs of the box alone: it is left out", text)
			return nil
		}
		addr, err := parseAddr(host)
		if err != nil {
			r.fail(line, "%v", err)
			return nil
		}
		addrs = []netip.Addr{addr}
	}
	const most = 100 // ports of a Service
	from, to, err := parsePorts(text[i+1:])
	switch {
	case err != nil:
		r.fail(line, "%q is no port, and no range of ports", text[i+1:])
		return nil
	case to-from >= most:
		r.lose(v, line, "bind %s has more than %d ports: it is left out; svcctl.io/port-ranges serves a range whose servers have the same ports", text, most)
		return nil
	}
	for port := int(from); port <= int(to); port++ {
		for _, addr := range addrs {
			list = append(list, netip.AddrPortFrom(addr, uint16(port)))
		}
	}
	return list
}

// publish adds Services for the addresses and ports that clients connect to: one for each set of ports with the same addresses.
func (r *haproxy) publish(v *Virtual, name string, binds []netip.AddrPort, checks []checked) {
	type group struct {
		addrs []netip.Addr
		ports []Port
	}
	var groups []*group
	ports, addrs := addressesByPort(binds)
	for _, port := range ports {
		i := slices.IndexFunc(groups, func(g *group) bool { return slices.Equal(g.addrs, addrs[port]) })
		if i < 0 {
			groups, i = append(groups, &group{addrs: addrs[port]}), len(groups)
		}
		groups[i].ports = append(groups[i].ports, Port{Protocol: object.ProtocolTCP, Port: port})
	}
	for i, g := range groups {
		one := v.part(i, r.name(name), g.ports)
		if i := slices.Index(g.addrs, netip.Addr{}); i >= 0 {
			one.Type = object.TypeLoadBalancer
			if !r.anyTold {
				r.anyTold = true
				r.lose(nil, v.Line, "Services for all addresses of the box (bind *) get an address of a pool of the appliance instead; name one with --address")
			}
			if len(g.addrs) > 1 {
				one.LoadBalancerIPs = slices.DeleteFunc(slices.Clone(g.addrs), func(a netip.Addr) bool { return !a.IsValid() })
			}
		} else {
			one.ExternalIPs = g.addrs
			if !r.told {
				r.told = true
				r.lose(nil, 0, "the addresses of the Services below must be routed to the box, or announced, and not be its own: take those that haproxy or keepalived added off its interfaces")
			}
		}
		r.check(one, checks)
		r.add(one)
	}
}

// haproxyTime parses a time of haproxy, which is in milliseconds if it has no unit.
func haproxyTime(text string) (time.Duration, error) {
	if n, err := strconv.ParseUint(text, 10, 40); err == nil {
		return time.Duration(n) * time.Millisecond, nil
	}
	if days, is := strings.CutSuffix(text, "d"); is {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is no time: want a number of milliseconds, or one with us, ms, s, m, h or d", text)
	}
	return d, nil
}
