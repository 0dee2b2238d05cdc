package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store/engine"
)

// ErrExists means that etcd has a fleet of that name already.
var ErrExists = errors.New("etcd has a fleet of that name already")

// Init creates a fleet in etcd. If from is not empty, it is the data directory of a stopped box, and its objects become the objects of the fleet with
// their revisions, UIDs and addresses. Init returns the number of objects, of all kinds, in the new fleet.
func Init(ctx context.Context, cfg Config, from string) (objects int, err error) {
	revision := uint64(max(0, time.Now().Unix())) << 20 // as a store of one box begins
	ops, first := objectsOf(cfg.First)
	revision = max(revision, first)
	if from != "" {
		if ops, revision, err = cfg.readDirectory(from); err != nil {
			return 0, err
		}
		if ops, err = cfg.restored(ops, nil); err != nil {
			return 0, err
		}
	}
	e, err := cfg.visit()
	if err != nil {
		return 0, err
	}
	defer e.client.Close()
	begin := &head{Revision: revision, ID: newID(), Box: cfg.Box, standing: standing{Format: format}}
	value, err := begin.encode()
	if err != nil {
		return 0, err
	}
	fleet, err := json.Marshal(settings{ID: newID(), Format: format})
	if err != nil {
		return 0, err
	}
	ask, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := e.client.Txn(ask).
		If(clientv3.Compare(clientv3.CreateRevision(e.key(fleetKey)), "=", 0), clientv3.Compare(clientv3.CreateRevision(e.key(headKey)), "=", 0)).
		Then(clientv3.OpPut(e.key(fleetKey), string(fleet)), clientv3.OpPut(e.key(headKey), value)).Commit()
	switch {
	case err != nil:
		return 0, fmt.Errorf("make fleet %s: %w", cfg.Fleet, err)
	case !resp.Succeeded:
		return 0, ErrExists
	}
	begin.mod = resp.Header.Revision
	if len(ops) == 0 {
		return 0, nil
	}
	// An empty fleet becomes this one by one put of its head.
	next := begin.next(cfg.Box)
	next.Revision = revision
	next.Objects, next.Digest = newContent().after(ops)
	if err := e.flip(ctx, begin, next, ops); err != nil {
		return 0, fmt.Errorf("bring the objects of %s into fleet %s: %w", from, cfg.Fleet, err)
	}
	return countObjects(ops), nil
}

// visit returns a member without a replica, for a command that acts on the fleet without being one of its boxes. The caller closes its
// client.
func (c *Config) visit() (*member, error) {
	client, err := c.dial()
	if err != nil {
		return nil, err
	}
	e := &member{cfg: *c, client: client, prefix: c.prefix(), reads: format, step: func() {}}
	e.origin = atEtcd{e}
	return e, nil
}

// objectsOf returns operations that put the objects among pairs, and the revision of the head.
func objectsOf(pairs []engine.Pair) (ops []operation, revision uint64) {
	for _, p := range pairs {
		switch {
		case p.Key == headKey:
			revision = p.Revision
		case isShared(p.Key):
			ops = append(ops, operation{Key: p.Key, Value: p.Value})
		}
	}
	return ops, revision
}

// countObjects returns the number of API objects that operations put. It does not count the files of sources, shared keys and the
// like, which head.Objects includes.
func countObjects(ops []operation) (objects int) {
	for i := range ops {
		if !ops[i].Remove && strings.HasPrefix(ops[i].Key, objectPrefix) {
			objects++
		}
	}
	return objects
}

// flip commits operations as a bundle, even if they would fit into one request, and applies the bundle.
func (e *member) flip(ctx context.Context, seen, next *head, ops []operation) error {
	var err error
	if next.Bundle, next.Parts, err = e.writeBundle(ctx, seen, nil, ops); err != nil {
		return err
	}
	won, now, err := e.putHead(ctx, seen, next, nil)
	switch {
	case err != nil:
		return err
	case !won:
		return errOvertaken
	}
	next.mod = now.mod
	return e.applyBundleOf(ctx, next)
}

