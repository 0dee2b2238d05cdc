package object

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// TypeMeta is the kind and API version of an object.
type TypeMeta struct {
	Kind       string `json:"kind,omitempty"`
	APIVersion string `json:"apiVersion,omitempty"`
}

// GetTypeMeta implements Object for every kind: their types embed TypeMeta.
func (m *TypeMeta) GetTypeMeta() *TypeMeta { return m }

// ObjectMeta is meta/v1 ObjectMeta, which every object has.
type ObjectMeta struct {
	Name              string            `json:"name,omitempty"`
	GenerateName      string            `json:"generateName,omitempty"`
	Namespace         string            `json:"namespace,omitempty"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	Generation        int64             `json:"generation,omitempty"`
	CreationTimestamp *time.Time        `json:"creationTimestamp,omitempty"`
	DeletionTimestamp *time.Time        `json:"deletionTimestamp,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	OwnerReferences   []OwnerReference  `json:"ownerReferences,omitempty" schema:"keys=uid merge=uid"`
	Finalizers        []string          `json:"finalizers,omitempty" schema:"set merge"`
	// ManagedFields lists the fields that each manager owns. Objects in manifests do not have it.
	ManagedFields []ManagedFieldsEntry `json:"managedFields,omitempty"`
}

// OwnerReference is meta/v1 OwnerReference: an object is garbage when all of its owners are deleted.
type OwnerReference struct {
	APIVersion         string `json:"apiVersion" schema:"required"`
	Kind               string `json:"kind" schema:"required"`
	Name               string `json:"name" schema:"required"`
	UID                string `json:"uid" schema:"required"`
	Controller         *bool  `json:"controller,omitempty"`
	BlockOwnerDeletion *bool  `json:"blockOwnerDeletion,omitempty"`
}

// Object is an API object of any kind, such as *Service, *EndpointSlice or *Pod.
type Object interface {
	GetTypeMeta() *TypeMeta
	GetMeta() *ObjectMeta
}

// The kinds of the core and discovery groups that manifests may have.
const (
	KindService       = "Service"
	KindEndpoints     = "Endpoints"
	KindEndpointSlice = "EndpointSlice"
	KindPod           = "Pod"
)

// Ref identifies an object by kind, namespace and name.
type Ref struct {
	Kind, Namespace, Name string
}

// RefOf returns the Ref of an object.
func RefOf(o Object) Ref {
	return Ref{Kind: o.GetTypeMeta().Kind, Namespace: o.GetMeta().Namespace, Name: o.GetMeta().Name}
}

// ServiceRef returns the Ref of the Service "namespace/name".
func ServiceRef(key string) Ref {
	namespace, name, _ := strings.Cut(key, "/")
	return Ref{Kind: KindService, Namespace: namespace, Name: name}
}

// String returns kind, namespace and name, as "Service default/web", or "Node gw1" without a namespace.
func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return fmt.Sprintf("%s %s/%s", r.Kind, r.Namespace, r.Name)
}

// Key returns "namespace/name".
func (r Ref) Key() string { return r.Namespace + "/" + r.Name }

// Service is core/v1 Service.
type Service struct {
	TypeMeta
	Metadata ObjectMeta    `json:"metadata"`
	Spec     ServiceSpec   `json:"spec"`
	Status   ServiceStatus `json:"status"`
}

