package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// beatEvery is the interval at which etcd is asked for the head. A silent watch looks the same
	// whether nothing happens or the box is cut off: only an answer tells them apart.
	beatEvery = 2 * time.Second
	// beatTimeout bounds such a question.
	beatTimeout = 2 * time.Second
	// missedBeats is the number of missing answers from which the box counts as cut off. One is missed
	// whenever etcd elects a leader.
	missedBeats = 2
	// sweepEvery is the interval at which the box that has the turn looks for the remains of large commits
	// that failed.
	sweepEvery = 5 * time.Minute
	// leaseTTL is the time, in seconds, for which a silent box keeps its name and its turn.
	leaseTTL = 6
)

// turn has the box's own lease, and the holder of the turn.
type turn struct {
	lease  clientv3.LeaseID // 0: none
	until  time.Time        // before which the lease is ours for certain
	holder string
	mine   bool
}

// Report is a box's report to the others.
type Report struct {
	Box     string `json:"box"`
	Zone    string `json:"zone,omitempty"`
	Version string `json:"version"`
	// Accepted is the revision that the box has followed, Programmed the one that is in its kernel.
	Accepted   uint64 `json:"accepted"`
	Programmed uint64 `json:"programmed"`
	// Problems counts the errors of its status, Failing says why what it accepted is not in force.
	Problems int `json:"problems,omitempty"`
	// Errors are those of them that others have to know, some of them if there are many.
	Errors  []ReportedProblem `json:"errors,omitempty"`
	Failing string            `json:"failing,omitempty"`
	// Format is the newest one that its version reads; 0: 1.
	Format int `json:"format,omitempty"`
	// Core is the box that a leaf follows; "": etcd.
	Core string `json:"core,omitempty"`
	// Sources are the directories of manifests that it has.
	Sources []string `json:"sources,omitempty"`
	// State is its state as a member of the fleet.
	State Kind      `json:"state"`
	Since time.Time `json:"since"`
}

