package manifest

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"svcctl.io/svcctl/store/object"
)

// servedKinds returns the strategies of the kinds that manifests may have.
var servedKinds = sync.OnceValue(func() (served []*object.Strategy) {
	all := object.Strategies()
	for i := range all {
		if all[i].InFiles {
			served = append(served, &all[i])
		}
	}
	return served
})

// implied is the kind and API version that a typed List (such as a ServiceList) implies for items without their own.
type implied struct{ kind, apiVersion string }

// listOf reports whether objects of a kind are Lists that are decoded item by item. It also returns the kind that such a List implies for its items.
// For a typed List of a served kind that is the item kind. For a v1 List, which has items of any kind, it is the zero value.
func listOf(kind, apiVersion string) (implied, bool) {
	if kind == "List" && apiVersion == "v1" {
		return implied{}, true
	}
	for _, s := range servedKinds() {
		if kind == s.Name+"List" && apiVersion == s.APIVersion() {
			return implied{s.Name, s.APIVersion()}, true
		}
	}
	return implied{}, false
}

// refOf returns the Ref of an object for messages, with the namespace "default" where it has none.
func refOf(o object.Object) object.Ref {
	ref := object.RefOf(o)
	ref.Namespace = cmp.Or(ref.Namespace, "default")
	return ref
}

// decode adds the content of one document: an object, the items of a List, or problems.
func (u *unit) decode(file string, doc parsed, as implied) {
	if doc.root.kind == kindNull && len(doc.flaws) == 0 {
		return
	}
	if u.last == nil {
		u.last = new(lastTexts)
	}
	d := &decoding{file: file, path: u.path[:0], last: u.last}
	defer func() { u.path = d.path }()
	kind, apiVersion := textOf(doc.root, "kind"), textOf(doc.root, "apiVersion")
	if as, ok := listOf(kind, apiVersion); ok {
		u.decodeItems(d, doc, as)
		u.problems = append(u.problems, d.problems...)
		return
	}
	u.decodeObject(d, doc, as)
}

// decodeItems decodes the items of a List as documents of their own. It assigns each flaw that the parser found within an item to that item.
func (u *unit) decodeItems(d *decoding, doc parsed, as implied) {
	items := doc.root.get("items")
	flaws := map[int][]flaw{}
	for _, f := range doc.flaws {
		if len(f.path) > 1 && f.path[0].key == "items" {
			i := f.path[1].index
			f.path = f.path[2:]
			flaws[i] = append(flaws[i], f)
		} else {
			d.addFlaws([]flaw{f})
		}
	}
	if items == nil || items.kind == kindNull {
		return
	}
	if items.kind != kindList {
		d.path.pushKey("items")
		d.wrongType(items, "a list")
		return
	}
	for i, it := range items.items {
		u.decode(d.file, parsed{it, flaws[i]}, as)
	}
}

// decodeObject adds one object, or all problems of the object if it is invalid.
func (u *unit) decodeObject(d *decoding, doc parsed, as implied) {
	u.count++
	defer func() { u.problems = append(u.problems, d.problems...) }()
	root := doc.root
	if root.kind == kindString && conflictMarker([]byte(root.text)) == 1 {
		d.problem(root, ReasonSyntax, conflictMessage)
		return
	}
	if root.kind != kindMap {
		d.problem(root, ReasonWrongType, "expected an object with apiVersion and kind, got "+root.what())
		return
	}
	served, ok := d.served(root, as)
	if !ok {
		return
	}
	d.ref, d.partly, d.secrets = nameOf(root, served.Name), served.Open, served.Name == object.KindSecret
	d.addFlaws(doc.flaws)
	o := served.New()
	d.value(root, reflect.ValueOf(o).Elem())
	if !served.Namespaced { // kube-apiserver clears it, too: EnsureObjectNamespaceMatchesRequestNamespace
		o.GetMeta().Namespace = ""
	}
	if o.GetMeta().Name == "" && !d.failed {
		d.fieldProblem(root, "metadata.name", ReasonRequired, "Required value: an object in a file needs a name")
	}
	if d.failed {
		return
	}
	o.GetTypeMeta().Kind, o.GetTypeMeta().APIVersion = served.Name, served.APIVersion()
	if secret, is := o.(*object.Secret); is {
		secret.MoveStringData() // no stored object has it, and files are compared with those
	}
	u.documents = append(u.documents, Document{Object: o, Line: root.line, layout: u.places.of(root)})
}

