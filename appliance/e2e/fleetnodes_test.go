package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// Test622_the_Node_of_a_box_that_is_gone: the API says Ready=Unknown of it, as `get boxes` says Away; nothing more is written on its
// account, and it is Ready again when it is back. With its Node deleted it is no box of the fleet any more, until it comes back.
func Test622_the_Node_of_a_box_that_is_gone(t *testing.T) {
	f := newFleet(t, 3)
	agree := func(n int, box, state, ready, reason, table string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			var node struct {
				Status struct {
					Conditions []struct{ Type, Status, Reason, Message string }
				}
			}
			if err := f.boxes[n].Read("/api/v1/nodes/"+box, &node); err != nil {
				return err
			}
			out := ""
			for _, c := range node.Status.Conditions {
				if c.Type == "Ready" {
					out = c.Status + " " + c.Reason + " " + c.Message
				}
			}
			if !strings.HasPrefix(out, ready+" "+reason+" ") {
				return fmt.Errorf("%s: the Node says %q", box, out)
			}
			boxes, _, _ := f.boxes[n].Svcctl("get", "boxes", "-o", "json")
			nodes, _, _ := f.boxes[n].Svcctl("get", "nodes", box, "--no-headers")
			if !strings.Contains(nodes, " "+table+" ") || stateOf(boxes, box) != state {
				return fmt.Errorf("%s: the Node says %q and %q, and get boxes %s", box, out, nodes, boxes)
			}
			return nil
		})
	}
	for n := range f.boxes {
		agree(0, fmt.Sprintf("box%d", n+1), "OK", "True", "SvcctlReady", "Ready")
	}
	f.boxes[2].Kill()
	for n := range 2 {
		agree(n, "box3", "Away", "Unknown", "NodeStatusUnknown", "NotReady")
		agree(n, "box2", "OK", "True", "SvcctlReady", "Ready")
	}
	eventually(t, time.Minute, func() error { // over some looks of the box with the turn
		before := f.etcdRevision()
		time.Sleep(10 * time.Second) // real time: nothing is written meanwhile
		if after := f.etcdRevision(); after != before {
			return fmt.Errorf("etcd was at revision %d, and is at %d", before, after)
		}
		return nil
	})
	f.boxes[2].Start()
	agree(1, "box3", "OK", "True", "SvcctlReady", "Ready")

	// A box that runs keeps its Node.
	if out, errOut, code := f.boxes[0].Svcctl("delete", "node", "box3"); code == 0 || !strings.Contains(errOut, "stop it there") {
		t.Errorf("the Node of a box that runs is deleted: exit %d: %s%s", code, out, errOut)
	}
	f.boxes[2].Stop()
	agree(0, "box3", "Away", "Unknown", "NodeStatusUnknown", "NotReady")
	if out, errOut, code := f.boxes[0].Svcctl("delete", "node", "box3"); code != 0 {
		t.Fatalf("delete the Node of a box that is gone: exit %d: %s%s", code, out, errOut)
	}
	eventually(t, time.Minute, func() error {
		if out, errOut, code := f.boxes[0].Svcctl("get", "boxes"); code != 0 || strings.Contains(out, "box3") {
			return fmt.Errorf("get boxes: exit %d: %s%s", code, out, errOut)
		}
		return nil
	})
	f.boxes[2].Start()
	agree(1, "box3", "OK", "True", "SvcctlReady", "Ready")
}

// stateOf is the state of a box in the answer of `get boxes -o json`.
func stateOf(answer, box string) string {
	var of struct {
		Boxes []struct{ Name, State string }
	}
	if json.Unmarshal([]byte(answer), &of) != nil {
		return answer
	}
	for _, b := range of.Boxes {
		if b.Name == box {
			return b.State
		}
	}
	return "not there"
}

// etcdRevision is the revision of etcd, of all that anybody writes.
func (f *fleet) etcdRevision() int64 {
	f.t.Helper()
	out, _, err := f.etcdctl("get", "x", "-w", "json")
	if err != nil {
		f.t.Fatal(err)
	}
	var answer struct{ Header struct{ Revision int64 } }
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		f.t.Fatal(err)
	}
	return answer.Header.Revision
}
