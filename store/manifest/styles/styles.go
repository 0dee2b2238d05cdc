package styles

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"strings"
)

// Service is a Service on port 80 with one EndpointSlice.
type Service struct {
	Name      string
	ClusterIP netip.Addr
	Protocol  string
	Endpoints []netip.Addr
	// Version is part of what only a cluster says of an object (its resourceVersion).
	Version int
	// ManagedFields adds metadata.managedFields, as `kubectl get --show-managed-fields` does.
	ManagedFields bool
}

// Style is a form of manifests.
type Style struct{ Name string }

// File is the text of a file with the Service and its slice.
func (s Style) File(of Service) string {
	switch s {
	case Kustomize:
		return of.kustomize()
	case Commented:
		return of.commented()
	}
	return of.kubectlService() + "---\n" + of.kubectlSlice()
}

// All are the styles.
var All = []Style{Kubectl, Kustomize, Commented}

// Kubectl is the output of `kubectl get service,endpointslice -o yaml`, one document each:
// keys in the order of the alphabet, lists not indented, what the cluster says of the objects,
// and the annotation that `kubectl apply` leaves.
var Kubectl = Style{"kubectl"}

// Kustomize is the output of `kustomize build`: apiVersion, kind and metadata first, lists not
// indented, nothing that only a cluster knows.
var Kustomize = Style{"kustomize"}

func (s Service) kustomize() string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata:
  annotations:
    config.kubernetes.io/origin: |
      path: base/service.yaml
    team: network
  labels:
    app: %[1]s
    app.kubernetes.io/managed-by: kustomize
    app.kubernetes.io/part-of: shop
  name: %[1]s
  namespace: default
spec:
  clusterIP: %[2]s
  ports:
  - name: p80
    port: 80
    protocol: %[3]s
    targetPort: 8080
  type: ClusterIP
---
addressType: IPv4
apiVersion: discovery.k8s.io/v1
endpoints:
`, s.Name, s.ClusterIP, s.Protocol)
	for _, e := range s.Endpoints {
		fmt.Fprintf(&b, "- addresses:\n  - %s\n  conditions:\n    ready: true\n", e)
	}
	fmt.Fprintf(&b, `kind: EndpointSlice
metadata:
  labels:
    app.kubernetes.io/managed-by: kustomize
    app.kubernetes.io/part-of: shop
    kubernetes.io/service-name: %[1]s
  name: %[1]s-1
  namespace: default
ports:
- name: p80
  port: 8080
  protocol: %[2]s
`, s.Name, s.Protocol)
	return b.String()
}

// Commented is the style of files written by hand: comments, quotes, indented lists, an anchor for
// repeated content and a merge key.
var Commented = Style{"comments and anchors"}

func (s Service) commented() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# %[1]s: one of the shop's back ends.
# Ask the network team before the address changes.
apiVersion: v1
kind: Service
metadata:
  name: %[1]s # also its name in DNS
  namespace: default
  labels: &labels
    app: "%[1]s"
    tier: 'backend' # or frontend
  annotations:
    <<: *labels
    description: >-
      Answers for the shop; moved here
      from the old load balancer.
spec:
  # Printed on the wall of the data center.
  clusterIP: %[2]s
  ports:
    - name: &port p80
      port: 80 # what clients see
      protocol: %[3]s
      targetPort: 8080
---
# The back ends.
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %[1]s-1
  namespace: default
  labels:
    kubernetes.io/service-name: "%[1]s"
addressType: IPv4
ports:
  - &http # the only port
    name: p80
    port: 8080
    protocol: %[3]s
endpoints:
`, s.Name, s.ClusterIP, s.Protocol)
	for i, e := range s.Endpoints {
		switch {
		case i == 0 && len(s.Endpoints) > 1:
			fmt.Fprintf(&b, "  - addresses: [\"%s\"]\n    conditions: &up {ready: true} # healthy\n", e)
		case i == 0:
			fmt.Fprintf(&b, "  - addresses: [\"%s\"]\n    conditions: {ready: true}\n", e)
		default:
			fmt.Fprintf(&b, "  - addresses: [\"%s\"] # rack %d\n    conditions: *up\n", e, i)
		}
	}
	return b.String()
}

// hash is a number that stands for a text.
func hash(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // never fails
	return h.Sum64()
}

