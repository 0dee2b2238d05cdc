package appliance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/rollout"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

const (
	// rolloutLook is the interval at which the box that drives the rollout checks the reports of all boxes.
	rolloutLook = time.Second
	// startPatience is the longest time that the start of a rollout waits for reports made after the rollout was created; boxes report every 2 s.
	// startLook is the interval at which it checks.
	startPatience, startLook = 6 * time.Second, 200 * time.Millisecond
	// mostReported is the maximum number of problems in the report of a box, longestReported the maximum length of their messages in bytes.
	mostReported    = 32
	longestReported = 200
	// mostEvented is the largest number of Services that get an Event about a rollout.
	mostEvented = 20
)

// rollouts implements the API operations for staged rollouts in a fleet.
type rollouts struct{ *assembly }

func (r rollouts) endpoints() []api.Endpoint {
	list := []api.Endpoint{
		api.Answer(wire.GetRollout, func(req *http.Request, _ wire.None) (wire.Rollout, error) { return r.get(req.Context()) }),
		api.Answer(wire.BeginRollout, func(req *http.Request, q wire.RolloutQuery) (wire.Rollout, error) {
			state, err := r.begin(req.Context(), q, api.UserOf(req))
			if err != nil {
				return state, failureOf(err)
			}
			r.log.Info("a rollout is being gathered", "rollout", state.ID, "steps", q.Steps, "user", api.UserOf(req))
			return state, nil
		}),
	}
	for _, verb := range wire.RolloutMoves() {
		list = append(list, api.Answer(wire.MoveRollout[verb], func(req *http.Request, q wire.MoveQuery) (wire.Rollout, error) {
			state, err := r.moveNamed(req.Context(), verb, q.ID, api.UserOf(req))
			if err != nil {
				return state, failureOf(err)
			}
			r.log.Info("a rollout is moved", "rollout", state.ID, "verb", verb, "phase", state.Phase, "user", api.UserOf(req))
			return state, nil
		}))
	}
	return list
}

// begin creates a rollout. Until it is started, write requests that name its ID add their changes to it.
func (r rollouts) begin(ctx context.Context, q wire.RolloutQuery, user string) (wire.Rollout, error) {
	if r.member == nil {
		return wire.Rollout{}, pending.ErrAlone
	}
	steps, err := rollout.ParseSteps(q.Steps)
	if err != nil {
		return wire.Rollout{}, wire.BadRequest("%v", err)
	}
	head := rollout.Rollout{
		Head: pending.Head{ID: strings.ToLower(rand.Text()[:8]), Began: time.Now().UTC().Truncate(time.Second), User: user},
		Plan: rollout.Plan{Steps: steps, Bake: q.Bake, Within: q.Within, Reverts: q.OnFailure == wire.OnFailureUndo},
	}
	boxes, err := r.member.boxes(ctx)
	if err != nil {
		return wire.Rollout{}, err
	}
	for i := range steps { // before anything is written
		if _, err := rollout.Step(head, i, boxes); err != nil {
			return wire.Rollout{}, wire.Conflict("step %s cannot begin: %v", steps[i], err)
		}
	}
	if _, err := r.store.BeginStaged(head.Stored(), rollout.Gather); err != nil {
		return wire.Rollout{}, err
	}
	return r.get(ctx)
}

// moveNamed starts, pauses, resumes or undoes the pending rollout; verb names the action. It fails if id is the ID of another rollout; "" means the
// pending one.
func (r rollouts) moveNamed(ctx context.Context, verb, id, user string) (wire.Rollout, error) {
	state, is := rolloutIn(r.store)
	if !is || !state.Pending() {
		return wire.Rollout{}, pending.ErrNoStaged
	}
	if id != "" && id != state.ID {
		return wire.Rollout{}, fmt.Errorf("%w: it is rollout %s, not %s", pending.ErrMoved, state.ID, id)
	}
	if err := r.move(ctx, verb, &state, user); err != nil {
		return wire.Rollout{}, err
	}
	return r.get(ctx)
}

