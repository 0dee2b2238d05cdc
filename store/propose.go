package store

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/managedfields"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
	"svcctl.io/svcctl/store/record"
)

// isGone reports whether a Node is that of a box of a fleet that does not report.
func isGone(o object.Object, owner Owner) bool {
	n, is := o.(*object.Node)
	if !is || owner.Controller == NodeController {
		return false
	}
	ready := object.ReadyOf(n)
	return ready != nil && ready.Status == object.ConditionUnknown
}

// checkPreconditions returns why a client may not make its change; nil: it may, and the owner of the new version is
// set.
func (c *change) checkPreconditions(s *Store, w *Write) error {
	switch {
	case c.old == nil && (w.Delete || w.Status || w.Version != "" || w.UID != ""):
		return ErrNotFound
	case c.old == nil:
		return nil
	}
	switch meta := c.old.Object.GetMeta(); {
	case w.UID != "" && w.UID != meta.UID:
		return &PreconditionError{"UID", w.UID, meta.UID}
	case w.Version == "" || w.Version == meta.ResourceVersion:
	case w.Delete:
		return &PreconditionError{"ResourceVersion", w.Version, meta.ResourceVersion}
	default:
		return ErrStale
	}
	owner := c.old.Owner
	switch {
	case owner.File != "" && w.Delete:
		return &OwnedError{Ref: c.ref, Owner: owner}
	case s.isReadElsewhere(owner):
		return &OwnedError{Ref: c.ref, Owner: owner, Reader: s.sources.records[SourceOf(owner.File)].Reader}
	case owner.Controller == NamespacesController && c.ref.Kind == object.KindNamespace:
		return nil
	case IsNodeController(owner.Controller) && c.ref.Kind == object.KindNode && !w.Status && (!w.Delete || isGone(c.old.Object, owner)):
	case owner.Controller != "":
		return OwnedByController(c.old.Object, owner)
	}
	c.owner = owner
	return nil
}

// refuseExisting is the refusal to create an object under an existing name: the error of the
// object itself comes first, as in Kubernetes.
func (t *transaction) refuseExisting(ref object.Ref, w *Write) error {
	c, next := &change{ref: ref, by: &w.By}, object.DeepCopy(w.Object)
	c.keepOwned(next)
	if errs := c.accept(t.s, next); len(errs) > 0 {
		return errs
	}
	return ErrExists
}

// propose makes the version of a client the desired one, and returns the warnings about it.
func (c *change) propose(t *transaction, w *Write) ([]string, error) {
	if w.Delete {
		c.proposeRemoval(t)
		return nil, nil
	}
	empty, known := record.New(c.ref.Kind)
	if !known || reflect.TypeOf(empty) != reflect.TypeOf(w.Object) {
		return nil, fmt.Errorf("write %s: a %T does not belong to that kind", c.ref, w.Object)
	}
	written := object.DeepCopy(w.Object)
	if w.Status {
		return c.proposeStatus(written)
	}
	*written.GetTypeMeta() = *empty.GetTypeMeta()
	return c.proposeVersion(t, written)
}

// proposeRemoval removes the object, or marks it deleted while finalizers keep it.
func (c *change) proposeRemoval(t *transaction) {
	meta := c.old.Object.GetMeta()
	switch {
	case !t.isKept(c.ref, c.old.Object):
		c.remove = true
		return
	case meta.DeletionTimestamp != nil:
		return
	}
	next, now := object.Draft(c.old.Object), t.s.now()
	meta = next.GetMeta()
	meta.DeletionTimestamp = &now
	if meta.Generation > 0 {
		meta.Generation++
	}
	if namespace, ok := next.(*object.Namespace); ok {
		namespace.Status.Phase = object.NamespaceTerminating
	}
	c.wanted = next
}

// finalizerLoadBalancer is put on Services of type LoadBalancer by the service controller of a cluster
// (k8s.io/cloud-provider), which takes it away when the load balancer is gone. Manifests exported from a cloud have it.
const finalizerLoadBalancer = "service.kubernetes.io/load-balancer-cleanup"

// isKept reports whether an object that is deleted stays for now: a finalizer holds it, or it
// is a Namespace with objects in it. What a service controller waits for is done here with the Service's end.
func (t *transaction) isKept(ref object.Ref, o object.Object) bool {
	svc, isService := o.(*object.Service)
	ours := isService && isOurClass(svc)
	keeps := func(finalizer string) bool { return !ours || finalizer != finalizerLoadBalancer }
	return slices.ContainsFunc(o.GetMeta().Finalizers, keeps) || ref.Kind == object.KindNamespace && t.isPopulated(ref.Name)
}

