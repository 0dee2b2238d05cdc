package apiserver

import (
	"slices"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
)

// inRollout returns the rollout that a Service is in, as this box programs it; nil: it is in
// none.
func inRollout(objects *store.Store, service string) *wire.ServiceRollout {
	if head, is := objects.RolloutHead(); !is || !head.Pending() {
		return nil
	}
	state, _ := objects.Rollout()
	if _, found := slices.BinarySearch(state.Services, service); !found {
		return nil
	}
	return &wire.ServiceRollout{ID: state.ID, Phase: string(state.Phase), New: state.Here, Step: state.Step + 1, Of: len(state.Steps), Why: state.Why}
}