// ReportedProblem is a problem in a Report.
type ReportedProblem struct {
	Object  string `json:"object,omitempty"` // "Service default/web"
	Field   string `json:"field,omitempty"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// ReportAs has the box tell the others of itself, when what report gives has changed.
func (e *Engine) ReportAs(report func() Report) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.report = report
}

// HasTurn reports whether this box runs what one box of the fleet runs. It only saves work: two boxes
// that believe it lose races to each other.
func (e *Engine) HasTurn() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.turn.mine && time.Now().Before(e.turn.until)
}

func (e *Engine) beatUntil(ctx context.Context) {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	var b beats
	for {
		b.beat(ctx, e)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.nudged:
		}
	}
}

// beats are the answers of late.
type beats struct {
	missed int
	behind int64  // the mod that was read at the last beat that found a newer head; 0: none
	told   string // the last report
	swept  time.Time
	named  clientv3.LeaseID // by which the name was taken; 0: none
}

// beat asks etcd for the head once, and renews what this box holds.
func (b *beats) beat(ctx context.Context, e *Engine) {
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
			e.showAnother()
		}
		return
	}
	b.missed = 0
	e.heard(now)
	switch {
	case now == nil || now.mod < read: // join says what that means
		e.rejoin()
	case now.mod == read:
		b.behind = 0
		e.caughtUp(read, at)
	case b.behind != 0 && b.behind == read:
		e.note(&heldError{Lagging, fmt.Sprintf("this box lags: etcd has revision %d, and nothing came since the one before; it is asked for again", now.Revision)})
		e.again()
	default:
		b.behind = read
	}
	e.reopenKeys()
	if err := e.reopenShut(ctx); err != nil {
		e.cfg.Log.Debug("Secrets that can be read now are asked for again", "err", err)
	}
	err = e.origin.renew(ctx, b)
	if err != nil {
		e.cfg.Log.Debug("this box is not announced to its fleet", "err", err)
	}
	if e.client != nil {
		e.noteUntold(err)
	}
}

// heard notes an answer.
func (e *Engine) heard(now *head) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state.heard, e.silent = time.Now(), silence{}
	if now != nil {
		e.state.of = now.Revision
	}
	if e.state.kind == CutOff && e.restart != nil {
		e.restart()
	}
}

// caughtUp notes that there was no newer head at a revision of etcd.
func (e *Engine) caughtUp(read, at int64) {
	e.mu.Lock()
	lagged := e.state.kind == Lagging
	if e.read != nil && e.read.mod == read {
		e.known = max(e.known, at)
	}
	e.mu.Unlock()
	if lagged {
		e.note(nil)
	}
}

// stumbled notes that following has failed. While etcd elects a leader that is no news: the beat tells.
func (e *Engine) stumbled(err error) {
	e.mu.Lock()
	recent := time.Since(e.state.heard) < missedBeats*beatEvery+beatTimeout && e.state.kind == Following
	e.mu.Unlock()
	if held := (*heldError)(nil); recent && !errors.As(err, &held) {
		e.cfg.Log.Debug("the watch of the fleet begins anew", "err", err)
		return
	}
	e.note(err)
}

// renew keeps the lease of this box, its name, its turn and its report.
func (o atEtcd) renew(ctx context.Context, b *beats) error {
	e := o.e
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	e.mu.Lock()
	lease, following, report := e.turn.lease, e.state.refusal() == nil, e.report
	e.mu.Unlock()
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
		e.note(&heldError{Namesake, fmt.Sprintf("another box of this fleet is named %s and has a copy of this data directory: stop one of the two, and start it with another --node-name and an empty --data-dir", e.cfg.Box)})
		return nil
	case !mine:
		e.note(&heldError{Namesake, fmt.Sprintf("another box of this fleet is named %s: give one of the two another --node-name", e.cfg.Box)})
		return nil
	}
	b.named = lease
	e.mu.Lock()
	freed := e.state.kind == Namesake
	e.mu.Unlock()
	if freed { // the other one has gone
		e.note(nil)
	}
	if err := errors.Join(e.claimTurn(ctx, lease, asked, following), e.claimSources(ctx, lease, following), e.keepLeaves(ctx)); err != nil {
		return err
	}
	if e.HasTurn() && asked.Sub(b.swept) > sweepEvery {
		b.swept = asked
		if err := e.sweep(ctx); err != nil {
			return err
		}
	}
	if report == nil {
		return nil
	}
	return b.tell(ctx, e, report())
}

// claimName takes the name of a box, unless a process with another data directory has it. A process that is started anew takes it from
// the one before, whose lease may go on for a while. named says that the process had the name by this very lease: then another one,
// with a copy of the data directory, has taken it.
func (e *Engine) claimName(ctx context.Context, box, instance string, lease clientv3.LeaseID, named bool) (mine, copied bool, err error) {
	key := e.key(alivePrefix + box)
	put := clientv3.OpPut(key, instance, clientv3.WithLease(lease))
	resp, err := e.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(put).Else(clientv3.OpGet(key)).Commit()
	if err != nil || resp.Succeeded {
		return true, false, err
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	switch {
	case len(kvs) == 0:
		return true, false, nil // gone between the two; the next beat takes it
	case string(kvs[0].Value) != instance:
		return false, false, nil
	case kvs[0].Lease != int64(lease) && named:
		return false, true, nil
	case kvs[0].Lease != int64(lease): // of before it was started anew, or at another core box
		_, err = e.client.Do(ctx, put)
	}
	return true, false, err
}

// claimTurn takes the turn of the writer if it is free.
func (e *Engine) claimTurn(ctx context.Context, lease clientv3.LeaseID, asked time.Time, willing bool) error {
	holder, mine, err := e.claim(ctx, turnKey, lease, willing)
	if err != nil && willing {
		return err
	}
	e.noteTurn(lease, asked, holder, mine)
	return err
}

func (e *Engine) noteTurn(lease clientv3.LeaseID, asked time.Time, holder string, mine bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	changed := e.turn.mine != mine
	e.turn = turn{lease: lease, until: asked.Add(leaseTTL * time.Second), holder: holder, mine: mine}
	if changed {
		e.signal()
	}
}

// tell writes the report of this box, if it is another one than before.
func (b *beats) tell(ctx context.Context, e *Engine, r Report) error {
	text, err := json.Marshal(e.complete(r))
	if err != nil || string(text) == b.told {
		return err
	}
	if _, err := e.client.Put(ctx, e.key(boxPrefix+e.cfg.Box), string(text)); err != nil {
		return err
	}
	b.told = string(text)
	return nil
}

// complete adds to a report of this box what the Engine knows.
func (e *Engine) complete(r Report) Report {
	state := e.State()
	r.Box, r.Version, r.Format, r.State, r.Since = e.cfg.Box, e.cfg.Version, e.reads, state.Kind, state.Since.UTC().Truncate(time.Second)
	return r
}

// Box is one box of the fleet.
type Box struct {
	Report
	// Present is set while the box reports.
	Present bool
}

// Boxes returns all boxes that have reported, sorted by name.
func (e *Engine) Boxes(ctx context.Context) ([]Box, error) {
	all, err := e.origin.boxes(ctx)
	if err != nil && e.client != nil {
		err = e.away(err)
	}
	return all, err
}

func boxes(ctx context.Context, client *clientv3.Client, prefix string) ([]Box, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := client.Txn(ctx).Then(
		clientv3.OpGet(prefix+boxPrefix, clientv3.WithPrefix()), clientv3.OpGet(prefix+alivePrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly()),
	).Commit()
	if err != nil {
		return nil, fmt.Errorf("read the reports of the boxes: %w", err)
	}
	present := map[string]bool{}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		present[strings.TrimPrefix(string(kv.Key), prefix+alivePrefix)] = true
	}
	all := []Box{}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		var b Box
		name := strings.TrimPrefix(string(kv.Key), prefix+boxPrefix)
		if err := json.Unmarshal(kv.Value, &b.Report); err != nil || b.Box != name { // somebody else wrote it: the other boxes have theirs
			b.Report = Report{Box: name, State: Following, Failing: fmt.Sprintf("its report cannot be read: remove %s from etcd; a box of that name writes it with its next report", kv.Key)}
		}
		b.Present = present[name]
		all = append(all, b)
	}
	return all, nil
}