// inDirectory calls do with the file of a data directory, and the revision in it. No other process may have the directory open; it may belong to any
// user.
func (c *Config) inDirectory(dir string, do func(file *engine.File, revision uint64) error) error {
	return engine.AsOwner(dir, func() (err error) {
		file, err := engine.OpenFile(dir, c.DataKey)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		heads, err := file.Load(headKey)
		if err != nil {
			return err
		}
		if len(heads) == 0 {
			return fmt.Errorf("%s has no objects of svcctl", dir)
		}
		return do(file, heads[0].Revision)
	})
}

// readDirectory returns the objects in a data directory, and its revision.
func (c *Config) readDirectory(dir string) (ops []operation, revision uint64, err error) {
	err = c.inDirectory(dir, func(file *engine.File, at uint64) error {
		revision = at
		pairs, err := file.Load(objectPrefix)
		for _, p := range pairs {
			value := p.Value
			if c.Import != nil && !engine.IsSealed(value) { // a sealed value comes from a fleet
				if value, err = c.Import(p.Key, p.Value); err != nil {
					return err
				}
			}
			if value != nil {
				if value, err = c.seal(p.Key, value); err != nil {
					return err
				}
				ops = append(ops, operation{Key: p.Key, Value: value})
			}
		}
		for _, prefix := range contentPrefixes[1:] {
			if prefix == rolloutPrefix {
				continue // what it has changed is in force then, and it is over
			}
			others, loadErr := file.Load(prefix)
			err = errors.Join(err, loadErr)
			for _, p := range others {
				ops = append(ops, operation{Key: p.Key, Value: p.Value}) // see restored
			}
		}
		return err
	})
	return ops, revision, err
}

// above returns a revision and an epoch greater than those given and than any that other boxes can have
// seen. Both begin with the Unix time: the revision with 2^20 for each second, as a fleet makes fewer
// changes than that.
func above(revision, epoch uint64) (uint64, uint64) {
	now := uint64(max(0, time.Now().Unix()))
	return max(revision, now<<20) + 1, max(epoch+1, now)
}

// Overview describes a fleet as read from etcd.
type Overview struct {
	ID string
	// Format is the format version of the fleet's data, and Newest the newest one that this program writes.
	Format, Newest int
	Revision       uint64
	Epoch          uint64
	Objects        int // number of objects of all kinds
	Settings       json.RawMessage
	Writer         string
	Boxes          []Box
	Members        []Member
}

// Member is the state of one etcd member.
type Member struct {
	Endpoint, Version string
	// Size is the size of its database, in bytes.
	Size   int64
	Leader bool
	// Alarms are the etcd alarms of the member, such as NOSPACE (the database is full).
	Alarms []string
	Err    error
}

// Look reads the Overview of a fleet from etcd. The caller need not be a box of the fleet.
func Look(ctx context.Context, cfg Config) (*Overview, error) {
	e, err := cfg.visit()
	if err != nil {
		return nil, err
	}
	defer e.client.Close()
	o := &Overview{}
	for _, endpoint := range cfg.Endpoints {
		o.Members = append(o.Members, e.member(ctx, endpoint))
	}
	ask, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := e.client.Txn(ask).Then(clientv3.OpGet(e.key(fleetKey)), clientv3.OpGet(e.key(headKey)), clientv3.OpGet(e.key(turnKey)),
		clientv3.OpGet(e.key(objectPrefix), clientv3.WithPrefix(), clientv3.WithCountOnly())).Commit()
	if err != nil {
		return o, fmt.Errorf("read fleet %s: %w", cfg.Fleet, err)
	}
	var s settings
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) == 0 {
		return o, fmt.Errorf("etcd has no fleet %s: make it with `svcctl fleet init`", cfg.Fleet)
	} else if err := json.Unmarshal(kvs[0].Value, &s); err != nil {
		return o, fmt.Errorf("read the settings of the fleet: %w", err)
	}
	o.ID, o.Format, o.Newest, o.Settings = s.ID, s.Format, format, s.Settings
	if kvs := resp.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
		h, err := e.decodeHead(kvs[0].Value, kvs[0].ModRevision)
		if err != nil {
			return o, err
		}
		o.Revision, o.Epoch, o.Objects = h.Revision, h.Epoch, int(resp.Responses[3].GetResponseRange().Count)
	}
	if kvs := resp.Responses[2].GetResponseRange().Kvs; len(kvs) > 0 {
		fmt.Sscan(string(kvs[0].Value), &o.Writer) // nothing: nobody
	}
	o.Boxes, err = e.origin.boxes(ctx)
	return o, err
}

