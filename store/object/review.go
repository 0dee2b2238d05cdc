package object

// The SelfSubject reviews are questions that a client asks about itself: created,
// answered at once, and never stored. Their metadata stays empty.

// SelfSubjectAccessReview is authorization.k8s.io/v1 SelfSubjectAccessReview: may I
// do this?
type SelfSubjectAccessReview struct {
	TypeMeta
	Metadata ObjectMeta                  `json:"metadata"`
	Spec     SelfSubjectAccessReviewSpec `json:"spec"`
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
	Allowed         bool   `json:"allowed"`
	Denied          bool   `json:"denied,omitempty"`
	Reason          string `json:"reason,omitempty"`
	EvaluationError string `json:"evaluationError,omitempty"`
}

// SelfSubjectRulesReview is authorization.k8s.io/v1 SelfSubjectRulesReview: what may
// I do?
type SelfSubjectRulesReview struct {
	TypeMeta
	Metadata ObjectMeta                 `json:"metadata"`
	Spec     SelfSubjectRulesReviewSpec `json:"spec"`
	Status   SubjectRulesReviewStatus   `json:"status,omitzero"`
}

// SelfSubjectRulesReviewSpec is authorization.k8s.io/v1 SelfSubjectRulesReviewSpec.
type SelfSubjectRulesReviewSpec struct {
	Namespace string `json:"namespace,omitempty"`
}

// SubjectRulesReviewStatus is authorization.k8s.io/v1 SubjectRulesReviewStatus.
type SubjectRulesReviewStatus struct {
	ResourceRules    []ResourceRule    `json:"resourceRules"`
	NonResourceRules []NonResourceRule `json:"nonResourceRules"`
	Incomplete       bool              `json:"incomplete"`
	EvaluationError  string            `json:"evaluationError,omitempty"`
}

// ResourceRule is authorization.k8s.io/v1 ResourceRule.
type ResourceRule struct {
	Verbs         []string `json:"verbs"`
	APIGroups     []string `json:"apiGroups,omitempty"`
	Resources     []string `json:"resources,omitempty"`
	ResourceNames []string `json:"resourceNames,omitempty"`
}

// NonResourceRule is authorization.k8s.io/v1 NonResourceRule.
type NonResourceRule struct {
	Verbs           []string `json:"verbs"`
	NonResourceURLs []string `json:"nonResourceURLs,omitempty"`
}

// SelfSubjectReview is authentication.k8s.io/v1 SelfSubjectReview: who am I?
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

func (o *SelfSubjectAccessReview) GetTypeMeta() *TypeMeta { return &o.TypeMeta }
func (o *SelfSubjectAccessReview) GetMeta() *ObjectMeta   { return &o.Metadata }
func (o *SelfSubjectRulesReview) GetTypeMeta() *TypeMeta  { return &o.TypeMeta }
func (o *SelfSubjectRulesReview) GetMeta() *ObjectMeta    { return &o.Metadata }
func (o *SelfSubjectReview) GetTypeMeta() *TypeMeta       { return &o.TypeMeta }
func (o *SelfSubjectReview) GetMeta() *ObjectMeta         { return &o.Metadata }

// DeepCopy implements Object.
func (o *SelfSubjectAccessReview) DeepCopy() Object { return deepCopy(o) }

// DeepCopy implements Object.
func (o *SelfSubjectRulesReview) DeepCopy() Object { return deepCopy(o) }

// DeepCopy implements Object.
func (o *SelfSubjectReview) DeepCopy() Object { return deepCopy(o) }

// validateAccessReview wants one question (ValidateSelfSubjectAccessReviewSpec of
// pkg/apis/authorization/validation).
func validateAccessReview(o *SelfSubjectAccessReview) Errors {
	spec := &o.Spec
	switch {
	case spec.ResourceAttributes != nil && spec.NonResourceAttributes != nil:
		return invalid(specPath.child("nonResourceAttributes"), spec.NonResourceAttributes, "cannot be specified in combination with resourceAttributes")
	case spec.ResourceAttributes == nil && spec.NonResourceAttributes == nil:
		return invalid(specPath.child("resourceAttributes"), spec.NonResourceAttributes, "exactly one of nonResourceAttributes or resourceAttributes must be specified")
	}
	return nil
}
