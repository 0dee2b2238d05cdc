package object

import "time"

// Node has the fields of core/v1 Node that this product reads and writes: for the box it runs on,
// and for other boxes that users declare.
type Node struct {
	TypeMeta
	Metadata ObjectMeta `json:"metadata"`
	Spec     NodeSpec   `json:"spec,omitzero"`
	Status   NodeStatus `json:"status,omitzero"`
}

// NodeSpec is the part of core/v1 NodeSpec that is read.
type NodeSpec struct {
	PodCIDR       string   `json:"podCIDR,omitempty"`
	PodCIDRs      []string `json:"podCIDRs,omitempty"`
	ProviderID    string   `json:"providerID,omitempty"`
	Unschedulable bool     `json:"unschedulable,omitempty"`
}

// NodeStatus is the part of core/v1 NodeStatus that is read.
type NodeStatus struct {
	Conditions []NodeCondition `json:"conditions,omitempty"`
	Addresses  []NodeAddress   `json:"addresses,omitempty"`
	NodeInfo   NodeSystemInfo  `json:"nodeInfo,omitzero"`
}

// NodeCondition is core/v1 NodeCondition.
type NodeCondition struct {
	Type               string     `json:"type"`
	Status             string     `json:"status"`
	LastHeartbeatTime  *time.Time `json:"lastHeartbeatTime,omitempty"`
	LastTransitionTime *time.Time `json:"lastTransitionTime,omitempty"`
	Reason             string     `json:"reason,omitempty"`
	Message            string     `json:"message,omitempty"`
}

// NodeAddress is core/v1 NodeAddress.
type NodeAddress struct {
	Type    string `json:"type"`
	Address string `json:"address"`
}

// NodeSystemInfo is core/v1 NodeSystemInfo.
type NodeSystemInfo struct {
	MachineID               string `json:"machineID"`
	SystemUUID              string `json:"systemUUID"`
	BootID                  string `json:"bootID"`
	KernelVersion           string `json:"kernelVersion"`
	OSImage                 string `json:"osImage"`
	ContainerRuntimeVersion string `json:"containerRuntimeVersion"`
	KubeletVersion          string `json:"kubeletVersion"`
	KubeProxyVersion        string `json:"kubeProxyVersion"`
	OperatingSystem         string `json:"operatingSystem"`
	Architecture            string `json:"architecture"`
}

// NodeAddress.Type.
const (
	NodeHostname   = "Hostname"
	NodeInternalIP = "InternalIP"
	NodeExternalIP = "ExternalIP"
)

// NodeReady is the NodeCondition that `kubectl get nodes` shows.
const NodeReady = "Ready"

// NodeCondition.Status.
const (
	ConditionTrue    = "True"
	ConditionUnknown = "Unknown"
)

// ReadyOf returns the condition Ready of a Node, nil when it has none.
func ReadyOf(n *Node) *NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == NodeReady {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

func (o *Node) GetTypeMeta() *TypeMeta { return &o.TypeMeta }
func (o *Node) GetMeta() *ObjectMeta   { return &o.Metadata }

// DeepCopy implements Object.
func (o *Node) DeepCopy() Object { return deepCopy(o) }
