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