// member reads the status and alarms of one etcd endpoint.
func (e *member) member(ctx context.Context, endpoint string) Member {
	ask, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := e.client.Status(ask, endpoint)
	if NoAnswer(err) {
		err = errors.New(e.cfg.checkReach(ctx, endpoint))
	}
	if err != nil {
		return Member{Endpoint: endpoint, Err: err}
	}
	m := Member{Endpoint: endpoint, Version: resp.Version, Size: resp.DbSize, Leader: resp.Leader == resp.Header.MemberId}
	for _, alarm := range resp.Errors { // each ends with a blank
		m.Alarms = append(m.Alarms, strings.TrimSpace(alarm))
	}
	return m
}

// Backup writes all objects of a fleet to a new data directory that a single box can use, with the fleet's sources, trial and shared
// keys. It returns the number of objects, of all kinds.
func Backup(ctx context.Context, cfg Config, dir string) (revision uint64, objects int, err error) {
	e, err := cfg.visit()
	if err != nil {
		return 0, 0, err
	}
	defer e.client.Close()
	now, at, err := e.askHead(ctx)
	if err != nil {
		return 0, 0, e.errUnreachable(err)
	}
	if now == nil {
		return 0, 0, fmt.Errorf("etcd has no fleet %s", cfg.Fleet)
	}
	have, err := e.objects(ctx, now, at)
	if err != nil {
		return 0, 0, err
	}
	pairs := []engine.Pair{{Key: headKey, Revision: now.Revision}}
	for key, value := range have {
		if strings.HasPrefix(key, objectPrefix) {
			objects++
		}
		pairs = append(pairs, engine.Pair{Key: key, Value: value, Revision: now.Revision})
	}
	if len(have) != now.Objects || contentOf(have).digest != now.Digest {
		return 0, 0, fmt.Errorf("the %d records that etcd has are not the %d that the newest commit left: nothing is written", len(have), now.Objects)
	}
	err = engine.AsOwner(dir, func() error {
		file, err := engine.OpenFile(dir, cfg.DataKey)
		if err != nil {
			return err
		}
		err = file.Commit(engine.Transaction{CompareKey: headKey, Puts: pairs})
		if errors.Is(err, engine.ErrConflict) {
			err = fmt.Errorf("%s has objects already: give a directory that is new", dir)
		}
		return errors.Join(err, file.Close())
	})
	return now.Revision, objects, err
}

// Restore replaces the objects of a fleet by those of a data directory or backup. It uses a revision greater than all in etcd, and a new epoch, so
// that boxes with a different history accept the content. It returns the number of objects, of all kinds, in the fleet.
func Restore(ctx context.Context, cfg Config, from string) (objects int, err error) {
	ops, revision, err := cfg.readDirectory(from)
	if err != nil {
		return 0, err
	}
	e, err := cfg.visit()
	if err != nil {
		return 0, err
	}
	defer e.client.Close()
	fleet, _, err := e.settings(ctx)
	if held := (*heldError)(nil); errors.As(err, &held) {
		return 0, fmt.Errorf("etcd has no fleet %s: bring the objects in with `svcctl fleet init --from %s`", cfg.Fleet, from)
	}
	if err != nil {
		return 0, e.errUnreachable(err)
	}
	if fleet.Format < sealedFormat && slices.ContainsFunc(ops, func(op operation) bool { return engine.IsSealed(op.Value) }) {
		return 0, fmt.Errorf("%s has Secrets, and the fleet has format %d, which has none: run `svcctl fleet upgrade` first", from, fleet.Format)
	}
	ops = slices.DeleteFunc(ops, func(op operation) bool { // format 1 has no trials, and all before 3 no shared keys
		_, _, shared := splitKey(op.Key)
		return shared && fleet.Format < accessFormat || strings.HasPrefix(op.Key, trialPrefix) && fleet.Format < sealedFormat
	})
	for range restoreTries {
		objects, err = e.makeEqual(ctx, ops, revision)
		if !errors.Is(err, errOvertaken) {
			return objects, err
		}
	}
	return 0, fmt.Errorf("the fleet was changed while it was compared with %s, %d times: nothing is restored; stop what writes to it all the time, and run it again", from, restoreTries)
}

