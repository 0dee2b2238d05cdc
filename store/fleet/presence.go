package fleet

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// lease is the etcd lease of this box, together with the box that runs the controllers (has the writer's turn).
type lease struct {
	id     clientv3.LeaseID // 0 if there is no lease
	until  time.Time        // time before which the lease cannot expire
	holder string
	mine   bool
}

// presence maintains the name, lease, turns and report of this box in etcd, and those of the leaves that follow it. A turn is the right to run the
// controllers or to read a source.
type presence struct {
	committer
	heartbeatNow chan struct{} // has a value if the next heartbeat is to be made at once
	report       func() Report // nil if the box makes no reports
	lease        lease
	sources      sourceTurns
	leaves       leafPresence
	shown        shown
}

// leafPresence has the leaves that follow this box, and the lease of their names.
type leafPresence struct {
	// lease holds the names of the leaves. It is not the lease of this box, which ends when the box stops: the leaves keep their names
	// while they look for another core box.
	lease clientv3.LeaseID
	leaf  map[string]*leaf // by name
}

// leaf is a leaf that follows this box.
type leaf struct {
	heard time.Time // time of its last report
	sent  string    // its report as last written to etcd
	node  []byte    // its Node object as JSON; nil until it has sent one
}

// heartbeat holds the state that is kept between heartbeats.
type heartbeat struct {
	missed int
	behind int64  // if the last heartbeat found a newer head in etcd: the modification revision of this box's newest head at that time; otherwise 0
	sent   string // this box's report as last written to etcd
	swept  time.Time
	named  clientv3.LeaseID // the lease with which the box's name was taken; 0 if it was not taken
}

// SourceTurn is the turn of a source: the right of one box to read the source's directory of manifests for the fleet.
type SourceTurn struct {
	// Holder is the box that has the turn; "" if no box has it, or the holder is unknown.
	Holder string
	// Mine is set while this box has the turn and its lease cannot have expired.
	Mine bool
	// Vacant is the time since which no box has the turn; zero while a box has it.
	Vacant time.Time
}

// sourceTurns holds the sources that this box wants to read or observe, and their turns as of the last heartbeat.
type sourceTurns struct {
	willing map[string]bool // by source; true means to take its turn, false only to observe it
	known   map[string]SourceTurn
}

// ReportAs sets the function that returns the report of this box. Each heartbeat calls it, and writes a report that has changed.
func (e *presence) ReportAs(report func() Report) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.report = report
}

// HasTurn reports whether this box runs the controllers for the fleet. Correctness does not depend on it:
// if two boxes run them, commits of one fail with ErrConflict.
func (e *presence) HasTurn() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lease.mine && time.Now().Before(e.lease.until)
}

func (e *presence) beatUntil(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	var b heartbeat
	for {
		e.beat(ctx, &b)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.heartbeatNow:
		}
	}
}

// beat is one heartbeat: it reads the head from etcd, and renews the lease, turns and report of this box.
func (e *presence) beat(ctx context.Context, b *heartbeat) {
	e.mu.Lock()
	var read int64
	if e.read != nil {
		read = e.read.mod
	}
	e.mu.Unlock()
	ask, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	now, at, err := e.askHead(ask)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		if b.missed++; b.missed >= missedBeats {
			e.note(err)
			e.redial()
		}
		return
	}
	b.missed = 0
	e.noteAnswer(now)
	switch {
	case now == nil || now.mod < read: // join finds the reason
		e.restartWatch()
	case now.mod == read:
		b.behind = 0
		e.caughtUp(read, at)
	case b.behind != 0 && b.behind == read:
		e.note(&heldError{Lagging, fmt.Sprintf("this box lags: etcd has revision %d, and nothing came since the one before; it is asked for again", now.Revision)})
		e.restartSilent()
	default:
		b.behind = read
	}
	e.openSharedKeys()
	if err := e.commitReadable(ctx); err != nil {
		e.cfg.Log.Debug("Secrets that can be read now are asked for again", "err", err)
	}
	err = e.renew(ctx, b)
	if err != nil {
		e.cfg.Log.Debug("this box is not announced to its fleet", "err", err)
	}
	if e.client != nil {
		e.noteReport(err)
	}
}