// uid is a version 4 UUID that follows from a text.
func uid(text string) string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], hash(text))
	binary.BigEndian.PutUint64(raw[8:], hash(text+"'"))
	raw[6], raw[8] = raw[6]&0x0f|0x40, raw[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", raw[:4], raw[4:6], raw[6:8], raw[8:10], raw[10:])
}

// suffix returns the random suffix that Kubernetes adds to generated names.
func suffix(text string) string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	var out [5]byte
	for i, h := 0, hash(text); i < len(out); i, h = i+1, h/uint64(len(letters)) {
		out[i] = letters[h%uint64(len(letters))]
	}
	return string(out[:])
}

func (s Service) kubectlService() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: |
      {"apiVersion":"v1","kind":"Service","metadata":{"annotations":{},"labels":{"app":"%[1]s"},"name":"%[1]s","namespace":"default"},"spec":{"ports":[{"name":"p80","port":80,"protocol":"%[3]s","targetPort":8080}],"selector":{"app":"%[1]s"}}}
  creationTimestamp: "2025-03-14T09:26:53Z"
  labels:
    app: %[1]s
%[6]s  name: %[1]s
  namespace: default
  resourceVersion: "%[5]d"
  uid: %[4]s
spec:
  clusterIP: %[2]s
  clusterIPs:
  - %[2]s
  internalTrafficPolicy: Cluster
  ipFamilies:
  - IPv4
  ipFamilyPolicy: SingleStack
  ports:
  - name: p80
    port: 80
    protocol: %[3]s
    targetPort: 8080
  selector:
    app: %[1]s
  sessionAffinity: None
  type: ClusterIP
status:
  loadBalancer: {}
`, s.Name, s.ClusterIP, s.Protocol, uid(s.Name), 52_000+s.Version, s.managedFields())
}

func (s Service) managedFields() string {
	if !s.ManagedFields {
		return ""
	}
	return `  managedFields:
  - apiVersion: v1
    fieldsType: FieldsV1
    fieldsV1:
      f:metadata:
        f:annotations:
          .: {}
          f:kubectl.kubernetes.io/last-applied-configuration: {}
        f:labels:
          .: {}
          f:app: {}
      f:spec:
        f:internalTrafficPolicy: {}
        f:ports:
          .: {}
          k:{"port":80,"protocol":"` + s.Protocol + `"}:
            .: {}
            f:name: {}
            f:port: {}
            f:protocol: {}
            f:targetPort: {}
        f:selector: {}
        f:sessionAffinity: {}
        f:type: {}
    manager: kubectl-client-side-apply
    operation: Update
    time: "2025-03-14T09:26:53Z"
`
}

func (s Service) kubectlSlice() string {
	var b strings.Builder
	b.WriteString("addressType: IPv4\napiVersion: discovery.k8s.io/v1\nendpoints:\n")
	for i, e := range s.Endpoints {
		pod := s.Name + "-" + fmt.Sprintf("%08x", hash(s.Name))[:10] + "-" + suffix(fmt.Sprint(s.Name, i))
		fmt.Fprintf(&b, `- addresses:
  - %s
  conditions:
    ready: true
    serving: true
    terminating: false
  nodeName: worker-%d
  targetRef:
    kind: Pod
    name: %s
    namespace: default
    uid: %s
`, e, i+1, pod, uid(pod))
	}
	fmt.Fprintf(&b, `kind: EndpointSlice
metadata:
  annotations:
    endpoints.kubernetes.io/last-change-trigger-time: "2025-03-14T09:26:53Z"
  creationTimestamp: "2025-03-14T09:26:53Z"
  generateName: %[1]s-
  generation: %[4]d
  labels:
    app: %[1]s
    endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io
    kubernetes.io/service-name: %[1]s
  name: %[2]s
  namespace: default
  ownerReferences:
  - apiVersion: v1
    blockOwnerDeletion: true
    controller: true
    kind: Service
    name: %[1]s
    uid: %[3]s
  resourceVersion: "%[5]d"
  uid: %[6]s
ports:
- name: p80
  port: 8080
  protocol: %[7]s
`, s.Name, s.SliceName(), uid(s.Name), 1+s.Version, 53_000+s.Version, uid(s.SliceName()), s.Protocol)
	return b.String()
}

// SliceName is the name of the EndpointSlice in the style of kubectl.
func (s Service) SliceName() string { return s.Name + "-" + suffix(s.Name) }
