package rest

import (
	"net/http"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// review answers a SelfSubject review: the question, with the answer in its status.
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

// accessOf reports whether a user has the access that spec describes.
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

// mayWriteKind refuses to write objects that are a view of others.
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
