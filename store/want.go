package store

import (
	"fmt"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/store/managedfields"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// want makes a document the new version of the object, or says why it cannot be. The
// version keeps parts of the document.
func (c *change) want(s *Store, document object.Object) {
	if s.storage.shared != nil && c.ref.Kind == object.KindSecret {
		c.err = errSecret
		c.notes = append(c.notes, c.notesOf(errSecret, "")...)
		return
	}
	next := object.Draft(document)
	if s.cfg.LegacyIPs {
		next = document.DeepCopy()
		object.NormalizeLegacyIPs(next)
	}
	next, err := c.merge(s, next)
	if err != nil {
		c.err = fmt.Errorf("join the document with what the API has added to the object: %w", err)
		c.notes = append(c.notes, c.notesOf(c.err, ReasonUnmerged)...)
		return
	}
	c.ownMetadata(next.GetMeta())
	if svc, isService := next.(*object.Service); isService {
		c.ownStatus(svc, document.(*object.Service))
	}
	if errs := c.explainClusterIPs(document, c.accept(s, next)); len(errs) > 0 {
		c.err = errs
		c.notes = append(c.notes, c.notesOf(errs, "")...)
		return
	}
	if errs := s.unpinnedDocument(document); len(errs) > 0 {
		c.err, c.wanted = errs, nil
		c.notes = append(c.notes, c.notesOf(errs, ReasonUnpinned)...)
		return
	}
	if c.staysHeadless(document) {
		c.note(c.owner.File, "spec.clusterIP", ReasonUnusual, "the file does not say `clusterIP: None` any more, and the Service stays headless all the same, "+
			"as a cluster IP does not change: say it again, or for a Service with a cluster IP "+anew(c.ref), true)
	}
	c.unusual(next)
}

// unusual notes what is strange about a version.
func (c *change) unusual(o object.Object) {
	for _, warning := range object.Warnings(o) {
		c.note(c.owner.File, "", ReasonUnusual, warning, true)
	}
}

// merge joins a document with the stored version when the API has written to that. Without
// such a version it is the document.
func (c *change) merge(s *Store, document object.Object) (object.Object, error) {
	before := c.before()
	if before == nil || c.owner.File == "" || len(before.object.GetMeta().ManagedFields) == 0 {
		document.GetMeta().ManagedFields = nil
		return document, nil
	}
	return managedfields.MergeFile(before.object, document, s.cfg.Clock())
}

// accept completes a version and makes it the one that is wanted, if nothing is wrong with it.
func (c *change) accept(s *Store, next object.Object) object.Errors {
	object.Default(next)
	var errs object.Errors
	if svc, isService := next.(*object.Service); isService {
		before := c.oldService()
		if before != nil {
			if c.by == nil && c.owner.File != "" && svc.NeedsNodePort() && before.NeedsNodePort() {
				object.KeepNodePorts(svc, before) // a file is applied, not put
			}
			object.PatchFromOld(svc, before)
		}
		errs = object.DefaultFamilies(svc, before, s.ledger.families)
	}
	if before := c.before(); before != nil {
		errs = object.Join(errs, object.ValidateUpdate(next, before.object, s.cfg.Objects))
	} else {
		errs = object.Join(errs, object.Validate(next, s.cfg.Objects))
	}
	if len(errs) == 0 {
		c.wanted = next
	}
	return errs
}

// oldService is the stored version of a Service; nil when there is none.
func (c *change) oldService() *object.Service {
	if c.old == nil {
		return nil
	}
	return c.old.object.(*object.Service)
}

// takesOver reports whether a file's document takes the place of what a controller made.
func (c *change) takesOver() bool {
	return c.old != nil && c.old.owner.Controller != "" && c.owner.File != ""
}

// before is the version that the new one is an update of; nil for what is a new object.
func (c *change) before() *record {
	if c.takesOver() {
		return nil
	}
	return c.old
}

// ownMetadata replaces what only the server says about an object. When a Pod of a file
// ends is for those to say who run it.
func (c *change) ownMetadata(meta *object.ObjectMeta) {
	meta.UID, meta.ResourceVersion, meta.Generation = "", "", 0
	meta.CreationTimestamp = nil
	if c.ref.Kind != object.KindPod || c.by != nil {
		meta.DeletionTimestamp = nil
	}
	old := c.before()
	if old == nil {
		return
	}
	before := old.object.GetMeta()
	meta.UID, meta.ResourceVersion, meta.Generation = before.UID, before.ResourceVersion, before.Generation
	meta.CreationTimestamp = before.CreationTimestamp
	if c.by != nil {
		meta.DeletionTimestamp = before.DeletionTimestamp
	}
}

// ownStatus replaces the status by that of the stored version, whatever the document says.
func (c *change) ownStatus(svc, document *object.Service) {
	if len(document.Status.LoadBalancer.Ingress) > 0 || len(document.Status.Conditions) > 0 {
		c.note(c.owner.File, "status", manifest.ReasonIgnoredField,
			"the status is written by the appliance; ask for an address with spec.loadBalancerIP", true)
	}
	svc.Status = object.ServiceStatus{}
	if c.old != nil {
		svc.Status = c.old.object.DeepCopy().(*object.Service).Status
	}
}

// checkExternalIPs asks about the external IPs that a client asks for anew.
func checkExternalIPs(host Host, svc, before *object.Service) object.Errors {
	var errs object.Errors
	for i, text := range svc.Spec.ExternalIPs {
		addr, err := netip.ParseAddr(text)
		if err != nil || before != nil && slices.Contains(before.Spec.ExternalIPs, text) {
			continue // Validate says what is wrong with the form
		}
		if err := host.ExternalIP(svc, addr); err != nil {
			errs = append(errs, object.Error{
				Type: object.FieldValueInvalid, Field: fmt.Sprintf("spec.externalIPs[%d]", i), Value: text, Detail: err.Error(),
			})
		}
	}
	return errs
}
