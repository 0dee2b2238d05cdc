package health

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Bounds of what a CHECK may hold.
const (
	maxPath = 1024 // bytes
	maxName = 253  // bytes: a DNS name, RFC 1035 section 2.3.4 in text
)

// Few boxes need these patterns, which take 0.4 MB and a millisecond to compile: each is with its first use.
var (
	// hostPattern is an RFC 1123 host name.
	hostPattern = pattern(`^[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?)*$`)
	// dnsPattern is a name that a DNS server may be asked for, as _dns.resolver.arpa.
	dnsPattern = pattern(`^[A-Za-z0-9_]([-A-Za-z0-9_]{0,62})(\.[A-Za-z0-9_]([-A-Za-z0-9_]{0,62}))*\.?$`)
	// grpcPattern is a full name of a service in Protocol Buffers, or any word that servers register.
	grpcPattern = pattern(`^[A-Za-z0-9_][-A-Za-z0-9_./]{0,252}$`)
	// portPattern is an IANA service name (RFC 6335 section 5.1), which names of ports are.
	portPattern = pattern(`^[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$`)
)

// pattern compiles a pattern once it is needed.
func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// ParseCheck reads a CHECK, such as "tcp", "http:8080/healthz" or "dns/example.org", without the
// settings. It is nil for "none".
func ParseCheck(text string) (*Spec, error) {
	word, rest := text, ""
	if i := strings.IndexAny(text, ":/"); i >= 0 {
		word, rest = text[:i], text[i:]
	}
	spec := &Spec{Text: text}
	spec.Check.Kind = kindOf(word)
	if word == "none" && rest == "" {
		return nil, nil
	}
	if word == probeWord {
		if rest != "" {
			return nil, fmt.Errorf("%s: the port and the path are the probe's own; write probe", quote(text))
		}
		spec.Probe = true
		return spec, nil
	}
	if spec.Check.Kind == 0 {
		return nil, fmt.Errorf("%s is no check: write tcp, tls, http, https, grpc, dns, udp, icmp or probe, with port and path, as http:8080/healthz", quote(text))
	}
	port, path := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		port, path = rest[:i], rest[i:]
	}
	if err := spec.setPort(port); err != nil {
		return nil, fmt.Errorf("%s: %w", quote(text), err)
	}
	if err := spec.setPath(path); err != nil {
		return nil, fmt.Errorf("%s: %w", quote(text), err)
	}
	return spec, nil
}

// quote is a text of an annotation in a message, of bounded length.
func quote(text string) string {
	const longest = 100
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "..."
	}
	return strconv.Quote(text)
}

func kindOf(word string) Kind {
	for k := TCP; int(k) < len(kindNames); k++ {
		if kindNames[k] == word {
			return k
		}
	}
	return 0
}

// setPort reads ":8080" or ":name"; "" is the endpoint's own port.
func (s *Spec) setPort(text string) error {
	name, has := strings.CutPrefix(text, ":")
	if !has {
		return nil
	}
	if s.Check.Kind == ICMP {
		return errors.New("icmp has no port; write icmp")
	}
	if n, err := strconv.ParseUint(name, 10, 16); err == nil && n > 0 && name[0] != '0' {
		s.Port = uint16(n)
		return nil
	}
	if !portPattern().MatchString(name) || !strings.ContainsAny(name, "abcdefghijklmnopqrstuvwxyz") {
		return fmt.Errorf("%s is no port: write a number from 1 to 65535, or the name of a port of the EndpointSlice", quote(name))
	}
	s.PortName = name
	return nil
}

// setPath reads what stands behind the slash: a path, or what is asked for.
func (s *Spec) setPath(text string) error {
	name := strings.TrimPrefix(text, "/")
	switch c := &s.Check; c.Kind {
	case HTTP, HTTPS:
		if len(text) > maxPath || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' || r == '#' }) {
			return fmt.Errorf("the path has to be of at most %d printable ASCII characters, without spaces and #: write others as %%20", maxPath)
		}
		c.Path = cmp.Or(text, "/")
	case DNS:
		if len(name) > maxName || !dnsPattern().MatchString(name) && name != "." {
			return errors.New("dns needs the name that is asked for, as dns/example.org")
		}
		c.Name = strings.TrimSuffix(name, ".") + "."
	case GRPC:
		if name != "" && !grpcPattern().MatchString(name) {
			return errors.New("what follows the slash has to be the name of a gRPC service, as grpc:9090/shop.Cart")
		}
		c.Name = name
	default:
		if text != "" {
			return fmt.Errorf("%s has no path: leave it out, or write http", c.Kind)
		}
	}
	return nil
}
