package provider

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Only returns the parameters of a question, or an error if one is not among names or has more than one value. Those that may have
// several are in many.
func (q Question) Only(names []string, many ...string) (url.Values, error) {
	values := q.Values()
	for name, all := range values {
		switch {
		case slices.Contains(many, name):
		case !slices.Contains(names, name):
			known := strings.Join(slices.Sorted(slices.Values(slices.Concat(names, many))), ", ")
			if known == "" {
				return nil, fmt.Errorf("%q is no parameter: there is none but hold", name)
			}
			return nil, fmt.Errorf("%q is no parameter: there are %s, hold", name, known)
		case len(all) > 1:
			return nil, fmt.Errorf("the parameter %q is there more than once", name)
		}
	}
	return values, nil
}

// Selector is a list of labels that something must have: KEY=VALUE, or KEY with any value, with commas between.
type Selector []string

// SelectorOf reads the name of a question.
func SelectorOf(name string) (Selector, error) {
	s := Selector(strings.Split(name, ","))
	for _, label := range s {
		if label == "" || label[0] == '=' {
			return nil, fmt.Errorf("%.100q: must be KEY=VALUE or KEY, with commas between", name)
		}
	}
	return s, nil
}

// Matches reports whether labels has all of them.
func (s Selector) Matches(labels map[string]string) bool {
	for _, label := range s {
		key, want, valued := strings.Cut(label, "=")
		if value, has := labels[key]; !has || valued && value != want {
			return false
		}
	}
	return true
}

// Label sets the weight, priority or zone of an endpoint from a label; "" is none.
func (e *Endpoint) Label(name, value string) error {
	var least, most uint64
	switch {
	case value == "":
		return nil
	case strings.HasSuffix(name, "zone"):
		e.Zone = value
		return nil
	case strings.HasSuffix(name, "weight"):
		least, most = 1, 65535
	default:
		most = 9
	}
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil || n < least || n > most {
		return fmt.Errorf("label %s: must be a number from %d to %d: %.50q", name, least, most, value)
	}
	if least > 0 {
		e.Weight = uint16(n)
	} else {
		e.Priority = uint8(n)
	}
	return nil
}
