package convert

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// Cluster converts the output of `kubectl get svc,endpointslices -o yaml`, which may also contain objects of MetalLB. It imports the objects
// unchanged, except for fields that only have a meaning inside their cluster.
func Cluster(text string, options Options) (*Imported, error) {
	r := &cluster{reading: reading{options: options}, sliced: map[string]bool{}, endpoints: map[string]bool{}, generated: map[string]bool{}, hosts: map[string][]string{}, sets: map[string]string{}}
	file := manifest.Decode("cluster.yaml", []byte(text), manifest.DefaultLimits())
	if file.Err != nil {
		return nil, &Error{Line: max(file.Err.Line, 1), Text: file.Err.Message}
	}
	mappings := mappingsOf(text)
	configured := r.metallbConfig(mappings)
	convertSlices(file, mappings)
	for _, p := range file.Problems {
		if configured && p.Object.Kind == object.KindConfigMap && p.Reason == manifest.ReasonNotServed {
			continue
		}
		r.problem(p)
	}
	for i := range file.Documents {
		switch o := file.Documents[i].Object.(type) {
		case *object.EndpointSlice:
			r.sliced[o.Metadata.Namespace+"/"+o.Metadata.Labels[object.LabelServiceName]] = true
		case *object.Endpoints:
			r.endpoints[o.Metadata.Namespace+"/"+o.Metadata.Name] = true
		case *object.IPAddressPool:
			r.pools = true
		case *object.Service:
			labels := o.Metadata.Labels // Envoy Gateway names the Gateway of another namespace by one
			if cmp.Or(labels[object.LabelGateway], labels["gateway.envoyproxy.io/owning-gateway-name"]) != "" ||
				slices.ContainsFunc(o.Metadata.OwnerReferences, func(of object.OwnerReference) bool { return of.Kind == object.KindGateway }) {
				r.generated[o.Metadata.Namespace+"/"+o.Metadata.Name] = true
			}
		}
	}
	for i := range file.Documents {
		r.object(&file.Documents[i])
	}
	r.settings()
	r.leavers()
	if r.out.What == "" { // pools and the like alone
		r.out.What, r.out.Done, r.out.Described = "object", len(r.out.Kept), len(r.out.Kept)+r.unserved
	}
	r.namespaces()
	return r.result()
}

// mappingsOf returns the documents of a text and the items of its lists.
func mappingsOf(text string) (mappings []value) {
	docs, _ := lenient(text, func(int, string) {}) // Decode names an error
	for _, d := range docs {
		mappings = append(mappings, d)
		mappings = append(mappings, d.get("items").items()...)
	}
	return mappings
}

// convertSlices adds the EndpointSlices of discovery.k8s.io/v1beta1 to the documents of a file, as those of v1: the topology of an endpoint has
// labels of its node. One that cannot be an EndpointSlice of v1 stays among the problems.
func convertSlices(file *manifest.File, mappings []value) {
	for _, m := range mappings {
		if m.get("kind").text() != object.KindEndpointSlice || m.get("apiVersion").text() != "discovery.k8s.io/v1beta1" {
			continue
		}
		m.data.(map[string]any)["apiVersion"] = "discovery.k8s.io/v1"
		for _, e := range m.get("endpoints").items() {
			if zone := e.get("topology").get("topology.kubernetes.io/zone").text(); zone != "" {
				e.data.(map[string]any)["zone"] = zone
			}
			if fields, is := e.data.(map[string]any); is {
				delete(fields, "topology")
			}
		}
		text, err := json.Marshal(m.data)
		converted := manifest.Decode("cluster.json", text, manifest.DefaultLimits())
		if err != nil || len(converted.Documents) != 1 {
			continue
		}
		converted.Documents[0].Line = m.line()
		file.Documents = append(file.Documents, converted.Documents[0])
		file.Problems = slices.DeleteFunc(file.Problems, func(p manifest.Problem) bool {
			return p.Reason == manifest.ReasonUnsupportedVersion && p.Line == m.get("apiVersion").line() && p.Object.Name == converted.Documents[0].Object.GetMeta().Name
		})
	}
	slices.SortStableFunc(file.Documents, func(a, b manifest.Document) int { return cmp.Compare(a.Line, b.Line) })
}

