package object

// The kinds that only the API knows: no manifest has them.
const (
	KindNamespace               = "Namespace"
	KindNode                    = "Node"
	KindEvent                   = "Event"
	KindServiceCIDR             = "ServiceCIDR"
	KindIPAddress               = "IPAddress"
	KindLease                   = "Lease"
	KindConfigMap               = "ConfigMap"
	KindSecret                  = "Secret"
	KindSelfSubjectAccessReview = "SelfSubjectAccessReview"
	KindSelfSubjectRulesReview  = "SelfSubjectRulesReview"
	KindSelfSubjectReview       = "SelfSubjectReview"
)

// The API versions of these kinds.
const (
	APIVersionEvents         = "events.k8s.io/v1"
	APIVersionNetworking     = "networking.k8s.io/v1"
	APIVersionCoordination   = "coordination.k8s.io/v1"
	APIVersionAuthorization  = "authorization.k8s.io/v1"
	APIVersionAuthentication = "authentication.k8s.io/v1"
)

// newOfAPI is New for the kinds that only the API knows.
func newOfAPI(meta TypeMeta) (Object, bool) {
	switch meta {
	case TypeMeta{KindNamespace, APIVersionCore}:
		return &Namespace{TypeMeta: meta}, true
	case TypeMeta{KindNode, APIVersionCore}:
		return &Node{TypeMeta: meta}, true
	case TypeMeta{KindEvent, APIVersionCore}:
		return &Event{TypeMeta: meta}, true
	case TypeMeta{KindEvent, APIVersionEvents}:
		return &EventView{TypeMeta: meta}, true
	case TypeMeta{KindConfigMap, APIVersionCore}:
		return &ConfigMap{TypeMeta: meta}, true
	case TypeMeta{KindSecret, APIVersionCore}:
		return &Secret{TypeMeta: meta}, true
	case TypeMeta{KindServiceCIDR, APIVersionNetworking}:
		return &ServiceCIDR{TypeMeta: meta}, true
	case TypeMeta{KindIPAddress, APIVersionNetworking}:
		return &IPAddress{TypeMeta: meta}, true
	case TypeMeta{KindLease, APIVersionCoordination}:
		return &Lease{TypeMeta: meta}, true
	case TypeMeta{KindSelfSubjectAccessReview, APIVersionAuthorization}:
		return &SelfSubjectAccessReview{TypeMeta: meta}, true
	case TypeMeta{KindSelfSubjectRulesReview, APIVersionAuthorization}:
		return &SelfSubjectRulesReview{TypeMeta: meta}, true
	case TypeMeta{KindSelfSubjectReview, APIVersionAuthentication}:
		return &SelfSubjectReview{TypeMeta: meta}, true
	}
	return nil, false
}

// Namespaced reports whether objects of its kind are in a namespace.
func Namespaced(o Object) bool {
	switch o.(type) {
	case *Namespace, *Node, *ServiceCIDR, *IPAddress:
		return false
	}
	return !review(o)
}

// review reports whether an object is a question, which has no name.
func review(o Object) bool {
	switch o.(type) {
	case *SelfSubjectAccessReview, *SelfSubjectRulesReview, *SelfSubjectReview:
		return true
	}
	return false
}

// validateOfAPI is validateContent for the kinds that only the API knows. A second
// value of another type than the first is none.
func validateOfAPI(o, old Object) Errors {
	switch o := o.(type) {
	case *Event:
		return validateEvent(o)
	case *EventView:
		return validateEvent(o.Event())
	case *ServiceCIDR:
		return validateServiceCIDR(o)
	case *IPAddress:
		return validateIPAddress(o)
	case *Lease:
		return validateLease(o)
	case *ConfigMap:
		before, _ := old.(*ConfigMap)
		return validateConfigMap(o, before)
	case *Secret:
		before, _ := old.(*Secret)
		return validateSecret(o, before)
	case *SelfSubjectAccessReview:
		return validateAccessReview(o)
	}
	return validateOfMetalLB(o)
}
