package rollout

import (
	"encoding/json"
	"time"

	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

// Rollout is a staged set of changes with its plan.
type Rollout struct {
	pending.Head
	Plan
}

// Plan is stored as a part of the head.
type Plan struct {
	// Steps are the steps as they were asked for, at least one; Step is the present one, from 0.
	Steps []string `json:"steps"`
	Step  int      `json:"step"`
	// Known are the problems that a machine had when the changes came to it.
	Known map[string][]string `json:"known,omitempty"`
	// Within is the time that the machines of a step have to program it; Bake is how long they are observed afterwards.
	Within time.Duration `json:"within"`
	Bake   time.Duration `json:"bake"`
	// Reverts is set when the rollout is undone where it would stop by itself.
	Reverts bool `json:"reverts,omitempty"`
}

// Of returns the rollout of a head.
func Of(head pending.Head) Rollout {
	r := Rollout{Head: head}
	if json.Unmarshal(head.Plan, &r.Plan) != nil || len(r.Steps) == 0 {
		r.Steps = []string{"100%"} // another program wrote it
	}
	return r
}

// Stored returns the head with the plan.
func (r Rollout) Stored() pending.Head {
	head := r.Head
	head.Plan, _ = json.Marshal(r.Plan) // strings and numbers always have a form
	return head
}

// Ended returns the head of a rollout that is over.
func (r Rollout) Ended() pending.Head {
	r.Known = nil
	return r.Stored()
}

// State is a rollout and what it changes.
type State struct {
	Rollout
	Objects  []object.Ref
	Services []string // "namespace/name"
	Here     bool     // this machine programs the changes
}

// StateOf returns the state of a staged set.
func StateOf(s pending.State) State { return State{Of(s.Head), s.Objects, s.Services, s.Here} }
