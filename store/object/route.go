package object

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// TCPRoute is gateway.networking.k8s.io/v1 TCPRoute.
type TCPRoute struct {
	TypeMeta
	Metadata ObjectMeta  `json:"metadata"`
	Spec     L4RouteSpec `json:"spec" valid:""`
	Status   RouteStatus `json:"status,omitzero"`
}

// UDPRoute is gateway.networking.k8s.io/v1 UDPRoute.
type UDPRoute struct {
	TypeMeta
	Metadata ObjectMeta  `json:"metadata"`
	Spec     L4RouteSpec `json:"spec" valid:""`
	Status   RouteStatus `json:"status,omitzero"`
}

// TLSRoute is gateway.networking.k8s.io/v1 TLSRoute.
type TLSRoute struct {
	TypeMeta
	Metadata ObjectMeta   `json:"metadata"`
	Spec     TLSRouteSpec `json:"spec" valid:""`
	Status   RouteStatus  `json:"status,omitzero"`
}

// L4RouteSpec is gateway.networking.k8s.io/v1 TCPRouteSpec and UDPRouteSpec, which have the same fields.
type L4RouteSpec struct {
	ParentRefs []ParentRef   `json:"parentRefs,omitempty" valid:"0..32"`
	Rules      []L4RouteRule `json:"rules" valid:"1..1"`
}

// TLSRouteSpec is gateway.networking.k8s.io/v1 TLSRouteSpec.
type TLSRouteSpec struct {
	ParentRefs []ParentRef   `json:"parentRefs,omitempty" valid:"0..32"`
	Hostnames  []string      `json:"hostnames" valid:"1..1024 each:hostname"`
	Rules      []L4RouteRule `json:"rules" valid:"1..1"`
}

// L4RouteRule is gateway.networking.k8s.io/v1 TCPRouteRule, UDPRouteRule and TLSRouteRule.
type L4RouteRule struct {
	Name        *string      `json:"name,omitempty" valid:"section"`
	BackendRefs []BackendRef `json:"backendRefs" valid:"1..16"`
}

// ParentRef is gateway.networking.k8s.io/v1 ParentReference.
type ParentRef struct {
	Group       *string `json:"group,omitempty" valid:"group" default:"gateway.networking.k8s.io"`
	Kind        *string `json:"kind,omitempty" valid:"kind" default:"Gateway"`
	Namespace   *string `json:"namespace,omitempty" valid:"namespace"`
	Name        string  `json:"name" valid:"name"`
	SectionName *string `json:"sectionName,omitempty" valid:"section"`
	Port        *int32  `json:"port,omitempty" valid:"1..65535"`
}

// BackendRef is gateway.networking.k8s.io/v1 BackendRef.
type BackendRef struct {
	Group     *string `json:"group,omitempty" valid:"group" default:""`
	Kind      *string `json:"kind,omitempty" valid:"kind" default:"Service"`
	Name      string  `json:"name" valid:"name"`
	Namespace *string `json:"namespace,omitempty" valid:"namespace"`
	Port      *int32  `json:"port,omitempty" valid:"1..65535"`
	Weight    *int32  `json:"weight,omitempty" valid:"0..1000000" default:"1"`
}

// BackendObjectReference is gateway.networking.k8s.io/v1 BackendObjectReference.
type BackendObjectReference struct {
	Group     *string `json:"group,omitempty" valid:"group" default:""`
	Kind      *string `json:"kind,omitempty" valid:"kind" default:"Service"`
	Name      string  `json:"name" valid:"name"`
	Namespace *string `json:"namespace,omitempty" valid:"namespace"`
	Port      *int32  `json:"port,omitempty" valid:"1..65535"`
}

// RouteStatus is gateway.networking.k8s.io/v1 RouteStatus.
type RouteStatus struct {
	Parents []RouteParentStatus `json:"parents" valid:"0..32"`
}