// proposeVersion makes a version of the client's the next one, with the status that the object
// has. When the object is going and nothing keeps it any more, it goes.
func (c *change) proposeVersion(t *transaction, next object.Object) ([]string, error) {
	meta := next.GetMeta()
	meta.Namespace, meta.Name = c.ref.Namespace, c.ref.Name
	c.ownMetadata(meta)
	c.keepOwned(next)
	errs := c.accept(t.s, next)
	if svc, isService := next.(*object.Service); isService {
		errs = append(errs, checkExternalIPs(t.host, svc, c.oldService())...)
	}
	if len(errs) == 0 {
		if svc, isService := next.(*object.Service); isService {
			errs = t.s.unpinned(svc)
		}
	}
	if len(errs) == 0 {
		errs = slices.Concat(t.checkExternalPorts(c), c.checkReserved(t.host), t.checkNodePorts(c))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	if meta.DeletionTimestamp != nil && c.owner.File == "" && !t.isKept(c.ref, next) {
		c.wanted, c.remove = nil, true
		return nil, nil
	}
	return t.s.warningsOf(next), nil
}

// checkNodePorts refuses node ports that the stored version does not have, and that the host or a Service at one of its addresses
// has.
func (t *transaction) checkNodePorts(c *change) object.Errors {
	svc, isService := c.wanted.(*object.Service)
	if !isService {
		return nil
	}
	var errs object.Errors
	check := func(field string, number int32, protocol string) {
		asked := alloc.Port{Protocol: protocol, Number: uint16(number)}
		if number == 0 || slices.Contains(c.held().ports, asked) {
			return
		}
		err := t.host.NodePort(asked.Protocol, asked.Number)
		if holder, at := t.onHostAddress(asked, c.ref.Key()); err == nil && holder != "" {
			err = fmt.Errorf("Service %s has %s at %s, an address of this host: choose another port", holder, asked, at)
		}
		if err != nil {
			errs = append(errs, portError(field, number, err))
		}
	}
	for i, port := range svc.Spec.Ports {
		check(fmt.Sprintf("spec.ports[%d].nodePort", i), port.NodePort, port.Protocol)
	}
	check("spec.healthCheckNodePort", svc.Spec.HealthCheckNodePort, object.ProtocolTCP)
	return errs
}

// keepOwned replaces the parts that have a subresource of their own by the object's present ones.
func (c *change) keepOwned(next object.Object) {
	var before object.Object
	if c.old != nil {
		before = c.old.Object
	}
	object.StrategyOf(next).KeepOwned(next, before)
}

// proposeStatus makes the status of a version the object's.
func (c *change) proposeStatus(written object.Object) ([]string, error) {
	next := object.Draft(c.old.Object)
	next.GetMeta().ManagedFields = written.GetMeta().ManagedFields
	var warnings []string
	if !object.StrategyOf(next).CopyStatus(next, written) {
		return nil, fmt.Errorf("write the status of %s: the kind has none", c.ref)
	}
	if svc, isService := next.(*object.Service); isService {
		warnings = warnOfIngress(svc, c.old.Object.(*object.Service))
	}
	object.Default(next)
	if errs := object.ValidateUpdate(next, c.old.Object, object.Options{}); len(errs) > 0 {
		return nil, errs
	}
	c.wanted = next
	return warnings, nil
}

// warnOfIngress returns a warning when the load balancer IPs in a written status are not those that the Service keeps.
func warnOfIngress(svc, old *object.Service) []string {
	points := func(svc *object.Service) []string {
		var list []string
		for _, ingress := range svc.Status.LoadBalancer.Ingress {
			list = append(list, ingress.IP+ingress.Hostname)
		}
		slices.Sort(list)
		return list
	}
	has := points(old)
	if !isOurLoadBalancer(svc) || slices.Equal(points(svc), has) {
		return nil
	}
	if len(has) == 0 {
		has = []string{"none"}
	}
	return []string{fmt.Sprintf("status.loadBalancer.ingress: the addresses are given by the appliance and stay as they are (%s); "+
		"ask for others with spec.loadBalancerIP, or set spec.loadBalancerClass to leave the Service to another load balancer", strings.Join(has, ", "))}
}

// noteWritten replaces the warnings about an object that a client has changed. Those about the document of
// a file stay: the client did not change that.
func (t *transaction) noteWritten(c *change) {
	if c.remove {
		return
	}
	if c.owner.File == "" {
		c.addWarnings(t.record(c.ref).Object)
		c.reportConflicts(t.declarationsOf(c.ref), c.owner)
		return
	}
	for _, n := range t.s.outcomes.notes[c.ref] {
		if n.reason != ReasonPending && n.reason != ReasonOutside {
			c.notes = append(c.notes, n)
		}
	}
	c.waits = c.waits || t.s.outcomes.waits(c.ref)
}

// examine decides what objects become. No decision depends on another one.
func (t *transaction) examine(refs ...object.Ref) {
	changes := make([]change, len(refs)) // of one piece: they go together, and what they make stays
	parallel.Do(len(refs), parallel.Share, func(i int) { t.propose(&changes[i], refs[i]) })
	for i, ref := range refs {
		t.changes[ref] = &changes[i]
	}
}

// propose decides what an object becomes, by its declarations.
func (t *transaction) propose(c *change, ref object.Ref) {
	declarations := t.declarationsOf(ref)
	c.ref, c.old = ref, t.record(ref)
	switch winner, verdict := t.decide(c.old, declarations); verdict {
	case use:
		c.owner = Owner{File: winner.path}
		if c.takesOver() {
			c.note(c.owner.File, "", ReasonConflict, fmt.Sprintf(
				"%s had made an object of this name, whose place this document takes", c.old.Owner), true)
		}
		c.proposeFrom(t.s, winner.wanted())
		c.reportConflicts(declarations, c.owner)
		if c.err != nil && c.old != nil && c.ref.Kind == object.KindService { // what stays in force goes on asking for what it waits for
			c.owner, c.wanted = c.old.Owner, c.old.Object
		}
	case remove:
		if c.remove = t.removes; !c.remove {
			c.keepStored(declarations)
		}
	case keep:
		c.keepStored(declarations)
	}
}

// keepStored asks for nothing new; but what the object waits for may be there now.
func (c *change) keepStored(declarations []declaration) {
	if c.old == nil {
		return
	}
	c.owner = c.old.Owner
	if c.owner == (Owner{}) {
		c.addWarnings(c.old.Object)
	}
	if c.ref.Kind == object.KindService {
		c.wanted = c.old.Object
	}
	c.reportConflicts(declarations, c.owner)
}

// proposeFrom makes a document the new version of the object, or returns the reason for refusing it. The
// version keeps parts of the document.
func (c *change) proposeFrom(s *Store, document object.Object) {
	if err := s.secretsRefused(c.ref.Kind); err != nil {
		c.err = err
		c.notes = append(c.notes, c.notesOf(err, "")...)
		return
	}
	next := object.Draft(document)
	if s.cfg.LegacyIPs {
		next = object.DeepCopy(document)
		object.NormalizeLegacyIPs(next)
	}
	next, err := c.merge(s, next)
	if err != nil {
		c.err = fmt.Errorf("join the document with what the API has added to the object: %w", err)
		c.notes = append(c.notes, c.notesOf(c.err, ReasonUnmerged)...)
		return
	}
	c.ownMetadata(next.GetMeta())
	c.ownStatus(next, document)
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
		c.note(c.owner.File, "spec.clusterIP", ReasonUnusual, "the file does not have `clusterIP: None` any more, and the Service stays headless all the same, "+
			"as a cluster IP does not change: write it again, or for a Service with a cluster IP "+recreate(c.ref), true)
	}
	c.addWarnings(next)
}

