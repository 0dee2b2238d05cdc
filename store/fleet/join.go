package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store/engine"
)

// askHead reads the newest head, linearizably, and the revision of etcd. It is nil when there is none.
func (e *Engine) askHead(ctx context.Context) (*head, int64, error) { return e.origin.head(ctx, 0) }

// join makes sure that etcd has the fleet and the history that this box has, and reads what there
// is when it cannot be followed from there. The error says why not.
func (e *Engine) join(ctx context.Context) error {
	if err := e.checkFleet(ctx); err != nil {
		return err
	}
	e.between()
	read := e.stands() // before the question: a commit of this box may land meanwhile
	now, at, err := e.askHead(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	if now != nil {
		e.state.of = now.Revision
	}
	e.mu.Unlock()
	if now == nil {
		return &heldError{Emptied, fmt.Sprintf("etcd has no objects of fleet %s any more; what is in force stays: restore etcd's data, or run `svcctl fleet restore DIR`", e.cfg.Fleet)}
	}
	if read == nil {
		return e.reload(ctx)
	}
	if now.Epoch > read.Epoch && now.Revision > read.Revision { // somebody has said that it is to be believed
		return e.reload(ctx)
	}
	if now.Revision < read.Revision || now.mod < read.mod || now.Epoch < read.Epoch {
		return e.wentBack(read, now)
	}
	if now.mod == read.mod {
		if now.ID != read.ID {
			return e.wentBack(read, now)
		}
		e.mu.Lock()
		if e.known = max(e.known, at); e.read == read {
			e.read = now // with its text, which the replica does not have
		}
		e.mu.Unlock()
		return nil
	}
	return e.checkHistory(ctx, read, now)
}

// stands is the head that this box stands at.
func (e *Engine) stands() *head {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.read
}

// checkHistory makes sure that the head that this box stands at is one that etcd had.
func (e *Engine) checkHistory(ctx context.Context, read, now *head) error {
	was, _, err := e.origin.head(ctx, read.mod)
	switch {
	case isCompacted(err):
		return e.reload(ctx)
	case err != nil:
		return err
	case was == nil || was.ID != read.ID:
		return e.wentBack(read, now)
	}
	e.mu.Lock()
	e.known = max(e.known, read.mod)
	e.mu.Unlock()
	return nil
}

// isCompacted reports whether etcd, or a core box, does not know any more.
func isCompacted(err error) bool {
	return errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, errForgotten)
}

func (e *Engine) wentBack(read, now *head) error {
	return &heldError{WentBack, fmt.Sprintf("etcd went back: it has revision %d and this box %d, or another history; as that may be an accident, "+
		"what is in force stays: put etcd's data back, or run `svcctl fleet accept` to take what etcd has", now.Revision, read.Revision)}
}

// checkFleet makes sure that it is the fleet that this box belongs to, and that the settings agree.
func (e *Engine) checkFleet(ctx context.Context) error {
	s, err := e.origin.settings(ctx)
	if err == nil {
		err = e.fits(s)
	}
	if err != nil {
		return err
	}
	e.agreeOn(s)
	return nil
}

// settings reads those of the fleet, with the modification revision of the key.
func (e *Engine) settings(ctx context.Context) (*settings, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := ask(ctx, func(ctx context.Context) (*clientv3.GetResponse, error) { return e.client.Get(ctx, e.key(fleetKey)) })
	if err != nil {
		return nil, 0, err
	}
	if len(resp.Kvs) == 0 {
		return nil, 0, &heldError{Emptied, fmt.Sprintf("etcd has no fleet %s: make it with `svcctl fleet init`, or put etcd's data back", e.cfg.Fleet)}
	}
	s, err := decodeSettings(resp.Kvs[0].Value)
	return s, resp.Kvs[0].ModRevision, err
}

func decodeSettings(value []byte) (*settings, error) {
	s := &settings{}
	if err := json.Unmarshal(value, s); err != nil {
		return nil, fmt.Errorf("read the settings of the fleet: %w", err)
	}
	return s, nil
}

// fits returns an error when this box cannot follow a fleet with these settings.
func (e *Engine) fits(s *settings) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.fleetID != "" && s.ID != e.fleetID:
		return &heldError{OtherOne, fmt.Sprintf("etcd has another fleet of the name %s than the one that this box belongs to; what is in force stays: "+
			"correct --etcd, or give this box an empty --data-dir to join that fleet", e.cfg.Fleet)}
	case s.Format > e.reads:
		return e.tooNew(s.Format)
	}
	return nil
}

// tooNew is the error for a format that this program does not read.
func (e *Engine) tooNew(format int) error {
	return &heldError{TooNew, fmt.Sprintf("the fleet has format %d, and this version reads up to %d: upgrade this box", format, e.reads)}
}

