package object

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

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
	Conditions []NamespaceCondition `json:"conditions,omitempty" schema:"keys=type merge=type"`
}

// NamespaceCondition is core/v1 NamespaceCondition.
type NamespaceCondition struct {
	Type               string     `json:"type" schema:"required"`
	Status             string     `json:"status" schema:"required"`
	LastTransitionTime *time.Time `json:"lastTransitionTime,omitempty"`
	Reason             string     `json:"reason,omitempty"`
	Message            string     `json:"message,omitempty"`
}

// The values of NamespaceStatus.Phase.
const (
	NamespaceActive      = "Active"
	NamespaceTerminating = "Terminating"
)

// finalizerKubernetes in NamespaceSpec.Finalizers keeps a Namespace until all objects in it are removed.
const finalizerKubernetes = "kubernetes"

func (o *Namespace) GetMeta() *ObjectMeta { return &o.Metadata }

// LabelNamespaceName is on every Namespace and holds its name, for selectors
// (corev1.LabelMetadataName).
const LabelNamespaceName = "kubernetes.io/metadata.name"

func (o *Namespace) setDefaults() {
	if name := o.Metadata.Name; name != "" {
		if o.Metadata.Labels == nil {
			o.Metadata.Labels = map[string]string{}
		}
		o.Metadata.Labels[LabelNamespaceName] = name
	}
	o.Status.Phase = cmp.Or(o.Status.Phase, NamespaceActive)
	if len(o.Spec.Finalizers) == 0 && o.Metadata.DeletionTimestamp == nil {
		o.Spec.Finalizers = []string{finalizerKubernetes}
	}
}

// Node has the fields of core/v1 Node that svcctl reads and writes, for the Node of its own box and for Nodes of other boxes, which users declare.
type Node struct {
	TypeMeta
	Metadata ObjectMeta `json:"metadata"`
	Spec     NodeSpec   `json:"spec,omitzero"`
	Status   NodeStatus `json:"status,omitzero"`
}

// NodeSpec is the part of core/v1 NodeSpec that is read.
type NodeSpec struct {
	PodCIDR       string   `json:"podCIDR,omitempty"`
	PodCIDRs      []string `json:"podCIDRs,omitempty" schema:"set merge"`
	ProviderID    string   `json:"providerID,omitempty"`
	Unschedulable bool     `json:"unschedulable,omitempty"`
}

// NodeStatus is the part of core/v1 NodeStatus that is read.
type NodeStatus struct {
	Conditions []NodeCondition `json:"conditions,omitempty" schema:"keys=type merge=type"`
	Addresses  []NodeAddress   `json:"addresses,omitempty" schema:"keys=type merge=type"`
	NodeInfo   NodeSystemInfo  `json:"nodeInfo,omitzero"`
}

// NodeCondition is core/v1 NodeCondition.
type NodeCondition struct {
	Type               string     `json:"type" schema:"required"`
	Status             string     `json:"status" schema:"required"`
	LastHeartbeatTime  *time.Time `json:"lastHeartbeatTime,omitempty"`
	LastTransitionTime *time.Time `json:"lastTransitionTime,omitempty"`
	Reason             string     `json:"reason,omitempty"`
	Message            string     `json:"message,omitempty"`
}