// addWarnings adds the warnings about a version.
func (c *change) addWarnings(o object.Object) {
	for _, warning := range object.Warnings(o) {
		c.note(c.owner.File, "", ReasonUnusual, warning, true)
	}
}

// merge joins a document with the stored version when the API has written to that. Without
// such a version it is the document.
func (c *change) merge(s *Store, document object.Object) (object.Object, error) {
	before := c.before()
	if before == nil || c.owner.File == "" || len(before.Object.GetMeta().ManagedFields) == 0 {
		document.GetMeta().ManagedFields = nil
		return document, nil
	}
	return managedfields.MergeFile(before.Object, document, s.cfg.Clock())
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
		errs = object.DefaultFamilies(svc, before, s.allocator.families)
	}
	if before := c.before(); before != nil {
		errs = object.Join(errs, object.ValidateUpdate(next, before.Object, s.cfg.Objects))
	} else {
		errs = object.Join(errs, object.Validate(next, s.cfg.Objects))
	}
	errs = s.addRefusals(errs, next, c.before(), c.by == nil && c.owner.File != "")
	if len(errs) == 0 {
		c.wanted = next
	}
	return errs
}

// ownMetadata replaces the fields of the metadata that only the server sets. The deletion timestamp of
// a Pod of a file is set by the operator of the Pod.
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
	before := old.Object.GetMeta()
	meta.UID, meta.ResourceVersion, meta.Generation = before.UID, before.ResourceVersion, before.Generation
	meta.CreationTimestamp = before.CreationTimestamp
	if c.by != nil {
		meta.DeletionTimestamp = before.DeletionTimestamp
	}
}

