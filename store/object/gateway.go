package object

import (
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The kinds of the Gateway API (gateway.networking.k8s.io), standard channel of v1.6.
const (
	KindGatewayClass   = "GatewayClass"
	KindGateway        = "Gateway"
	KindListenerSet    = "ListenerSet"
	KindTCPRoute       = "TCPRoute"
	KindUDPRoute       = "UDPRoute"
	KindTLSRoute       = "TLSRoute"
	KindHTTPRoute      = "HTTPRoute"
	KindReferenceGrant = "ReferenceGrant"
)

// GatewayController is the spec.controllerName of the GatewayClasses that svcctl serves.
const GatewayController = "svcctl.io/gateway-controller"

// GroupGateway is the API group of the Gateway API, and APIVersionGateway the API version of its kinds. Files may use older versions.
const (
	GroupGateway      = "gateway.networking.k8s.io"
	APIVersionGateway = GroupGateway + "/v1"
	gatewayBeta       = GroupGateway + "/v1beta1"
)

// Labels and annotations of the objects that the controller generates from a Gateway.
const (
	LabelGateway      = GroupGateway + "/gateway-name"
	LabelGatewayClass = GroupGateway + "/gateway-class-name"

	// AnnotationRoute names the route that an object was generated from, as KIND/NAMESPACE/NAME, and AnnotationListener
	// its listener, as KIND/NAMESPACE/NAME/LISTENER.
	AnnotationRoute    = "svcctl.io/route"
	AnnotationListener = "svcctl.io/listener"
)

// The protocols of listeners, in addition to TCP and UDP.
const (
	ProtocolHTTP  = "HTTP"
	ProtocolHTTPS = "HTTPS"
	ProtocolTLS   = "TLS"
)

// The values of ListenerTLSConfig.Mode.
const (
	TLSTerminate   = "Terminate"
	TLSPassthrough = "Passthrough"
)

// The fields and their tags follow the CustomResourceDefinitions: see rules.go for the tags valid and default.

// GatewayClass is gateway.networking.k8s.io/v1 GatewayClass.
type GatewayClass struct {
	TypeMeta
	Metadata ObjectMeta         `json:"metadata"`
	Spec     GatewayClassSpec   `json:"spec" valid:""`
	Status   GatewayClassStatus `json:"status,omitzero"`
}

// GatewayClassSpec is gateway.networking.k8s.io/v1 GatewayClassSpec.
type GatewayClassSpec struct {
	ControllerName string               `json:"controllerName" valid:"controller"`
	ParametersRef  *ParametersReference `json:"parametersRef,omitempty"`
	Description    *string              `json:"description,omitempty" valid:"0..64"`
}

// ParametersReference is gateway.networking.k8s.io/v1 ParametersReference.
type ParametersReference struct {
	Group     *string `json:"group" valid:"group"`
	Kind      string  `json:"kind" valid:"kind"`
	Name      string  `json:"name" valid:"name"`
	Namespace *string `json:"namespace,omitempty" valid:"namespace"`
}

// GatewayClassStatus is gateway.networking.k8s.io/v1 GatewayClassStatus.
type GatewayClassStatus struct {
	Conditions        []Condition        `json:"conditions,omitempty" valid:"0..8 keys:type"`
	SupportedFeatures []SupportedFeature `json:"supportedFeatures,omitempty" valid:"0..64 keys:name"`
}

// SupportedFeature is gateway.networking.k8s.io/v1 SupportedFeature.
type SupportedFeature struct {
	Name string `json:"name" valid:""`
}

// Gateway is gateway.networking.k8s.io/v1 Gateway.
type Gateway struct {
	TypeMeta
	Metadata ObjectMeta    `json:"metadata"`
	Spec     GatewaySpec   `json:"spec" valid:""`
	Status   GatewayStatus `json:"status,omitzero"`
}

// GatewaySpec is gateway.networking.k8s.io/v1 GatewaySpec.
type GatewaySpec struct {
	GatewayClassName string                 `json:"gatewayClassName" valid:"name"`
	Listeners        []Listener             `json:"listeners" valid:"1..64 keys:name"`
	Addresses        []GatewayAddress       `json:"addresses,omitempty" valid:"0..16"`
	Infrastructure   *GatewayInfrastructure `json:"infrastructure,omitempty"`
	AllowedListeners *AllowedListeners      `json:"allowedListeners,omitempty"`
	TLS              *GatewayTLSConfig      `json:"tls,omitempty"`
}

// Listener is gateway.networking.k8s.io/v1 Listener, and ListenerEntry of a ListenerSet.
type Listener struct {
	Name          string             `json:"name" valid:"section"`
	Hostname      *string            `json:"hostname,omitempty" valid:"hostname"`
	Port          int32              `json:"port" valid:"1..65535"`
	Protocol      string             `json:"protocol" valid:"protocol"`
	TLS           *ListenerTLSConfig `json:"tls,omitempty"`
	AllowedRoutes *AllowedRoutes     `json:"allowedRoutes,omitempty" default:"{}"`
}

// ListenerTLSConfig is gateway.networking.k8s.io/v1 ListenerTLSConfig.
type ListenerTLSConfig struct {
	Mode            *string                 `json:"mode,omitempty" valid:"Terminate|Passthrough" default:"Terminate"`
	CertificateRefs []SecretObjectReference `json:"certificateRefs,omitempty" valid:"0..64"`
	Options         map[string]string       `json:"options,omitempty" valid:"0..16 each:0..4096"`
}

// SecretObjectReference is gateway.networking.k8s.io/v1 SecretObjectReference.
type SecretObjectReference struct {
	Group     *string `json:"group,omitempty" valid:"group" default:""`
	Kind      *string `json:"kind,omitempty" valid:"kind" default:"Secret"`
	Name      string  `json:"name" valid:"name"`
	Namespace *string `json:"namespace,omitempty" valid:"namespace"`
}

// AllowedRoutes is gateway.networking.k8s.io/v1 AllowedRoutes.
type AllowedRoutes struct {
	Namespaces *RouteNamespaces `json:"namespaces,omitempty" default:"{}"`
	Kinds      []RouteGroupKind `json:"kinds,omitempty" valid:"0..8"`
}

// RouteNamespaces is gateway.networking.k8s.io/v1 RouteNamespaces.
type RouteNamespaces struct {
	From     *string        `json:"from,omitempty" valid:"All|Selector|Same" default:"Same"`
	Selector *LabelSelector `json:"selector,omitempty"`
}

// The values of RouteNamespaces.From and ListenerNamespaces.From; only the latter can be FromNone.
const (
	FromAll      = "All"
	FromSelector = "Selector"
	FromSame     = "Same"
	FromNone     = "None"
)

// RouteGroupKind is gateway.networking.k8s.io/v1 RouteGroupKind.
type RouteGroupKind struct {
	Group *string `json:"group,omitempty" valid:"group" default:"gateway.networking.k8s.io"`
	Kind  string  `json:"kind" valid:"kind"`
}

// GatewayAddress is gateway.networking.k8s.io/v1 GatewaySpecAddress.
type GatewayAddress struct {
	Type  *string `json:"type,omitempty" valid:"addressType" default:"IPAddress"`
	Value *string `json:"value,omitempty" valid:"0..253"`
}

// The values of GatewayAddress.Type.
const (
	AddressIP       = "IPAddress"
	AddressHostname = "Hostname"
)

// GatewayInfrastructure is gateway.networking.k8s.io/v1 GatewayInfrastructure.
type GatewayInfrastructure struct {
	Labels        map[string]string         `json:"labels,omitempty" valid:"0..8 each:label"`
	Annotations   map[string]string         `json:"annotations,omitempty" valid:"0..16 each:0..4096"`
	ParametersRef *LocalParametersReference `json:"parametersRef,omitempty"`
}

// LocalParametersReference is gateway.networking.k8s.io/v1 LocalParametersReference.
type LocalParametersReference struct {
	Group *string `json:"group" valid:"group"`
	Kind  string  `json:"kind" valid:"kind"`
	Name  string  `json:"name" valid:"name"`
}

// AllowedListeners is gateway.networking.k8s.io/v1 AllowedListeners.
type AllowedListeners struct {
	Namespaces *ListenerNamespaces `json:"namespaces,omitempty" default:"{}"`
}

// ListenerNamespaces is gateway.networking.k8s.io/v1 ListenerNamespaces.
type ListenerNamespaces struct {
	From     *string        `json:"from,omitempty" valid:"All|Selector|Same|None" default:"None"`
	Selector *LabelSelector `json:"selector,omitempty"`
}

// GatewayTLSConfig is gateway.networking.k8s.io/v1 GatewayTLSConfig.
type GatewayTLSConfig struct {
	Backend  *GatewayBackendTLS `json:"backend,omitempty"`
	Frontend *FrontendTLSConfig `json:"frontend,omitempty"`
}

// GatewayBackendTLS is gateway.networking.k8s.io/v1 GatewayBackendTLS.
type GatewayBackendTLS struct {
	ClientCertificateRef *SecretObjectReference `json:"clientCertificateRef,omitempty"`
}

// FrontendTLSConfig is gateway.networking.k8s.io/v1 FrontendTLSConfig.
type FrontendTLSConfig struct {
	Default *TLSConfig      `json:"default"`
	PerPort []TLSPortConfig `json:"perPort,omitempty" valid:"0..64 keys:port"`
}

// TLSPortConfig is gateway.networking.k8s.io/v1 TLSPortConfig.
type TLSPortConfig struct {
	Port int32      `json:"port" valid:"1..65535"`
	TLS  *TLSConfig `json:"tls"`
}

// TLSConfig is gateway.networking.k8s.io/v1 TLSConfig.
type TLSConfig struct {
	Validation *FrontendTLSValidation `json:"validation,omitempty"`
}

// FrontendTLSValidation is gateway.networking.k8s.io/v1 FrontendTLSValidation.
type FrontendTLSValidation struct {
	CACertificateRefs []CAReference `json:"caCertificateRefs" valid:"1..16"`
	Mode              *string       `json:"mode,omitempty" valid:"AllowValidOnly|AllowInsecureFallback" default:"AllowValidOnly"`
}

// CAReference is gateway.networking.k8s.io/v1 ObjectReference.
type CAReference ParametersReference

// GatewayStatus is gateway.networking.k8s.io/v1 GatewayStatus.
type GatewayStatus struct {
	Addresses            []GatewayStatusAddress `json:"addresses,omitempty" valid:"0..16"`
	Conditions           []Condition            `json:"conditions,omitempty" valid:"0..8 keys:type"`
	Listeners            []ListenerStatus       `json:"listeners,omitempty" valid:"0..64 keys:name"`
	AttachedListenerSets *int32                 `json:"attachedListenerSets,omitempty"`
}

// GatewayStatusAddress is gateway.networking.k8s.io/v1 GatewayStatusAddress.
type GatewayStatusAddress struct {
	Type  *string `json:"type,omitempty" valid:"addressType" default:"IPAddress"`
	Value string  `json:"value" valid:"name"`
}

// ListenerStatus is gateway.networking.k8s.io/v1 ListenerStatus, and ListenerEntryStatus of a ListenerSet.
type ListenerStatus struct {
	Name           string           `json:"name" valid:"section"`
	SupportedKinds []RouteGroupKind `json:"supportedKinds,omitempty" valid:"0..8"`
	AttachedRoutes int32            `json:"attachedRoutes"`
	Conditions     []Condition      `json:"conditions" valid:"0..8 keys:type"`
}

// ListenerSet is gateway.networking.k8s.io/v1 ListenerSet.
type ListenerSet struct {
	TypeMeta
	Metadata ObjectMeta        `json:"metadata"`
	Spec     ListenerSetSpec   `json:"spec" valid:""`
	Status   ListenerSetStatus `json:"status,omitzero"`
}

// ListenerSetSpec is gateway.networking.k8s.io/v1 ListenerSetSpec.
type ListenerSetSpec struct {
	ParentRef ParentGatewayReference `json:"parentRef"`
	Listeners []Listener             `json:"listeners" valid:"1..64 keys:name"`
}

// ParentGatewayReference is gateway.networking.k8s.io/v1 ParentGatewayReference.
type ParentGatewayReference struct {
	Group     *string `json:"group,omitempty" valid:"group" default:"gateway.networking.k8s.io"`
	Kind      *string `json:"kind,omitempty" valid:"kind" default:"Gateway"`
	Name      string  `json:"name" valid:"name"`
	Namespace *string `json:"namespace,omitempty" valid:"namespace"`
}

// ListenerSetStatus is gateway.networking.k8s.io/v1 ListenerSetStatus.
type ListenerSetStatus struct {
	Conditions []Condition      `json:"conditions,omitempty" valid:"0..8 keys:type"`
	Listeners  []ListenerStatus `json:"listeners,omitempty" valid:"0..64 keys:name"`
}

// ReferenceGrant is gateway.networking.k8s.io/v1 ReferenceGrant.
type ReferenceGrant struct {
	TypeMeta
	Metadata ObjectMeta         `json:"metadata"`
	Spec     ReferenceGrantSpec `json:"spec" valid:""`
}

// ReferenceGrantSpec is gateway.networking.k8s.io/v1 ReferenceGrantSpec.
type ReferenceGrantSpec struct {
	From []ReferenceGrantFrom `json:"from" valid:"1..16"`
	To   []ReferenceGrantTo   `json:"to" valid:"1..16"`
}

// ReferenceGrantFrom is gateway.networking.k8s.io/v1 ReferenceGrantFrom.
type ReferenceGrantFrom struct {
	Group     *string `json:"group" valid:"group"`
	Kind      string  `json:"kind" valid:"kind"`
	Namespace string  `json:"namespace" valid:"namespace"`
}

// ReferenceGrantTo is gateway.networking.k8s.io/v1 ReferenceGrantTo.
type ReferenceGrantTo struct {
	Group *string `json:"group" valid:"group"`
	Kind  string  `json:"kind" valid:"kind"`
	Name  *string `json:"name,omitempty" valid:"name"`
}

// Waiting returns the conditions of a new object that no controller has processed yet: the default in the CustomResourceDefinitions.
func Waiting(types ...string) []Condition {
	conditions := make([]Condition, len(types))
	for i, t := range types {
		conditions[i] = Condition{Type: t, Status: "Unknown", Reason: "Pending", Message: "Waiting for controller", LastTransitionTime: time.Unix(0, 0).UTC()}
	}
	return conditions
}

func (o *GatewayClass) GetMeta() *ObjectMeta   { return &o.Metadata }
func (o *Gateway) GetMeta() *ObjectMeta        { return &o.Metadata }
func (o *ListenerSet) GetMeta() *ObjectMeta    { return &o.Metadata }
func (o *ReferenceGrant) GetMeta() *ObjectMeta { return &o.Metadata }

// The rules that are more than those of a field, with the messages of the CustomResourceDefinitions.

func (o *GatewayClass) validateChange(previous Object) Errors {
	if name := o.Spec.ControllerName; name != previous.(*GatewayClass).Spec.ControllerName {
		return invalid(specPath.child("controllerName"), name, "Value is immutable")
	}
	return nil
}

func (s *GatewaySpec) rules(at path) Errors {
	errs := listenerRules(at.child("listeners"), s.Listeners)
	for _, kind := range []string{AddressIP, AddressHostname} {
		seen, twice := set{}, false
		for _, a := range s.Addresses {
			if Deref(a.Type) == kind && a.Value != nil {
				twice = twice || seen[*a.Value]
				seen[*a.Value] = true
			}
		}
		errs = append(errs, violated(twice, at.child("addresses"), kind+" values must be unique")...)
	}
	return errs
}

func (s *ListenerSetSpec) rules(at path) Errors {
	return listenerRules(at.child("listeners"), s.Listeners)
}

// listenerRules checks the validation rules for a list of listeners that the rules for single fields do not cover.
func listenerRules(at path, listeners []Listener) Errors {
	var needless, notTerminated, noMode, named, sameName, samePlace bool
	type place struct{ port, protocol, hostname string }
	names, places := set{}, map[place]bool{}
	for _, l := range listeners {
		plain := l.Protocol == ProtocolTCP || l.Protocol == ProtocolUDP
		needless = needless || (plain || l.Protocol == ProtocolHTTP) && l.TLS != nil
		notTerminated = notTerminated || l.Protocol == ProtocolHTTPS && l.TLS != nil && Deref(l.TLS.Mode) != TLSTerminate
		noMode = noMode || l.Protocol == ProtocolTLS && (l.TLS == nil || Deref(l.TLS.Mode) == "")
		named = named || plain && Deref(l.Hostname) != ""
		sameName = sameName || names[l.Name]
		names[l.Name] = true
		here := place{strconv.Itoa(int(l.Port)), l.Protocol, "any"}
		if l.Hostname != nil {
			here.hostname = "=" + *l.Hostname
		}
		samePlace = samePlace || places[here]
		places[here] = true
	}
	return slices.Concat(
		violated(needless, at, "tls must not be specified for protocols ['HTTP', 'TCP', 'UDP']"),
		violated(notTerminated, at, "tls mode must be Terminate for protocol HTTPS"),
		violated(noMode, at, "tls mode must be set for protocol TLS"),
		violated(named, at, "hostname must not be specified for protocols ['TCP', 'UDP']"),
		violated(sameName, at, "Listener name must be unique within the Gateway"),
		violated(samePlace, at, "Combination of port, protocol and hostname must be unique for each listener"),
	)
}

func (c *ListenerTLSConfig) rules(at path) Errors {
	return violated(Deref(c.Mode) == TLSTerminate && len(c.CertificateRefs)+len(c.Options) == 0, at,
		"certificateRefs or options must be specified when mode is Terminate")
}

func (c *FrontendTLSConfig) rules(at path) Errors {
	ports := map[int32]bool{}
	for _, p := range c.PerPort {
		ports[p.Port] = true
	}
	return violated(len(ports) < len(c.PerPort), at.child("perPort"), "Port for TLS configuration must be unique within the Gateway")
}

func (a *GatewayAddress) rules(at path) Errors {
	return addressRules(at, Deref(a.Type), a.Value, "Hostname value must be empty or contain only")
}

func (a *GatewayStatusAddress) rules(at path) Errors {
	return addressRules(at, Deref(a.Type), &a.Value, "Hostname value must only contain")
}

func addressRules(at path, kind string, value *string, hostname string) Errors {
	if value == nil {
		return nil
	}
	if kind == AddressIP {
		_, err := netip.ParseAddr(*value)
		return violated(err != nil, at, at.String()+" in body must be of type ipv4 or ipv6")
	}
	return violated(kind == AddressHostname && !hostnameRE.MatchString(*value), at,
		hostname+" valid characters (matching "+hostnameRE.text+")")
}

var infrastructureKeyRE = &pattern{text: "^(" + dns1123Subdomain + "/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$"}

func (i *GatewayInfrastructure) rules(at path) Errors {
	var errs Errors
	for _, f := range []struct {
		name, one string
		keys      map[string]string
	}{{"labels", "Label", i.Labels}, {"annotations", "Annotation", i.Annotations}} {
		bad, long := false, false
		for key := range f.keys {
			prefix, _, _ := strings.Cut(key, "/")
			bad, long = bad || !infrastructureKeyRE.MatchString(key), long || len([]rune(prefix)) >= 253
		}
		errs = append(errs, violated(bad, at.child(f.name), f.one+
			" keys must be in the form of an optional DNS subdomain prefix followed by a required name segment of up to 63 characters.")...)
		errs = append(errs, violated(long, at.child(f.name), "If specified, the "+strings.ToLower(f.one)+
			" key's prefix must be a DNS subdomain not longer than 253 characters in total.")...)
	}
	return errs
}

// rules returns the errors of one requirement of a selector, such as an invalid operator. With such a requirement the selector would select
// everything. Kubernetes checks this in addition to the CustomResourceDefinitions.
func (r *LabelSelectorRequirement) rules(at path) Errors {
	var errs Errors
	if r.Key == "" {
		errs = required(at.child("key"), "")
	}
	switch r.Operator {
	case selectIn, selectNotIn:
		if len(r.Values) == 0 {
			errs = append(errs, required(at.child("values"), "must be specified when `operator` is 'In' or 'NotIn'")...)
		}
	case selectExists, selectDoesNotExist:
		if len(r.Values) > 0 {
			errs = append(errs, forbidden(at.child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")...)
		}
	case "":
		errs = append(errs, required(at.child("operator"), "")...)
	default:
		errs = append(errs, invalid(at.child("operator"), r.Operator, "not a valid selector operator")...)
	}
	return errs
}

// violated returns an error with the message if `is` is set, else nil. The error omits the value.
func violated(is bool, at path, message string) Errors {
	if !is {
		return nil
	}
	return invalid(at, omitted{}, message)
}

// rules checks a condition by the rules of the CustomResourceDefinitions. It is only called for kinds with tags on their fields.
func (c *Condition) rules(at path) Errors {
	var errs Errors
	for _, f := range []struct{ name, value, words string }{
		{"type", c.Type, "condition"}, {"status", c.Status, "True|False|Unknown"}, {"reason", c.Reason, "reason"}, {"message", c.Message, "0..32768"},
	} {
		var r valueRule
		r.add(f.words)
		if f.value == "" && f.name != "message" {
			errs = append(errs, required(at.child(f.name), "")...)
		} else {
			errs = append(errs, r.check(at.child(f.name), reflect.ValueOf(f.value))...)
		}
	}
	if c.ObservedGeneration < 0 {
		errs = append(errs, invalid(at.child("observedGeneration"), c.ObservedGeneration, at.child("observedGeneration").String()+" in body should be greater than or equal to 0")...)
	}
	return errs
}
