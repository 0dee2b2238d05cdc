package health

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/store/object"
)

// Defaults of the settings of svcctl.io/health-check.
const (
	defaultInterval = 5 * time.Second
	defaultTimeout  = 2 * time.Second
	defaultRise     = 2
	defaultFall     = 3
	defaultStatus   = "200-399"
)

// Bounds of the values of settings.
const (
	minInterval, maxInterval = 200 * time.Millisecond, time.Hour
	minTimeout, maxTimeout   = 50 * time.Millisecond, time.Minute
	maxThreshold             = 10
	maxRanges                = 16  // number of ranges of status codes
	maxPayload               = 256 // bytes of send and expect
)

// setting is one annotation with the prefix svcctl.io/health-check-.
type setting struct {
	name string
	// kinds lists the kinds of checks that have the setting; nil: all kinds, and checks by readiness probes.
	kinds []Kind
	read  func(p *parser, c *Check, text string) error
}

// allKinds lists the kinds of checks that take their times from settings. Readiness probes have fields for them instead.
var allKinds = []Kind{TCP, TLS, HTTP, HTTPS, GRPC, DNS, UDP, ICMP}

// allSettings lists the settings, in the order of the manual.
var allSettings = []setting{
	{"interval", allKinds, func(_ *parser, c *Check, text string) (err error) {
		c.Interval, err = duration(text, minInterval, maxInterval)
		return err
	}},
	{"timeout", allKinds, func(_ *parser, c *Check, text string) (err error) {
		c.Timeout, err = duration(text, minTimeout, maxTimeout)
		return err
	}},
	{"healthy-threshold", allKinds, func(_ *parser, c *Check, text string) (err error) {
		c.Rise, err = number(text, 1, maxThreshold, "")
		return err
	}},
	{"unhealthy-threshold", allKinds, func(_ *parser, c *Check, text string) (err error) {
		c.Fall, err = number(text, 1, maxThreshold, "")
		return err
	}},
	{"status", []Kind{HTTP, HTTPS}, func(_ *parser, c *Check, text string) (err error) {
		c.Status, err = status(text)
		return err
	}},
	{"host", []Kind{HTTP, HTTPS, TLS, GRPC}, func(_ *parser, c *Check, text string) error {
		if len(text) > maxName || !hostPattern().MatchString(text) {
			return fmt.Errorf("%s is no host name (RFC 1123); the address of the endpoint is asked in any case", quote(text))
		}
		c.Host = text
		return nil
	}},
	{"send", []Kind{UDP}, func(_ *parser, c *Check, text string) (err error) {
		c.Send, err = payload(text)
		return err
	}},
	{"expect", []Kind{HTTP, HTTPS, UDP}, func(_ *parser, c *Check, text string) (err error) {
		c.Expect, err = payload(text)
		return err
	}},
	{"verify", []Kind{HTTPS, TLS}, func(_ *parser, c *Check, text string) error {
		if text != "true" && text != "false" {
			return fmt.Errorf(`%s is neither "true" nor "false"`, quote(text))
		}
		c.Verify = text == "true"
		return nil
	}},
	{"min-healthy", nil, func(p *parser, _ *Check, text string) (err error) {
		p.plan.MinHealthy, err = number(strings.TrimSuffix(text, "%"), 0, 100, " percent")
		return err
	}},
	{"on-down", nil, func(p *parser, _ *Check, text string) error {
		if text != "leave" && text != "reset" {
			return fmt.Errorf(`%s is neither "leave" nor "reset"`, quote(text))
		}
		p.plan.Reset = text == "reset"
		return nil
	}},
}

// common holds the values of all settings of a Service. Each check of the Service uses the settings that its kind has.
type common struct{ Check }

// onto copies to a check the settings that its kind has.
func (s *common) onto(c *Check) {
	c.Interval, c.Timeout, c.Rise, c.Fall = s.Interval, s.Timeout, s.Rise, s.Fall
	for _, setting := range allSettings {
		if !slices.Contains(setting.kinds, c.Kind) {
			continue
		}
		switch setting.name {
		case "status":
			c.Status = s.Status
		case "host":
			c.Host = s.Host
		case "send":
			c.Send = s.Send
		case "expect":
			c.Expect = s.Expect
		case "verify":
			c.Verify = s.Verify
		}
	}
}

