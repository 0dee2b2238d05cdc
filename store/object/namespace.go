package object

import "time"

// Namespace is core/v1 Namespace.
type Namespace struct {
	TypeMeta
	Metadata ObjectMeta      `json:"metadata"`
	Spec     NamespaceSpec   `json:"spec,omitzero"`
	Status   NamespaceStatus `json:"status,omitzero"`
}

// NamespaceSpec is core/v1 NamespaceSpec.
type NamespaceSpec struct {
	Finalizers []string `json:"finalizers,omitempty"`
}

// NamespaceStatus is core/v1 NamespaceStatus.
type NamespaceStatus struct {
	Phase      string               `json:"phase,omitempty"`
	Conditions []NamespaceCondition `json:"conditions,omitempty"`
}

// NamespaceCondition is core/v1 NamespaceCondition.
type NamespaceCondition struct {
	Type               string     `json:"type"`
	Status             string     `json:"status"`
	LastTransitionTime *time.Time `json:"lastTransitionTime,omitempty"`
	Reason             string     `json:"reason,omitempty"`
	Message            string     `json:"message,omitempty"`
}

// NamespaceStatus.Phase.
const (
	NamespaceActive      = "Active"
	NamespaceTerminating = "Terminating"
)

// finalizerKubernetes in NamespaceSpec.Finalizers keeps a Namespace until its content
// is gone.
const finalizerKubernetes = "kubernetes"

func (o *Namespace) GetTypeMeta() *TypeMeta { return &o.TypeMeta }
func (o *Namespace) GetMeta() *ObjectMeta   { return &o.Metadata }

// DeepCopy implements Object.
func (o *Namespace) DeepCopy() Object { return deepCopy(o) }

// LabelNamespaceName is on every Namespace and holds its name, for selectors
// (corev1.LabelMetadataName).
const LabelNamespaceName = "kubernetes.io/metadata.name"

func defaultNamespaceObject(o *Namespace) {
	if name := o.Metadata.Name; name != "" {
		if o.Metadata.Labels == nil {
			o.Metadata.Labels = map[string]string{}
		}
		o.Metadata.Labels[LabelNamespaceName] = name
	}
	if o.Status.Phase == "" {
		o.Status.Phase = NamespaceActive
	}
	if len(o.Spec.Finalizers) == 0 && o.Metadata.DeletionTimestamp == nil {
		o.Spec.Finalizers = []string{finalizerKubernetes}
	}
}