// agreeOn takes the settings of the fleet, which fit.
func (e *Engine) agreeOn(s *settings) {
	e.mu.Lock()
	defer e.mu.Unlock()
	raised := e.format != 0 && e.format < s.Format
	e.fleetID, e.format, e.agreed, e.state.differs = s.ID, s.Format, s.Settings, ""
	if !agree(s.Settings, e.cfg.Settings) {
		e.state.differs = fmt.Sprintf("the settings of this box are not those of its fleet: %s; it forwards as the fleet says and writes nothing: "+
			"give it the flags of the fleet, which `svcctl fleet status` lists, and restart it", differences(e.cfg.Settings, s.Settings, e.cfg.Flags))
	}
	if raised {
		e.cfg.Log.Info("the fleet has a newer format", "fleet", e.cfg.Fleet, "format", s.Format)
		e.enqueue(engine.Followed{Again: true})
	}
}

// takeSettings takes settings of the fleet that have changed.
func (e *Engine) takeSettings(value []byte) error {
	s, err := decodeSettings(value)
	if err != nil || s.Settings == nil {
		return err
	}
	if err := e.fits(s); err != nil {
		return err
	}
	e.agreeOn(s)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leaves.addSettings(value)
	return nil
}

// reload reads all objects as of one revision, and gives the store the difference.
func (e *Engine) reload(ctx context.Context) error {
	read := e.stands()
	now, at, have, err := e.origin.state(ctx)
	switch {
	case err != nil:
		return err
	case read != nil && (now.Revision < read.Revision || now.Epoch < read.Epoch):
		return e.wentBack(read, now)
	}
	return e.replace(now, at, have)
}

// objects returns the objects in etcd at a revision, 0: the newest; with the bundle of the head at that
// revision.
func (e *Engine) objects(ctx context.Context, now *head, at int64) (map[string][]byte, error) {
	have := map[string][]byte{}
	for from := e.key(objectPrefix); from != ""; {
		call, cancel := context.WithTimeout(ctx, 4*callTimeout)
		resp, err := e.client.Get(call, from, clientv3.WithRange(e.key(sharedEnd)), clientv3.WithRev(at), clientv3.WithLimit(pageSize))
		cancel()
		if err != nil {
			return nil, err
		}
		from = ""
		for _, kv := range resp.Kvs {
			have[strings.TrimPrefix(string(kv.Key), e.prefix)] = kv.Value
			from = string(kv.Key) + "\x00"
		}
		if at == 0 {
			at = resp.Header.Revision // the pages are of one state
		}
		if !resp.More {
			break
		}
	}
	if now.Bundle != "" {
		_, ops, err := e.readBundle(ctx, now, at)
		if err != nil {
			return nil, err
		}
		for i := range ops {
			if ops[i].remove {
				delete(have, ops[i].key)
			} else {
				have[ops[i].key] = ops[i].value
			}
		}
	}
	return have, nil
}

// replace makes objects that were read as a whole the state, if they fit the head.
func (e *Engine) replace(now *head, at int64, have map[string][]byte) error {
	fresh := newContent()
	for key, value := range have {
		fresh.put(key, value)
	}
	if len(have) != now.Objects || fresh.digest != now.Digest {
		return &heldError{Damaged, fmt.Sprintf("the %d records that etcd has are not the %d that the newest commit left; what is in force stays: "+
			"find out who else writes below svcctl/%s/; then put back what was there with `svcctl fleet restore` of the data directory of a box that is stopped, or take what etcd has with `svcctl fleet accept`",
			len(have), now.Objects, e.cfg.Fleet)}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.read != nil && (now.mod < e.read.mod && now.Epoch <= e.read.Epoch) {
		return errOvertaken // by a commit of this box
	}
	var ops []operation
	for key, value := range have {
		if err := e.readable([]operation{{key: key}}); err != nil {
			return err
		}
		if e.content.sums[key] != fresh.sums[key] {
			ops = append(ops, operation{key: key, value: value})
		}
	}
	for key := range e.content.sums {
		if _, there := have[key]; !there {
			ops = append(ops, operation{key: key, remove: true})
		}
	}
	if e.read != nil && len(ops) > 0 && now.Revision <= e.read.Revision { // other objects at the same revision
		return e.wentBack(e.read, now)
	}
	f, first := followed(ops, now, nil), e.read == nil
	if !first {
		f = e.unsealed(f) // before the replica has it
	}
	e.content, e.read, e.known, e.foreign = fresh, now, at, nil
	e.keep(ops, now)
	e.leaves.drop()
	if first {
		e.taken, e.published = now.mod, now.mod
		return e.replica.flush() // the store opens on it
	}
	f.Reload = true
	e.enqueue(f)
	return nil
}
