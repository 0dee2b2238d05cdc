package schema

import "svcctl.io/svcctl/store/object"

// trait has the properties of a list or map field that its Go type does not express.
type trait struct {
	keys     []string // x-kubernetes-list-map-keys
	set      bool     // list type "set"
	atomic   bool     // of a map; a list is, unless it has keys or is a set
	merge    bool     // patch strategy "merge"
	mergeKey string   // patch merge key
}

// byType is the trait of lists of conditions.
var byType = trait{keys: []string{"type"}, merge: true, mergeKey: "type"}

// traits has the patch and list properties of fields in the API of Kubernetes 1.36 (the struct tags
// patchStrategy and patchMergeKey and the markers listType, listMapKey and mapType of k8s.io/api).
// A port of a Service is the one place where the two ways to patch tell items apart by different
// keys: to a strategic merge patch, 53/TCP and 53/UDP are the same port.
var traits = map[string]trait{
	"ObjectMeta.ownerReferences":   {keys: []string{"uid"}, merge: true, mergeKey: "uid"},
	"ObjectMeta.finalizers":        {set: true, merge: true},
	"ServiceSpec.ports":            {keys: []string{"port", "protocol"}, merge: true, mergeKey: "port"},
	"ServiceSpec.selector":         {atomic: true},
	"ServiceStatus.conditions":     byType,
	"Endpoint.addresses":           {set: true},
	"PodSpec.containers":           {keys: []string{"name"}, merge: true, mergeKey: "name"},
	"PodSpec.initContainers":       {keys: []string{"name"}, merge: true, mergeKey: "name"},
	"Container.ports":              {keys: []string{"containerPort", "protocol"}, merge: true, mergeKey: "containerPort"},
	"PodStatus.conditions":         byType,
	"PodStatus.podIPs":             {keys: []string{"ip"}, merge: true, mergeKey: "ip"},
	"NamespaceStatus.conditions":   byType,
	"NodeSpec.podCIDRs":            {set: true, merge: true},
	"NodeStatus.addresses":         byType,
	"NodeStatus.conditions":        byType,
	"ServiceCIDRStatus.conditions": byType,
}

// atomicTypes are structures with mapType atomic.
var atomicTypes = []string{"ObjectReference", "OwnerReference"}

// required are the fields that validation requires, by structure.
var required = map[string][]string{
	"OwnerReference":            {"apiVersion", "kind", "name", "uid"},
	"IPAddressPool":             {"spec"},
	"IPAddressPoolSpec":         {"addresses"},
	"BGPPeer":                   {"spec"},
	"BGPPeerSpec":               {"myASN"},
	"LabelSelectorRequirement":  {"key", "operator"},
	"PreferredNodeSelector":     {"weight", "preference"},
	"Condition":                 {"type", "status", "lastTransitionTime", "reason", "message"},
	"ServicePort":               {"port"},
	"PortStatus":                {"port", "protocol"},
	"EndpointAddress":           {"ip"},
	"EndpointSlice":             {"addressType", "endpoints"},
	"Endpoint":                  {"addresses"},
	"ForZone":                   {"name"},
	"ForNode":                   {"name"},
	"ContainerPort":             {"containerPort"},
	"HTTPGetAction":             {"port"},
	"HTTPHeader":                {"name", "value"},
	"TCPSocketAction":           {"port"},
	"GRPCAction":                {"port"},
	"PodCondition":              {"type", "status"},
	"PodIP":                     {"ip"},
	"NamespaceCondition":        {"type", "status"},
	"NodeCondition":             {"type", "status"},
	"NodeAddress":               {"type", "address"},
	"Event":                     {"metadata", "involvedObject"},
	"EventView":                 {"eventTime"},
	"IPAddressSpec":             {"parentRef"},
	"ParentReference":           {"resource", "name"},
	"SelfSubjectAccessReview":   {"spec"},
	"SelfSubjectRulesReview":    {"spec"},
	"SubjectAccessReviewStatus": {"allowed"},
	"SubjectRulesReviewStatus":  {"resourceRules", "nonResourceRules", "incomplete"},
	"ResourceRule":              {"verbs"},
	"NonResourceRule":           {"verbs"},
}

// enums are the values of fields that have a few (the types with the marker enum of
// k8s.io/api, which its OpenAPI v3 documents show, too).
var enums = map[string][]string{
	"ServiceSpec.type":                  {object.TypeClusterIP, object.TypeExternalName, object.TypeLoadBalancer, object.TypeNodePort},
	"ServiceSpec.ipFamilies":            {object.IPv4, object.IPv6},
	"ServiceSpec.ipFamilyPolicy":        {object.SingleStack, object.PreferDualStack, object.RequireDualStack},
	"ServiceSpec.sessionAffinity":       {object.AffinityClientIP, object.AffinityNone},
	"ServiceSpec.externalTrafficPolicy": {object.PolicyCluster, object.PolicyLocal},
	"ServiceSpec.internalTrafficPolicy": {object.PolicyCluster, object.PolicyLocal},
	"ServicePort.protocol":              protocols,
	"PortStatus.protocol":               protocols,
	"EndpointPort.protocol":             protocols,
	"ContainerPort.protocol":            protocols,
	"HTTPGetAction.scheme":              {object.SchemeHTTP, object.SchemeHTTPS},
	"EndpointSlice.addressType":         {object.IPv4, object.IPv6, object.FQDN},
}

var protocols = []string{object.ProtocolTCP, object.ProtocolUDP, object.ProtocolSCTP}

// defaults are the values of absent fields in the keys of list items.
var defaults = map[string]any{
	"ServicePort.protocol":   "TCP",
	"ContainerPort.protocol": "TCP",
}

// ignored are fields of Kubernetes that clients may send and the product does not read.
// They are dropped without a warning.
var ignored = map[string][]string{
	"ObjectMeta":         {"selfLink", "deletionGracePeriodSeconds"},
	"DeleteOptions":      {"ignoreStoreReadErrorWithClusterBreakingPotential"},
	"ResourceAttributes": {"fieldSelector", "labelSelector"},
}

// renamed are the structures with the same name in two groups.
var renamed = map[string]string{"EventView": "Event"}

// metaTypes are the structures that all groups share.
var metaTypes = []string{"ObjectMeta", "OwnerReference", "ManagedFieldsEntry", "Condition", "DeleteOptions", "Preconditions", "LabelSelector", "LabelSelectorRequirement"}

// coreTypes are the structures of the core group that other groups use.
var coreTypes = []string{"ObjectReference", "EventSource", "SecretReference"}