// settings reads the annotations with the prefix svcctl.io/health-check-.
func (p *parser) settings() *common {
	set := &common{Check{Interval: defaultInterval, Timeout: defaultTimeout, Rise: defaultRise, Fall: defaultFall, Status: defaultStatus}}
	for key, text := range p.have {
		name, is := strings.CutPrefix(key, settings)
		if !is {
			continue
		}
		i := slices.IndexFunc(allSettings, func(s setting) bool { return s.name == name })
		if i < 0 {
			names := object.Texts(allSettings, func(s setting) string { return s.name })
			p.refuse(key, "there is no such setting: they are %s", strings.Join(names, ", "))
			continue
		}
		if err := allSettings[i].read(p, &set.Check, text); err != nil {
			p.refuse(key, "%v", err)
			continue
		}
		p.used(key, &allSettings[i])
	}
	for _, spec := range p.checks {
		if spec != nil && spec.Check.Kind == UDP && set.Interval < UDPSpacing {
			p.refuse(settings+"interval", "%s is too short for udp: a closed port is reported once a second at most (net.ipv4.icmp_ratelimit); write 1s or more", set.Interval)
			break
		}
	}
	if set.Verify && set.Host == "" {
		p.refuse(settings+"verify", "a certificate is of a name, not of an address: give it with %shost", settings)
	}
	return set
}

// used refuses a setting that applies to none of the Service's checks.
func (p *parser) used(key string, s *setting) {
	if s.kinds == nil || len(p.checks) == 0 {
		return
	}
	probes := false
	for _, spec := range p.checks {
		if spec != nil && slices.Contains(s.kinds, spec.Check.Kind) {
			return
		}
		probes = probes || spec != nil && spec.Probe
	}
	names := object.Texts(s.kinds, Kind.String)
	if len(s.kinds) == len(allKinds) {
		if !probes {
			return // all are "none"
		}
		p.refuse(key, "readiness probes have their own: write it in the Pods, as periodSeconds, timeoutSeconds, successThreshold, failureThreshold")
		return
	}
	p.refuse(key, "none of the Service's checks has this setting: it is one of %s", strings.Join(names, ", "))
}

// duration parses a time with a unit ("5s"), or a number of seconds. It returns an error if the time is less than least or more than most.
func duration(text string, least, most time.Duration) (time.Duration, error) {
	d, err := object.ParseSeconds(text)
	if err != nil || d < least || d > most {
		return 0, fmt.Errorf(`%s is not a time between %s and %s; write it like "5s", or in seconds`, quote(text), least, most)
	}
	return d, nil
}

func number(text string, least, most int, unit string) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s is not a number from %d to %d%s", quote(text), least, most, unit)
	}
	return n, nil
}

// status validates a list of HTTP status codes and ranges, such as "200-399" or "200,204", and returns it without spaces.
func status(text string) (string, error) {
	refused := fmt.Errorf("%s are no status codes: write at most %d numbers or ranges from 100 to 599, as 200-299,304", quote(text), maxRanges)
	ranges := strings.Split(strings.ReplaceAll(text, " ", ""), ",")
	if len(ranges) > maxRanges {
		return "", refused
	}
	for _, r := range ranges {
		first, last, both := strings.Cut(r, "-")
		if !both {
			last = first
		}
		a, err1 := strconv.ParseUint(first, 10, 16)
		b, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || len(first) != 3 || len(last) != 3 || a < 100 || b > 599 || a > b {
			return "", refused
		}
	}
	return strings.Join(ranges, ","), nil
}

// payload parses the bytes that a UDP check sends, or that a check expects: a text, or hexadecimal digits after "hex:".
func payload(text string) (string, error) {
	if digits, is := strings.CutPrefix(text, "hex:"); is {
		raw, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			return "", fmt.Errorf("%s are no hexadecimal digits, two for each byte", quote(text))
		}
		text = string(raw)
	}
	if text == "" || len(text) > maxPayload {
		return "", fmt.Errorf("it has to be of 1 to %d bytes, and is of %d", maxPayload, len(text))
	}
	return text, nil
}

// Kind is the protocol of a Check.
type Kind uint8

// The kinds of checks, each with the condition for a pass.
const (
	TCP   Kind = iota + 1 // the port answers with a SYN-ACK
	TLS                   // the TLS handshake succeeds
	HTTP                  // the status code is one of Check.Status
	HTTPS                 // as HTTP, over TLS
	GRPC                  // grpc.health.v1 answers SERVING
	DNS                   // an answer with NOERROR
	UDP                   // the expected answer arrives; without Expect: no refusal
	ICMP                  // an echo reply came
)

var kindNames = [...]string{"", TCP: "tcp", TLS: "tls", HTTP: "http", HTTPS: "https", GRPC: "grpc", DNS: "dns", UDP: "udp", ICMP: "icmp"}

// String returns the kind as users write it.
func (k Kind) String() string { return kindNames[k] }