// namespaces puts missing Namespace objects in front of the imported objects: apply refuses an object without its Namespace.
func (r *cluster) namespaces() {
	var missing []*Kept
	seen := map[string]bool{"": true, "default": true}
	for _, k := range r.out.Kept {
		if k.Object.GetTypeMeta().Kind == object.KindNamespace {
			seen[k.Object.GetMeta().Name] = true
		}
	}
	for _, k := range r.out.Kept {
		if name := k.Object.GetMeta().Namespace; !seen[name] {
			seen[name] = true
			missing = append(missing, &Kept{Object: &object.Namespace{
				TypeMeta: object.TypeMeta{Kind: object.KindNamespace, APIVersion: "v1"}, Metadata: object.ObjectMeta{Name: name},
			}})
		}
	}
	r.out.Kept = append(missing, r.out.Kept...)
}

type cluster struct {
	reading
	sliced, endpoints map[string]bool     // sets of Services: those that have EndpointSlices, and those that have an Endpoints object
	ips               []string            // load balancer IPs of all Services
	generated         map[string]bool     // Services generated for a Gateway
	leaving           []string            // Services whose address is the egress source of their endpoints
	hosts             map[string][]string // endpoint addresses of each Service
	sets              map[string]string   // names of source sets, keyed by their list of networks
	pools, announced  bool                // whether the input has MetalLB address pools (pools), advertisements or peers (announced)
	unserved          int                 // the number of objects of kinds that svcctl does not serve
}

// settings adds to the result the command-line flags that the imported objects require, for svcctl serve and the other programs.
func (r *cluster) settings() {
	if !r.pools && len(r.ips) > 0 {
		ips := slices.Compact(slices.Sorted(slices.Values(r.ips)))
		flags := object.Texts(ips, func(ip string) string { return "--load-balancer-pool " + ip + "-" + ip })
		r.out.Settings = append(r.out.Settings, "svcctl serve "+strings.Join(flags, " "))
	}
	if r.announced {
		r.out.Settings = append(r.out.Settings, "svcctl announce # beside serve: it carries out the advertisements and peers")
	}
}

// A Kept is an object that is imported unchanged, except for the parts in Losses.
type Kept struct {
	Object object.Object
	Losses []Loss
}

// problem reports a document that could not be decoded as an object.
func (r *cluster) problem(p manifest.Problem) {
	switch line := max(p.Line, 1); {
	case p.Reason == manifest.ReasonNotServed && p.Object.Kind == object.KindNamespace: // those of the objects are written anyway
	case p.Reason == manifest.ReasonNotServed, p.Reason == manifest.ReasonUnsupportedVersion:
		r.unserved++
		r.lose(nil, line, "%s %s is left out: %s", p.Object.Kind, p.Object.Name, strings.TrimSuffix(p.Message, "; the document is ignored"))
	case p.Warning:
		r.lose(nil, line, "%s: %s", p.Object, p.Message)
	default:
		text := p.Message
		if p.Field != "" {
			text = p.Field + ": " + text
		}
		r.fail(line, "%s %s: %s", p.Object.Kind, p.Object.Name, text)
	}
}

// clusterAnnotations lists the annotations that components of a cluster write. They are not imported.
var clusterAnnotations = []string{"kube-vip.io/vipHost", "kube-vip.io/active-endpoint", "kube-vip.io/active-endpoint-ipv6", object.AnnotationLastApplied, "endpoints.kubernetes.io/last-change-trigger-time"}