// RouteParentStatus is gateway.networking.k8s.io/v1 RouteParentStatus.
type RouteParentStatus struct {
	ParentRef      ParentRef   `json:"parentRef"`
	ControllerName string      `json:"controllerName" valid:"controller"`
	Conditions     []Condition `json:"conditions" valid:"1..8 keys:type"`
}

// HTTPRoute is gateway.networking.k8s.io/v1 HTTPRoute. All fields are read and validated; the controller serves
// one rule without filters and matches, and reports everything else in the conditions of the route.
type HTTPRoute struct {
	TypeMeta
	Metadata ObjectMeta    `json:"metadata"`
	Spec     HTTPRouteSpec `json:"spec" valid:""`
	Status   RouteStatus   `json:"status,omitzero"`
}

// HTTPRouteSpec is gateway.networking.k8s.io/v1 HTTPRouteSpec.
type HTTPRouteSpec struct {
	ParentRefs []ParentRef     `json:"parentRefs,omitempty" valid:"0..32"`
	Hostnames  []string        `json:"hostnames,omitempty" valid:"0..16 each:hostname"`
	Rules      []HTTPRouteRule `json:"rules,omitempty" valid:"1..16" default:"[{}]"`
}

// HTTPRouteRule is gateway.networking.k8s.io/v1 HTTPRouteRule.
type HTTPRouteRule struct {
	Name        *string            `json:"name,omitempty" valid:"section"`
	Matches     []HTTPRouteMatch   `json:"matches,omitempty" valid:"0..64" default:"[{}]"`
	Filters     []HTTPRouteFilter  `json:"filters,omitempty" valid:"0..16"`
	BackendRefs []HTTPBackendRef   `json:"backendRefs,omitempty" valid:"0..16"`
	Timeouts    *HTTPRouteTimeouts `json:"timeouts,omitempty"`
}

// HTTPRouteTimeouts is gateway.networking.k8s.io/v1 HTTPRouteTimeouts.
type HTTPRouteTimeouts struct {
	Request        *string `json:"request,omitempty" valid:"duration"`
	BackendRequest *string `json:"backendRequest,omitempty" valid:"duration"`
}

// HTTPRouteMatch is gateway.networking.k8s.io/v1 HTTPRouteMatch.
type HTTPRouteMatch struct {
	Path        *HTTPPathMatch        `json:"path,omitempty" default:"{}"`
	Headers     []HTTPHeaderMatch     `json:"headers,omitempty" valid:"0..16 keys:name"`
	QueryParams []HTTPQueryParamMatch `json:"queryParams,omitempty" valid:"0..16 keys:name"`
	Method      *string               `json:"method,omitempty" valid:"GET|HEAD|POST|PUT|DELETE|CONNECT|OPTIONS|TRACE|PATCH"`
}

// HTTPPathMatch is gateway.networking.k8s.io/v1 HTTPPathMatch.
type HTTPPathMatch struct {
	Type  *string `json:"type,omitempty" valid:"Exact|PathPrefix|RegularExpression" default:"PathPrefix"`
	Value *string `json:"value,omitempty" valid:"0..1024" default:"/"`
}

// HTTPHeaderMatch is gateway.networking.k8s.io/v1 HTTPHeaderMatch.
type HTTPHeaderMatch struct {
	Type  *string `json:"type,omitempty" valid:"Exact|RegularExpression" default:"Exact"`
	Name  string  `json:"name" valid:"header"`
	Value string  `json:"value" valid:"1..4096"`
}

// HTTPQueryParamMatch is gateway.networking.k8s.io/v1 HTTPQueryParamMatch.
type HTTPQueryParamMatch struct {
	Type  *string `json:"type,omitempty" valid:"Exact|RegularExpression" default:"Exact"`
	Name  string  `json:"name" valid:"header"`
	Value string  `json:"value" valid:"1..1024"`
}

