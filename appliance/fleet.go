package appliance

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/handover"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/rollout"
	"svcctl.io/svcctl/appliance/sources"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

// openEngine opens the storage of objects. Without a fleet that is the data directory, and the second result is nil. In a fleet it is etcd, with a
// replica in the data directory.
func openEngine(cfg *config.Config, calls *reconcile.SlowCalls, log *slog.Logger) (engine.Engine, *fleet.Engine, error) {
	if cfg.Fleet.Name == "" {
		key, err := dataKey(cfg.DataKeyFile)
		if err != nil {
			return nil, nil, err
		}
		file, err := engine.OpenFile(cfg.DataDir, key)
		if err != nil {
			return nil, nil, err
		}
		return calls.Engine(file), nil, nil
	}
	of, err := FleetConfig(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	e, err := fleet.Open(of)
	if err != nil {
		return nil, nil, err
	}
	return e, e, nil // the loop does not wait for its commits
}

const (
	// waitingNotice is the interval at which a box that waits for its fleet extends systemd's start timeout, each time by startExtension.
	waitingNotice  = time.Minute
	startExtension = 10 * time.Minute
)

// waiting is the backend of the API while a box waits for its fleet.
type waiting struct{ *reconcile.Board }

// Status returns the status with a single problem. The message of the problem is the reason for the wait.
func (w waiting) Status() wire.Status {
	s := w.Board.Status()
	s.Problems = []wire.Problem{{Reason: "Fleet" + s.Fleet.State, Severity: wire.SeverityError, Message: s.Reason}}
	return s
}

// Ready returns an error with the reason for the wait.
func (w waiting) Ready() error { return errors.New(w.Status().Reason) }

// awaitFleet waits until the box has the objects of its fleet. Without a replica that may take long; meanwhile the API on the socket
// returns the status and refuses everything else.
func awaitFleet(ctx context.Context, cfg *config.Config, shared *fleet.Engine, first wire.Status, log *slog.Logger) error {
	if shared.State().Kind != fleet.Waiting {
		return shared.Await(ctx)
	}
	board := reconcile.NewBoard(func() (uint64, uint64) { return 0, 0 }, nil, nil, nil, first)
	board.OfFleet(func() wire.Fleet { return fleetState(cfg, shared) })
	server := api.New(api.Config{
		Socket: api.Socket{Path: cfg.API.Socket, Group: cfg.API.SocketGroup, Readers: cfg.API.SocketReaders}, Version: cfg.Version, Waiting: true,
	}, waiting{board}, log)
	socket, err := server.Listen()
	if err != nil {
		return err
	}
	ctx, joined := context.WithCancel(ctx)
	defer joined()
	return task.Run(ctx, log,
		task.Task{Name: "API of a box that waits", Run: func(ctx context.Context) error { return server.Serve(ctx, socket) }},
		task.Task{Name: "systemd's start timeout", Run: func(ctx context.Context) error { return extendStart(ctx, shared, log) }},
		task.Task{Name: "join the fleet", Run: func(ctx context.Context) error {
			defer joined()
			return shared.Await(ctx)
		}},
	)
}

// extendStart extends systemd's start timeout while the box waits, and shows the reason in its status line.
func extendStart(ctx context.Context, shared *fleet.Engine, log *slog.Logger) error {
	for {
		changed, s := shared.Changes(), shared.State()
		text := fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d\nSTATUS=%s: %s", startExtension.Microseconds(), s.Kind, strings.Join(strings.Fields(s.Why), " "))
		if err := handover.Notify(ctx, text); err != nil && ctx.Err() == nil {
			log.Warn("systemd's start timeout is not extended", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(waitingNotice):
		}
	}
}

// dataKey reads the encryption key from a file; nil for "".
func dataKey(path string) (*engine.Key, error) {
	if path == "" {
		return nil, nil
	}
	return engine.ReadKey(path)
}

// FleetKeys reads the keys that encrypt a fleet's Secrets from a file; nil for "".
func FleetKeys(path string) (*engine.Keys, error) {
	if path == "" {
		return nil, nil
	}
	return engine.ReadKeys(path)
}

// LeaveFleet decrypts the Secrets in the data directory of a box that has left its fleet, and returns their number. dataKeyFile has the key
// that encrypts the directory, "" for none.
func LeaveFleet(dir, dataKeyFile string, keys *engine.Keys) (opened int, err error) {
	key, err := dataKey(dataKeyFile)
	if err != nil {
		return 0, err
	}
	return fleet.OpenSecrets(fleet.Config{DataKey: key, Keys: keys, Secret: store.IsSecretKey}, dir)
}

// FleetConfig returns the configuration for package fleet.
func FleetConfig(cfg *config.Config, log *slog.Logger) (fleet.Config, error) {
	of := fleet.Config{
		Fleet: cfg.Fleet.Name, Box: cfg.NodeName, Endpoints: cfg.Fleet.Etcd, Dir: cfg.DataDir, Version: cfg.Version, Readable: store.KnowsKey, Secret: store.IsSecretKey, Log: log,
		Words: fleet.Words{Flags: config.FleetFlags(), Files: fleet.Files{CA: cfg.Fleet.CACert, Cert: cfg.Fleet.Cert}},
	}
	of.Import = func(key string, value []byte) ([]byte, error) {
		return store.ForShared(key, value, control.NodeOwner, cfg.SourcePath)
	}
	of.Restored = func(key string, value, now []byte) ([]byte, error) {
		return store.ForRestore(key, value, now, control.NodeOwner, cfg.SourcePath)
	}
	var err error
	if of.DataKey, err = dataKey(cfg.DataKeyFile); err != nil {
		return of, err
	}
	if of.Keys, err = FleetKeys(cfg.Fleet.KeyFile); err != nil {
		return of, err
	}
	if cfg.IsLeaf() {
		of.Cores = cfg.Fleet.Cores
		of.CoreTLS, err = cfg.Fleet.CoreTLS()
	} else {
		of.TLS, err = cfg.Fleet.EtcdTLS()
	}
	if err != nil {
		return of, err
	}
	of.Settings, err = cfg.FleetSettings()
	return of, err
}

// FirstObjects returns the objects that a new fleet begins with: the Namespaces that every cluster has.
func FirstObjects(cfg *config.Config) ([]engine.Pair, error) {
	memory := engine.NewMemory()
	objects, err := store.Open(memory, cfg.Store())
	if err != nil {
		return nil, err
	}
	if err := control.NewClusterObjects(cfg.ClusterObjects(), objects, nil).KeepNamespaces(); err != nil {
		return nil, err
	}
	return memory.Load("")
}

// member is this box as a member of its fleet. A nil member stands for a box without a fleet.
type member struct {
	cfg    *config.Config
	engine *fleet.Engine
	store  *store.Store
	beside *control.Beside
	held   *previousView
	// sources reads the directories of this box; wake, once it is set, makes the loop update their status.
	sources *sources.Reader
	wake    atomic.Pointer[func()]
	events  *control.Recorder
	over    time.Time // when the running trial was first seen to have ended; zero: it has not
	notHeld string    // the last error of holdBack, which is logged once
	log     *slog.Logger
}

// HasTurn reports whether this box is the one that currently writes the objects of the whole fleet.
func (m *member) HasTurn() bool { return m.engine.HasTurn() }

// State returns the state of this box in its fleet, with the number of lost races.
func (m *member) State() wire.Fleet {
	f := fleetState(m.cfg, m.engine)
	f.LostRaces = m.store.Lost()
	return f
}

// fleetState returns the state of a box in its fleet.
func fleetState(cfg *config.Config, shared *fleet.Engine) wire.Fleet {
	s := shared.State()
	f := wire.Fleet{
		Name: cfg.Fleet.Name, State: string(s.Kind), Why: s.Why, Since: s.Since.UTC(), Revision: s.Revision, Newest: s.Of,
		Heard: s.Answered.UTC(), Writer: s.Writer, Core: shared.Core(),
	}
	if s.Replica != nil {
		f.Replica = s.Replica.Error()
	}
	return f
}

// Boxes reads the reports of all boxes from etcd.
func (m *member) Boxes(ctx context.Context) ([]wire.FleetBox, error) {
	all, err := m.engine.Boxes(ctx)
	boxes := make([]wire.FleetBox, len(all))
	head, _ := m.store.PendingHead(pending.Staged)
	for i := range all {
		if boxes[i] = FleetBox(&all[i]); head.ID != "" && head.Pending() {
			boxes[i].Rollout = map[bool]string{true: "new", false: "before"}[head.Has(all[i].Box)]
		}
		if boxes[i].State == wire.BoxAway {
			boxes[i].Since = m.goneSince(all[i].Box)
		}
	}
	return boxes, err
}

// goneSince returns the time since which the condition Ready of a box's Node is Unknown; the zero Time if it is not Unknown.
func (m *member) goneSince(box string) time.Time {
	o, _ := m.store.Get(object.Ref{Kind: object.KindNode, Name: box})
	if n, is := o.(*object.Node); is {
		if ready := object.ReadyOf(n); ready != nil && ready.Status == object.ConditionUnknown && ready.LastTransitionTime != nil {
			return *ready.LastTransitionTime
		}
	}
	return time.Time{}
}

// FleetBox converts the report of a box to the type of the API. Since is zero for an absent box, as such a box cannot report when its absence began.
func FleetBox(b *fleet.Box) wire.FleetBox {
	w := wire.FleetBox{
		Name: b.Box, Zone: b.Zone, Version: b.Version, State: string(b.State), Accepted: b.Accepted, Programmed: b.Programmed,
		Problems: b.Problems, Why: b.Failing, Since: b.Since, Core: b.Core,
	}
	switch {
	case !b.Present:
		w.State, w.Since = wire.BoxAway, time.Time{}
	case b.State != fleet.Following:
	case b.Failing != "":
		w.State = wire.BoxFailing
	case b.Programmed < b.Accepted:
		w.State = wire.BoxBehind
	default:
		w.State = wire.BoxOK
	}
	return w
}

// report returns a function that computes this box's report for the fleet.
func (m *member) report(board *reconcile.Board) func() fleet.Report {
	return func() fleet.Report {
		s := board.Status()
		r := fleet.Report{Zone: m.cfg.Zone, Accepted: s.Revision.Accepted, Programmed: s.Revision.Programmed, Problems: s.Errors(), Errors: m.reported(&s, board.Conditions())}
		if !s.Ready || s.Reason != "" {
			r.Failing = cmp.Or(s.Reason, "not ready")
		}
		for _, s := range m.cfg.ManifestSources() {
			r.Sources = append(r.Sources, s.Name)
		}
		return r
	}
}

// sharedKeys implements apiserver.SharedKeys with the keys stored in the fleet.
type sharedKeys struct{ *fleet.Engine }

// Tokens returns the key that signs tokens, with its ID.
func (k sharedKeys) Tokens() (id string, key []byte) { return k.SharedKey(fleet.TokenKey) }

// CA returns the CA of the API's certificates, with its ID.
func (k sharedKeys) CA() (id string, key []byte) { return k.SharedKey(fleet.CAKey) }

// ReplaceTokens replaces the key that signs tokens. It returns fleet.ErrReplaced if the ID of the current key is not before.
func (k sharedKeys) ReplaceTokens(ctx context.Context, before string, key []byte) error {
	return k.ReplaceKey(ctx, fleet.TokenKey, before, key)
}

// ReplaceCA replaces the CA of the API's certificates. It returns fleet.ErrReplaced if the ID of the current CA is not before.
func (k sharedKeys) ReplaceCA(ctx context.Context, before string, key []byte) error {
	return k.ReplaceKey(ctx, fleet.CAKey, before, key)
}

// problems returns the problems of this box as a member of its fleet, such as a lost connection or a stopped rollout; none without a fleet.
func (m *member) problems() []manifest.Problem {
	if m == nil {
		return nil
	}
	s := m.engine.State()
	var problems []manifest.Problem
	if s.Kind != fleet.Following && s.Asked {
		problems = append(problems, manifest.Problem{Reason: "Fleet" + string(s.Kind), Message: s.Why + m.namesake(s.Kind)})
	}
	if head, is := m.store.PendingHead(pending.Staged); is && head.Phase == pending.Stopped {
		r := rollout.Of(head)
		problems = append(problems, manifest.Problem{Reason: "RolloutStopped", Warning: true, Message: fmt.Sprintf(
			"rollout %s has stopped in step %d of %d: %s; `svcctl fleet rollout resume` goes on, `svcctl fleet rollout undo` takes it back", r.ID, r.Step+1, len(r.Steps), r.Why)})
	}
	if _, tokens := m.engine.SharedKey(fleet.TokenKey); tokens != nil && m.cfg.API.Listen != "" && !s.Follows() {
		problems = append(problems, manifest.Problem{Reason: "FleetTokens", Warning: true, Message: "this box has no connection to its fleet: " +
			"tokens that were revoked on another box since are accepted here; `svcctl admin token --revoke-all` ends them on this box, too"})
	}
	if m.held.objects() != nil {
		problems = append(problems, manifest.Problem{Reason: "TrialHeldBack", Message: "the trial is over, and this box cannot learn whether it was confirmed: what was in force before it is in force here, until it does"})
	}
	problems = append(problems, m.sources.Problems()...)
	if s.Unreported != "" && s.Follows() && s.Kind != fleet.Namesake {
		problems = append(problems, manifest.Problem{Reason: "FleetReport", Warning: true, Message: s.Unreported})
	}
	if s.Foreign != "" {
		problems = append(problems, manifest.Problem{Reason: "FleetForeign", Warning: true, Message: "another program than a box of the fleet has written or removed " + s.Foreign + " in etcd: it is not followed, and a box without a replica " +
			"cannot join; find that program, stop a box, and run `svcctl fleet restore` with its data directory, which puts back what is in force"})
	}
	if s.Replica != nil {
		problems = append(problems, manifest.Problem{Reason: "FleetReplica", Warning: true, Message: "the replica on this box cannot be written, and a start without etcd would begin with an old state: " + s.Replica.Error()})
	}
	return problems
}

// namesake returns text for the end of a message: the addresses of another box that has the name of this one. It returns "" if kind is not
// fleet.Namesake.
func (m *member) namesake(kind fleet.Kind) string {
	o, _ := m.store.Get(object.Ref{Kind: object.KindNode, Name: m.cfg.NodeName})
	n, is := o.(*object.Node)
	if kind != fleet.Namesake || !is {
		return ""
	}
	var addresses []string
	for _, a := range n.Status.Addresses {
		if a.Type == object.NodeInternalIP {
			addresses = append(addresses, a.Address)
		}
	}
	if addresses == nil {
		return ""
	}
	return fmt.Sprintf("; the other one has the addresses %s", strings.Join(addresses, ", "))
}

// samples adds the metrics of the fleet.
func (m *member) samples(to metrics.Samples) {
	s := m.engine.State()
	to.Set("svcctl_fleet_state", 1, string(s.Kind))
	to.Set("svcctl_fleet_revision", float64(s.Revision))
	to.Set("svcctl_fleet_newest_revision", float64(s.Of))
	to.Set("svcctl_fleet_lost_races_total", float64(m.store.Lost()))
	to.SetIf("svcctl_fleet_turn", m.HasTurn())
	if !s.Answered.IsZero() {
		to.Set("svcctl_fleet_heard_timestamp_seconds", float64(s.Answered.UnixMilli())/1000)
	}
	if head, is := m.store.PendingHead(pending.Staged); is {
		r := rollout.Of(head)
		to.Set("svcctl_rollout_phase", 1, string(head.Phase))
		to.Set("svcctl_rollout_steps", float64(len(r.Steps)))
		to.SetIf("svcctl_rollout_new_versions", m.store.ProgramsStaged())
		step := 0
		if head.Phase != pending.Gathering {
			step = r.Step + 1
		}
		to.Set("svcctl_rollout_step", float64(step))
	}
}

// awaitFirstAnswer waits until etcd has responded, or the time for the first response is over. Until then a box cannot write, which must not be
// reported as a problem.
func (m *member) awaitFirstAnswer(ctx context.Context) {
	for {
		changed := m.engine.Changes()
		if m.engine.State().Asked {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// tasks returns the tasks of a member of a fleet; none without a fleet. wake wakes the reconcile loop.
func (m *member) tasks(wake func()) []task.Task {
	if m == nil {
		return nil
	}
	m.wake.Store(&wake)
	return []task.Task{
		{Name: "fleet", Run: m.engine.Run},
		{Name: "sources", Run: m.sources.Run},
		{Name: "follow the fleet", Run: m.store.Follow},
		{Name: "trial", Run: m.endTrials},
		{Name: "Nodes of leaves", Run: m.keepLeafNodes},
		{Name: "Nodes of boxes that are gone", Run: m.watchNodes},
		{Name: "rollouts", Run: m.driveRollouts},
		{Name: "controllers", Run: func(ctx context.Context) error {
			m.awaitFirstAnswer(ctx)
			return m.beside.Run(ctx, m.engine.Changes, wake)
		}},
		{Name: "state of the fleet", Run: func(ctx context.Context) error {
			shown := ""
			m.awaitFirstAnswer(ctx)
			for {
				changed := m.engine.Changes()
				s := m.engine.State()
				if now := fmt.Sprint(s.Kind, s.Replica, s.Unreported, s.Foreign); now != shown {
					shown = now
					wake()
				}
				select {
				case <-ctx.Done():
					return nil
				case <-changed:
				case <-time.After(5 * time.Second): // the replica has no signal
				}
			}
		}},
	}
}

// The Nodes of boxes that are gone. The box with the turn sets the condition Ready of each Node by the lease of its box, as
// the node lifecycle controller of Kubernetes does: a commit when that changes, and none else. A box that is gone and whose Node
// was deleted has been taken out of the fleet: what it reported last goes too.

// nodePollInterval is the interval at which the box that writes the fleet's objects (HasTurn) reads the leases of all boxes. A box that is absent in
// two successive polls counts as gone. A restart takes less time.
const nodePollInterval = 4 * time.Second

// watchNodes updates the condition Ready of the Nodes of all boxes while HasTurn is true, until ctx is done.
func (m *member) watchNodes(ctx context.Context) error {
	missed := map[string]bool{} // at the last poll
	for task.Sleep(ctx, nodePollInterval) {
		if !m.HasTurn() {
			clear(missed)
			continue
		}
		reported, present, err := m.engine.Names(ctx)
		if err != nil {
			clear(missed) // the state of the box has the reason
			continue
		}
		if err := m.updateNodes(ctx, reported, present, missed); err != nil {
			m.log.Debug("the Nodes of boxes that are gone are not written yet", "err", err)
		}
	}
	return nil
}

// updateNodes updates the Nodes of boxes that are gone or came back, and records in missed the boxes that are absent in this poll.
func (m *member) updateNodes(ctx context.Context, reported, present, missed map[string]bool) error {
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

// keepLeafNodes stores the Nodes of the leaves that are connected to this box, until ctx is done.
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
