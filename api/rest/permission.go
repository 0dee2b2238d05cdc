package rest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

var (
	// reading has the verbs that change nothing.
	reading = []string{"get", "list", "watch"}
	// changing has the verbs that the role endpoints has, in addition to reading, for the kinds that it may write.
	changing = []string{"create", "update", "patch", "delete"}
)

// may reports whether a role permits a verb on objects of a kind. Only admins may read Secrets; the Kubernetes role "view" excludes them too. Reviews
// of one's own permissions are permitted.
func may(role auth.Role, verb string, k kind.Kind) bool {
	switch {
	case role == auth.Admin:
		return true
	case role != auth.Reader && role != auth.Endpoints:
		return false
	case !k.Stored():
		return true
	}
	return slices.Contains(reading, verb) && k.Name != object.KindSecret || writesSome(role, k) && slices.Contains(changing, verb)
}

// writesSome reports whether a role other than Admin may write objects of a kind. For each object, the method owns then decides.
func writesSome(role auth.Role, k kind.Kind) bool {
	return role == auth.Endpoints && slices.Contains([]string{object.KindEndpointSlice, object.KindEvent, object.KindLease}, k.Name)
}

// owns returns an error if the user has the role endpoints and may not write an object because of its content before or after the write. before is
// nil for a creation, and after for a deletion. Other roles are not restricted.
func (s *Server) owns(r *request, before, after object.Object) error {
	if r.user.Role != auth.Endpoints {
		return nil
	}
	why := ""
	for _, o := range []object.Object{before, after} {
		switch o := o.(type) {
		case *object.EndpointSlice:
			if o.Metadata.Labels[object.LabelManagedBy] != object.ManagedByDiscover {
				why = fmt.Sprintf("the role endpoints writes EndpointSlices with the label %s: %s alone", object.LabelManagedBy, object.ManagedByDiscover)
			}
		case *object.Lease:
			if o.Metadata.Namespace != annotation.DiscoverLeaseNamespace || !strings.HasPrefix(o.Metadata.Name, annotation.DiscoverLeasePrefix) {
				why = "the role endpoints writes Leases of the namespace " + annotation.DiscoverLeaseNamespace + " whose names begin with " + annotation.DiscoverLeasePrefix + " alone"
			}
		}
	}
	if o, is := after.(*object.EndpointSlice); is && why == "" {
		svc, _ := s.store.Get(object.Ref{Kind: object.KindService, Namespace: o.Metadata.Namespace, Name: o.Metadata.Labels[object.LabelServiceName]})
		if len(o.Endpoints) > 0 && (svc == nil || !annotation.HasSources(svc.GetMeta().Annotations)) {
			why = "the role endpoints writes endpoints of Services with the annotation " + annotation.EndpointsFrom + " alone"
		}
	}
	if why == "" {
		return nil
	}
	e := forbidden(r)
	e.Message = strings.TrimSuffix(e.Message, askAnAdmin) + ": " + why
	return e
}

// forbidden returns the error 403 for a request that the user's role does not permit.
func forbidden(r *request) *statusError {
	resource := r.kind.Plural
	if r.subresource != "" {
		resource += "/" + r.subresource
	}
	scope := "at the cluster scope"
	if r.namespace != "" {
		scope = fmt.Sprintf("in the namespace %q", r.namespace)
	}
	why := fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", r.user.Name, r.verb, resource, r.kind.Group, scope)
	named := r.kind.GroupResource()
	if r.name != "" {
		named += fmt.Sprintf(" %q", r.name)
	}
	return refusal(wire.ReasonForbidden, detailsOf(r.kind, r.name), "%s is forbidden: %s%s", named, why, askAnAdmin)
}

// askAnAdmin ends the message of a 403 with the ways to get the rights. Kubernetes has the reasons of the authorizer there.
const askAnAdmin = ": this needs root, a member of the group that --socket-group names, or a token that one of these made"