// HTTPBackendRef is gateway.networking.k8s.io/v1 HTTPBackendRef.
type HTTPBackendRef struct {
	Group     *string           `json:"group,omitempty" valid:"group" default:""`
	Kind      *string           `json:"kind,omitempty" valid:"kind" default:"Service"`
	Name      string            `json:"name" valid:"name"`
	Namespace *string           `json:"namespace,omitempty" valid:"namespace"`
	Port      *int32            `json:"port,omitempty" valid:"1..65535"`
	Weight    *int32            `json:"weight,omitempty" valid:"0..1000000" default:"1"`
	Filters   []HTTPRouteFilter `json:"filters,omitempty" valid:"0..16"`
}

// Backend returns the reference without its filters.
func (r HTTPBackendRef) Backend() BackendRef {
	return BackendRef{r.Group, r.Kind, r.Name, r.Namespace, r.Port, r.Weight}
}

// HTTPRouteFilter is gateway.networking.k8s.io/v1 HTTPRouteFilter.
type HTTPRouteFilter struct {
	Type                   string                     `json:"type" valid:"RequestHeaderModifier|ResponseHeaderModifier|RequestMirror|RequestRedirect|URLRewrite|ExtensionRef|CORS"`
	RequestHeaderModifier  *HTTPHeaderFilter          `json:"requestHeaderModifier,omitempty"`
	ResponseHeaderModifier *HTTPHeaderFilter          `json:"responseHeaderModifier,omitempty"`
	RequestMirror          *HTTPRequestMirrorFilter   `json:"requestMirror,omitempty"`
	RequestRedirect        *HTTPRequestRedirectFilter `json:"requestRedirect,omitempty"`
	URLRewrite             *HTTPURLRewriteFilter      `json:"urlRewrite,omitempty"`
	CORS                   *HTTPCORSFilter            `json:"cors,omitempty"`
	ExtensionRef           *LocalObjectReference      `json:"extensionRef,omitempty"`
}

// HTTPHeaderFilter is gateway.networking.k8s.io/v1 HTTPHeaderFilter.
type HTTPHeaderFilter struct {
	Set    []RouteHeader `json:"set,omitempty" valid:"0..16 keys:name"`
	Add    []RouteHeader `json:"add,omitempty" valid:"0..16 keys:name"`
	Remove []string      `json:"remove,omitempty" valid:"0..16 set"`
}

// RouteHeader is gateway.networking.k8s.io/v1 HTTPHeader.
type RouteHeader struct {
	Name  string `json:"name" valid:"header"`
	Value string `json:"value" valid:"1..4096"`
}

// HTTPRequestMirrorFilter is gateway.networking.k8s.io/v1 HTTPRequestMirrorFilter.
type HTTPRequestMirrorFilter struct {
	BackendRef BackendObjectReference `json:"backendRef"`
	Percent    *int32                 `json:"percent,omitempty" valid:"0..100"`
	Fraction   *Fraction              `json:"fraction,omitempty"`
}

// Fraction is gateway.networking.k8s.io/v1 Fraction.
type Fraction struct {
	Numerator   *int32 `json:"numerator" valid:"0.."`
	Denominator *int32 `json:"denominator,omitempty" valid:"1.." default:"100"`
}

// HTTPRequestRedirectFilter is gateway.networking.k8s.io/v1 HTTPRequestRedirectFilter.
type HTTPRequestRedirectFilter struct {
	Scheme     *string           `json:"scheme,omitempty" valid:"http|https"`
	Hostname   *string           `json:"hostname,omitempty" valid:"section"`
	Path       *HTTPPathModifier `json:"path,omitempty"`
	Port       *int32            `json:"port,omitempty" valid:"1..65535"`
	StatusCode *int32            `json:"statusCode,omitempty" valid:"301|302|303|307|308" default:"302"`
}

// HTTPPathModifier is gateway.networking.k8s.io/v1 HTTPPathModifier.
type HTTPPathModifier struct {
	Type               string  `json:"type" valid:"ReplaceFullPath|ReplacePrefixMatch"`
	ReplaceFullPath    *string `json:"replaceFullPath,omitempty" valid:"0..1024"`
	ReplacePrefixMatch *string `json:"replacePrefixMatch,omitempty" valid:"0..1024"`
}

