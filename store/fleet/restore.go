package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/engine"
)

// Restore makes the objects of a data directory, or of a backup, those of the fleet, at a revision above all
// that etcd has. Boxes that stand at another history believe it. It gives the number of objects, of all kinds, that the fleet has then.
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
		return 0, e.away(err)
	}
	if fleet.Format < sealedFormat && slices.ContainsFunc(ops, func(op operation) bool { return engine.IsSealed(op.value) }) {
		return 0, fmt.Errorf("%s has Secrets, and the fleet has format %d, which has none: run `svcctl fleet upgrade` first", from, fleet.Format)
	}
	ops = slices.DeleteFunc(ops, func(op operation) bool { // format 1 has no trials, and all before 3 no shared keys
		_, _, shared := splitKey(op.key)
		return shared && fleet.Format < accessFormat || strings.HasPrefix(op.key, trialPrefix) && fleet.Format < sealedFormat
	})
	for range restoreTries {
		objects, err = e.makeEqual(ctx, ops, revision)
		if !errors.Is(err, errOvertaken) {
			return objects, err
		}
	}
	return 0, fmt.Errorf("the fleet was changed while it was compared with %s, %d times: nothing is restored; stop what writes to it all the time, and run it again", from, restoreTries)
}

// restoreTries bounds how often the fleet is compared with what is restored, when a box commits something meanwhile.
const restoreTries = 5

// makeEqual makes what etcd has equal to the operations of a directory, which was at a revision.
func (e *Engine) makeEqual(ctx context.Context, ops []operation, revision uint64) (objects int, err error) {
	e.content = newContent() // of an earlier try
	now, have, err := e.everything(ctx)
	if err != nil {
		return 0, err
	}
	if ops, err = e.cfg.restored(ops, have); err != nil {
		return 0, err
	}
	objects = countObjects(ops)
	keep := map[string]bool{}
	for i := range ops {
		keep[ops[i].key] = true
	}
	for key := range have {
		if !keep[key] {
			ops = append(ops, operation{key: key, remove: true})
		}
	}
	next := &head{ID: newID(), Previous: now.ID, Box: e.cfg.Box, Format: now.Format}
	next.Revision, next.Epoch = above(max(revision, now.Revision), now.Epoch)
	next.Objects, next.Digest = e.content.after(ops)
	return objects, e.flip(ctx, now, next, ops)
}

// restored gives what is not of objects its place: beside what etcd has, if that is something. The CA of the fleet
// stays, and all tokens end, as nobody knows which were revoked since.
func (c *Config) restored(ops []operation, have map[string][]byte) (all []operation, err error) {
	from := map[string][]byte{}
	hasCA := false
	for key, value := range have {
		switch {
		case isNamed(key, CAKey):
			hasCA = true
			all = append(all, operation{key: key, value: value})
		case strings.HasPrefix(key, sourcePrefix) || strings.HasPrefix(key, trialPrefix):
			from[key] = nil
		}
	}
	for _, op := range ops {
		switch {
		case strings.HasPrefix(op.key, sourcePrefix) || strings.HasPrefix(op.key, trialPrefix):
			if from[op.key] = op.value; op.value == nil {
				from[op.key] = []byte{} // an object that was not there before a trial
			}
		case isNamed(op.key, TokenKey) || isNamed(op.key, CAKey) && hasCA:
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
			if len(value) > 0 { // else it says that nothing was there
				if value, err = c.seal(key, value); err != nil {
					return nil, err
				}
			}
			all = append(all, operation{key: key, value: value})
		}
	}
	return all, nil
}

// everything reads the head and all objects that etcd has, after what large commits have left was unfolded.
func (e *Engine) everything(ctx context.Context) (now *head, have map[string][]byte, err error) {
	if now, _, err = e.askHead(ctx); err != nil {
		return nil, nil, e.away(err)
	}
	if now == nil {
		return nil, nil, fmt.Errorf("etcd has no objects of fleet %s", e.cfg.Fleet)
	}
	if now.Bundle != "" {
		if err := e.unfoldHead(ctx, now); err != nil {
			return nil, nil, err
		}
		if now, _, err = e.askHead(ctx); err != nil {
			return nil, nil, err
		}
	}
	if have, err = e.objects(ctx, now, 0); err != nil {
		return nil, nil, err
	}
	for key, value := range have {
		e.content.put(key, value)
	}
	return now, have, nil
}