// ServiceSpec is core/v1 ServiceSpec. It has more than 15 fields: those of Kubernetes.
type ServiceSpec struct {
	Type                          string                 `json:"type,omitempty" schema:"enum=ClusterIP|ExternalName|LoadBalancer|NodePort"`
	Ports                         []ServicePort          `json:"ports,omitempty" schema:"keys=port,protocol merge=port"`
	Selector                      map[string]string      `json:"selector,omitempty" schema:"atomic"`
	ClusterIP                     string                 `json:"clusterIP,omitempty"`
	ClusterIPs                    []string               `json:"clusterIPs,omitempty"`
	IPFamilies                    []string               `json:"ipFamilies,omitempty" schema:"enum=IPv4|IPv6"`
	IPFamilyPolicy                *string                `json:"ipFamilyPolicy,omitempty" schema:"enum=SingleStack|PreferDualStack|RequireDualStack"`
	ExternalIPs                   []string               `json:"externalIPs,omitempty"`
	ExternalName                  string                 `json:"externalName,omitempty"`
	LoadBalancerIP                string                 `json:"loadBalancerIP,omitempty"`
	LoadBalancerSourceRanges      []string               `json:"loadBalancerSourceRanges,omitempty"`
	LoadBalancerClass             *string                `json:"loadBalancerClass,omitempty"`
	AllocateLoadBalancerNodePorts *bool                  `json:"allocateLoadBalancerNodePorts,omitempty"`
	SessionAffinity               string                 `json:"sessionAffinity,omitempty" schema:"enum=ClientIP|None"`
	SessionAffinityConfig         *SessionAffinityConfig `json:"sessionAffinityConfig,omitempty"`
	ExternalTrafficPolicy         string                 `json:"externalTrafficPolicy,omitempty" schema:"enum=Cluster|Local"`
	InternalTrafficPolicy         *string                `json:"internalTrafficPolicy,omitempty" schema:"enum=Cluster|Local"`
	TrafficDistribution           *string                `json:"trafficDistribution,omitempty"`
	HealthCheckNodePort           int32                  `json:"healthCheckNodePort,omitempty"`
	PublishNotReadyAddresses      bool                   `json:"publishNotReadyAddresses,omitempty"`
}

// ServicePort is core/v1 ServicePort.
type ServicePort struct {
	Name        string      `json:"name,omitempty"`
	Protocol    string      `json:"protocol,omitempty" schema:"enum=TCP|UDP|SCTP default=TCP"`
	AppProtocol *string     `json:"appProtocol,omitempty"`
	Port        int32       `json:"port" schema:"required"`
	TargetPort  IntOrString `json:"targetPort,omitzero"`
	NodePort    int32       `json:"nodePort,omitempty"`
}

// SessionAffinityConfig is core/v1 SessionAffinityConfig.
type SessionAffinityConfig struct {
	ClientIP *ClientIPConfig `json:"clientIP,omitempty"`
}

// ClientIPConfig is core/v1 ClientIPConfig; the timeout is in seconds, 1 to 86400.
type ClientIPConfig struct {
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
}

// ServiceStatus is core/v1 ServiceStatus.
type ServiceStatus struct {
	LoadBalancer LoadBalancerStatus `json:"loadBalancer"`
	Conditions   []Condition        `json:"conditions,omitempty" schema:"keys=type merge=type"`
}

// LoadBalancerStatus is core/v1 LoadBalancerStatus.
type LoadBalancerStatus struct {
	Ingress []LoadBalancerIngress `json:"ingress,omitempty"`
}

// LoadBalancerIngress is core/v1 LoadBalancerIngress.
type LoadBalancerIngress struct {
	IP       string       `json:"ip,omitempty"`
	Hostname string       `json:"hostname,omitempty"`
	IPMode   *string      `json:"ipMode,omitempty"`
	Ports    []PortStatus `json:"ports,omitempty"`
}

// PortStatus is core/v1 PortStatus.
type PortStatus struct {
	Port     int32   `json:"port" schema:"required"`
	Protocol string  `json:"protocol" schema:"required enum=TCP|UDP|SCTP"`
	Error    *string `json:"error,omitempty"`
}

// Condition is meta/v1 Condition.
type Condition struct {
	Type               string    `json:"type" schema:"required"`
	Status             string    `json:"status" schema:"required"`
	ObservedGeneration int64     `json:"observedGeneration,omitempty"`
	LastTransitionTime time.Time `json:"lastTransitionTime" schema:"required"`
	Reason             string    `json:"reason" schema:"required"`
	Message            string    `json:"message" schema:"required"`
}

// Endpoints is core/v1 Endpoints.
type Endpoints struct {
	TypeMeta
	Metadata ObjectMeta       `json:"metadata"`
	Subsets  []EndpointSubset `json:"subsets,omitempty"`
}

// EndpointSubset is core/v1 EndpointSubset: every address serves every port.
type EndpointSubset struct {
	Addresses         []EndpointAddress `json:"addresses,omitempty"`
	NotReadyAddresses []EndpointAddress `json:"notReadyAddresses,omitempty"`
	Ports             []EndpointPort    `json:"ports,omitempty"`
}

// EndpointAddress is core/v1 EndpointAddress.
type EndpointAddress struct {
	IP        string           `json:"ip" schema:"required"`
	Hostname  string           `json:"hostname,omitempty"`
	NodeName  *string          `json:"nodeName,omitempty"`
	TargetRef *ObjectReference `json:"targetRef,omitempty"`
}