// NodeAddress is core/v1 NodeAddress.
type NodeAddress struct {
	Type    string `json:"type" schema:"required"`
	Address string `json:"address" schema:"required"`
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

// The values of NodeAddress.Type.
const (
	NodeHostname   = "Hostname"
	NodeInternalIP = "InternalIP"
	NodeExternalIP = "ExternalIP"
)

// NodeReady is the type of the NodeCondition that `kubectl get nodes` shows.
const NodeReady = "Ready"

// The values of NodeCondition.Status.
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

func (o *Node) GetMeta() *ObjectMeta { return &o.Metadata }

// Event is core/v1 Event: something that happened to an object. It has more than 15 fields:
// those of Kubernetes.
type Event struct {
	TypeMeta
	Metadata           ObjectMeta       `json:"metadata" schema:"required"`
	InvolvedObject     ObjectReference  `json:"involvedObject" schema:"required"`
	Reason             string           `json:"reason,omitempty"`
	Message            string           `json:"message,omitempty"`
	Source             EventSource      `json:"source,omitzero"`
	FirstTimestamp     *time.Time       `json:"firstTimestamp,omitempty"`
	LastTimestamp      *time.Time       `json:"lastTimestamp,omitempty"`
	Count              int32            `json:"count,omitempty"`
	Type               string           `json:"type,omitempty"`
	EventTime          *MicroTime       `json:"eventTime,omitempty"`
	Series             *EventSeries     `json:"series,omitempty"`
	Action             string           `json:"action,omitempty"`
	Related            *ObjectReference `json:"related,omitempty"`
	ReportingComponent string           `json:"reportingComponent"`
	ReportingInstance  string           `json:"reportingInstance"`
}

// EventSource is core/v1 EventSource.
type EventSource struct {
	Component string `json:"component,omitempty"`
	Host      string `json:"host,omitempty"`
}

// EventSeries is core/v1 EventSeries and events.k8s.io/v1 EventSeries.
type EventSeries struct {
	Count            int32      `json:"count,omitempty"`
	LastObservedTime *MicroTime `json:"lastObservedTime,omitempty"`
}

// EventView is events.k8s.io/v1 Event: an Event with other names for its fields. It has more than
// 15 fields: those of Kubernetes.
type EventView struct {
	TypeMeta
	Metadata                 ObjectMeta       `json:"metadata"`
	EventTime                *MicroTime       `json:"eventTime,omitempty" schema:"required"`
	Series                   *EventSeries     `json:"series,omitempty"`
	ReportingController      string           `json:"reportingController,omitempty"`
	ReportingInstance        string           `json:"reportingInstance,omitempty"`
	Action                   string           `json:"action,omitempty"`
	Reason                   string           `json:"reason,omitempty"`
	Regarding                ObjectReference  `json:"regarding,omitzero"`
	Related                  *ObjectReference `json:"related,omitempty"`
	Note                     string           `json:"note,omitempty"`
	Type                     string           `json:"type,omitempty"`
	DeprecatedSource         EventSource      `json:"deprecatedSource,omitzero"`
	DeprecatedFirstTimestamp *time.Time       `json:"deprecatedFirstTimestamp,omitempty"`
	DeprecatedLastTimestamp  *time.Time       `json:"deprecatedLastTimestamp,omitempty"`
	DeprecatedCount          int32            `json:"deprecatedCount,omitempty"`
}

// The values of Event.Type.
const (
	EventNormal  = "Normal"
	EventWarning = "Warning"
)

func (o *Event) GetMeta() *ObjectMeta     { return &o.Metadata }
func (o *EventView) GetMeta() *ObjectMeta { return &o.Metadata }

// View returns the event as events.k8s.io/v1 shows it. It shares nothing with the receiver.
func (o *Event) View() *EventView {
	c := DeepCopy(o)
	return &EventView{
		TypeMeta:                 TypeMeta{APIVersion: APIVersionEvents, Kind: KindEvent},
		Metadata:                 c.Metadata,
		EventTime:                c.EventTime,
		Series:                   c.Series,
		ReportingController:      c.ReportingComponent,
		ReportingInstance:        c.ReportingInstance,
		Action:                   c.Action,
		Reason:                   c.Reason,
		Regarding:                c.InvolvedObject,
		Related:                  c.Related,
		Note:                     c.Message,
		Type:                     c.Type,
		DeprecatedSource:         c.Source,
		DeprecatedFirstTimestamp: c.FirstTimestamp,
		DeprecatedLastTimestamp:  c.LastTimestamp,
		DeprecatedCount:          c.Count,
	}
}

// Event returns the event as core/v1 shows it, the form that is stored. It shares nothing
// with the receiver.
func (o *EventView) Event() *Event {
	c := DeepCopy(o)
	return &Event{
		TypeMeta:           TypeMeta{APIVersion: APIVersionCore, Kind: KindEvent},
		Metadata:           c.Metadata,
		InvolvedObject:     c.Regarding,
		Reason:             c.Reason,
		Message:            c.Note,
		Source:             c.DeprecatedSource,
		FirstTimestamp:     c.DeprecatedFirstTimestamp,
		LastTimestamp:      c.DeprecatedLastTimestamp,
		Count:              c.DeprecatedCount,
		Type:               c.Type,
		EventTime:          c.EventTime,
		Series:             c.Series,
		Action:             c.Action,
		Related:            c.Related,
		ReportingComponent: c.ReportingController,
		ReportingInstance:  c.ReportingInstance,
	}
}

// validate requires that an event be in the namespace of its involved object, or in default if
// that object has none (ValidateEventCreate of pkg/apis/core/validation).
func (o *Event) validate(Object) Errors {
	if involved := cmp.Or(o.InvolvedObject.Namespace, defaultNamespace); involved != o.Metadata.Namespace {
		return invalid(root("involvedObject.namespace"), o.InvolvedObject.Namespace,
			fmt.Sprintf("does not match event.namespace %q", o.Metadata.Namespace))
	}
	return nil
}

// Lease is coordination.k8s.io/v1 Lease: the holder of a lock.
type Lease struct {
	TypeMeta
	Metadata ObjectMeta `json:"metadata"`
	Spec     LeaseSpec  `json:"spec,omitzero"`
}

// LeaseSpec is coordination.k8s.io/v1 LeaseSpec; the duration is in seconds.
type LeaseSpec struct {
	HolderIdentity       *string    `json:"holderIdentity,omitempty"`
	LeaseDurationSeconds *int32     `json:"leaseDurationSeconds,omitempty"`
	AcquireTime          *MicroTime `json:"acquireTime,omitempty"`
	RenewTime            *MicroTime `json:"renewTime,omitempty"`
	LeaseTransitions     *int32     `json:"leaseTransitions,omitempty"`
	Strategy             *string    `json:"strategy,omitempty"`
	PreferredHolder      *string    `json:"preferredHolder,omitempty"`
}

func (o *Lease) GetMeta() *ObjectMeta { return &o.Metadata }

func (o *Lease) validate(Object) Errors {
	at := specPath
	var errs Errors
	if seconds := o.Spec.LeaseDurationSeconds; seconds != nil && *seconds <= 0 {
		errs = append(errs, invalid(at.child("leaseDurationSeconds"), *seconds, "must be greater than 0")...)
	}
	if transitions := o.Spec.LeaseTransitions; transitions != nil && *transitions < 0 {
		errs = append(errs, invalid(at.child("leaseTransitions"), *transitions, "must be greater than or equal to 0")...)
	}
	return errs
}

// The SelfSubject reviews are questions that a client asks about itself: created,
// answered at once, and never stored. Their metadata stays empty.

// SelfSubjectAccessReview is authorization.k8s.io/v1 SelfSubjectAccessReview: whether
// the user of the request may do something.
type SelfSubjectAccessReview struct {
	TypeMeta
	Metadata ObjectMeta                  `json:"metadata"`
	Spec     SelfSubjectAccessReviewSpec `json:"spec" schema:"required"`
	Status   SubjectAccessReviewStatus   `json:"status,omitzero"`
}

// SelfSubjectAccessReviewSpec is authorization.k8s.io/v1 SelfSubjectAccessReviewSpec:
// exactly one of its fields is set.
type SelfSubjectAccessReviewSpec struct {
	ResourceAttributes    *ResourceAttributes    `json:"resourceAttributes,omitempty"`
	NonResourceAttributes *NonResourceAttributes `json:"nonResourceAttributes,omitempty"`
}

// ResourceAttributes is authorization.k8s.io/v1 ResourceAttributes; "*" is any.
type ResourceAttributes struct {
	Namespace   string `json:"namespace,omitempty"`
	Verb        string `json:"verb,omitempty"`
	Group       string `json:"group,omitempty"`
	Version     string `json:"version,omitempty"`
	Resource    string `json:"resource,omitempty"`
	Subresource string `json:"subresource,omitempty"`
	Name        string `json:"name,omitempty"`
}

// NonResourceAttributes is authorization.k8s.io/v1 NonResourceAttributes.
type NonResourceAttributes struct {
	Path string `json:"path,omitempty"`
	Verb string `json:"verb,omitempty"`
}

// SubjectAccessReviewStatus is authorization.k8s.io/v1 SubjectAccessReviewStatus.
type SubjectAccessReviewStatus struct {
	Allowed         bool   `json:"allowed" schema:"required"`
	Denied          bool   `json:"denied,omitempty"`
	Reason          string `json:"reason,omitempty"`
	EvaluationError string `json:"evaluationError,omitempty"`
}

// SelfSubjectRulesReview is authorization.k8s.io/v1 SelfSubjectRulesReview: all that the
// user of the request may do.
type SelfSubjectRulesReview struct {
	TypeMeta
	Metadata ObjectMeta                 `json:"metadata"`
	Spec     SelfSubjectRulesReviewSpec `json:"spec" schema:"required"`
	Status   SubjectRulesReviewStatus   `json:"status,omitzero"`
}

// SelfSubjectRulesReviewSpec is authorization.k8s.io/v1 SelfSubjectRulesReviewSpec.
type SelfSubjectRulesReviewSpec struct {
	Namespace string `json:"namespace,omitempty"`
}

// SubjectRulesReviewStatus is authorization.k8s.io/v1 SubjectRulesReviewStatus.
type SubjectRulesReviewStatus struct {
	ResourceRules    []ResourceRule    `json:"resourceRules" schema:"required"`
	NonResourceRules []NonResourceRule `json:"nonResourceRules" schema:"required"`
	Incomplete       bool              `json:"incomplete" schema:"required"`
	EvaluationError  string            `json:"evaluationError,omitempty"`
}

// ResourceRule is authorization.k8s.io/v1 ResourceRule.
type ResourceRule struct {
	Verbs         []string `json:"verbs" schema:"required"`
	APIGroups     []string `json:"apiGroups,omitempty"`
	Resources     []string `json:"resources,omitempty"`
	ResourceNames []string `json:"resourceNames,omitempty"`
}

// NonResourceRule is authorization.k8s.io/v1 NonResourceRule.
type NonResourceRule struct {
	Verbs           []string `json:"verbs" schema:"required"`
	NonResourceURLs []string `json:"nonResourceURLs,omitempty"`
}

// SelfSubjectReview is authentication.k8s.io/v1 SelfSubjectReview: the user of the request.
type SelfSubjectReview struct {
	TypeMeta
	Metadata ObjectMeta              `json:"metadata"`
	Status   SelfSubjectReviewStatus `json:"status,omitzero"`
}

// SelfSubjectReviewStatus is authentication.k8s.io/v1 SelfSubjectReviewStatus.
type SelfSubjectReviewStatus struct {
	UserInfo UserInfo `json:"userInfo,omitzero"`
}

// UserInfo is authentication.k8s.io/v1 UserInfo.
type UserInfo struct {
	Username string   `json:"username,omitempty"`
	UID      string   `json:"uid,omitempty"`
	Groups   []string `json:"groups,omitempty"`
}

func (o *SelfSubjectAccessReview) GetMeta() *ObjectMeta { return &o.Metadata }
func (o *SelfSubjectRulesReview) GetMeta() *ObjectMeta  { return &o.Metadata }
func (o *SelfSubjectReview) GetMeta() *ObjectMeta       { return &o.Metadata }

// validate requires exactly one of resourceAttributes and nonResourceAttributes
// (ValidateSelfSubjectAccessReviewSpec of pkg/apis/authorization/validation).
func (o *SelfSubjectAccessReview) validate(Object) Errors {
	switch spec := &o.Spec; {
	case spec.ResourceAttributes != nil && spec.NonResourceAttributes != nil:
		return invalid(specPath.child("nonResourceAttributes"), spec.NonResourceAttributes, "cannot be specified in combination with resourceAttributes")
	case spec.ResourceAttributes == nil && spec.NonResourceAttributes == nil:
		return invalid(specPath.child("resourceAttributes"), spec.NonResourceAttributes, "exactly one of nonResourceAttributes or resourceAttributes must be specified")
	}
	return nil
}

// ConfigMap is core/v1 ConfigMap. Nothing here reads its content.
type ConfigMap struct {
	TypeMeta
	Metadata   ObjectMeta        `json:"metadata"`
	Data       map[string]string `json:"data,omitempty"`
	BinaryData map[string][]byte `json:"binaryData,omitempty"`
	Immutable  *bool             `json:"immutable,omitempty"`
}

// Secret is core/v1 Secret. Only ports that are relayed with TLS use its data.
type Secret struct {
	TypeMeta
	Metadata ObjectMeta        `json:"metadata"`
	Data     map[string][]byte `json:"data,omitempty"`
	// StringData is for writing only: Default moves it into Data.
	StringData map[string]string `json:"stringData,omitempty"`
	Type       string            `json:"type,omitempty"`
	Immutable  *bool             `json:"immutable,omitempty"`
}

// secretOpaque is the default type of a Secret.
const secretOpaque = "Opaque"

// SecretTLS is the type of a Secret with a TLS certificate (core/v1 SecretTypeTLS). TLSCert and TLSKey are keys in its data.
const (
	SecretTLS = "kubernetes.io/tls"
	TLSCert   = "tls.crt"
	TLSKey    = "tls.key"
)

const (
	maxDataBytes = 1 << 20 // maximum total size of the values in a ConfigMap or Secret, in bytes (core.MaxSecretSize)
	maxDataKey   = 253     // maximum length of a key in the data (validation.DNS1123SubdomainMaxLength)

	dataKey     = "[-._a-zA-Z0-9]+"
	dataKeyText = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' " +
		"(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '" + dataKey + "')"
)

var dataKeyRE = &pattern{text: "^" + dataKey + "$"}

func (o *ConfigMap) GetMeta() *ObjectMeta { return &o.Metadata }
func (o *Secret) GetMeta() *ObjectMeta    { return &o.Metadata }

func (o *Secret) setDefaults() {
	o.Type = cmp.Or(o.Type, secretOpaque)
	o.MoveStringData()
}

// MoveStringData moves the values of StringData into Data.
func (o *Secret) MoveStringData() {
	if len(o.StringData) > 0 && o.Data == nil {
		o.Data = map[string][]byte{}
	}
	for key, value := range o.StringData {
		o.Data[key] = []byte(value)
	}
	o.StringData = nil
}

func (o *ConfigMap) validate(previous Object) Errors {
	old, _ := previous.(*ConfigMap)
	data, binary := root("data"), root("binaryData")
	errs := slices.Concat(validateDataKeys(data, o.Data), validateDataKeys(binary, o.BinaryData))
	size := 0
	for key, value := range o.Data {
		size += len(value)
		if _, both := o.BinaryData[key]; both {
			errs = append(errs, invalid(data.key(key), key, "duplicate of key present in binaryData")...)
		}
	}
	for _, value := range o.BinaryData {
		size += len(value)
	}
	if size > maxDataBytes {
		errs = append(errs, tooLong(path{}, maxDataBytes)...)
	}
	if old == nil || !Deref(old.Immutable) {
		return errs
	}
	return slices.Concat(errs, validateKeptImmutable(o.Immutable), unlessEqual(data, maps.Equal(o.Data, old.Data)),
		unlessEqual(binary, maps.EqualFunc(o.BinaryData, old.BinaryData, bytes.Equal)))
}

func (o *Secret) validate(previous Object) Errors {
	old, _ := previous.(*Secret)
	data := root("data")
	errs := validateDataKeys(data, o.Data)
	size := 0
	for _, value := range o.Data {
		size += len(value)
	}
	if size > maxDataBytes {
		errs = append(errs, tooLong(data, maxDataBytes)...)
	}
	if o.Type == SecretTLS {
		for _, key := range []string{TLSCert, TLSKey} {
			if _, has := o.Data[key]; !has {
				errs = append(errs, required(data.key(key), "")...)
			}
		}
	}
	if old == nil {
		return errs
	}
	if o.Type != old.Type {
		errs = append(errs, invalid(root("type"), o.Type, immutableText)...)
	}
	if !Deref(old.Immutable) {
		return errs
	}
	return slices.Concat(errs, validateKeptImmutable(o.Immutable), unlessEqual(data, maps.EqualFunc(o.Data, old.Data, bytes.Equal)))
}

const immutableSetText = "field is immutable when `immutable` is set"

func validateKeptImmutable(immutable *bool) Errors {
	return unlessEqual(root("immutable"), Deref(immutable))
}

func unlessEqual(p path, equal bool) Errors {
	if equal {
		return nil
	}
	return forbidden(p, immutableSetText)
}

func validateDataKeys[V any](p path, data map[string]V) Errors {
	var errs Errors
	for _, key := range slices.Sorted(maps.Keys(data)) {
		problems := matchProblems(key, maxDataKey, dataKeyRE, dataKeyText)
		if key == "." || key == ".." {
			problems = append(problems, "must not be '"+key+"'")
		}
		errs = append(errs, invalidFor(p.key(key), key, problems)...)
	}
	return errs
}