// ownStatus replaces a status that the appliance writes by that of the stored version, whatever the document has.
// Controllers write that of their own objects, but for Services.
func (c *change) ownStatus(next, document object.Object) {
	s := object.StrategyOf(next)
	if !s.HasStatus || s.StatusOnCreate || c.owner.File == "" && c.ref.Kind != object.KindService {
		return
	}
	if !reflect.ValueOf(document).Elem().FieldByName("Status").IsZero() {
		text := "the status is written by the appliance"
		if c.ref.Kind == object.KindService {
			text += "; ask for an address with spec.loadBalancerIP"
		}
		c.note(c.owner.File, "status", manifest.ReasonIgnoredField, text, true)
	}
	c.keepOwned(next)
}

// checkExternalIPs asks the host about the external IPs that the stored version does not have.
func checkExternalIPs(host Host, svc, before *object.Service) object.Errors {
	var errs object.Errors
	for i, text := range svc.Spec.ExternalIPs {
		addr, err := netip.ParseAddr(text)
		if err != nil || before != nil && slices.Contains(before.Spec.ExternalIPs, text) {
			continue // Validate reports a malformed one
		}
		if err := host.ExternalIP(svc, addr); err != nil {
			errs = append(errs, object.Error{
				Type: object.FieldValueInvalid, Field: fmt.Sprintf("spec.externalIPs[%d]", i), Value: text, Detail: err.Error(),
			})
		}
	}
	return errs
}

// A cluster IP does not change once it is set, as in Kubernetes. The editor of a file cannot see
// that, so the refusal has the way to get another one.

// recreate describes how to give a Service of a file another cluster IP.
func recreate(ref object.Ref) string {
	return fmt.Sprintf("remove the file (or its document), wait until the Service is gone (`svcctl wait svc/%s -n %s --for=delete`), and put it back",
		ref.Name, ref.Namespace)
}

// staysHeadless reports whether a Service is headless because an earlier version of its file
// asked for it, and the document has no cluster IP.
func (c *change) staysHeadless(document object.Object) bool {
	svc, isService := document.(*object.Service)
	before := c.before()
	if !isService || before == nil || c.by != nil || c.owner.File == "" || svc.Spec.Type == object.TypeExternalName {
		return false
	}
	return before.Object.(*object.Service).Headless() && svc.Spec.ClusterIP == "" && len(svc.Spec.ClusterIPs) == 0
}

// explainClusterIPs adds to refusals of a file's document the values of the Service, and the way to get
// the wanted ones.
func (c *change) explainClusterIPs(document object.Object, errs object.Errors) object.Errors {
	svc, isService := document.(*object.Service)
	if !isService || c.by != nil || c.owner.File == "" || c.before() == nil {
		return errs
	}
	before := c.before().Object.(*object.Service)
	aboutIP := func(e object.Error) bool { return strings.HasPrefix(e.Field, "spec.clusterIP") }
	if c.staysHeadless(document) && slices.ContainsFunc(errs, aboutIP) {
		errs = slices.DeleteFunc(slices.Clone(errs), aboutIP)
		return append(errs, object.Error{Type: object.FieldValueForbidden, Field: "spec.clusterIP", Detail: fmt.Sprintf(
			"it was made headless by an earlier version of this file, and a headless Service cannot become a %s: %s", svc.Spec.Type, recreate(c.ref))})
	}
	for i, e := range errs {
		if aboutIP(e) && strings.HasSuffix(e.Detail, object.OnceSet) {
			has := strings.Join(before.Spec.ClusterIPs, " and ")
			if before.Headless() {
				has = "no cluster IP, as it is headless"
			}
			errs[i].Detail += fmt.Sprintf("; it has %s, and keeps it: for the content of the file, %s", has, recreate(c.ref))
		}
	}
	return errs
}