// HTTPURLRewriteFilter is gateway.networking.k8s.io/v1 HTTPURLRewriteFilter.
type HTTPURLRewriteFilter struct {
	Hostname *string           `json:"hostname,omitempty" valid:"section"`
	Path     *HTTPPathModifier `json:"path,omitempty"`
}

// HTTPCORSFilter is gateway.networking.k8s.io/v1 HTTPCORSFilter.
type HTTPCORSFilter struct {
	AllowOrigins     []string `json:"allowOrigins,omitempty" valid:"0..64 set each:origin"`
	AllowCredentials *bool    `json:"allowCredentials,omitempty"`
	AllowMethods     []string `json:"allowMethods,omitempty" valid:"0..9 set each:GET|HEAD|POST|PUT|DELETE|CONNECT|OPTIONS|TRACE|PATCH|*"`
	AllowHeaders     []string `json:"allowHeaders,omitempty" valid:"0..64 set each:header"`
	ExposeHeaders    []string `json:"exposeHeaders,omitempty" valid:"0..64 set each:header"`
	MaxAge           *int32   `json:"maxAge,omitempty" valid:"1.." default:"5"`
}

// LocalObjectReference is gateway.networking.k8s.io/v1 LocalObjectReference.
type LocalObjectReference LocalParametersReference

func (o *TCPRoute) GetMeta() *ObjectMeta  { return &o.Metadata }
func (o *UDPRoute) GetMeta() *ObjectMeta  { return &o.Metadata }
func (o *TLSRoute) GetMeta() *ObjectMeta  { return &o.Metadata }
func (o *HTTPRoute) GetMeta() *ObjectMeta { return &o.Metadata }

// The rules that are more than those of a field, with the messages of the CustomResourceDefinitions.

func (s *L4RouteSpec) rules(at path) Errors { return parentRules(at.child("parentRefs"), s.ParentRefs) }
func (s *HTTPRouteSpec) rules(at path) Errors {
	matches := 0
	for _, r := range s.Rules {
		matches += len(r.Matches)
	}
	return append(parentRules(at.child("parentRefs"), s.ParentRefs), violated(matches > 128, at.child("rules"),
		"While 16 rules and 64 matches per rule are allowed, the total number of matches across all rules in a route must be less than 128")...)
}

// parentRules returns the errors about a list of parentRefs: several that name the same parent must differ in sectionName or port.
func parentRules(at path, parents []ParentRef) Errors {
	type parent struct{ group, kind, namespace, name string }
	sections := map[parent][]string{}
	for _, p := range parents {
		of := parent{Deref(p.Group), Deref(p.Kind), Deref(p.Namespace), p.Name}
		sections[of] = append(sections[of], Deref(p.SectionName))
	}
	unnamed, repeated := false, false
	for _, list := range sections {
		slices.Sort(list)
		unnamed = unnamed || list[0] == "" && list[len(list)-1] != ""
		repeated = repeated || len(slices.Compact(slices.Clone(list))) < len(list)
	}
	return append(
		violated(unnamed, at, "sectionName must be specified when parentRefs includes 2 or more references to the same parent"),
		violated(repeated, at, "sectionName must be unique when parentRefs includes 2 or more references to the same parent")...)
}

func (s *TLSRouteSpec) rules(at path) Errors {
	in := at.child("hostnames")
	address, invalid, wildcard := false, false, false
	for _, name := range s.Hostnames {
		_, err := netip.ParseAddr(name)
		address = address || err == nil
		rest, first := strings.CutPrefix(name, "*.")
		has := strings.Contains(name, "*")
		invalid = invalid || !has && !dns1123SubdomainRE.MatchString(name)
		wildcard = wildcard || has && !(first && dns1123SubdomainRE.MatchString(rest))
	}
	return slices.Concat(parentRules(at.child("parentRefs"), s.ParentRefs),
		violated(address, in, "Hostnames cannot contain an IP"),
		violated(invalid, in, "Hostnames must be valid based on RFC-1123"),
		violated(wildcard, in, "Wildcards on hostnames must be the first label, and the rest of hostname must be valid based on RFC-1123"))
}

