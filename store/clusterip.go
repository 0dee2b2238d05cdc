package store

import (
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// A cluster IP does not change once it is set, as in Kubernetes. Who edits a file cannot see
// that, nor how to get there all the same: so it is said.

// anew is how a Service of a file gets another cluster IP.
func anew(ref object.Ref) string {
	return fmt.Sprintf("remove the file (or its document), wait until the Service is gone (`svcctl wait svc/%s -n %s --for=delete`), and put it back",
		ref.Name, ref.Namespace)
}

// staysHeadless reports whether a Service is headless because an earlier version of its file
// said so, and the document says nothing of it.
func (c *change) staysHeadless(document object.Object) bool {
	svc, isService := document.(*object.Service)
	before := c.before()
	if !isService || before == nil || c.by != nil || c.owner.File == "" || svc.Spec.Type == object.TypeExternalName {
		return false
	}
	return before.object.(*object.Service).Headless() && svc.Spec.ClusterIP == "" && len(svc.Spec.ClusterIPs) == 0
}

// explainClusterIPs adds to refusals of a file's document what the Service has, and how to get
// what is asked for.
func (c *change) explainClusterIPs(document object.Object, errs object.Errors) object.Errors {
	svc, isService := document.(*object.Service)
	if !isService || c.by != nil || c.owner.File == "" || c.before() == nil {
		return errs
	}
	before := c.before().object.(*object.Service)
	aboutIP := func(e object.Error) bool { return strings.HasPrefix(e.Field, "spec.clusterIP") }
	if c.staysHeadless(document) && slices.ContainsFunc(errs, aboutIP) {
		errs = slices.DeleteFunc(slices.Clone(errs), aboutIP)
		return append(errs, object.Error{Type: object.FieldValueForbidden, Field: "spec.clusterIP", Detail: fmt.Sprintf(
			"it was made headless by an earlier version of this file, and a headless Service cannot become a %s: %s", svc.Spec.Type, anew(c.ref))})
	}
	for i, e := range errs {
		if aboutIP(e) && strings.HasSuffix(e.Detail, object.OnceSet) {
			has := strings.Join(before.Spec.ClusterIPs, " and ")
			if before.Headless() {
				has = "no cluster IP, as it is headless"
			}
			errs[i].Detail += fmt.Sprintf("; it has %s, and keeps it: for what the file says, %s", has, anew(c.ref))
		}
	}
	return errs
}