// object imports one object.
func (r *cluster) object(d *manifest.Document) {
	o := object.DeepCopy(d.Object)
	meta := o.GetMeta()
	k := &Kept{Object: o}
	lose := func(field, format string, args ...any) {
		line, _ := d.Position(field)
		k.Losses = append(k.Losses, Loss{line, fmt.Sprintf(format, args...)})
	}
	if meta.Name == "kubernetes" && (meta.Namespace == "default" || meta.Namespace == "") || meta.Labels[object.LabelServiceName] == "kubernetes" {
		r.lose(nil, d.Line, "%s %s is left out: it is the API of the cluster", o.GetTypeMeta().Kind, meta.Name)
		return
	}
	service := meta.Namespace + "/" + meta.Name
	if name := meta.Labels[object.LabelServiceName]; name != "" {
		service = meta.Namespace + "/" + name
	}
	if _, isService := o.(*object.Service); r.generated[service] && (isService || meta.Labels[object.LabelServiceName] != "" || o.GetTypeMeta().Kind == object.KindEndpoints) {
		r.lose(nil, d.Line, "%s %s is left out: it is generated of a Gateway, as svcctl does itself", o.GetTypeMeta().Kind, meta.Name)
		return
	}
	owned := len(meta.OwnerReferences) > 0
	meta.UID, meta.ResourceVersion, meta.Generation, meta.CreationTimestamp, meta.DeletionTimestamp = "", "", 0, nil, nil
	meta.ManagedFields, meta.OwnerReferences, meta.GenerateName = nil, nil, ""
	if len(meta.Finalizers) > 0 {
		lose("metadata.finalizers", "finalizers %s are left out: no controller here removes them", strings.Join(meta.Finalizers, ", "))
		meta.Finalizers = nil
	}
	for _, key := range clusterAnnotations {
		delete(meta.Annotations, key)
	}
	if r.options.Namespace != "" {
		meta.Namespace = r.options.Namespace
	}
	if _, is := o.(*object.EndpointSlice); is {
		delete(meta.Labels, object.LabelManagedBy)
		delete(meta.Labels, "endpoints.kubernetes.io/managed-by")
	}
	if svc, is := o.(*object.Service); is {
		r.egress(svc, service, lose)
		kubeRouter(svc)
	}
	served := true
	for _, f := range append(annotation.Foreigners(o), annotation.Notes(o)...) {
		line, _ := d.Position(f.Field)
		k.Losses = append(k.Losses, Loss{line, f.String()})
		row := annotation.Find(strings.TrimSuffix(strings.TrimPrefix(f.Field, "metadata.annotations["), "]"))
		served = served && (row == nil || row.Effect != annotation.Refused)
	}
	switch o := o.(type) {
	case *object.Service:
		if key := d.Object.GetMeta().Namespace + "/" + meta.Name; !r.sliced[key] && !r.endpoints[key] && o.Spec.Type != object.TypeExternalName {
			lose("spec", "there are no endpoints of it among the objects: clients are refused until an EndpointSlice is written")
			served = false
		}
		r.out.What = "Service"
		if r.out.Described++; served {
			r.out.Done++
		}
		r.service(o, lose)
	case *object.EndpointSlice:
		targets, nodes := 0, 0
		for i := range o.Endpoints {
			e := &o.Endpoints[i]
			r.hosts[service] = append(r.hosts[service], e.Addresses...)
			if e.TargetRef != nil {
				targets++
				e.TargetRef = nil
			}
			if e.NodeName != nil {
				nodes++
				e.NodeName = nil
			}
			if e.Hints != nil {
				e.Hints.ForNodes = nil
			}
		}
		switch {
		case targets == 1:
			lose("endpoints", "the endpoint is fixed: it does not follow its Pod")
		case targets > 1:
			lose("endpoints", "the %d endpoints are fixed: they do not follow their Pods", targets)
		}
		r.nodesLost(nodes, lose)
		if owned && len(o.Endpoints) == 0 {
			lose("endpoints", "no endpoint serves: clients are refused until endpoints are written here")
		}
	case *object.Endpoints:
		if r.sliced[meta.Namespace+"/"+meta.Name] {
			r.lose(nil, d.Line, "Endpoints %s are left out: the EndpointSlices have the same", meta.Name)
			return
		}
		nodes := 0
		for i := range o.Subsets {
			for _, list := range [][]object.EndpointAddress{o.Subsets[i].Addresses, o.Subsets[i].NotReadyAddresses} {
				for j := range list {
					r.hosts[service] = append(r.hosts[service], list[j].IP)
					if list[j].NodeName != nil {
						nodes++
						list[j].NodeName = nil
					}
					list[j].TargetRef = nil
				}
			}
		}
		r.nodesLost(nodes, func(_, format string, args ...any) { lose("subsets", format, args...) })
	case *object.GatewayClass:
		r.lose(nil, d.Line, "GatewayClass %s is left out: the class svcctl is there by itself", meta.Name)
		return
	case *object.Gateway:
		r.gateway(o, lose)
	case *object.L2Advertisement, *object.BGPAdvertisement:
		r.announced = true
	case *object.Pod:
		r.lose(nil, d.Line, "Pod %s is left out: nothing runs it here, and endpoints are in EndpointSlices", meta.Name)
		return
	}
	if status := reflect.ValueOf(o).Elem().FieldByName("Status"); status.IsValid() {
		status.SetZero() // of controllers that were in the cluster
	}
	r.judge(d, o)
	r.out.Kept = append(r.out.Kept, k)
}

