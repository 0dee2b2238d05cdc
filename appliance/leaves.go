package appliance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// keepLeafNodes writes the Nodes of the leaves that report here.
func (m *member) keepLeafNodes(ctx context.Context) error {
	const again = time.Second
	kept := map[string][]byte{}
	for ctx.Err() == nil {
		changed := m.engine.Changes()
		nodes := m.engine.LeafNodes()
		failed := false
		for box, text := range nodes {
			if bytes.Equal(kept[box], text) {
				continue
			}
			if err := m.keepLeafNode(box, text); err != nil {
				m.log.Debug("the Node of a leaf is not written yet", "box", box, "err", err)
				failed = true
				continue
			}
			kept[box] = text
		}
		for box := range kept {
			if nodes[box] == nil {
				delete(kept, box) // it may report to another core box by now
			}
		}
		var retry <-chan time.Time
		if failed {
			retry = time.After(again)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-retry:
		}
	}
	return nil
}

func (m *member) keepLeafNode(box string, text []byte) error {
	reported := &object.Node{}
	if err := json.Unmarshal(text, reported); err != nil {
		return err
	}
	// A leaf reports its labels and status, and no more.
	node := &object.Node{
		TypeMeta: object.TypeMeta{Kind: object.KindNode, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Name: box, Labels: control.NodeLabels(reported.Metadata.Labels)}, Status: reported.Status,
	}
	have, _ := m.store.Get(object.Ref{Kind: object.KindNode, Name: box})
	control.KeepOfClients(node, have)
	control.KeepReady(node, have)
	if errs := object.Validate(node, object.Options{}); len(errs) > 0 {
		return errs
	}
	_, err := m.store.Generate(control.NodeOwner+"/"+box, []object.Object{node}, nil)
	if _, owned := errors.AsType[*store.OwnedError](err); owned { // a client has made it its own
		return nil
	}
	return err
}
