package rest

import (
	"fmt"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

func namespaceRef(name string) object.Ref { return object.Ref{Kind: object.KindNamespace, Name: name} }

// hasNamespace refuses to create an object in a namespace that is not there, or that goes. The Namespace of MetalLB's
// objects follows the first one: a controller keeps those in which clients have some.
func (s *Server) hasNamespace(r *request) error {
	if !r.kind.Namespaced {
		return nil
	}
	o, _ := s.store.Get(namespaceRef(r.namespace))
	namespace, ok := o.(*object.Namespace)
	if !ok && r.namespace == object.MetalLBNamespace {
		return nil
	}
	if !ok {
		k, _ := kind.ByName(object.APIVersionCore, object.KindNamespace)
		return notFound(k, r.namespace)
	}
	if namespace.Metadata.DeletionTimestamp == nil && namespace.Status.Phase != object.NamespaceTerminating {
		return nil
	}
	e := refused(r.kind, r.name, fmt.Sprintf("unable to create new content in namespace %s because it is being terminated", r.namespace))
	e.details.Causes = []statusCause{{
		Reason: "NamespaceTerminating", Message: fmt.Sprintf("namespace %s is being terminated", r.namespace), Field: "metadata.namespace",
	}}
	return e
}