// nodesLost records as a loss that the nodeName of n endpoints is not imported. No box has the name of a cluster node, so no endpoint would be local,
// and with the traffic policy Local clients would get no answer.
func (r *cluster) nodesLost(n int, lose func(field, format string, args ...any)) {
	switch {
	case n == 1:
		lose("endpoints", "nodeName of the endpoint is left out: it names a node of the cluster; an endpoint without one counts as local to this box")
	case n > 1:
		lose("endpoints", "nodeName of %d endpoints is left out: it names nodes of the cluster; endpoints without one count as local to this box", n)
	}
}

// judge records an error for an object that Kubernetes would reject as well: such input is not the output of kubectl.
func (r *cluster) judge(d *manifest.Document, o object.Object) {
	o = object.DeepCopy(o)
	object.Default(o)
	var errs object.Errors
	if svc, is := o.(*object.Service); is {
		errs = object.DefaultFamilies(svc, nil, []string{object.IPv4, object.IPv6})
	}
	for _, e := range append(errs, object.Validate(o, object.Options{})...) {
		line, _ := d.Position(e.Field)
		r.fail(line, "%s %s: %v", o.GetTypeMeta().Kind, o.GetMeta().Name, e)
	}
}

// gateway changes a Gateway so that svcctl serves it, at the addresses in its status.
func (r *cluster) gateway(g *object.Gateway, lose func(field, format string, args ...any)) {
	if class := g.Spec.GatewayClassName; class != "svcctl" {
		lose("spec.gatewayClassName", "spec.gatewayClassName %s becomes svcctl", class)
		g.Spec.GatewayClassName = "svcctl"
	}
	if g.Spec.Infrastructure != nil && g.Spec.Infrastructure.ParametersRef != nil {
		lose("spec.infrastructure", "spec.infrastructure.parametersRef is left out: svcctl has no kind of parameters")
		g.Spec.Infrastructure.ParametersRef = nil
	}
	for _, at := range g.Status.Addresses {
		if _, err := netip.ParseAddr(at.Value); err != nil {
			lose("status.addresses", "the name %s of the Gateway leads to the cluster still", at.Value)
		} else if r.ips = append(r.ips, at.Value); len(g.Spec.Addresses) < len(g.Status.Addresses) {
			g.Spec.Addresses = append(g.Spec.Addresses, object.GatewayAddress{Value: &at.Value})
		}
	}
}

// kubeRouter replaces annotations of kube-router by the equivalent ones of svcctl.
func kubeRouter(s *object.Service) {
	const prefix = "kube-router.io/service."
	of := s.Metadata.Annotations
	if algorithm, known := schedulers[of[prefix+"scheduler"]]; known {
		if of[object.AnnotationBalance] = algorithm; algorithm == object.BalanceMaglev && of[prefix+"schedflags"] == "flag-2" {
			delete(of, prefix+"schedflags") // it hashes the client's port, too
		}
		delete(of, prefix+"scheduler")
	}
	if of[prefix+"local"] == "true" { // clients from outside alone, since kube-router 2.0
		if s.ExternallyAccessible() {
			s.Spec.ExternalTrafficPolicy = object.PolicyLocal
		}
		delete(of, prefix+"local")
	}
	delete(of, prefix+"hairpin") // servers reach themselves by their Service
	delete(of, prefix+"hairpin.externalips")
}