func (r rollouts) move(ctx context.Context, verb string, state *rollout.State, user string) error {
	switch verb {
	case wire.RolloutUndo:
		if state.Phase == pending.Gathering {
			state.Why = "it was not started: no box has had any of it"
		}
		_, err := r.store.Undo(state.Ended(), store.Caller{User: user, Manager: "svcctl"})
		return err
	case wire.RolloutPause:
		if state.Phase != pending.Programming && state.Phase != pending.Baking {
			return wire.Conflict("rollout %s is %s, and cannot be paused", state.ID, state.Phase)
		}
		next := rollout.Pause(state.Rollout, user)
		return r.store.Advance(next.Head.Stored(), next.Ends)
	case wire.RolloutStart, wire.RolloutResume:
	}
	if r.member == nil { // it has left its fleet meanwhile
		return r.store.Finish(state.Ended())
	}
	boxes, err := r.member.boxes(ctx)
	starts := verb == wire.RolloutStart && state.Phase == pending.Gathering && len(state.Objects) > 0
	for end := time.Now().Add(startPatience); err == nil && starts && !rollout.Reported(&state.Rollout, boxes) && time.Now().Before(end); {
		if !task.Sleep(ctx, startLook) {
			return ctx.Err()
		}
		boxes, err = r.member.boxes(ctx)
	}
	if err != nil {
		return err
	}
	var next rollout.Next
	switch {
	case verb == wire.RolloutStart && state.Phase == pending.Gathering && len(state.Objects) == 0:
		return r.store.Finish(state.Ended())
	case verb == wire.RolloutStart && state.Phase == pending.Gathering:
		if next, err = rollout.Step(state.Rollout, 0, boxes); err != nil {
			return wire.Conflict("step %s cannot begin: %v", state.Steps[0], err)
		}
	case verb == wire.RolloutResume && state.Phase == pending.Stopped:
		next = rollout.Resume(state.Rollout, boxes)
	default:
		return wire.Conflict("rollout %s is %s: there is nothing to %s", state.ID, state.Phase, verb)
	}
	return r.store.Advance(next.Head.Stored(), next.Ends)
}

// get returns the pending rollout, or the last one if none is pending.
func (r rollouts) get(ctx context.Context) (wire.Rollout, error) {
	state, is := rolloutIn(r.store)
	if !is {
		return wire.Rollout{}, wire.NotFound("there was no rollout yet: `svcctl apply --rollout` begins one")
	}
	w := rolloutOf(&state.Rollout, r.store)
	w.Here = state.Here
	for _, ref := range state.Objects {
		w.Objects = append(w.Objects, ref.String())
	}
	if r.member == nil || !state.Pending() {
		return w, nil
	}
	all, err := r.member.engine.Boxes(ctx)
	if err != nil {
		w.BoxesUnknown = err.Error()
	}
	for i := range all {
		b := FleetBox(&all[i])
		has := state.Has(b.Name)
		w.Boxes = append(w.Boxes, wire.RolloutBox{Name: b.Name, New: has, State: b.State, Programmed: has && b.Programmed >= state.Revision})
	}
	return w, nil
}

// rolloutOf returns a rollout in the type of the API.
func rolloutOf(r *rollout.Rollout, objects *store.Store) wire.Rollout {
	left, _ := objects.PendingLeft(pending.Staged)
	w := wire.Rollout{
		ID: r.ID, Phase: string(r.Phase), Began: r.Began, User: r.User, Since: r.Since, Why: r.Why, Steps: r.Steps, Step: r.Step,
		Left: wire.Duration(left), Bake: wire.Duration(r.Bake), Within: wire.Duration(r.Within), Pending: r.Pending(),
		OnFailure: wire.OnFailureStop,
	}
	if r.Reverts {
		w.OnFailure = wire.OnFailureUndo
	}
	return w
}

// rolloutIn returns the pending rollout, or the last one if none is pending. It returns false if there has never been one.
func rolloutIn(objects *store.Store) (state rollout.State, is bool) {
	of, is := objects.Pending(pending.Staged)
	return rollout.StateOf(of), is
}

// rolloutStatus returns the pending rollout for the status of this box; nil if none is pending.
func rolloutStatus(objects *store.Store) *wire.Rollout {
	head, is := objects.PendingHead(pending.Staged)
	if !is || !head.Pending() {
		return nil
	}
	w := rolloutOf(new(rollout.Of(head)), objects)
	w.Here = objects.ProgramsStaged()
	return &w
}

// boxes returns the reports of all boxes, converted to the type of package rollout.
func (m *member) boxes(ctx context.Context) ([]rollout.Box, error) {
	all, err := m.engine.Boxes(ctx)
	boxes := make([]rollout.Box, len(all))
	for i := range all {
		b := &all[i]
		boxes[i] = rollout.Box{Name: b.Box, Present: b.Present, Follows: b.State == fleet.Following, Why: string(b.State), Programmed: b.Programmed}
		if b.State == fleet.Following && b.Programmed < b.Accepted { // else it is no change that fails
			boxes[i].Failing = b.Failing
		}
		for _, p := range b.Errors {
			boxes[i].Problems = append(boxes[i].Problems, rollout.Problem(p))
		}
	}
	return boxes, err
}

// concerns returns a function that reports whether an object, named as in wire.Status, is changed or affected by the rollout.
func concerns(state *rollout.State) func(object string) bool {
	is := map[string]bool{}
	for _, ref := range state.Objects {
		is[ref.String()] = true
	}
	for _, key := range state.Services {
		is[object.ServiceRef(key).String()] = true
	}
	return func(object string) bool { return is[object] }
}