// portRule returns the error of a reference to a Service without a port.
func portRule(at path, group, kind *string, port *int32) Errors {
	return violated(Deref(group) == "" && Deref(kind) == KindService && port == nil, at, "Must have port for Service reference")
}

func (r *BackendRef) rules(at path) Errors             { return portRule(at, r.Group, r.Kind, r.Port) }
func (r *BackendObjectReference) rules(at path) Errors { return portRule(at, r.Group, r.Kind, r.Port) }
func (r *HTTPBackendRef) rules(at path) Errors {
	return append(portRule(at, r.Group, r.Kind, r.Port), filterRules(at.child("filters"), r.Filters)...)
}

func (r *HTTPRouteRule) rules(at path) Errors {
	onePrefix := len(r.Matches) == 1 && r.Matches[0].Path != nil && Deref(r.Matches[0].Path.Type) == "PathPrefix"
	redirects, rewrites := prefixFilters(r.Filters)
	redirecting, rewriting := 0, 0 // backends
	for _, b := range r.BackendRefs {
		redirects, rewrites := prefixFilters(b.Filters)
		if redirects == 1 {
			redirecting++
		}
		if rewrites == 1 {
			rewriting++
		}
	}
	const prefix = "path.replacePrefixMatch, exactly one PathPrefix match must be specified"
	return slices.Concat(
		violated(len(r.BackendRefs) > 0 && slices.ContainsFunc(r.Filters, func(f HTTPRouteFilter) bool { return f.RequestRedirect != nil }), at,
			"RequestRedirect filter must not be used together with backendRefs"),
		violated(redirects == 1 && !onePrefix, at, "When using RequestRedirect filter with "+prefix),
		violated(rewrites == 1 && !onePrefix, at, "When using URLRewrite filter with "+prefix),
		violated(redirecting == 1 && !onePrefix, at, "Within backendRefs, when using RequestRedirect filter with "+prefix),
		violated(rewriting == 1 && !onePrefix, at, "Within backendRefs, When using URLRewrite filter with "+prefix),
		filterRules(at.child("filters"), r.Filters))
}

// prefixFilters returns the number of filters that replace a path prefix.
func prefixFilters(filters []HTTPRouteFilter) (redirects, rewrites int) {
	replaces := func(p *HTTPPathModifier) bool {
		return p != nil && p.Type == "ReplacePrefixMatch" && p.ReplacePrefixMatch != nil
	}
	for _, f := range filters {
		if f.RequestRedirect != nil && replaces(f.RequestRedirect.Path) {
			redirects++
		}
		if f.URLRewrite != nil && replaces(f.URLRewrite.Path) {
			rewrites++
		}
	}
	return redirects, rewrites
}

func filterRules(at path, filters []HTTPRouteFilter) Errors {
	count := map[string]int{}
	for _, f := range filters {
		count[f.Type]++
	}
	errs := violated(count["RequestRedirect"] > 0 && count["URLRewrite"] > 0, at,
		"May specify either httpRouteFilterRequestRedirect or httpRouteFilterRequestRewrite, but not both")
	for _, kind := range []string{"CORS", "RequestHeaderModifier", "ResponseHeaderModifier", "RequestRedirect", "URLRewrite"} {
		errs = append(errs, violated(count[kind] > 1, at, kind+" filter cannot be repeated")...)
	}
	return errs
}