// service removes the fields of a Service that only have a meaning in the cluster, and keeps the addresses and ports that clients outside
// use.
func (r *cluster) service(s *object.Service, lose func(field, format string, args ...any)) {
	spec := &s.Spec
	if len(spec.Selector) > 0 {
		lose("spec.selector", "spec.selector is left out: there are no Pods here, and the EndpointSlices list the servers")
		spec.Selector = nil
	}
	if spec.ClusterIP != "" && spec.ClusterIP != object.ClusterIPNone && spec.Type != object.TypeExternalName {
		if ips := strings.Join(spec.ClusterIPs, ","); !r.options.KeepClusterIPs {
			ips = cmp.Or(ips, spec.ClusterIP)
			lose("spec.clusterIP", "cluster IP %s is left out, another one is given: --keep-cluster-ips keeps it, for a box with the service range of the cluster", ips)
			spec.ClusterIP, spec.ClusterIPs = "", nil
		}
	}
	if class := spec.LoadBalancerClass; class != nil {
		lose("spec.loadBalancerClass", "spec.loadBalancerClass %s is left out: svcctl serves the load balancer", *class)
		spec.LoadBalancerClass = nil
	}
	for _, key := range []string{"metallb.io/address-pool", "metallb.universe.tf/address-pool"} {
		if pool, has := s.Metadata.Annotations[key]; has && !r.pools {
			lose("metadata.annotations", "the annotation %s is left out: no IPAddressPool %s is among the objects; import `kubectl get ipaddresspools -A -o yaml` along to keep it", key, pool)
			delete(s.Metadata.Annotations, key)
		}
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		if in.Hostname != "" {
			lose("status.loadBalancer", "the name %s of the load balancer leads to the cluster still", in.Hostname)
		}
	}
	if spec.Type == object.TypeLoadBalancer {
		asked := balancerIPs(s)
		if spec.LoadBalancerIP == "" && len(asked) > 0 && len(annotation.Addresses(s.Metadata.Annotations)) == 0 {
			if s.Metadata.Annotations == nil {
				s.Metadata.Annotations = map[string]string{}
			}
			s.Metadata.Annotations[annotationLoadBalancerIPs] = strings.Join(asked, ",")
		}
		r.ips = append(r.ips, asked...)
	}
}

// These maps go from keys of MetalLB's ConfigMap (before MetalLB 0.13) to the fields of the custom resources that replaced it. Node selectors have
// the fields of a LabelSelector.
var (
	metallbPool    = map[string]string{"addresses": "addresses", "auto-assign": "autoAssign", "avoid-buggy-ips": "avoidBuggyIPs"}
	metallbRoute   = map[string]string{"aggregation-length": "aggregationLength", "aggregation-length-v6": "aggregationLengthV6", "localpref": "localPref", "communities": "communities"}
	metallbProfile = map[string]string{"receive-interval": "receiveInterval", "transmit-interval": "transmitInterval", "detect-multiplier": "detectMultiplier", "echo-interval": "echoInterval",
		"echo-mode": "echoMode", "passive-mode": "passiveMode", "minimum-ttl": "minimumTtl"}
	metallbPeer = map[string]string{"my-asn": "myASN", "peer-asn": "peerASN", "peer-address": "peerAddress", "source-address": "sourceAddress", "peer-port": "peerPort", "hold-time": "holdTime",
		"keepalive-time": "keepaliveTime", "router-id": "routerID", "password": "password", "ebgp-multihop": "ebgpMultiHop", "bfd-profile": "bfdProfile", "node-selectors": "nodeSelectors"}
)

// metallbConfig converts ConfigMaps of MetalLB to pools, advertisements and peers. It reports whether there is such a ConfigMap.
func (r *cluster) metallbConfig(mappings []value) (found bool) {
	for _, m := range mappings {
		config := m.get("data").get("config")
		if m.get("kind").text() != "ConfigMap" || !strings.Contains(config.text(), "address-pools") {
			continue
		}
		inner, err := lenient(config.text(), func(int, string) {})
		if err != nil || len(inner) == 0 {
			r.fail(config.line(), "ConfigMap %s: its config cannot be read: %v", m.get("metadata").get("name").text(), err)
			continue
		}
		found = true
		c := &metallbMap{cluster: r, line: m.line(), namespace: m.get("metadata").get("namespace").text()}
		c.namespace = cmp.Or(c.namespace, object.MetalLBNamespace)
		if r.options.Namespace != "" {
			c.namespace = r.options.Namespace
		}
		c.read(inner[0])
	}
	return found
}

// A metallbMap reads one ConfigMap of MetalLB.
type metallbMap struct {
	*cluster
	line      int
	namespace string
}

