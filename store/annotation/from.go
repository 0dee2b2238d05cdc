package annotation

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

const (
	// EndpointsFrom is the annotation that lists the sources from which svcctl discover reads the endpoints of a Service. With the suffix ".PORT" it
	// lists the sources for one port.
	EndpointsFrom = domain + "endpoints-from"
	// EndpointsState and EndpointsReleased are annotations on the Leases of svcctl discover: its status report, and the time when held endpoints were
	// released.
	EndpointsState    = domain + "endpoints-state"
	EndpointsReleased = domain + "endpoints-released"

	// The namespace of the Leases of svcctl discover, and the prefix of their names.
	DiscoverLeaseNamespace = "kube-system"
	DiscoverLeasePrefix    = "discover-"
)

// Bounds of the annotation EndpointsFrom (number of sources, length of a name in bytes), and of the parameter hold of a source.
const (
	mostWords   = 16
	longestName = 512
	leastHold   = time.Second
	mostHold    = 24 * time.Hour
)

// Source is one source in EndpointsFrom, in the form PROVIDER:NAME[?PARAMETERS]. The annotation separates sources by blanks.
type Source struct {
	// Provider is the name of a provider of svcctl discover. By default that is the kind of provider (dns, consul); --from can define other names.
	Provider string
	Name     string
	// Params holds the parameters except hold, URL-encoded and sorted by name.
	Params string
	// Hold is how long an endpoint is kept after the last answer that contained it.
	Hold time.Duration
}

// String returns PROVIDER:NAME[?PARAMETERS] without the parameter hold. Sources with equal strings share one query to the provider.
func (s Source) String() string {
	if s.Params == "" {
		return s.Provider + ":" + s.Name
	}
	return s.Provider + ":" + s.Name + "?" + s.Params
}

// Portless reports whether answers for the source contain no ports: dns without SRV records, and docker without published ports. It returns false for
// a provider that --from defines under another name.
func (s Source) Portless() bool {
	return s.Provider == "dns" && !strings.HasPrefix(s.Name, "_") || s.Provider == "docker" && !strings.Contains(s.Params, "published=")
}

// Sources returns the sources for the endpoints of a port of a Service, from the annotation for the port if it exists, otherwise from that for the
// Service. It omits sources that cannot be parsed.
func Sources(svc *object.Service, port string) (list []Source) {
	text, own := svc.Metadata.Annotations[EndpointsFrom+"."+port]
	if !own || port == "" {
		text = svc.Metadata.Annotations[EndpointsFrom]
	}
	if len(svc.Spec.Selector) > 0 || svc.Spec.Type == object.TypeExternalName {
		return nil
	}
	for _, word := range strings.Fields(text) {
		if s, err := parseSource(word); err == nil && !slices.Contains(list, s) && len(list) < mostWords {
			list = append(list, s)
		}
	}
	return list
}

// isFrom reports whether a key is EndpointsFrom, alone or with the suffix for a port, and returns the name of the port.
func isFrom(key string) (port string, is bool) {
	rest, is := strings.CutPrefix(key, EndpointsFrom)
	if rest == "" {
		return "", is
	}
	return strings.CutPrefix(rest, ".")
}

// HasSources reports whether the annotations of a Service include EndpointsFrom, for the Service or for a port.
func HasSources(a map[string]string) bool {
	for key := range a {
		if _, is := isFrom(key); is {
			return true
		}
	}
	return false
}

// parseSource parses PROVIDER:NAME[?PARAMETERS].
func parseSource(word string) (s Source, err error) {
	provider, rest, is := strings.Cut(word, ":")
	name, params, _ := strings.Cut(rest, "?")
	switch {
	case provider == "exec" && is:
		return s, fmt.Errorf("no command is run: have a script write a file for the provider targets, or use `svcctl apply`")
	case !is || name == "":
		return s, fmt.Errorf("%q is no source of endpoints: write PROVIDER:NAME, as dns:app.example.com or consul:web?tag=prod", word)
	case strings.Contains(name, "//") || len(object.NameProblems(provider)) > 0:
		return s, fmt.Errorf("%q names no provider: an address of one is given to `svcctl discover --from NAME=KIND+URL`, and its NAME here", word)
	case len(name) > longestName:
		return s, fmt.Errorf("%q is longer than %d characters", word[:32]+"...", longestName)
	}
	values, err := url.ParseQuery(params)
	if err != nil {
		return s, fmt.Errorf("%q has parameters that cannot be read: write them as ?tag=prod&hold=5m", word)
	}
	s = Source{Provider: provider, Name: name}
	if text := values.Get("hold"); values.Has("hold") {
		if s.Hold, err = time.ParseDuration(text); err != nil || s.Hold < leastHold || s.Hold > mostHold {
			return s, fmt.Errorf("hold=%s of %q is no time from 1s to 24h", text, word)
		}
		values.Del("hold")
	}
	s.Params = values.Encode()
	return s, nil
}

// badSources returns Remarks about the annotations EndpointsFrom of a Service that are invalid or in conflict with the spec.
func badSources(svc *object.Service) (bad []Remark) {
	if !HasSources(svc.Metadata.Annotations) {
		return nil // mostly
	}
	for _, key := range slices.Sorted(maps.Keys(svc.Metadata.Annotations)) {
		port, is := isFrom(key)
		if !is {
			continue
		}
		at := func(field, format string, args ...any) {
			bad = append(bad, Remark{Field: field, Text: fmt.Sprintf(format, args...), Refused: true})
		}
		add := func(format string, args ...any) { at(Field(key), format, args...) }
		words := strings.Fields(svc.Metadata.Annotations[key])
		named := func(p object.ServicePort) bool { return p.Name == port }
		switch {
		case svc.Spec.Type == object.TypeExternalName:
			at("spec.type", "ExternalName has no address to balance: use type ClusterIP and %s: dns:NAME", key)
			continue
		case len(svc.Spec.Selector) > 0:
			at("spec.selector", "must be empty with %s", EndpointsFrom)
		case len(words) == 0:
			add("it is empty: write PROVIDER:NAME, as dns:app.example.com, or leave it out")
		case len(words) > mostWords:
			add("it has %d sources, and at most %d are read", len(words), mostWords)
		case port != "" && !slices.ContainsFunc(svc.Spec.Ports, named):
			add("the Service has no port named %q", port)
		}
		portless := ""
		for _, word := range words {
			if s, err := parseSource(word); err != nil {
				add("%v", err)
			} else if s.Portless() {
				portless = s.String()
			}
		}
		for i, p := range svc.Spec.Ports {
			if target := p.TargetPort; portless != "" && (port == "" || p.Name == port) && target.Name != "" {
				at(fmt.Sprintf("spec.ports[%d].targetPort", i), "must be a number: the answer to %s has no ports", strconv.Quote(portless))
			}
		}
	}
	return bad
}
