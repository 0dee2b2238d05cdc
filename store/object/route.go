package object

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

// HTTPRoute is gateway.networking.k8s.io/v1 HTTPRoute. All fields are read and validated; the controller serves one
// rule without filters and matches, and its conditions name the rest.
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

// Backend is the reference without its filters.
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

func (o *TCPRoute) GetTypeMeta() *TypeMeta  { return &o.TypeMeta }
func (o *TCPRoute) GetMeta() *ObjectMeta    { return &o.Metadata }
func (o *TCPRoute) DeepCopy() Object        { return deepCopy(o) }
func (o *UDPRoute) GetTypeMeta() *TypeMeta  { return &o.TypeMeta }
func (o *UDPRoute) GetMeta() *ObjectMeta    { return &o.Metadata }
func (o *UDPRoute) DeepCopy() Object        { return deepCopy(o) }
func (o *TLSRoute) GetTypeMeta() *TypeMeta  { return &o.TypeMeta }
func (o *TLSRoute) GetMeta() *ObjectMeta    { return &o.Metadata }
func (o *TLSRoute) DeepCopy() Object        { return deepCopy(o) }
func (o *HTTPRoute) GetTypeMeta() *TypeMeta { return &o.TypeMeta }
func (o *HTTPRoute) GetMeta() *ObjectMeta   { return &o.Metadata }
func (o *HTTPRoute) DeepCopy() Object       { return deepCopy(o) }
