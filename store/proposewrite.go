package store

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/object"
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
	ours := isService && (svc.Spec.LoadBalancerClass == nil || *svc.Spec.LoadBalancerClass == LoadBalancerClass)
	for _, finalizer := range o.GetMeta().Finalizers {
		if !ours || finalizer != finalizerLoadBalancer {
			return true
		}
	}
	return ref.Kind == object.KindNamespace && t.isPopulated(ref.Name)
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