// renew renews the lease of this box with its name, turns and report in etcd; a leaf only sends its report to the core box.
func (e *presence) renew(ctx context.Context, b *heartbeat) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	e.mu.Lock()
	lease, following, report := e.lease.id, e.state.refusal() == nil, e.report
	e.mu.Unlock()
	if c, is := e.origin.(*coreClient); is {
		var r Report
		if report != nil {
			r = report()
		}
		writer, err := c.report(ctx, e.complete(r))
		if held, is := errors.AsType[*heldError](err); is && held.kind == Namesake {
			e.noteName(held.why)
		}
		if err == nil {
			e.noteName("")
			e.mu.Lock()
			e.lease.holder = writer
			e.mu.Unlock()
		}
		return err
	}
	asked := time.Now()
	if lease != 0 {
		gone, err := keepLease(ctx, e.client, lease)
		if err != nil {
			return err
		}
		if gone {
			lease = 0
		}
	}
	if lease == 0 {
		granted, err := e.client.Grant(ctx, leaseTTL)
		if err != nil {
			e.noteTurn(0, asked, "", false)
			return err
		}
		lease = granted.ID
	}
	mine, copied, err := e.claimName(ctx, e.cfg.Box, e.instance, lease, b.named == lease)
	switch {
	case err != nil:
		return err
	case copied:
		e.noteName(fmt.Sprintf("another box of this fleet is named %s and has a copy of this data directory: stop one of the two, and start it with another --node-name and an empty --data-dir", e.cfg.Box))
		return nil
	case !mine:
		e.noteName(e.namesake().why)
		return nil
	}
	b.named = lease
	e.noteName("")
	if err := errors.Join(e.claimTurn(ctx, lease, asked, following), e.claimSources(ctx, lease, following), e.keepLeaves(ctx)); err != nil {
		return err
	}
	if e.HasTurn() && asked.Sub(b.swept) > sweepEvery {
		b.swept = asked
		if err := e.deleteStaleParts(ctx); err != nil {
			return err
		}
	}
	if report == nil {
		return nil
	}
	text, err := json.Marshal(e.complete(report()))
	if err != nil || string(text) == b.sent {
		return err
	}
	if _, err = e.client.Put(ctx, e.key(boxPrefix+e.cfg.Box), string(text)); err == nil {
		b.sent = string(text)
	}
	return err
}

// noteName sets the state from the result of claiming the name of this box: why another box has it, "" if none has.
func (e *presence) noteName(why string) {
	e.mu.Lock()
	is := why != "" || e.state.Kind == Namesake
	e.state.namesake = why
	e.mu.Unlock()
	if is {
		e.note(nil)
	}
}

// leave revokes the lease of this box, so that its name and turns are free at once, and closes the connections to etcd or to the core box. Leaf boxes
// that follow this box keep their names under a lease of their own while they look for another core box.
func (e *presence) leave() error {
	e.mu.Lock()
	id := e.lease.id
	e.lease = lease{}
	e.mu.Unlock()
	if id != 0 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := e.client.Revoke(ctx, id); err != nil {
			e.cfg.Log.Debug("the lease of this box ends by itself", "err", err)
		}
	}
	return e.origin.close()
}

// claimTurn takes the writer's turn, the right to run the controllers, if willing is set and no box has it. If willing is not set, it gives the turn
// up.
func (e *presence) claimTurn(ctx context.Context, lease clientv3.LeaseID, asked time.Time, willing bool) error {
	holder, mine, err := e.claim(ctx, turnKey, lease, willing)
	if err != nil && willing {
		return err
	}
	e.noteTurn(lease, asked, holder, mine)
	return err
}

func (e *presence) noteTurn(id clientv3.LeaseID, asked time.Time, holder string, mine bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	changed := e.lease.mine != mine
	e.lease = lease{id: id, until: asked.Add(leaseTTL * time.Second), holder: holder, mine: mine}
	if changed {
		e.signal()
	}
}

// complete sets the name, version and state of this box in a report.
func (e *presence) complete(r Report) Report {
	state := e.State()
	r.Box, r.Version, r.Format, r.State, r.Since = e.cfg.Box, e.cfg.Version, e.reads, state.Kind, state.Since.UTC().Truncate(time.Second)
	return r
}

// WantSources sets the sources that this box wants to read for the fleet (true) or only to observe (false). It takes effect with the next heartbeat,
// which it triggers: the box takes the turns of the sources that it wants, and gives up others. A turn is an etcd key with the lease of the box. It
// only avoids conflicts: in each commit, the store ensures that only one box changes the objects of a source.
func (e *presence) WantSources(willing map[string]bool) {
	e.mu.Lock()
	same := maps.Equal(e.sources.willing, willing)
	e.sources.willing = maps.Clone(willing)
	e.mu.Unlock()
	if !same {
		wake(e.heartbeatNow)
	}
}

// SourceTurn returns the turn of a source as of the last heartbeat.
func (e *presence) SourceTurn(name string) SourceTurn {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.sources.known[name]
	t.Mine = t.Mine && time.Now().Before(e.lease.until)
	return t
}