func (c *metallbMap) read(config value) {
	c.lose(nil, c.line, "the ConfigMap of MetalLB becomes the objects that took its place in MetalLB 0.13")
	for _, key := range config.keys() {
		switch key {
		case "peers", "bgp-communities", "bfd-profiles", "address-pools":
		default:
			c.lose(nil, c.line, "%s has no counterpart and is left out", key)
		}
	}
	for _, pool := range config.get("address-pools").items() {
		name := pool.get("name").text()
		c.pools = true
		c.keep(&object.IPAddressPool{TypeMeta: metallbKind(object.KindIPAddressPool)}, name, c.renamed("pool "+name, pool, metallbPool, "name", "protocol", "bgp-advertisements"))
		only := map[string]any{"ipAddressPools": []string{name}}
		if pool.get("protocol").text() == "layer2" {
			c.keep(&object.L2Advertisement{TypeMeta: metallbKind(object.KindL2Advertisement)}, name, only)
			continue
		}
		routes := pool.get("bgp-advertisements").items()
		for i, route := range routes {
			spec := c.renamed("an advertisement of pool "+name, route, metallbRoute)
			spec["ipAddressPools"] = only["ipAddressPools"]
			c.keep(&object.BGPAdvertisement{TypeMeta: metallbKind(object.KindBGPAdvertisement)}, numbered(name, i), spec)
		}
		if len(routes) == 0 {
			c.keep(&object.BGPAdvertisement{TypeMeta: metallbKind(object.KindBGPAdvertisement)}, name, only)
		}
	}
	var named []map[string]any
	for _, key := range config.get("bgp-communities").keys() {
		named = append(named, map[string]any{"name": key, "value": config.get("bgp-communities").get(key).text()})
	}
	if len(named) > 0 {
		c.keep(&object.Community{TypeMeta: metallbKind(object.KindCommunity)}, "communities", map[string]any{"communities": named})
	}
	for _, profile := range config.get("bfd-profiles").items() {
		name := profile.get("name").text()
		c.keep(&object.BFDProfile{TypeMeta: metallbKind(object.KindBFDProfile)}, name, c.renamed("bfd-profile "+name, profile, metallbProfile, "name"))
	}
	for i, peer := range config.get("peers").items() {
		o := &object.BGPPeer{TypeMeta: object.TypeMeta{Kind: object.KindBGPPeer, APIVersion: object.APIVersionMetalLBPeer}}
		c.keep(o, numbered("peer", i), c.renamed("peer "+peer.get("peer-address").text(), peer, metallbPeer))
	}
	c.announced = true
}

func metallbKind(kind string) object.TypeMeta {
	return object.TypeMeta{Kind: kind, APIVersion: object.APIVersionMetalLB}
}

// numbered returns name for the index 0, and name followed by "-2", "-3" and so on for the indexes from 1.
func numbered(name string, i int) string {
	if i == 0 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, i+1)
}

// renamed returns a copy of the mapping with the keys in names, each replaced by its value there. Keys in read are left out because the caller reads
// them. All other keys are left out and recorded as lost.
func (c *metallbMap) renamed(what string, of value, names map[string]string, read ...string) map[string]any {
	spec := map[string]any{}
	for _, key := range of.keys() {
		switch to, known := names[key]; {
		case known && to == "nodeSelectors":
			spec[to] = camel(of.get(key).data)
		case known:
			spec[to] = of.get(key).data
		case !strings.Contains(" "+strings.Join(read, " ")+" ", " "+key+" "):
			c.lose(nil, c.line, "%s of %s has no counterpart and is left out", key, what)
		}
	}
	return spec
}

// camel returns data with the top-level keys match-labels and match-expressions renamed to matchLabels and matchExpressions, as in a LabelSelector.
func camel(data any) any {
	switch d := data.(type) {
	case []any:
		for i := range d {
			d[i] = camel(d[i])
		}
	case map[string]any:
		for _, pair := range [][2]string{{"match-labels", "matchLabels"}, {"match-expressions", "matchExpressions"}} {
			if inner, has := d[pair[0]]; has {
				delete(d, pair[0])
				d[pair[1]] = inner
			}
		}
	}
	return data
}

// keep imports an object with the given name and spec, if it is valid.
func (c *metallbMap) keep(o object.Object, name string, spec map[string]any) {
	meta := o.GetMeta()
	meta.Name, meta.Namespace = new(reading).name(name), c.namespace
	form, err := json.Marshal(map[string]any{"spec": spec})
	if err == nil {
		err = json.Unmarshal(form, o)
	}
	if err != nil {
		c.fail(c.line, "%s %s of the ConfigMap: %v", o.GetTypeMeta().Kind, name, err)
		return
	}
	judged := object.DeepCopy(o)
	object.Default(judged)
	for _, e := range object.Validate(judged, object.Options{}) {
		c.fail(c.line, "%s %s of the ConfigMap: %v", o.GetTypeMeta().Kind, name, e)
	}
	c.out.Kept = append(c.out.Kept, &Kept{Object: o})
}
