package health

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// Defaults of our own annotations.
const (
	defaultInterval = 5 * time.Second
	defaultTimeout  = 2 * time.Second
	defaultRise     = 2
	defaultFall     = 3
	defaultStatus   = "200-399"
)

// Bounds of settings.
const (
	minInterval, maxInterval = 200 * time.Millisecond, time.Hour
	minTimeout, maxTimeout   = 50 * time.Millisecond, time.Minute
	maxThreshold             = 10
	maxRanges                = 16  // of status codes
	maxPayload               = 256 // bytes of send and expect
)

// setting is one annotation behind svcctl.io/health-check-.
type setting struct {
	name string
	// kinds are the checks that it is a setting of; nil: all, and readiness probes too.
	kinds []Kind
	read  func(p *parser, c *Check, text string) error
}

// allKinds lists the kinds of checks whose times are settings, not fields of a probe.
var allKinds = []Kind{TCP, TLS, HTTP, HTTPS, GRPC, DNS, UDP, ICMP}

// allSettings are the settings, in the order of the manual.
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

// common holds the values of the settings, for checks of all kinds.
type common struct{ Check }

// onto gives a check the settings of its kind.
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

// settings reads those of our annotations that are no CHECK.
func (p *parser) settings() *common {
	set := &common{Check{Interval: defaultInterval, Timeout: defaultTimeout, Rise: defaultRise, Fall: defaultFall, Status: defaultStatus}}
	for key, text := range p.have {
		name, is := strings.CutPrefix(key, settings)
		if !is {
			continue
		}
		i := slices.IndexFunc(allSettings, func(s setting) bool { return s.name == name })
		if i < 0 {
			p.refuse(key, "there is no such setting: they are %s", settingNames())
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

// used refuses a setting that none of the checks has.
func (p *parser) used(key string, s *setting) {
	if s.kinds == nil || len(p.checks) == 0 {
		return
	}
	for _, spec := range p.checks {
		if spec != nil && slices.Contains(s.kinds, spec.Check.Kind) {
			return
		}
	}
	names := make([]string, len(s.kinds))
	for i, k := range s.kinds {
		names[i] = k.String()
	}
	if len(s.kinds) == len(allKinds) {
		if !p.probes() {
			return // all are "none"
		}
		p.refuse(key, "readiness probes have their own: write it in the Pods, as periodSeconds, timeoutSeconds, successThreshold, failureThreshold")
		return
	}
	p.refuse(key, "none of the Service's checks has this setting: it is one of %s", strings.Join(names, ", "))
}

// probes reports whether readiness probes are asked for.
func (p *parser) probes() bool {
	for _, spec := range p.checks {
		if spec != nil && spec.Probe {
			return true
		}
	}
	return false
}

func settingNames() string {
	names := make([]string, len(allSettings))
	for i, s := range allSettings {
		names[i] = s.name
	}
	return strings.Join(names, ", ")
}

// duration reads "5s", or seconds.
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

// status checks ranges of HTTP status codes, as "200-399" or "200,204".
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

// payload reads a text, or bytes behind "hex:".
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