func (f *HTTPRouteFilter) rules(at path) Errors {
	var errs Errors
	for _, of := range []struct {
		kind, field string
		is          bool
	}{
		{"CORS", "cors", f.CORS != nil},
		{"RequestHeaderModifier", "requestHeaderModifier", f.RequestHeaderModifier != nil},
		{"ResponseHeaderModifier", "responseHeaderModifier", f.ResponseHeaderModifier != nil},
		{"RequestMirror", "requestMirror", f.RequestMirror != nil},
		{"RequestRedirect", "requestRedirect", f.RequestRedirect != nil},
		{"URLRewrite", "urlRewrite", f.URLRewrite != nil},
		{"ExtensionRef", "extensionRef", f.ExtensionRef != nil},
	} {
		errs = append(errs, violated(of.is && f.Type != of.kind, at, "filter."+of.field+" must be nil if the filter.type is not "+of.kind)...)
		errs = append(errs, violated(!of.is && f.Type == of.kind, at, "filter."+of.field+" must be specified for "+of.kind+" filter.type")...)
	}
	return errs
}

func (f *HTTPCORSFilter) rules(at path) Errors {
	all := func(list []string) bool { return slices.Contains(list, "*") && len(list) > 1 }
	return slices.Concat(
		violated(all(f.AllowHeaders), at.child("allowHeaders"), "AllowHeaders cannot contain '*' alongside other methods"),
		violated(all(f.AllowMethods), at.child("allowMethods"), "AllowMethods cannot contain '*' alongside other methods"),
		violated(all(f.AllowOrigins), at.child("allowOrigins"), "AllowOrigins cannot contain '*' alongside other origins"))
}

func (f *HTTPRequestMirrorFilter) rules(at path) Errors {
	return violated(f.Percent != nil && f.Fraction != nil, at, "Only one of percent or fraction may be specified in HTTPRequestMirrorFilter")
}

func (f *Fraction) rules(at path) Errors {
	return violated(f.Numerator != nil && f.Denominator != nil && *f.Numerator > *f.Denominator, at, "numerator must be less than or equal to denominator")
}

func (m *HTTPPathModifier) rules(at path) Errors {
	var errs Errors
	for _, of := range []struct {
		kind, field string
		is          bool
	}{{"ReplaceFullPath", "replaceFullPath", m.ReplaceFullPath != nil}, {"ReplacePrefixMatch", "replacePrefixMatch", m.ReplacePrefixMatch != nil}} {
		errs = append(errs, violated(m.Type == of.kind && !of.is, at, of.field+" must be specified when type is set to '"+of.kind+"'")...)
		errs = append(errs, violated(of.is && m.Type != of.kind, at, "type must be '"+of.kind+"' when "+of.field+" is set")...)
	}
	return errs
}

var pathRE = &pattern{text: "^(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|[%][0-9a-fA-F]{2})+$"}

func (m *HTTPPathMatch) rules(at path) Errors {
	kind, value := Deref(m.Type), Deref(m.Value)
	if kind != "Exact" && kind != "PathPrefix" {
		return violated(kind != "RegularExpression", at, "type must be one of ['Exact', 'PathPrefix', 'RegularExpression']")
	}
	const when = " when type one of ['Exact', 'PathPrefix']"
	errs := violated(!strings.HasPrefix(value, "/"), at, "value must be an absolute path and start with '/'"+when)
	for _, part := range []string{"//", "/./", "/../", "%2f", "%2F", "#"} {
		errs = append(errs, violated(strings.Contains(value, part), at, "must not contain '"+part+"'"+when)...)
	}
	for _, end := range []string{"/..", "/."} {
		errs = append(errs, violated(strings.HasSuffix(value, end), at, "must not end with '"+end+"'"+when)...)
	}
	return append(errs, violated(!pathRE.MatchString(value), at,
		"must only contain valid characters (matching "+pathRE.text+") for types ['Exact', 'PathPrefix']")...)
}

func (t *HTTPRouteTimeouts) rules(at path) Errors {
	request, errRequest := time.ParseDuration(Deref(t.Request))
	backend, errBackend := time.ParseDuration(Deref(t.BackendRequest))
	return violated(errRequest == nil && errBackend == nil && request != 0 && backend > request, at,
		"backendRequest timeout cannot be longer than request timeout")
}