// restoreTries bounds the attempts of a restore while boxes commit changes.
const restoreTries = 5

// makeEqual commits the difference that makes the content of etcd equal to ops, the content of a data directory at a revision. It returns
// the number of objects.
func (e *member) makeEqual(ctx context.Context, ops []operation, revision uint64) (objects int, err error) {
	now, have, content, err := e.everything(ctx)
	if err != nil {
		return 0, err
	}
	if ops, err = e.cfg.restored(ops, have); err != nil {
		return 0, err
	}
	objects = countObjects(ops)
	keep := map[string]bool{}
	for i := range ops {
		keep[ops[i].Key] = true
	}
	for key := range have {
		if !keep[key] {
			ops = append(ops, operation{Key: key, Remove: true})
		}
	}
	next := now.next(e.cfg.Box)
	next.Revision, next.Epoch = above(max(revision, now.Revision), now.Epoch)
	next.Objects, next.Digest = content.after(ops)
	return objects, e.flip(ctx, now, next, ops)
}

// restored returns what etcd is to hold after a restore: ops, the content of a data directory, with the records of sources and trials merged with
// those in etcd (have). If the fleet has a CA, it keeps that one. The token key is left out, which invalidates all tokens: the directory lacks the
// revocations made after it was written.
func (c *Config) restored(ops []operation, have map[string][]byte) (all []operation, err error) {
	from := map[string][]byte{}
	hasCA := false
	for key, value := range have {
		switch {
		case isNamed(key, CAKey):
			hasCA = true
			all = append(all, operation{Key: key, Value: value})
		case strings.HasPrefix(key, sourcePrefix) || strings.HasPrefix(key, trialPrefix):
			from[key] = nil
		}
	}
	for _, op := range ops {
		switch {
		case strings.HasPrefix(op.Key, sourcePrefix) || strings.HasPrefix(op.Key, trialPrefix):
			if from[op.Key] = op.Value; op.Value == nil {
				from[op.Key] = []byte{} // an object that was not there before a trial
			}
		case isNamed(op.Key, TokenKey) || isNamed(op.Key, CAKey) && hasCA:
		default:
			all = append(all, op)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(from)) {
		value := from[key]
		if c.Restored != nil {
			if value, err = c.Restored(key, value, have[key]); err != nil {
				return nil, fmt.Errorf("%s: %w; nothing is changed", key, err)
			}
		}
		if value != nil {
			if len(value) > 0 { // an empty value: there was no object
				if value, err = c.seal(key, value); err != nil {
					return nil, err
				}
			}
			all = append(all, operation{Key: key, Value: value})
		}
	}
	return all, nil
}

// everything reads the newest head and all objects in etcd. A bundle that is not applied yet is applied first.
func (e *member) everything(ctx context.Context) (now *head, have map[string][]byte, c *content, err error) {
	for now == nil || now.Bundle != "" {
		if err = e.applyBundleOf(ctx, now); err == nil { // now is nil in the first round
			now, _, err = e.askHead(ctx)
		}
		switch {
		case err != nil:
			return nil, nil, nil, e.errUnreachable(err)
		case now == nil:
			return nil, nil, nil, fmt.Errorf("etcd has no objects of fleet %s", e.cfg.Fleet)
		}
	}
	if have, err = e.objects(ctx, now, 0); err != nil {
		return nil, nil, nil, err
	}
	return now, have, contentOf(have), nil
}
