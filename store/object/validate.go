package object

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// Options turn single validation rules on or off. The zero value is the default.
type Options struct {
	// RelaxedServiceNames accepts any RFC 1123 label as the name of a Service, so that it may begin with a digit, as Kubernetes does since 1.36.
	// Without it, the name must be an RFC 1035 label.
	RelaxedServiceNames bool
}

// Validate returns all errors of a new object on which Default, and for a Service
// DefaultFamilies, has been called. An empty result means that the object is valid.
func Validate(o Object, opts Options) Errors {
	s := StrategyOf(o)
	if !s.Stored() { // a review has no name
		return validateContent(o, nil)
	}
	nameProblems := dns1123SubdomainProblems
	switch {
	case s.Name == KindIPAddress:
		nameProblems = addressNameProblems
	case s.Name == KindNamespace, s.Name == KindService && opts.RelaxedServiceNames:
		nameProblems = DNSLabelProblems
	case s.Name == KindService:
		nameProblems = func(value string) []string { return matchProblems(value, maxLabel, dns1035LabelRE, dns1035LabelText) }
	}
	return append(validateName(o.GetMeta(), s.Namespaced, nameProblems), validateContent(o, nil)...)
}

// ValidateUpdate returns all errors of replacing old by an updated object. It does not check the name, which cannot change. It accepts addresses and
// prefixes that old already has, even in forms that are no longer valid, so that objects accepted earlier can be updated.
func ValidateUpdate(updated, old Object, opts Options) Errors {
	if updated.GetTypeMeta().Kind != old.GetTypeMeta().Kind {
		return Join(invalid(root("kind"), updated.GetTypeMeta().Kind, immutableText), Validate(updated, opts))
	}
	errs := validateMetaUpdate(updated.GetMeta(), old.GetMeta())
	if o, has := updated.(changeValidator); has && StrategyOf(updated) == StrategyOf(old) {
		errs = append(errs, o.validateChange(old)...)
	}
	return Join(errs, validateContent(updated, old))
}

// validateContent applies all rules except those about the name; old is nil for a new object.
func validateContent(o, old Object) Errors {
	errs := validateMeta(o.GetMeta())
	if v, has := o.(validator); has {
		errs = append(errs, v.validate(old)...)
	} else if StrategyOf(o).tagged() {
		errs = append(errs, checkObject(o)...)
	}
	switch o.(type) {
	case *Endpoints, *EndpointSlice, *Pod:
		var before *ObjectMeta
		if reflect.TypeOf(o) == reflect.TypeOf(old) {
			before = old.GetMeta()
		}
		errs = append(errs, checkEndpointWeights(o.GetMeta(), before)...)
	}
	return errs
}

// The patterns and texts of name validation, which are those of apimachinery
// (util/validation and api/validate/content, v0.36). Messages include the
// patterns.
const (
	dns1123Label     = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
	dns1123Subdomain = dns1123Label + `(\.` + dns1123Label + ")*"
	dns1035Label     = "[a-z]([-a-z0-9]*[a-z0-9])?"
	labelKeyName     = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
	labelValue       = "(" + labelKeyName + ")?"

	dns1123LabelText = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', " +
		"and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '" + dns1123Label + "')"
	dns1123SubdomainText = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', " +
		"and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '" + dns1123Subdomain + "')"
	dns1035LabelText = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, " +
		"and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '" + dns1035Label + "')"
	labelKeyText = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character " +
		"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '" + labelKeyName + "')"
	labelValueText = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', " +
		"and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '" + labelValue + "')"

	maxLabel     = 63  // maximum length of a DNS label (RFC 1035 section 2.3.4)
	maxSubdomain = 253 // maximum length of a DNS name, without the length bytes at both ends (RFC 1035 section 2.3.4)
	maxPortName  = 15  // maximum length of a service name (RFC 6335 section 5.1)
)

var (
	dns1123LabelRE     = &pattern{text: "^" + dns1123Label + "$"}
	dns1123SubdomainRE = &pattern{text: "^" + dns1123Subdomain + "$"}
	dns1035LabelRE     = &pattern{text: "^" + dns1035Label + "$"}
	labelKeyNameRE     = &pattern{text: "^" + labelKeyName + "$"}
	labelValueRE       = &pattern{text: "^" + labelValue + "$"}
	portNameRE         = &pattern{text: "^[-a-z0-9]+$"}
)

