package endpoints

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// noteService notes what is wrong with a Service as a whole.
func (c *Controller) noteService(s *service) {
	var nobody, unused, lacking *Problem
	if s.managedBy == managedBySelector {
		ref := object.RefOf(s.object)
		if len(s.layout.places) == 0 && !s.others {
			nobody = &Problem{Object: ref, Field: "spec.selector", Reason: "NoEndpoints",
				Message: "no Pod with an address matches the selector, and no EndpointSlice names endpoints: the Service has none"}
			if n := len(s.strangers); n > 0 {
				nobody.Message = fmt.Sprintf("no Pod that the selector matches has an address of its family, %s; %d of them have one of the other family: set spec.ipFamilyPolicy to PreferDualStack",
					s.object.Spec.IPFamilies[0], n)
			}
		}
		if s.foreign != nil {
			unused = &Problem{Object: object.RefOf(s.foreign), Reason: "ServiceHasSelector", Warning: true,
				Message: "Endpoints are only used for a Service without a selector; remove spec.selector, or name the endpoints in an EndpointSlice"}
		}
		if len(s.lacking) > 0 {
			first := slices.Min(slices.Collect(maps.Keys(s.lacking)))
			lacking = &Problem{Object: ref, Field: "spec.ports", Reason: "NoSuchPort", Warning: true,
				Message: fmt.Sprintf("%d of its Pods have no container port for a targetPort, and get no connections to it; the first is %s, which lacks %s",
					len(s.lacking), first, strings.Join(s.lacking[first], ", "))}
		}
	}
	c.note("nobody/"+s.key, nobody)
	c.note("unused/"+s.key, unused)
	c.note("lacking/"+s.key, lacking)
	if s.managedBy != managedByMirror {
		c.note("mirror/"+s.key, nil)
	}
}

// noteMirror notes what of an Endpoints object is not mirrored.
func (c *Controller) noteMirror(s *service, problems []string) {
	if len(problems) == 0 {
		c.note("mirror/"+s.key, nil)
		return
	}
	c.note("mirror/"+s.key, &Problem{
		Object: object.RefOf(s.foreign), Field: "subsets", Reason: "NotMirrored",
		Message: strings.Join(problems, "; "), Warning: true,
	})
}
