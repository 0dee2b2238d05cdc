package control

import (
	"errors"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// readyCondition is the condition Ready of the Node of a box that runs.
func readyCondition(since time.Time) object.NodeCondition {
	return object.NodeCondition{
		Type: object.NodeReady, Status: object.ConditionTrue, LastTransitionTime: &since, Reason: "SvcctlReady", Message: "svcctl programs the Services of this box",
	}
}

// goneCondition is that of a box of a fleet that does not report, with the reason that Kubernetes has.
func goneCondition(since time.Time) object.NodeCondition {
	return object.NodeCondition{
		Type: object.NodeReady, Status: object.ConditionUnknown, LastTransitionTime: &since, Reason: "NodeStatusUnknown",
		Message: "svcctl of this box does not report to its fleet: it is stopped, or cut off from etcd; what its kernel has stays in force",
	}
}

// KeepReady gives a Node the condition that the one that there is has: the box of a fleet that has the turn decides on it.
func KeepReady(n *object.Node, have object.Object) {
	if before, ok := have.(*object.Node); ok && object.ReadyOf(before) != nil {
		n.Status.Conditions = before.Status.Conditions
	}
}

// FleetNodes returns the names of the Nodes that boxes of a fleet keep, but for those that a client or a file has taken over.
func FleetNodes(objects *store.Store) (names []string) {
	for _, n := range fleetNodes(objects) {
		names = append(names, n.Metadata.Name)
	}
	return names
}

func fleetNodes(objects *store.Store) (nodes []*object.Node) {
	all, _, err := objects.List(object.KindNode, "", 0)
	if err != nil {
		return nil // the newest state can always be listed
	}
	for _, o := range all {
		if _, owner := objects.Get(object.RefOf(o)); owner.Controller == NodeOwner+"/"+o.GetMeta().Name {
			nodes = append(nodes, o.(*object.Node))
		}
	}
	return nodes
}

// TellPresence writes the condition Ready of the Nodes of boxes that are gone, and of those that are back. Without a change it
// writes nothing. Boxes in neither set stay as they are.
func TellPresence(objects *store.Store, present, gone map[string]bool) error {
	var errs []error
	for _, n := range fleetNodes(objects) {
		name, now := n.Metadata.Name, time.Now().UTC().Truncate(time.Second)
		is := object.ReadyOf(n)
		unknown := is == nil || is.Status == object.ConditionUnknown
		var want object.NodeCondition
		switch {
		case gone[name] && (is == nil || !unknown):
			want = goneCondition(now)
		case present[name] && unknown:
			want = readyCondition(now)
		default:
			continue
		}
		next := object.DeepCopy(n)
		next.Status.Conditions = []object.NodeCondition{want}
		if _, err := objects.Generate(NodeOwner+"/"+name, []object.Object{next}, nil); err != nil && !isOwned(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
