package object

// The kinds of MetalLB that report the state of the others. They cannot be written.
const (
	KindServiceL2Status    = "ServiceL2Status"
	KindServiceBGPStatus   = "ServiceBGPStatus"
	KindConfigurationState = "ConfigurationState"
)

// IPAddressPoolStatus is metallb.io/v1beta1 IPAddressPoolStatus: how many addresses of a pool Services have, and how
// many are left.
type IPAddressPoolStatus struct {
	AssignedIPv4  int64 `json:"assignedIPv4"`
	AssignedIPv6  int64 `json:"assignedIPv6"`
	AvailableIPv4 int64 `json:"availableIPv4"`
	AvailableIPv6 int64 `json:"availableIPv6"`
}

// ServiceL2Status is metallb.io/v1beta1 ServiceL2Status: where a Service is announced on segments.
type ServiceL2Status struct {
	TypeMeta
	Metadata ObjectMeta            `json:"metadata"`
	Spec     ServiceL2StatusSpec   `json:"spec,omitzero"`
	Status   ServiceL2StatusStatus `json:"status,omitzero"`
}

// ServiceL2StatusSpec is metallb.io/v1beta1 ServiceL2StatusSpec, which has no fields.
type ServiceL2StatusSpec struct{}

// ServiceL2StatusStatus is metallb.io/v1beta1 MetalLBServiceL2Status.
type ServiceL2StatusStatus struct {
	Node             string          `json:"node,omitempty"`
	ServiceName      string          `json:"serviceName,omitempty"`
	ServiceNamespace string          `json:"serviceNamespace,omitempty"`
	Interfaces       []InterfaceInfo `json:"interfaces,omitempty"`
}

// InterfaceInfo is metallb.io/v1beta1 InterfaceInfo.
type InterfaceInfo struct {
	Name string `json:"name,omitempty"`
}

// ServiceBGPStatus is metallb.io/v1beta1 ServiceBGPStatus: which BGP peers are to be told of a Service.
type ServiceBGPStatus struct {
	TypeMeta
	Metadata ObjectMeta             `json:"metadata"`
	Spec     ServiceBGPStatusSpec   `json:"spec,omitzero"`
	Status   ServiceBGPStatusStatus `json:"status,omitzero"`
}

// ServiceBGPStatusSpec is metallb.io/v1beta1 ServiceBGPStatusSpec, which has no fields.
type ServiceBGPStatusSpec struct{}

// ServiceBGPStatusStatus is metallb.io/v1beta1 MetalLBServiceBGPStatus.
type ServiceBGPStatusStatus struct {
	Node             string   `json:"node,omitempty"`
	ServiceName      string   `json:"serviceName,omitempty"`
	ServiceNamespace string   `json:"serviceNamespace,omitempty"`
	Peers            []string `json:"peers,omitempty"`
}

// ConfigurationState is metallb.io/v1beta1 ConfigurationState: whether the objects of MetalLB's kinds are taken.
type ConfigurationState struct {
	TypeMeta
	Metadata ObjectMeta               `json:"metadata"`
	Status   ConfigurationStateStatus `json:"status,omitzero"`
}

// ConfigurationStateStatus is metallb.io/v1beta1 ConfigurationStateStatus. Result is Valid or Invalid.
type ConfigurationStateStatus struct {
	Result       string      `json:"result,omitempty"`
	ErrorSummary string      `json:"errorSummary,omitempty"`
	Conditions   []Condition `json:"conditions,omitempty"`
}

func (o *ServiceL2Status) GetTypeMeta() *TypeMeta    { return &o.TypeMeta }
func (o *ServiceL2Status) GetMeta() *ObjectMeta      { return &o.Metadata }
func (o *ServiceBGPStatus) GetTypeMeta() *TypeMeta   { return &o.TypeMeta }
func (o *ServiceBGPStatus) GetMeta() *ObjectMeta     { return &o.Metadata }
func (o *ConfigurationState) GetTypeMeta() *TypeMeta { return &o.TypeMeta }
func (o *ConfigurationState) GetMeta() *ObjectMeta   { return &o.Metadata }

// DeepCopy implements Object.
func (o *ServiceL2Status) DeepCopy() Object { return deepCopy(o) }

// DeepCopy implements Object.
func (o *ServiceBGPStatus) DeepCopy() Object { return deepCopy(o) }

// DeepCopy implements Object.
func (o *ConfigurationState) DeepCopy() Object { return deepCopy(o) }
