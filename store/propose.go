package store

import (
	"fmt"
	"iter"
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

// isGone reports whether an object is the Node of another box in a fleet and that box no longer reports.
func isGone(o object.Object, owner Owner) bool {
	n, is := o.(*object.Node)
	if !is || owner.Controller == NodeController {
		return false
	}
	ready := object.ReadyOf(n)
	return ready != nil && ready.Status == object.ConditionUnknown
}

// checkPreconditions checks that a client may write to an object, by its owner, uid and resourceVersion. It sets the owner of the new version.
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

// refuseExisting returns the error for creating an object under an existing name. A validation
// error of the object takes precedence, as in Kubernetes.
func (t *transaction) refuseExisting(ref object.Ref, w *Write) error {
	c, next := &change{ref: ref, by: &w.By}, object.DeepCopy(w.Object)
	c.keepOwned(next)
	if errs := c.accept(t.s, next); len(errs) > 0 {
		return errs
	}
	return ErrExists
}

// propose handles the write of a client: it sets the version that is wanted, and returns warnings about it.
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

// finalizerLoadBalancer is the finalizer that the service controller of a cluster puts on Services of type
// LoadBalancer (k8s.io/cloud-provider) until the load balancer is deleted. Manifests exported from a cloud
// have it.
const finalizerLoadBalancer = "service.kubernetes.io/load-balancer-cleanup"

// isKept reports whether an object that is deleted stays until later: it has finalizers, or is a Namespace that is not empty. finalizerLoadBalancer
// does not count for a Service of this appliance, because deleting the Service here deletes its load balancer.
func (t *transaction) isKept(ref object.Ref, o object.Object) bool {
	svc, isService := o.(*object.Service)
	ours := isService && isOurClass(svc)
	keeps := func(finalizer string) bool { return !ours || finalizer != finalizerLoadBalancer }
	return slices.ContainsFunc(o.GetMeta().Finalizers, keeps) || ref.Kind == object.KindNamespace && t.isPopulated(ref.Name)
}

// proposeVersion sets the wanted version to the one written by a client, with the stored status. It removes an object that is being deleted if
// nothing keeps it any more.
func (c *change) proposeVersion(t *transaction, next object.Object) ([]string, error) {
	meta := next.GetMeta()
	meta.Namespace, meta.Name = c.ref.Namespace, c.ref.Name
	c.ownMetadata(meta)
	c.keepOwned(next)
	errs := c.accept(t.s, next)
	if svc, isService := next.(*object.Service); isService {
		errs = append(errs, checkExternalIPs(t.host, svc, c.oldService())...)
		if len(errs) == 0 {
			errs = t.s.unpinned(svc)
		}
		if len(errs) == 0 {
			errs = slices.Concat(t.checkExternalPorts(c, svc), c.checkReserved(t.host, svc), t.checkNodePorts(c, svc))
		}
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

// checkNodePorts returns errors for node ports that the new version adds and that the host, or a Service at an address of the host,
// uses.
func (t *transaction) checkNodePorts(c *change, svc *object.Service) (errs object.Errors) {
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
			errs = append(errs, object.Invalid(field, number, err.Error()))
		}
	}
	for i, port := range svc.Spec.Ports {
		check(fmt.Sprintf("spec.ports[%d].nodePort", i), port.NodePort, port.Protocol)
	}
	check("spec.healthCheckNodePort", svc.Spec.HealthCheckNodePort, object.ProtocolTCP)
	return errs
}

// keepOwned restores in next the fields that a write of the object must not change, usually the status, from the stored version.
func (c *change) keepOwned(next object.Object) {
	var before object.Object
	if c.old != nil {
		before = c.old.Object
	}
	object.StrategyOf(next).KeepOwned(next, before)
}

// proposeStatus sets the wanted version to the stored object with the written status.
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

// warnOfIngress returns a warning if a client has written addresses to the status of a load balancer that differ from those that the store has
// allocated. The Service keeps the allocated ones.
func warnOfIngress(svc, old *object.Service) []string {
	points := func(svc *object.Service) []string {
		list := object.Texts(svc.Status.LoadBalancer.Ingress, func(i object.LoadBalancerIngress) string { return i.IP + i.Hostname })
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

// noteWritten replaces the warnings about an object that a client has changed. Those about the document of a
// file stay, as that is unchanged.
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

// examine decides on the new versions of objects, each independent of the others.
func (t *transaction) examine(refs ...object.Ref) {
	changes := make([]change, len(refs)) // of one piece: they go together, and what they make stays
	parallel.Do(len(refs), parallel.Share, func(i int) { t.propose(&changes[i], refs[i]) })
	for i, ref := range refs {
		t.changes[ref] = &changes[i]
	}
}

// propose decides on the new version of an object by the documents of files that declare it.
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

// keepStored keeps the stored version of an object. For a Service, values are allocated nevertheless, because a value that it waits for may be free
// now.
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

// proposeFrom makes the document of a file the wanted version of the object, or sets c.err and adds notes if it is refused. The version shares memory
// with the document.
func (c *change) proposeFrom(s *Store, document object.Object) {
	if err := s.secretsRefused(c.ref.Kind); err != nil {
		c.refuse(err, "")
		return
	}
	next := object.Draft(document)
	if s.cfg.LegacyIPs {
		next = object.DeepCopy(document)
		object.NormalizeLegacyIPs(next)
	}
	next, err := c.merge(s, next)
	if err != nil {
		c.refuse(fmt.Errorf("join the document with what the API has added to the object: %w", err), ReasonUnmerged)
		return
	}
	c.ownMetadata(next.GetMeta())
	c.ownStatus(next, document)
	if errs := c.explainClusterIPs(document, c.accept(s, next)); len(errs) > 0 {
		c.refuse(errs, "")
		return
	}
	if errs := s.unpinnedDocument(document); len(errs) > 0 {
		c.refuse(errs, ReasonUnpinned)
		return
	}
	if c.staysHeadless(document) {
		c.note(c.owner.File, "spec.clusterIP", ReasonUnusual, "the file does not have `clusterIP: None` any more, and the Service stays headless all the same, "+
			"as a cluster IP does not change: write it again, or for a Service with a cluster IP "+recreate(c.ref), true)
	}
	if svc, is := document.(*object.Service); is && svc.Spec.SessionAffinityConfig != nil && next.(*object.Service).Spec.SessionAffinityConfig == nil {
		c.note(c.owner.File, "spec.sessionAffinityConfig", ReasonUnusual, "it is dropped, as in Kubernetes: it has no effect without `sessionAffinity: ClientIP`", true)
	}
	c.addWarnings(next)
}

// refuse records why the wanted version is not accepted; see notesOf for the reason.
func (c *change) refuse(err error, reason string) {
	c.err, c.wanted = err, nil
	c.notes = append(c.notes, c.notesOf(err, reason)...)
}

// addWarnings adds the warnings about a version.
func (c *change) addWarnings(o object.Object) {
	for _, warning := range object.Warnings(o) {
		c.note(c.owner.File, "", ReasonUnusual, warning, true)
	}
}

// merge returns a document merged with the stored version, if clients have written to that;
// else the document.
func (c *change) merge(s *Store, document object.Object) (object.Object, error) {
	before := c.before()
	if before == nil || c.owner.File == "" || len(before.Object.GetMeta().ManagedFields) == 0 {
		document.GetMeta().ManagedFields = nil
		return document, nil
	}
	return managedfields.MergeFile(before.Object, document, s.cfg.Clock())
}

// accept sets defaults, validates a version, and if it is valid makes it the wanted one.
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

// ownMetadata restores the metadata fields that only the server sets, from the stored version. The
// deletionTimestamp of a Pod in a file is the exception: the operator sets it.
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

// ownStatus restores the status of a new version from the stored one, if only the appliance writes the status of that kind. For kinds other than
// Service, a controller may write the status of its own objects.
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

// checkExternalIPs returns errors for external IPs that the new version adds and that the host does not allow.
func checkExternalIPs(host Host, svc, before *object.Service) object.Errors {
	var errs object.Errors
	for i, addr := range added(svc, before, func(s *object.Service) []string { return s.Spec.ExternalIPs }) {
		if err := host.ExternalIP(svc, addr); err != nil {
			errs = append(errs, object.Invalid(fmt.Sprintf("spec.externalIPs[%d]", i), svc.Spec.ExternalIPs[i], err.Error()))
		}
	}
	return errs
}

// added yields the addresses that a list in a Service has and the same list in the version before (nil for none) does not have, with their indexes.
// It leaves out malformed addresses, which Validate reports.
func added(svc, before *object.Service, list func(*object.Service) []string) iter.Seq2[int, netip.Addr] {
	return func(yield func(int, netip.Addr) bool) {
		for i, text := range list(svc) {
			addr, err := netip.ParseAddr(text)
			if err == nil && (before == nil || !slices.Contains(list(before), text)) && !yield(i, addr) {
				return
			}
		}
	}
}

func clusterIPsOf(svc *object.Service) []string { return svc.Spec.ClusterIPs }

// A cluster IP does not change once it is set, as in Kubernetes. The editor of a file cannot see
// that, so the refusal has the way to get another one.

// recreate returns the text for a message that explains how to give a Service of a file another cluster IP.
func recreate(ref object.Ref) string {
	return fmt.Sprintf("remove the file (or its document), wait until the Service is gone (`svcctl wait svc/%s -n %s --for=delete`), and put it back",
		ref.Name, ref.Namespace)
}

// staysHeadless reports whether the document of a file specifies no cluster IP for a Service whose stored version is headless. The Service then stays
// headless, because an earlier version of the file made it so.
func (c *change) staysHeadless(document object.Object) bool {
	svc, isService := document.(*object.Service)
	before := c.before()
	if !isService || before == nil || c.by != nil || c.owner.File == "" || svc.Spec.Type == object.TypeExternalName {
		return false
	}
	return before.Object.(*object.Service).Headless() && svc.Spec.ClusterIP == "" && len(svc.Spec.ClusterIPs) == 0
}

// explainClusterIPs completes errors about the immutable cluster IPs of a Service in a file. It adds the present cluster IPs, and how to get those
// that the file specifies. For a Service that stays headless, one error replaces them.
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
