package convert

import (
	"fmt"
	"slices"
	"strings"
)

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
