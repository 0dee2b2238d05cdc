package appliance

import (
	"context"
	"time"

	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/store/object"
)

// The Nodes of boxes that are gone. The box with the turn says in the condition Ready of each Node whether its box is heard of, as
// the node lifecycle controller of Kubernetes does: a commit when that changes, and none else. A box that is gone and whose Node
// was deleted has been taken out of the fleet: what it reported last goes too.

// nodeLook is the interval at which the box with the turn asks who is heard of. A box that is not at two looks is gone: one that is
// started anew is back before.
const nodeLook = 4 * time.Second

// watchNodes has the Nodes of all boxes say whether these are heard of, while this box has the turn.
func (m *member) watchNodes(ctx context.Context) error {
	missed := map[string]bool{} // at the last look
	look := time.NewTicker(nodeLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
		if !m.HasTurn() {
			clear(missed)
			continue
		}
		reported, present, err := m.engine.Names(ctx)
		if err != nil {
			clear(missed) // the state of the box says so
			continue
		}
		if err := m.lookAtNodes(ctx, reported, present, missed); err != nil {
			m.log.Debug("the Nodes of boxes that are gone are not written yet", "err", err)
		}
	}
}

// lookAtNodes does what is to be done about boxes that are gone or back, and notes which are missed.
func (m *member) lookAtNodes(ctx context.Context, reported, present, missed map[string]bool) error {
	gone := map[string]bool{}
	notes := func(box string) {
		if !present[box] && missed[box] {
			gone[box] = true
		}
		if missed[box] = !present[box]; present[box] {
			delete(missed, box)
		}
	}
	for _, box := range control.FleetNodes(m.store) {
		reported[box] = true // it may have reported to another etcd
	}
	for box := range reported {
		notes(box)
	}
	for box := range gone {
		if o, _ := m.store.Get(object.Ref{Kind: object.KindNode, Name: box}); o != nil {
			continue
		}
		if err := m.engine.Forget(ctx, box); err != nil {
			return err
		}
		delete(missed, box)
		m.log.Info("a box that is gone, and whose Node was deleted, is no box of the fleet any more", "box", box)
	}
	return control.TellPresence(m.store, present, gone)
}
