package provider

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Provider returns the endpoints for questions. A package that implements it has a function New(Config) (Provider, error), which makes no connection.
// New returns errors that no later attempt can fix (a malformed URL, an unreadable certificate). Follow returns all other errors, for example if the
// server cannot be reached.
type Provider interface {
	// Follow calls take with the complete answer to a question, first at once and then whenever it changed (an answer that is equal
	// to the previous one may be repeated), until ctx is done or it fails.
	//
	// It never passes a part of an answer, and never an empty answer for a failure: it returns the error, whose text is for users
	// and does not begin with the name of the provider. The caller keeps everything as it is and calls Follow again after 0.1 to 5 s
	// (with the same question), so that no implementation has pauses and counts of its own for failures. The caller also ends Follow and
	// calls it again to have a question asked at once, each second while an empty answer is in doubt. State that must outlive a
	// call (a stream of events for all questions) belongs to the Provider.
	//
	// Follow is called from many goroutines, once at a time for each different question, and returns soon after ctx is done.
	// take does not block, keeps the slice, and is not called after Follow returned.
	Follow(ctx context.Context, q Question, take func(Answer)) error
}

// Config is the configuration of a Provider.
type Config struct {
	// URL is the URL of --from; empty: the provider takes the address from Env, as the command line tool of its kind does.
	URL string
	// Env has the environment of the process: addresses, and the files of tokens and certificates.
	Env map[string]string
	// Node is the name of the box: the node of endpoints that a daemon of this box runs.
	Node string
}

// Question is one word of the annotation svcctl.io/endpoints-from, without the provider and without the parameter hold, which all providers have. The
// type is comparable, so that equal questions of several Services are asked once.
type Question struct {
	// Name is the part before "?": a name in DNS, the name of a service, label selectors ("app=web").
	Name string
	// Params are the parameters after "?", sorted and encoded as in a URL. For a parameter that the provider does not support, Follow returns an
	// error that lists the supported ones.
	Params string
	// Port is the number of the targetPort, only with the parameter "published"; 0 otherwise.
	Port uint16
}

// Values returns the parameters.
func (q Question) Values() url.Values {
	v, _ := url.ParseQuery(q.Params) // made by Encode
	return v
}

// String returns the question as it is in the annotation.
func (q Question) String() string {
	if q.Params == "" {
		return q.Name
	}
	return q.Name + "?" + q.Params
}

// Answer has all endpoints for a question at one time.
type Answer struct {
	// Endpoints are in any order. Those with the same address and port count once.
	Endpoints []Endpoint
	// Proved is set when the report comes from the daemon that runs the endpoints. If such an answer is empty, the endpoints are removed sooner.
	Proved bool
}

// Endpoint is one address of an answer, as the provider reports it. The caller removes and reports addresses that cannot be used
// (malformed, loopback, link-local).
type Endpoint struct {
	Address string
	// Port is the port; 0: the provider has none, and the targetPort of the Service port is used.
	Port uint16
	// State reports whether the endpoint accepts connections.
	State State
	// Weight is the endpoint's share relative to the other endpoints of the Service; 0 if the provider has no weights.
	Weight uint16
	// Priority is 0 to 9. Endpoints are used only while no endpoint with a lower number is ready. The provider must map other ranges, such as the
	// priorities of SRV records, to 0 to 9.
	Priority uint8
	// Node is the name of the endpoint's host, Zone its zone; empty if unknown.
	Node, Zone string
}

// State is the state of an endpoint, which sets the conditions in its EndpointSlice.
type State uint8

const (
	// Ready endpoints take new connections.
	Ready State = iota
	// NotReady endpoints exist and take no connections: neither ready nor serving.
	NotReady
	// Terminating endpoints keep their connections and get no new ones while others are ready: serving and terminating.
	Terminating
)

// Only returns the parameters of a question. It returns an error if one is neither in names nor in many, or if one in names has several
// values.
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

// Selector is a list of required labels, KEY=VALUE or KEY for any value, separated by commas in text form.
type Selector []string

// SelectorOf parses the name of a question as a Selector.
func SelectorOf(name string) (Selector, error) {
	s := Selector(strings.Split(name, ","))
	for _, label := range s {
		if label == "" || label[0] == '=' {
			return nil, fmt.Errorf("%.100q: must be KEY=VALUE or KEY, with commas between", name)
		}
	}
	return s, nil
}

// Matches reports whether labels has every label of the selector.
func (s Selector) Matches(labels map[string]string) bool {
	for _, label := range s {
		key, want, valued := strings.Cut(label, "=")
		if value, has := labels[key]; !has || valued && value != want {
			return false
		}
	}
	return true
}

// Label sets the weight, priority or zone of an endpoint from the value of a label; the name's ending selects which. "" changes nothing.
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