// reported returns the problems for the report of this box: the errors in its status, and the reasons why Services of the pending rollout are no
// longer Ready, even if that is intended. Problems of the rollout come first.
func (m *member) reported(s *wire.Status, judged *reconcile.Conditions) (list []fleet.ReportedProblem) {
	state, is := rolloutIn(m.store)
	about := concerns(&state)
	add := func(object, field, reason, message string) {
		list = append(list, fleet.ReportedProblem{Object: object, Field: field, Reason: reason, Message: message[:min(longestReported, len(message))]})
	}
	for _, p := range s.Problems {
		if p.Severity == wire.SeverityError && (p.Object != "" || p.File == "") {
			add(p.Object, p.Field, p.Reason, p.Message)
		}
	}
	if is && state.Pending() {
		for _, key := range state.Services {
			why := judged.State(key).Failing
			if before, _, _ := m.store.Before().Service(key); before != nil && why.Warning {
				add(object.ServiceRef(key).String(), "", why.Reason, why.Message)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b fleet.ReportedProblem) int {
		return map[bool]int{true: 0, false: 1}[about(a.Object)] - map[bool]int{true: 0, false: 1}[about(b.Object)]
	})
	return list[:min(mostReported, len(list))]
}

// driveRollouts advances the rollout from step to step while this box holds the fleet's lease for that (HasTurn), and reports each step, until ctx is
// done.
func (m *member) driveRollouts(ctx context.Context) error {
	reported, failed, late := "", "", rollout.Patience{}
	if head, is := m.store.PendingHead(pending.Staged); is {
		reported = turnOf(&head)
	}
	for ctx.Err() == nil {
		published := m.store.Published()
		head, is := m.store.PendingHead(pending.Staged)
		if now := turnOf(&head); is && now != reported {
			reported = now
			m.reportRollout()
		}
		if !is || !head.Pending() || head.Phase == pending.Stopped {
			select {
			case <-ctx.Done():
			case <-published:
			}
			continue
		}
		if m.HasTurn() {
			if err := m.driveRollout(ctx, &late); err == nil {
				failed = ""
			} else if err.Error() != failed && ctx.Err() == nil {
				failed = err.Error()
				m.log.Warn("the rollout does not go on", "rollout", head.ID, "err", err)
			}
		}
		task.Sleep(ctx, rolloutLook) // reports change without a commit
	}
	return nil
}

func turnOf(head *pending.Head) string { return fmt.Sprint(head.ID, " ", head.Turn) }

// driveRollout checks the reports of the boxes once, and stores the next step of the rollout if it is due.
func (m *member) driveRollout(ctx context.Context, late *rollout.Patience) error {
	state, _ := rolloutIn(m.store)
	left, _ := m.store.PendingLeft(pending.Staged) // read before the reports: a late box is then late for longer
	boxes, err := m.boxes(ctx)
	if err != nil || late.Waits(&state.Rollout, boxes) {
		return err
	}
	next := rollout.Decide(state.Rollout, left, boxes, concerns(&state))
	if next.Do == rollout.Move && next.Head.Step != state.Step && late.Awaits(&state.Rollout, boxes) {
		return nil
	}
	switch next.Do {
	case rollout.Move:
		err = m.store.Advance(next.Head.Stored(), next.Ends)
	case rollout.Finish:
		err = m.store.Finish(next.Head.Ended())
	case rollout.Undo:
		if _, err = m.store.Undo(next.Head.Ended(), store.Caller{User: "svcctl"}); err == nil {
			m.log.Warn("the rollout is undone", "rollout", state.ID, "why", next.Head.Why)
			m.eventServices(&state, "RolloutUndone", fmt.Sprintf("rollout %s is undone in %s: %s", state.ID, stepOf(&state.Rollout), next.Head.Why), false)
		}
	}
	if errors.Is(err, pending.ErrMoved) || errors.Is(err, pending.ErrNoStaged) {
		return nil // by another box
	}
	return err
}

// reportRollout logs the state of the rollout, and records Events of its Services if a step began or stopped.
func (m *member) reportRollout() {
	state, _ := rolloutIn(m.store)
	step := stepOf(&state.Rollout)
	m.log.Info("rollout", "rollout", state.ID, "phase", state.Phase, "step", state.Steps[state.Step], "boxes", strings.Join(state.Boxes, ","), "why", state.Why)
	var message string
	switch state.Phase {
	case pending.Programming:
		message = fmt.Sprintf("rollout %s: %s, comes to %s", state.ID, step, strings.Join(state.Boxes, ", "))
	case pending.Stopped:
		message = fmt.Sprintf("rollout %s stopped in %s: %s; `svcctl fleet rollout resume` or `svcctl fleet rollout undo`", state.ID, step, state.Why)
	default:
		return // the others name no object any more, or nothing that matters
	}
	m.eventServices(&state, "Rollout"+string(state.Phase), message, state.Phase != pending.Stopped)
}

// stepOf returns the current step in words.
func stepOf(r *rollout.Rollout) string {
	return fmt.Sprintf("step %d of %d (%s)", r.Step+1, len(r.Steps), r.Steps[r.Step])
}

// eventServices records an Event for each Service of a rollout, at most mostEvented.
func (m *member) eventServices(state *rollout.State, reason, message string, normal bool) {
	if m.events == nil {
		return
	}
	for _, key := range state.Services[:min(mostEvented, len(state.Services))] {
		m.events.Record(object.ServiceRef(key), reason, message, normal)
	}
}
