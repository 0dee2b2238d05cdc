package protobuf

import "google.golang.org/protobuf/encoding/protowire"

// A numbering are the names of the fields of a message, by their numbers.
type numbering map[protowire.Number]string

// numbers are the fields of the messages that are read, as the generated.proto files of
// k8s.io/api and k8s.io/apimachinery (v0.36) number them. Numbers never change and are
// never used again; fields that are not listed mean nothing here and are skipped.
var numbers = map[string]numbering{
	"core.v1.Service": {1: "metadata", 2: "spec", 3: "status"},
	"core.v1.ServiceSpec": {
		1: "ports", 2: "selector", 3: "clusterIP", 4: "type", 5: "externalIPs", 7: "sessionAffinity",
		8: "loadBalancerIP", 9: "loadBalancerSourceRanges", 10: "externalName", 11: "externalTrafficPolicy",
		12: "healthCheckNodePort", 13: "publishNotReadyAddresses", 14: "sessionAffinityConfig",
		17: "ipFamilyPolicy", 18: "clusterIPs", 19: "ipFamilies", 20: "allocateLoadBalancerNodePorts",
		21: "loadBalancerClass", 22: "internalTrafficPolicy", 23: "trafficDistribution",
	},
	"core.v1.ServicePort":           {1: "name", 2: "protocol", 3: "port", 4: "targetPort", 5: "nodePort", 6: "appProtocol"},
	"core.v1.SessionAffinityConfig": {1: "clientIP"},
	"core.v1.ClientIPConfig":        {1: "timeoutSeconds"},
	"core.v1.ServiceStatus":         {1: "loadBalancer", 2: "conditions"},
	"core.v1.LoadBalancerStatus":    {1: "ingress"},
	"core.v1.LoadBalancerIngress":   {1: "ip", 2: "hostname", 3: "ipMode", 4: "ports"},
	"core.v1.PortStatus":            {1: "port", 2: "protocol", 3: "error"},
	"core.v1.Endpoints":             {1: "metadata", 2: "subsets"},
	"core.v1.EndpointSubset":        {1: "addresses", 2: "notReadyAddresses", 3: "ports"},
	"core.v1.EndpointAddress":       {1: "ip", 2: "targetRef", 3: "hostname", 4: "nodeName"},
	"core.v1.EndpointPort":          {1: "name", 2: "port", 3: "protocol", 4: "appProtocol"},
	"core.v1.ObjectReference": {
		1: "kind", 2: "namespace", 3: "name", 4: "uid", 5: "apiVersion", 6: "resourceVersion", 7: "fieldPath",
	},
	"core.v1.Pod":       {1: "metadata", 2: "spec", 3: "status"},
	"core.v1.PodSpec":   {2: "containers", 10: "nodeName", 11: "hostNetwork", 16: "hostname", 17: "subdomain", 20: "initContainers"},
	"core.v1.Container": {1: "name", 2: "image", 6: "ports", 11: "readinessProbe", 24: "restartPolicy"},
	"core.v1.Probe": {
		2: "initialDelaySeconds", 3: "timeoutSeconds", 4: "periodSeconds", 5: "successThreshold", 6: "failureThreshold",
	},
	"core.v1.ProbeHandler":       {1: "exec", 2: "httpGet", 3: "tcpSocket", 4: "grpc"},
	"core.v1.ExecAction":         {1: "command"},
	"core.v1.HTTPGetAction":      {1: "path", 2: "port", 3: "host", 4: "scheme", 5: "httpHeaders"},
	"core.v1.HTTPHeader":         {1: "name", 2: "value"},
	"core.v1.TCPSocketAction":    {1: "port", 2: "host"},
	"core.v1.GRPCAction":         {1: "port", 2: "service"},
	"core.v1.ContainerPort":      {1: "name", 3: "containerPort", 4: "protocol"},
	"core.v1.PodStatus":          {1: "phase", 2: "conditions", 6: "podIP", 12: "podIPs"},
	"core.v1.PodCondition":       {1: "type", 2: "status"},
	"core.v1.PodIP":              {1: "ip"},
	"core.v1.Namespace":          {1: "metadata", 2: "spec", 3: "status"},
	"core.v1.NamespaceSpec":      {1: "finalizers"},
	"core.v1.NamespaceStatus":    {1: "phase", 2: "conditions"},
	"core.v1.NamespaceCondition": {1: "type", 2: "status", 4: "lastTransitionTime", 5: "reason", 6: "message"},
	"core.v1.Node":               {1: "metadata", 2: "spec", 3: "status"},
	"core.v1.NodeSpec":           {1: "podCIDR", 3: "providerID", 4: "unschedulable", 7: "podCIDRs"},
	"core.v1.NodeStatus":         {4: "conditions", 5: "addresses", 7: "nodeInfo"},
	"core.v1.NodeCondition":      {1: "type", 2: "status", 3: "lastHeartbeatTime", 4: "lastTransitionTime", 5: "reason", 6: "message"},
	"core.v1.NodeAddress":        {1: "type", 2: "address"},
	"core.v1.NodeSystemInfo": {
		1: "machineID", 2: "systemUUID", 3: "bootID", 4: "kernelVersion", 5: "osImage",
		6: "containerRuntimeVersion", 7: "kubeletVersion", 8: "kubeProxyVersion", 9: "operatingSystem",
		10: "architecture",
	},
	"core.v1.Event": {
		1: "metadata", 2: "involvedObject", 3: "reason", 4: "message", 5: "source", 6: "firstTimestamp",
		7: "lastTimestamp", 8: "count", 9: "type", 10: "eventTime", 11: "series", 12: "action", 13: "related",
		14: "reportingComponent", 15: "reportingInstance",
	},
	"core.v1.EventSource":        {1: "component", 2: "host"},
	"core.v1.EventSeries":        {1: "count", 2: "lastObservedTime"},
	"core.v1.ConfigMap":          {1: "metadata", 2: "data", 3: "binaryData", 4: "immutable"},
	"core.v1.Secret":             {1: "metadata", 2: "data", 3: "type", 4: "stringData", 5: "immutable"},
	"discovery.v1.EndpointSlice": {1: "metadata", 2: "endpoints", 3: "ports", 4: "addressType"},
	"discovery.v1.Endpoint": {
		1: "addresses", 2: "conditions", 3: "hostname", 4: "targetRef", 5: "deprecatedTopology", 6: "nodeName",
		7: "zone", 8: "hints",
	},
	"discovery.v1.EndpointConditions": {1: "ready", 2: "serving", 3: "terminating"},
	"discovery.v1.EndpointHints":      {1: "forZones", 2: "forNodes"},
	"discovery.v1.ForZone":            {1: "name"},
	"discovery.v1.ForNode":            {1: "name"},
	"discovery.v1.EndpointPort":       {1: "name", 2: "protocol", 3: "port", 4: "appProtocol"},
	"events.v1.Event": {
		1: "metadata", 2: "eventTime", 3: "series", 4: "reportingController", 5: "reportingInstance", 6: "action",
		7: "reason", 8: "regarding", 9: "related", 10: "note", 11: "type", 12: "deprecatedSource",
		13: "deprecatedFirstTimestamp", 14: "deprecatedLastTimestamp", 15: "deprecatedCount",
	},
	"events.v1.EventSeries":           {1: "count", 2: "lastObservedTime"},
	"networking.v1.ServiceCIDR":       {1: "metadata", 2: "spec", 3: "status"},
	"networking.v1.ServiceCIDRSpec":   {1: "cidrs"},
	"networking.v1.ServiceCIDRStatus": {1: "conditions"},
	"networking.v1.IPAddress":         {1: "metadata", 2: "spec"},
	"networking.v1.IPAddressSpec":     {1: "parentRef"},
	"networking.v1.ParentReference":   {1: "group", 2: "resource", 3: "namespace", 4: "name"},
	"coordination.v1.Lease":           {1: "metadata", 2: "spec"},
	"coordination.v1.LeaseSpec": {
		1: "holderIdentity", 2: "leaseDurationSeconds", 3: "acquireTime", 4: "renewTime", 5: "leaseTransitions",
		6: "strategy", 7: "preferredHolder",
	},
	"authorization.v1.SelfSubjectAccessReview":     {1: "metadata", 2: "spec", 3: "status"},
	"authorization.v1.SelfSubjectAccessReviewSpec": {1: "resourceAttributes", 2: "nonResourceAttributes"},
	"authorization.v1.ResourceAttributes": {
		1: "namespace", 2: "verb", 3: "group", 4: "version", 5: "resource", 6: "subresource", 7: "name",
	},
	"authorization.v1.NonResourceAttributes":      {1: "path", 2: "verb"},
	"authorization.v1.SubjectAccessReviewStatus":  {1: "allowed", 2: "reason", 3: "evaluationError", 4: "denied"},
	"authorization.v1.SelfSubjectRulesReview":     {1: "metadata", 2: "spec", 3: "status"},
	"authorization.v1.SelfSubjectRulesReviewSpec": {1: "namespace"},
	"authorization.v1.SubjectRulesReviewStatus":   {1: "resourceRules", 2: "nonResourceRules", 3: "incomplete", 4: "evaluationError"},
	"authorization.v1.ResourceRule":               {1: "verbs", 2: "apiGroups", 3: "resources", 4: "resourceNames"},
	"authorization.v1.NonResourceRule":            {1: "verbs", 2: "nonResourceURLs"},
	"authentication.v1.SelfSubjectReview":         {1: "metadata", 2: "status"},
	"authentication.v1.SelfSubjectReviewStatus":   {1: "userInfo"},
	"authentication.v1.UserInfo":                  {1: "username", 2: "uid", 3: "groups"},
	"meta.v1.ObjectMeta": {
		1: "name", 2: "generateName", 3: "namespace", 5: "uid", 6: "resourceVersion", 7: "generation",
		8: "creationTimestamp", 9: "deletionTimestamp", 11: "labels", 12: "annotations", 13: "ownerReferences",
		14: "finalizers", 17: "managedFields",
	},
	"meta.v1.OwnerReference": {1: "kind", 3: "name", 4: "uid", 5: "apiVersion", 6: "controller", 7: "blockOwnerDeletion"},
	"meta.v1.ManagedFieldsEntry": {
		1: "manager", 2: "operation", 3: "apiVersion", 4: "time", 6: "fieldsType", 7: "fieldsV1", 8: "subresource",
	},
	"meta.v1.Condition": {1: "type", 2: "status", 3: "observedGeneration", 4: "lastTransitionTime", 5: "reason", 6: "message"},
	"meta.v1.DeleteOptions": {
		1: "gracePeriodSeconds", 2: "preconditions", 3: "orphanDependents", 4: "propagationPolicy", 5: "dryRun",
	},
	"meta.v1.Preconditions": {1: "uid", 2: "resourceVersion"},
}

// inline are the messages whose fields are those of the message around them in JSON, by that
// message and their number in it.
var inline = map[string]map[protowire.Number]string{
	"core.v1.Probe": {1: "core.v1.ProbeHandler"},
}