// served determines the kind of a document, and reports a problem if it is not served.
func (d *decoding) served(root *node, as implied) (*object.Strategy, bool) {
	kind, apiVersion := textOf(root, "kind"), textOf(root, "apiVersion")
	if kind == "" && apiVersion == "" {
		kind, apiVersion = as.kind, as.apiVersion
	}
	d.ref = nameOf(root, kind)
	if kind == "" {
		d.fieldProblem(root, "kind", ReasonRequired, `Required value: name the kind, as in "kind: Service"`)
		return nil, false
	}
	for _, s := range servedKinds() {
		version := s.APIVersion()
		group, _, _ := strings.Cut(apiVersion, "/")
		switch servedGroup, _, _ := strings.Cut(version, "/"); {
		case !strings.EqualFold(kind, s.Name):
		case kind != s.Name:
			d.fieldProblem(root, "kind", ReasonNotServed, fmt.Sprintf("Unsupported value: %s: write %q", excerpt(kind), s.Name))
			return nil, false
		case apiVersion == version || slices.Contains(s.OlderVersions, apiVersion):
			return s, true
		case apiVersion == "":
			d.fieldProblem(root, "apiVersion", ReasonRequired, fmt.Sprintf("Required value: write \"apiVersion: %s\"", version))
			return nil, false
		case group == servedGroup || !strings.Contains(apiVersion, "/"):
			d.fieldProblem(root, "apiVersion", ReasonUnsupportedVersion,
				fmt.Sprintf("Unsupported value: %s: supported values: %q", excerpt(apiVersion), version))
			return nil, false
		}
	}
	if kind == object.KindNamespace && apiVersion == "v1" {
		d.ref.Namespace = "" // it is in none
		d.warning(root, ReasonNotServed, "not needed in files: namespaces come with the objects in them; the document is ignored")
		return nil, false
	}
	if kind == object.KindServiceCIDR {
		d.warning(root, ReasonNotServed, "the ranges of cluster IPs are settings of the box: the document is ignored; give --service-cluster-ip-range, or serviceClusterIPRange in /etc/svcctl/svcctl.yaml")
		return nil, false
	}
	if elsewhere(kind, apiVersion) {
		d.warning(root, ReasonNotServed, fmt.Sprintf("kind %s is not read from files, and the document is ignored: clients bring it, as `svcctl apply -f FILE`", kind))
		return nil, false
	}
	what := kind
	if strings.Contains(apiVersion, "/") {
		what += " of " + apiVersion
	}
	d.warning(root, ReasonNotServed, fmt.Sprintf("kind %s is not served here%s; the document is ignored", object.OneLine(what), Instead(kind)))
	return nil, false
}

// Instead returns a hint, in parentheses for a message, what to use instead of a Kubernetes kind that is not served. It returns "" if there is no
// hint.
func Instead(kind string) string {
	switch kind {
	case "Ingress", "IngressClass", "GRPCRoute":
		return " (requests are not routed by host or path; a TLSRoute passes clients on by TLS server name, a TCPRoute as they are)"
	case "Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job", "CronJob":
		return " (no containers are started; name running servers in an EndpointSlice, or as Pods with status.podIP)"
	case "CiliumEgressGatewayPolicy", "EgressIP", "Egress":
		return " (svcctl.io/egress of a Service has its endpoints leave with its address, to the destinations of svcctl.io/egress-to)"
	case "NetworkPolicy":
		return " (clients are restricted by spec.loadBalancerSourceRanges and svcctl.io/source-sets)"
	}
	return ""
}

// elsewhere reports whether the API accepts objects of a kind that files may not have.
func elsewhere(kind, apiVersion string) bool {
	return slices.ContainsFunc(object.Strategies(), func(s object.Strategy) bool {
		return !s.InFiles && s.Name == kind && s.APIVersion() == apiVersion && s.Stored() && slices.Contains(s.Verbs, "create")
	})
}

// textOf returns the string value of a top-level field, or "".
func textOf(root *node, key string) string {
	if n := root.get(key); n != nil && n.kind == kindString {
		return n.text
	}
	return ""
}

// nameOf returns the Ref of a document; fields that it lacks are empty.
func nameOf(root *node, kind string) object.Ref {
	metadata := root.get("metadata")
	if metadata == nil {
		return object.Ref{}
	}
	ref := object.Ref{Kind: kind, Namespace: textOf(metadata, "namespace"), Name: textOf(metadata, "name")}
	if ref.Name == "" || ref.Kind == "" {
		return object.Ref{}
	}
	ref.Namespace = cmp.Or(ref.Namespace, "default")
	return ref
}