// claimSources takes the turns of sources that this box wants and no other box has, and gives up those that it does not want. If able is not set, it
// takes none.
func (e *presence) claimSources(ctx context.Context, lease clientv3.LeaseID, able bool) error {
	e.mu.Lock()
	willing := maps.Clone(e.sources.willing)
	e.mu.Unlock()
	known := make(map[string]SourceTurn, len(willing))
	for name, wants := range willing {
		holder, mine, err := e.claim(ctx, sourceTurnPrefix+name, lease, wants && able)
		if err != nil {
			return err
		}
		known[name] = SourceTurn{Holder: holder, Mine: mine}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, t := range known {
		before, was := e.sources.known[name]
		if t.Holder == "" {
			t.Vacant = before.Vacant
			if t.Vacant.IsZero() {
				t.Vacant = time.Now()
			}
			known[name] = t
		}
		if !was || before.Holder != t.Holder || before.Mine != t.Mine {
			e.signal()
		}
	}
	e.sources.known = known
	return nil
}

// redial opens new connections to etcd if the client certificate file has changed since the last handshake: etcd judges a
// connection by the certificate that it began with, and would refuse calls on it even after the file was corrected.
func (e *presence) redial() {
	last := e.shown.certificate.Load()
	if last == nil || e.client == nil {
		return
	}
	now, err := e.cfg.TLS.GetClientCertificate(&tls.CertificateRequestInfo{})
	if err != nil || len(now.Certificate) == 0 || bytes.Equal(now.Certificate[0], *last) {
		return
	}
	e.cfg.Log.Info("connects to etcd again, with another certificate")
	e.client.SetEndpoints()
	e.client.SetEndpoints(e.cfg.Endpoints...)
}

// handleLeafReport registers a leaf by its report, and writes the report to etcd if it has changed.
func (e *presence) handleLeafReport(ctx context.Context, r *LeafReport) error {
	if err := e.serves(); err != nil {
		return err
	}
	box := r.Report.Box
	e.mu.Lock()
	lease := e.leaves.lease
	e.mu.Unlock()
	if lease == 0 {
		granted, err := e.client.Grant(ctx, leaseTTL)
		if err != nil {
			return e.errUnreachable(err)
		}
		e.mu.Lock()
		if e.leaves.lease == 0 {
			e.leaves.lease = granted.ID
		}
		lease = e.leaves.lease
		e.mu.Unlock()
	}
	mine, _, err := e.claimName(ctx, box, r.Instance, lease, false)
	switch {
	case err != nil:
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			e.loseLeafLease(lease)
		}
		return e.errUnreachable(err)
	case !mine || box == e.cfg.Box:
		return errNamesake
	}
	text, err := json.Marshal(r.Report)
	if err != nil {
		return err
	}
	e.mu.Lock()
	if e.leaves.leaf == nil {
		e.leaves.leaf = map[string]*leaf{}
	}
	is := e.leaves.leaf[box]
	if is == nil {
		is = &leaf{}
		e.leaves.leaf[box] = is
	}
	is.heard = time.Now()
	if r.Node != nil && !bytes.Equal(is.node, r.Node) {
		is.node = r.Node
		e.signal()
	}
	sent := is.sent
	e.mu.Unlock()
	if !r.First && sent == string(text) {
		return nil
	}
	if _, err := e.client.Put(ctx, e.key(boxPrefix+box), string(text)); err != nil {
		return e.errUnreachable(err)
	}
	e.mu.Lock()
	is.sent = string(text)
	e.mu.Unlock()
	return nil
}

// keepLeaves renews the lease that holds the names of the leaves, and drops leaves that have not reported for leaseTTL.
func (e *presence) keepLeaves(ctx context.Context) error {
	e.mu.Lock()
	lease := e.leaves.lease
	var silent []string
	for box, is := range e.leaves.leaf {
		if time.Since(is.heard) > leaseTTL*time.Second {
			silent = append(silent, box)
			delete(e.leaves.leaf, box)
		}
	}
	if len(e.leaves.leaf) == 0 {
		e.leaves.lease = 0 // it ends by itself, with the names that it has
	}
	e.mu.Unlock()
	if lease == 0 {
		return nil
	}
	for _, box := range silent { // unless it reports to another core box
		key := e.key(alivePrefix + box)
		if _, err := e.client.Txn(ctx).If(clientv3.Compare(clientv3.LeaseValue(key), "=", lease)).Then(clientv3.OpDelete(key)).Commit(); err != nil {
			return err
		}
	}
	gone, err := keepLease(ctx, e.client, lease)
	if gone {
		e.loseLeafLease(lease)
	}
	return err
}

// loseLeafLease records that the lease of the leaves' names is gone, so that the next report of a leaf gets another one.
func (e *presence) loseLeafLease(lease clientv3.LeaseID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leaves.lease == lease {
		e.leaves.lease = 0
	}
}

// LeafNodes returns the Node objects of the leaves that follow this box, as JSON, by name.
func (e *presence) LeafNodes() map[string]json.RawMessage {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.leaves.leaf) == 0 {
		return nil
	}
	nodes := map[string]json.RawMessage{}
	for box, is := range e.leaves.leaf {
		if is.node != nil {
			nodes[box] = is.node
		}
	}
	return nodes
}

// State returns the state of this box as a member of its fleet.
func (e *presence) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.state.State
	s.Writer, s.Foreign = e.lease.holder, e.foreignKeys()
	if s.Kind == Following && e.state.differs != "" {
		s.Kind, s.Why = Differs, e.state.differs
	} else if s.Kind == Following && e.state.unreadable != "" {
		s.Kind, s.Why, s.Since = KeyMissing, e.state.unreadable, e.state.unreadableSince
	}
	if e.read != nil {
		s.Revision, s.Epoch = e.read.Revision, e.read.Epoch
	}
	e.replica.mu.Lock()
	s.Replica = e.replica.err
	e.replica.mu.Unlock()
	return s
}
