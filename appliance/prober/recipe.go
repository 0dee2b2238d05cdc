package prober

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/appliance/health"
)

// recipe has the common part of all probes of a check.
type recipe struct {
	// err is why the check cannot be made; nil: it can.
	err    error
	status []span // of passing status codes
	// before and after are the request of HTTP without the value of the header Host between them.
	before, after string
}

// span is a range of status codes, both ends included.
type span struct{ first, last int }

func newRecipe(c health.Check) (r recipe) {
	switch {
	case c.Kind < health.TCP || c.Kind > health.ICMP:
		r.err = fmt.Errorf("not asked: there is no check of the kind %d", c.Kind)
	case c.Interval <= 0 || c.Timeout <= 0:
		r.err = errors.New("not asked: the check has no interval or no timeout")
	case !validValue(c.Host):
		r.err = errors.New("not asked: the host of the check has a control character")
	case c.Kind == health.HTTP || c.Kind == health.HTTPS:
		r.err = r.http(c)
	}
	return r
}

// http composes the request, and reads the status ranges.
func (r *recipe) http(c health.Check) error {
	path := cmp.Or(c.Path, "/")
	if strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return errors.New("not asked: the path of the check has a blank or a control character")
	}
	if path[0] != '/' {
		return errors.New("not asked: the path of the check does not begin with /")
	}
	lines, named := "", map[string]bool{}
	for line := range strings.Lines(c.Headers) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		value = strings.Trim(value, " \t")
		if !validName(name) || !validValue(value) {
			return errors.New("not asked: a header of the check is not valid")
		}
		switch name := strings.ToLower(name); name {
		case "host", "connection", "content-length", "transfer-encoding", "upgrade", "expect":
			return fmt.Errorf("not asked: the header %s of the check is not its to set", name)
		default:
			named[name] = true
		}
		lines += name + ": " + value + "\r\n"
	}
	for _, own := range []string{"User-Agent: svcctl-health", "Accept: */*"} {
		if name, _, _ := strings.Cut(own, ":"); !named[strings.ToLower(name)] {
			lines += own + "\r\n"
		}
	}
	r.before = "GET " + path + " HTTP/1.1\r\nHost: "
	r.after = "\r\n" + lines + "Connection: close\r\n\r\n"
	var err error
	r.status, err = spans(c.Status)
	return err
}

// validName reports whether a text is the name of a header: a token of RFC 9110.
func validName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// validValue reports whether a text has no control character but tabs.
func validValue(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// spans reads "200-399" or "200,204,300-399"; nothing is 200-399.
func spans(text string) ([]span, error) {
	if text == "" {
		return []span{{200, 399}}, nil
	}
	var all []span
	for part := range strings.SplitSeq(text, ",") {
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		a, err1 := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || a < 100 || b > 999 || a > b {
			return nil, fmt.Errorf("not asked: the status codes of the check are not ranges of numbers: %q", text)
		}
		all = append(all, span{a, b})
	}
	return all, nil
}

// passes reports whether a status code is in range.
func (r *recipe) passes(code int) bool {
	return slices.ContainsFunc(r.status, func(s span) bool { return s.first <= code && code <= s.last })
}