// Check is one kind of health check with its parameters and thresholds. It is comparable: equal checks of one address share one Target.
type Check struct {
	Kind Kind
	// Path is requested by HTTP and HTTPS.
	Path string
	// Host is the value of the HTTP header Host and the TLS server name; "" stands for the address of the endpoint.
	Host string
	// Name is the name that a DNS check queries, or the service name that a GRPC check queries.
	Name string
	// Status lists the HTTP status codes for a pass, such as "200-399" or "200,204,300-399".
	Status string
	// Send is the payload of a UDP check. Expect is a text that the answer (UDP) or the body (HTTP) must contain.
	Send, Expect string
	// Headers are header lines of an HTTP request, each ended by "\n".
	Headers string
	// Verify makes the check fail if the system does not trust the server's certificate.
	Verify bool

	Interval, Timeout time.Duration
	// Rise is the number of successive passes that change the state to up, Fall the number of successive failures that change it to down.
	Rise, Fall int
}

// Target is an address and its check. The port is 0 for ICMP.
type Target struct {
	Addr  netip.AddrPort
	Check Check
}

// State is the state of a Target.
type State uint8

// The states of a Target.
const (
	New  State = iota // neither up nor down was found yet
	Up                // it passes its checks
	Down              // it fails its checks
)

var stateNames = [...]string{New: "new", Up: "up", Down: "down"}

// String returns the state as users see it.
func (s State) String() string { return stateNames[s] }

// Outcome classifies the end of one probe.
type Outcome uint8

// The outcomes of a probe.
const (
	Pass    Outcome = iota
	Refused         // refused, reset, or a wrong response
	Silent          // no answer within the timeout
	Void            // the probe was not made, for a reason on this host; it does not count
)

var outcomeNames = [...]string{Pass: "pass", Refused: "refused", Silent: "silent", Void: "void"}

// String returns the name of the outcome in metrics.
func (o Outcome) String() string { return outcomeNames[o] }

// Result describes the end of one probe.
type Result struct {
	Outcome Outcome
	// Why is the reason of a failure, without any byte that the server sent; "" for a pass.
	Why  string
	Took time.Duration
}

// Verdict is the state of a Target, with its reason.
type Verdict struct {
	State State
	// Assumed reports that the Target started in state Up and has not passed a probe since then.
	Assumed bool
	// Since is the time at which the state began; zero if that was before this process.
	Since time.Time
	Last  Result
	// Why is the reason for which the Target is down. A single failure with another reason (Last.Why) does not change it.
	Why string
	// Asked reports that a probe was made since the process started. NotMade is the reason why the last probe could not be made; "" if it was made.
	Asked   bool
	NotMade string
	// Failures and Passes count the latest successive failures and passes; one of them is 0.
	Failures, Passes int
	// Held is the time for which a Target that went down too often must pass before it is up; 0 if it need not.
	Held time.Duration
}

// Bounds of the parameters of a CHECK.
const (
	maxPath = 1024 // bytes
	maxName = 253  // bytes of a DNS name in text form (RFC 1035, section 2.3.4)
)

// Each pattern is compiled at its first use: together they take 0.4 MB and a millisecond, and few boxes need them.
var (
	// hostPattern matches an RFC 1123 host name.
	hostPattern = pattern(`^[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?)*$`)
	// dnsPattern matches a name in a DNS question, such as _dns.resolver.arpa.
	dnsPattern = pattern(`^[A-Za-z0-9_]([-A-Za-z0-9_]{0,62})(\.[A-Za-z0-9_]([-A-Za-z0-9_]{0,62}))*\.?$`)
	// grpcPattern matches a full service name in Protocol Buffers, and other names that gRPC servers register.
	grpcPattern = pattern(`^[A-Za-z0-9_][-A-Za-z0-9_./]{0,252}$`)
	// portPattern matches an IANA service name (RFC 6335 section 5.1), the form of names of ports.
	portPattern = pattern(`^[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$`)
)

// pattern returns a function that compiles a regular expression at its first call.
func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// ParseCheck parses a CHECK, such as "tcp", "http:8080/healthz" or "dns/example.org". Its settings are not set. The Spec is nil for "none".
func ParseCheck(text string) (*Spec, error) {
	word, rest := text, ""
	if i := strings.IndexAny(text, ":/"); i >= 0 {
		word, rest = text[:i], text[i:]
	}
	spec := &Spec{Text: text}
	spec.Check.Kind = Kind(max(0, slices.Index(kindNames[:], word)))
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

// quote quotes a text of an annotation for a message, cut after 100 bytes.
func quote(text string) string {
	const longest = 100
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "..."
	}
	return strconv.Quote(text)
}

// setPort sets the port of the check from ":8080" or ":name". "" leaves the endpoint's own port.
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

// setPath sets the part of a CHECK from the slash on: the path of HTTP, the name in a DNS question, or the service of gRPC.
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