// A pattern is a regular expression that is compiled at its first use: the appliance needs few of them when it starts, and command-line
// verbs none.
type pattern struct {
	text     string
	compiled atomic.Pointer[regexp.Regexp]
}

// MatchString reports whether a text matches.
func (p *pattern) MatchString(text string) bool {
	if p.compiled.Load() == nil {
		p.compiled.Store(regexp.MustCompile(p.text))
	}
	return p.compiled.Load().MatchString(text)
}

// The functions below return the problems of a value; none when it is valid.

// NameProblems returns the problems of the name of an object, or of a host (RFC 1123).
func NameProblems(name string) []string { return dns1123SubdomainProblems(name) }

// matchProblems checks the length of a value and matches it against a pattern. text is the problem of a value that does not match.
func matchProblems(value string, longest int, re *pattern, text string) []string {
	var problems []string
	if len(value) > longest {
		problems = append(problems, fmt.Sprintf("must be no more than %d bytes", longest))
	} else if isPlain(value) {
		return nil
	}
	if !re.MatchString(value) {
		problems = append(problems, text)
	}
	return problems
}

// isPlain reports whether a value has only lower-case letters, digits and dashes, begins with a
// letter and does not end in a dash. Every pattern above matches such a value: isPlain is a
// fast path for nearly all values that are read when the appliance starts.
func isPlain(value string) bool {
	last := len(value) - 1
	for i := range len(value) {
		b := value[i]
		letter, rest := b >= 'a' && b <= 'z', b >= '0' && b <= '9' || b == '-' && i < last
		if !letter && (i == 0 || !rest) {
			return false
		}
	}
	return last >= 0
}

// isPlainSubdomain reports whether a name consists of plain labels (see isPlain) with dots between them.
func isPlainSubdomain(value string) bool {
	for label := range strings.SplitSeq(value, ".") {
		if !isPlain(label) {
			return false
		}
	}
	return true
}

// DNSLabelProblems returns the problems of a DNS label (RFC 1123), as the name of a Namespace is one; none when it is valid.
func DNSLabelProblems(value string) []string {
	problems := matchProblems(value, maxLabel, dns1123LabelRE, dns1123LabelText)
	if last := len(problems) - 1; last >= 0 && problems[last] == dns1123LabelText && dns1123SubdomainRE.MatchString(value) {
		problems[last] = "must not contain dots"
	}
	return problems
}

func dns1123SubdomainProblems(value string) []string {
	if len(value) <= maxSubdomain && isPlainSubdomain(value) {
		return nil
	}
	return matchProblems(value, maxSubdomain, dns1123SubdomainRE, dns1123SubdomainText)
}

// LabelValueProblems returns the problems of a label value; none when it is valid.
func LabelValueProblems(value string) []string {
	return matchProblems(value, maxLabel, labelValueRE, labelValueText)
}