// review answers a review such as a SelfSubjectAccessReview with the sent object and the result in its status.
func (s *Server) review(w http.ResponseWriter, r *request) error {
	o, err := s.decodeReview(w, r)
	if err != nil {
		return err
	}
	if errs := object.Validate(o, object.Options{}); len(errs) > 0 {
		return invalidObject(r.kind, "", errs)
	}
	switch o := o.(type) {
	case *object.SelfSubjectReview:
		o.Status.UserInfo = object.UserInfo{Username: r.user.Name, Groups: r.user.Groups}
	case *object.SelfSubjectAccessReview:
		o.Status = accessOf(r.user, &o.Spec)
	case *object.SelfSubjectRulesReview:
		o.Status = rulesOf(r.user.Role)
	}
	return s.respond(w, r, http.StatusCreated, o)
}

const anything = "*"

// accessOf returns whether a user has the access that spec describes, and the reason.
func accessOf(user auth.User, spec *object.SelfSubjectAccessReviewSpec) object.SubjectAccessReviewStatus {
	allowed := user.Role == auth.Admin
	if !allowed && spec.NonResourceAttributes != nil {
		allowed = strings.EqualFold(spec.NonResourceAttributes.Verb, "get")
	}
	if a := spec.ResourceAttributes; !allowed && a != nil {
		allowed = mayDo(user.Role, a)
	}
	if allowed {
		return object.SubjectAccessReviewStatus{Allowed: true}
	}
	return object.SubjectAccessReviewStatus{Reason: "the role of " + user.Name + " is " + user.Role.String()}
}

// mayDo reports whether a role permits a verb on objects; "*" means all kinds or verbs.
func mayDo(role auth.Role, a *object.ResourceAttributes) bool {
	asked := false
	for _, k := range kind.All() {
		if !matches(a.Group, k.Group) || !matches(a.Version, k.Version) && a.Version != "" || !matches(a.Resource, k.Plural) {
			continue
		}
		for _, verb := range k.Verbs {
			if !matches(a.Verb, verb) {
				continue
			}
			if asked = true; !may(role, verb, k) {
				return false
			}
		}
	}
	return asked
}

func matches(asked, name string) bool { return asked == anything || asked == name }

// rulesOf returns the rules of a role, for `kubectl auth can-i --list`.
func rulesOf(role auth.Role) object.SubjectRulesReviewStatus {
	if role == auth.Admin {
		return object.SubjectRulesReviewStatus{
			ResourceRules:    []object.ResourceRule{{Verbs: []string{anything}, APIGroups: []string{anything}, Resources: []string{anything}}},
			NonResourceRules: []object.NonResourceRule{{Verbs: []string{anything}, NonResourceURLs: []string{anything}}},
		}
	}
	rules := object.SubjectRulesReviewStatus{
		ResourceRules:    []object.ResourceRule{},
		NonResourceRules: []object.NonResourceRule{{Verbs: []string{"get"}, NonResourceURLs: []string{anything}}},
	}
	add := func(k kind.Kind, verbs []string) {
		i := slices.IndexFunc(rules.ResourceRules, func(r object.ResourceRule) bool {
			return slices.Equal(r.Verbs, verbs) && r.APIGroups[0] == k.Group
		})
		if i < 0 {
			i = len(rules.ResourceRules)
			rules.ResourceRules = append(rules.ResourceRules, object.ResourceRule{Verbs: verbs, APIGroups: []string{k.Group}})
		}
		rules.ResourceRules[i].Resources = append(rules.ResourceRules[i].Resources, k.Plural)
	}
	for _, k := range kind.All() {
		switch {
		case !k.Stored():
			add(k, []string{"create"})
		case may(role, "get", k):
			verbs := reading
			if writesSome(role, k) {
				verbs = slices.Concat(reading, changing)
			}
			add(k, verbs)
		}
	}
	return rules
}

// mayWriteKind returns an error for kinds with objects that are derived from others and cannot be written.
func mayWriteKind(r *request) error {
	var why string
	switch {
	case r.kind.Name == object.KindIPAddress:
		why = "show which Services hold which addresses, and cannot be written: change the Service"
	case isComputed(r.kind):
		why = "are computed on request, and can be neither written nor watched: svcctl announce status and /svcctl/v1/announcements?watch=true have details"
	default:
		return nil
	}
	e := notSupported(r.kind, r.verb)
	e.Message = r.kind.GroupResource() + " " + why
	return e
}