// EndpointPort is core/v1 EndpointPort and discovery/v1 EndpointPort. In an
// EndpointSlice Name and Port may be absent; in Endpoints Port may not.
type EndpointPort struct {
	Name        *string `json:"name,omitempty"`
	Protocol    *string `json:"protocol,omitempty" schema:"enum=TCP|UDP|SCTP"`
	Port        *int32  `json:"port,omitempty"`
	AppProtocol *string `json:"appProtocol,omitempty"`
}

// ObjectReference is core/v1 ObjectReference.
type ObjectReference struct {
	Kind            string `json:"kind,omitempty"`
	Namespace       string `json:"namespace,omitempty"`
	Name            string `json:"name,omitempty"`
	UID             string `json:"uid,omitempty"`
	APIVersion      string `json:"apiVersion,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	FieldPath       string `json:"fieldPath,omitempty"`
}

// EndpointSlice is discovery/v1 EndpointSlice.
type EndpointSlice struct {
	TypeMeta
	Metadata    ObjectMeta     `json:"metadata"`
	AddressType string         `json:"addressType" schema:"required enum=IPv4|IPv6|FQDN"`
	Endpoints   []Endpoint     `json:"endpoints" schema:"required"`
	Ports       []EndpointPort `json:"ports"`
}

// Endpoint is discovery/v1 Endpoint.
type Endpoint struct {
	Addresses          []string           `json:"addresses" schema:"required set"`
	Conditions         EndpointConditions `json:"conditions,omitzero"`
	Hostname           *string            `json:"hostname,omitempty"`
	TargetRef          *ObjectReference   `json:"targetRef,omitempty"`
	DeprecatedTopology map[string]string  `json:"deprecatedTopology,omitempty"`
	NodeName           *string            `json:"nodeName,omitempty"`
	Zone               *string            `json:"zone,omitempty"`
	Hints              *EndpointHints     `json:"hints,omitempty"`
}

// EndpointConditions is discovery/v1 EndpointConditions. Absent ready and serving
// mean true, absent terminating means false.
type EndpointConditions struct {
	Ready       *bool `json:"ready,omitempty"`
	Serving     *bool `json:"serving,omitempty"`
	Terminating *bool `json:"terminating,omitempty"`
}

// EndpointHints is discovery/v1 EndpointHints.
type EndpointHints struct {
	ForZones []ForZone `json:"forZones,omitempty"`
	ForNodes []ForNode `json:"forNodes,omitempty"`
}

// ForZone is discovery/v1 ForZone.
type ForZone struct {
	Name string `json:"name" schema:"required"`
}

// ForNode is discovery/v1 ForNode.
type ForNode struct {
	Name string `json:"name" schema:"required"`
}

// IntOrString is a port number, or the name of a port if IsString is set. The zero value means that the field is absent.
type IntOrString struct {
	Int  int32
	Name string
	// IsString distinguishes "" (a string) from 0 (a number).
	IsString bool
}

// FromInt returns an IntOrString with a port number.
func FromInt(n int32) IntOrString { return IntOrString{Int: n} }

// FromString returns an IntOrString with the name of a port.
func FromString(s string) IntOrString { return IntOrString{Name: s, IsString: true} }

// IsZero reports whether the field is absent.
func (v IntOrString) IsZero() bool { return v == IntOrString{} }

// String returns the number or the name.
func (v IntOrString) String() string {
	if v.IsString {
		return v.Name
	}
	return strconv.Itoa(int(v.Int))
}

// MarshalJSON implements json.Marshaler.
func (v IntOrString) MarshalJSON() ([]byte, error) {
	if v.IsString {
		return json.Marshal(v.Name)
	}
	return json.Marshal(v.Int)
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *IntOrString) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		v.IsString, v.Int = true, 0
		return json.Unmarshal(b, &v.Name)
	}
	*v = IntOrString{}
	return json.Unmarshal(b, &v.Int)
}

func (o *Service) GetMeta() *ObjectMeta       { return &o.Metadata }
func (o *Endpoints) GetMeta() *ObjectMeta     { return &o.Metadata }
func (o *EndpointSlice) GetMeta() *ObjectMeta { return &o.Metadata }