// LabelKeyProblems returns the problems of a label key, "name" or "example.com/name", which Kubernetes also calls
// a qualified name, in Kubernetes' words; none when it is valid.
func LabelKeyProblems(value string) []string {
	var problems []string
	name := value
	if prefix, rest, found := strings.Cut(value, "/"); found {
		if strings.Contains(rest, "/") {
			return []string{"a valid label key " + labelKeyText + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"}
		}
		name = rest
		if prefix == "" {
			problems = append(problems, "prefix part must be non-empty")
		} else {
			for _, problem := range dns1123SubdomainProblems(prefix) {
				problems = append(problems, "prefix part "+problem)
			}
		}
	}
	if name == "" {
		problems = append(problems, "name part must be non-empty")
	}
	for _, problem := range matchProblems(name, maxLabel, labelKeyNameRE, labelKeyText) {
		problems = append(problems, "name part "+problem)
	}
	return problems
}

// portNameProblems checks the name of a port in a targetPort. It must be an IANA service name (RFC 6335 section 5.1) in lower case.
func portNameProblems(value string) []string {
	problems := matchProblems(value, maxPortName, portNameRE,
		"must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
	if !strings.ContainsAny(value, "abcdefghijklmnopqrstuvwxyz") {
		problems = append(problems, "must contain at least one letter (a-z)")
	}
	if strings.Contains(value, "--") {
		problems = append(problems, "must not contain consecutive hyphens")
	}
	if strings.HasPrefix(value, "-") || strings.HasSuffix(value, "-") {
		problems = append(problems, "must not begin or end with a hyphen")
	}
	return problems
}

func portNumberProblems(n int32) []string {
	if n < 1 || n > 65535 {
		return []string{"must be between 1 and 65535, inclusive"}
	}
	return nil
}

// The values of ServiceSpec.Type.
const (
	TypeClusterIP    = "ClusterIP"
	TypeNodePort     = "NodePort"
	TypeLoadBalancer = "LoadBalancer"
	TypeExternalName = "ExternalName"
)

// The values of Protocol in ports.
const (
	ProtocolTCP  = "TCP"
	ProtocolUDP  = "UDP"
	ProtocolSCTP = "SCTP"
)

// The values of ServiceSpec.IPFamilies and EndpointSlice.AddressType. Only an AddressType can be FQDN.
const (
	IPv4 = "IPv4"
	IPv6 = "IPv6"
	FQDN = "FQDN"
)

// The values of ServiceSpec.IPFamilyPolicy.
const (
	SingleStack      = "SingleStack"
	PreferDualStack  = "PreferDualStack"
	RequireDualStack = "RequireDualStack"
)

// The values of ServiceSpec.ExternalTrafficPolicy and InternalTrafficPolicy.
const (
	PolicyCluster = "Cluster"
	PolicyLocal   = "Local"
)

// The values of ServiceSpec.SessionAffinity.
const (
	AffinityNone     = "None"
	AffinityClientIP = "ClientIP"
)

// The values of ServiceSpec.TrafficDistribution; PreferClose is the old name of PreferSameZone.
const (
	PreferClose    = "PreferClose"
	PreferSameZone = "PreferSameZone"
	PreferSameNode = "PreferSameNode"
)

// The values of LoadBalancerIngress.IPMode.
const (
	IPModeVIP   = "VIP"
	IPModeProxy = "Proxy"
)

// ClusterIPNone in ServiceSpec.ClusterIP makes a Service headless.
const ClusterIPNone = "None"

// Labels and annotations of Kubernetes that have a meaning here.
const (
	// LabelServiceName is the label of an EndpointSlice with the name of its Service.
	LabelServiceName = "kubernetes.io/service-name"
	// AnnotationLastApplied holds the object as `kubectl apply` last sent it, in JSON.
	AnnotationLastApplied = "kubectl.kubernetes.io/last-applied-configuration"
	// LabelManagedBy is the label of an EndpointSlice with the name of the controller that writes it; ManagedByDiscover is the value for
	// `svcctl discover`.
	LabelManagedBy    = "endpointslice.kubernetes.io/managed-by"
	ManagedByDiscover = "discover.svcctl.io"
	// AnnotationSourceRanges is the predecessor of spec.loadBalancerSourceRanges:
	// comma-separated CIDRs. The field takes precedence.
	AnnotationSourceRanges = "service.beta.kubernetes.io/load-balancer-source-ranges"

	annotationTopologyMode  = "service.kubernetes.io/topology-mode"
	annotationTopologyHints = "service.kubernetes.io/topology-aware-hints"
)

// Limits of Kubernetes, each with the constant or package it is from.
const (
	// MaxEndpointsAddresses is the maximum number of addresses, ready or not, in an Endpoints object. The Kubernetes endpoints controller truncates
	// longer lists.
	MaxEndpointsAddresses = 1000

	maxSliceEndpoints = 1000  // endpoints of an EndpointSlice (maxEndpoints of pkg/apis/discovery/validation)
	maxSliceAddresses = 100   // addresses of one endpoint (maxAddresses)
	maxSlicePorts     = 20000 // ports of an EndpointSlice (maxPorts)
	maxSliceTopology  = 16    // entries of deprecatedTopology of one endpoint (maxTopologyLabels)
	maxSliceHints     = 8     // zone hints and node hints of one endpoint (maxZoneHints, maxNodeHints)

	maxAnnotationBytes = 256 << 10 // total size of the annotations of an object (apimachinery TotalAnnotationSizeLimitB)

	defaultAffinitySeconds = 10800 // default of the ClientIP session affinity timeout (v1.DefaultClientIPServiceAffinitySeconds)
	maxAffinitySeconds     = 86400 // maximum of that timeout (core.MaxClientIPServiceAffinitySeconds)
)

// Headless reports whether the Service is headless: its cluster IP is "None".
func (o *Service) Headless() bool {
	ips := o.clusterIPs()
	return len(ips) == 1 && ips[0] == ClusterIPNone
}

// NeedsClusterIP reports whether the type of the Service has cluster IPs. It is also true for a headless Service.
func (o *Service) NeedsClusterIP() bool { return o.Spec.Type != TypeExternalName }

// NeedsNodePort reports whether the Service has a type whose ports may have node ports.
func (o *Service) NeedsNodePort() bool {
	return o.Spec.Type == TypeNodePort || o.Spec.Type == TypeLoadBalancer
}

// NeedsHealthCheckNodePort reports whether the Service needs a health-check port.
func (o *Service) NeedsHealthCheckNodePort() bool {
	return o.Spec.Type == TypeLoadBalancer && o.Spec.ExternalTrafficPolicy == PolicyLocal
}

// ExternallyAccessible reports whether the Service has addresses besides its cluster
// IP, so that externalTrafficPolicy applies to it.
func (o *Service) ExternallyAccessible() bool {
	return o.NeedsNodePort() || o.Spec.Type == TypeClusterIP && len(o.Spec.ExternalIPs) > 0
}

// clusterIPs returns spec.clusterIPs, or spec.clusterIP alone if DefaultFamilies has
// not been called yet and only that is set.
func (o *Service) clusterIPs() []string {
	if len(o.Spec.ClusterIPs) == 0 && o.Spec.ClusterIP != "" {
		return []string{o.Spec.ClusterIP}
	}
	return o.Spec.ClusterIPs
}

// Pairs returns a map as "key=value,key=value", in the order of the keys.
func Pairs[V any](m map[string]V) string {
	pairs := Texts(slices.Sorted(maps.Keys(m)), func(key string) string { return fmt.Sprintf("%s=%v", key, m[key]) })
	return strings.Join(pairs, ",")
}

// Texts returns the result of text for each item of a list.
func Texts[T any](list []T, text func(T) string) []string {
	texts := make([]string, len(list))
	for i, item := range list {
		texts[i] = text(item)
	}
	return texts
}

// Deref returns the value that p points to, or the zero value.
func Deref[T any](p *T) T {
	if p == nil {
		return *new(T)
	}
	return *p
}

// samePointee reports whether both are nil or point to equal values.
func samePointee[T comparable](a, b *T) bool {
	return (a == nil) == (b == nil) && Deref(a) == Deref(b)
}

// ErrorType is the kind of an Error, and at the same time the reason of a cause in
// a Kubernetes Status (metav1.CauseType).
type ErrorType string

// The values of ErrorType.
const (
	FieldValueInvalid      ErrorType = "FieldValueInvalid"
	FieldValueRequired     ErrorType = "FieldValueRequired"
	FieldValueDuplicate    ErrorType = "FieldValueDuplicate"
	FieldValueNotSupported ErrorType = "FieldValueNotSupported"
	FieldValueForbidden    ErrorType = "FieldValueForbidden"
	FieldValueTooLong      ErrorType = "FieldValueTooLong"
	FieldValueTooMany      ErrorType = "FieldValueTooMany"
)

// titles maps each ErrorType to the beginning of its message.
var titles = map[ErrorType]string{
	FieldValueInvalid: "Invalid value", FieldValueRequired: "Required value", FieldValueDuplicate: "Duplicate value",
	FieldValueNotSupported: "Unsupported value", FieldValueForbidden: "Forbidden", FieldValueTooLong: "Too long", FieldValueTooMany: "Too many",
}

// Error is one problem of one field. Its text is that of apimachinery's field.Error.
type Error struct {
	Type ErrorType
	// Field is the JSON path, as spec.ports[0].port.
	Field string
	// Value is the refused value; not shown for Required, Forbidden and TooLong.
	Value any
	// Detail describes the problem or the values that are accepted.
	Detail string
}

// Invalid returns the error for a field whose value is refused.
func Invalid(field string, value any, detail string) Error {
	return Error{Type: FieldValueInvalid, Field: field, Value: value, Detail: detail}
}

// Error returns field and message, as "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive".
func (e Error) Error() string { return e.Field + ": " + e.Body() }

// Body returns Error without the field: the message of a cause in a Status.
func (e Error) Body() string {
	s := cmp.Or(titles[e.Type], string(e.Type))
	switch e.Type {
	case FieldValueRequired, FieldValueForbidden, FieldValueTooLong:
	default:
		if e.Value != (omitted{}) {
			s += ": " + valueText(e.Value)
		}
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// omitted as Error.Value leaves the value out of the message (field.OmitValueType).
type omitted struct{}

// valueText prints a value as field.Error does: text quoted, numbers bare, all else JSON.
func valueText(v any) string {
	if s, ok := v.(string); ok {
		return strconv.Quote(s)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%#v", v)
	}
	return string(b)
}

// Errors has all problems of one object.
type Errors []Error

// Error returns the text of the only error, or "[first, second]"; a text that comes twice
// is shown once.
func (e Errors) Error() string {
	unique := Join(e)
	if len(unique) == 1 {
		return unique[0].Error()
	}
	return "[" + strings.Join(Texts(unique, Error.Error), ", ") + "]"
}

// Join returns all errors of the lists in order, without repetitions: DefaultFamilies and Validate
// may see the same problem.
func Join(lists ...Errors) Errors {
	var all Errors
	seen := set{}
	for _, list := range lists {
		for _, e := range list {
			if text := e.Error(); !seen[text] {
				seen[text] = true
				all = append(all, e)
			}
		}
	}
	return all
}

// A path is the position of a field in its object. It is only formatted for a message, which is
// rare.
type path struct {
	base  string
	steps [4]step // the steps after base
	n     int     // number of steps in use
}

// A step is a field, an index, or a key of a mapping.
type step struct {
	name  string // "" if the step is an index
	index int
	key   bool
}

// root returns the path of a field of the object. name may have several steps, as in "spec.ports".
func root(name string) path { return path{base: name} }

func (p path) child(name string) path { return p.with(step{name: name}) }
func (p path) index(i int) path       { return p.with(step{index: i}) }
func (p path) key(key string) path    { return p.with(step{name: key, key: true}) }

func (p path) with(s step) path {
	if p.n == len(p.steps) {
		p = root(p.String())
	}
	p.steps[p.n] = s
	p.n++
	return p
}

// String returns the path as Kubernetes writes it.
func (p path) String() string {
	text := p.base
	for _, s := range p.steps[:p.n] {
		switch {
		case s.key:
			text += "[" + s.name + "]"
		case s.name != "":
			text += "." + s.name
		default:
			text += "[" + strconv.Itoa(s.index) + "]"
		}
	}
	return text
}

func required(p path, detail string) Errors {
	return Errors{{Type: FieldValueRequired, Field: p.String(), Value: "", Detail: detail}}
}

func forbidden(p path, detail string) Errors {
	return Errors{{Type: FieldValueForbidden, Field: p.String(), Value: "", Detail: detail}}
}

func duplicate(p path, value any) Errors {
	return Errors{{Type: FieldValueDuplicate, Field: p.String(), Value: value}}
}

func invalid(p path, value any, detail string) Errors {
	return Errors{Invalid(p.String(), value, detail)}
}

// invalidFor returns an invalid error for each problem of a value.
func invalidFor[T any](p path, value T, problems []string) Errors {
	var errs Errors
	for _, problem := range problems {
		errs = append(errs, invalid(p, value, problem)...)
	}
	return errs
}

func notSupported(p path, value string, supported []string) Errors {
	return Errors{{
		Type: FieldValueNotSupported, Field: p.String(), Value: value,
		Detail: "supported values: " + strings.Join(Texts(supported, strconv.Quote), ", "),
	}}
}

func tooLong(p path, maxBytes int) Errors {
	return Errors{{
		Type: FieldValueTooLong, Field: p.String(), Value: "<value omitted>",
		Detail: fmt.Sprintf("may not be more than %d bytes", maxBytes),
	}}
}

func tooMany(p path, actual, most int) Errors {
	return Errors{{
		Type: FieldValueTooMany, Field: p.String(), Value: actual,
		Detail: strings.TrimSuffix(fmt.Sprintf("must have at most %d items", most), map[bool]string{true: "s"}[most == 1]),
	}}
}
