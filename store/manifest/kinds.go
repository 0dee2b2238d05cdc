package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// A servedKind is a kind of document that becomes an object.
type servedKind struct {
	kind, apiVersion string
	make             func() object.Object
	// partly says that only a part of the kind is read: its other fields may be there.
	partly bool
	// older are API versions whose documents are read as well: their fields are among those of apiVersion.
	older []string
}

var servedKinds = []servedKind{
	{kind: object.KindService, apiVersion: "v1", make: func() object.Object { return new(object.Service) }},
	{kind: object.KindEndpoints, apiVersion: "v1", make: func() object.Object { return new(object.Endpoints) }},
	{kind: object.KindEndpointSlice, apiVersion: "discovery.k8s.io/v1", make: func() object.Object { return new(object.EndpointSlice) }},
	{kind: object.KindPod, apiVersion: "v1", make: func() object.Object { return new(object.Pod) }, partly: true},
	{kind: object.KindIPAddressPool, apiVersion: object.APIVersionMetalLB, make: func() object.Object { return new(object.IPAddressPool) }},
	{kind: object.KindL2Advertisement, apiVersion: object.APIVersionMetalLB, make: func() object.Object { return new(object.L2Advertisement) }},
	{kind: object.KindBGPAdvertisement, apiVersion: object.APIVersionMetalLB, make: func() object.Object { return new(object.BGPAdvertisement) }},
	{kind: object.KindCommunity, apiVersion: object.APIVersionMetalLB, make: func() object.Object { return new(object.Community) }},
	{kind: object.KindBFDProfile, apiVersion: object.APIVersionMetalLB, make: func() object.Object { return new(object.BFDProfile) }},
	{kind: object.KindBGPPeer, apiVersion: object.APIVersionMetalLBPeer, make: func() object.Object { return new(object.BGPPeer) }, older: []string{object.APIVersionMetalLB}},
	{kind: object.KindSecret, apiVersion: "v1", make: func() object.Object { return new(object.Secret) }},
}

// implied is what the items of a typed List need not say.
type implied struct{ kind, apiVersion string }

// listOf reports whether a kind is a List that is taken apart, and what its items are:
// a v1 List of anything, or the List of a served kind.
func listOf(kind, apiVersion string) (implied, bool) {
	if kind == "List" && apiVersion == "v1" {
		return implied{}, true
	}
	for _, s := range servedKinds {
		if kind == s.kind+"List" && apiVersion == s.apiVersion {
			return implied{s.kind, s.apiVersion}, true
		}
	}
	return implied{}, false
}

// refOf is the Ref of an object as messages show it: no namespace is "default".
func refOf(o object.Object) object.Ref {
	ref := object.RefOf(o)
	if ref.Namespace == "" {
		ref.Namespace = "default"
	}
	return ref
}

// decode adds what one document says: an object, the items of a List, or problems.
func (u *unit) decode(file string, doc parsed, as implied) {
	if doc.root.kind == kindNull && len(doc.flaws) == 0 {
		return
	}
	d := &decoding{file: file, path: u.path[:0]}
	defer func() { u.path = d.path }()
	kind, apiVersion := textOf(doc.root, "kind"), textOf(doc.root, "apiVersion")
	if as, ok := listOf(kind, apiVersion); ok {
		u.decodeItems(d, doc, as)
		u.problems = append(u.problems, d.problems...)
		return
	}
	u.decodeObject(d, doc, as)
}

// decodeItems decodes the items of a List, each with the flaws that are its own.
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

// decodeObject adds one object, or what is wrong with it, all at once.
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
	d.ref, d.partly, d.secrets = nameOf(root, served.kind), served.partly, served.kind == object.KindSecret
	d.addFlaws(doc.flaws)
	o := served.make()
	d.object(root, o)
	if o.GetMeta().Name == "" && !d.failed {
		d.fieldProblem(root, "metadata.name", ReasonRequired, "Required value: an object in a file needs a name")
	}
	if d.failed {
		return
	}
	o.GetTypeMeta().Kind, o.GetTypeMeta().APIVersion = served.kind, served.apiVersion
	if secret, is := o.(*object.Secret); is {
		secret.MoveStringData() // no stored object has it, and files are compared with those
	}
	// A map takes 336 bytes, and many a Service has the labels that it selects.
	if svc, is := o.(*object.Service); is && len(svc.Spec.Selector) > 0 && maps.Equal(svc.Metadata.Labels, svc.Spec.Selector) {
		svc.Spec.Selector = svc.Metadata.Labels
	}
	u.documents = append(u.documents, Document{Object: o, Line: root.line, layout: u.places.of(root)})
}

// served finds out which kind a document is of.
func (d *decoding) served(root *node, as implied) (servedKind, bool) {
	kind, apiVersion := textOf(root, "kind"), textOf(root, "apiVersion")
	if kind == "" && apiVersion == "" {
		kind, apiVersion = as.kind, as.apiVersion
	}
	d.ref = nameOf(root, kind)
	if kind == "" {
		d.fieldProblem(root, "kind", ReasonRequired, `Required value: say what this is, as in "kind: Service"`)
		return servedKind{}, false
	}
	for _, s := range servedKinds {
		group, _, _ := strings.Cut(apiVersion, "/")
		servedGroup, _, _ := strings.Cut(s.apiVersion, "/")
		switch {
		case !strings.EqualFold(kind, s.kind):
		case kind != s.kind:
			d.fieldProblem(root, "kind", ReasonNotServed, fmt.Sprintf("Unsupported value: %s: write %q", excerpt(kind), s.kind))
			return servedKind{}, false
		case apiVersion == s.apiVersion || slices.Contains(s.older, apiVersion):
			return s, true
		case apiVersion == "":
			d.fieldProblem(root, "apiVersion", ReasonRequired, fmt.Sprintf("Required value: write \"apiVersion: %s\"", s.apiVersion))
			return servedKind{}, false
		case group == servedGroup || !strings.Contains(apiVersion, "/"):
			d.fieldProblem(root, "apiVersion", ReasonUnsupportedVersion,
				fmt.Sprintf("Unsupported value: %s: supported values: %q", excerpt(apiVersion), s.apiVersion))
			return servedKind{}, false
		}
	}
	if kind == object.KindNamespace && apiVersion == "v1" {
		d.ref.Namespace = "" // it is in none
		d.warning(root, ReasonNotServed, "not needed in files: namespaces come with the objects in them; the document is ignored")
		return servedKind{}, false
	}
	what := kind
	if strings.Contains(apiVersion, "/") {
		what += " of " + apiVersion
	}
	d.warning(root, ReasonNotServed, fmt.Sprintf("kind %s is not served here; the document is ignored", oneLine(what)))
	return servedKind{}, false
}

// textOf is the text of a top-level field, or "".
func textOf(root *node, key string) string {
	if n := root.get(key); n != nil && n.kind == kindString {
		return n.text
	}
	return ""
}

// nameOf is the best that can be said about which object a document is.
func nameOf(root *node, kind string) object.Ref {
	metadata := root.get("metadata")
	if metadata == nil {
		return object.Ref{}
	}
	ref := object.Ref{Kind: kind, Namespace: textOf(metadata, "namespace"), Name: textOf(metadata, "name")}
	if ref.Name == "" || ref.Kind == "" {
		return object.Ref{}
	}
	if ref.Namespace == "" {
		ref.Namespace = "default"
	}
	return ref
}
