package fleet

import (
	"cmp"
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

// Upgrade raises the data format of a fleet to the newest one that this program reads, and returns the formats before and after. It fails, and
// changes nothing, if a box does not read that format according to its last report, even if that box is away. The boxes listed in without need not
// read it; each must have reported once and be stopped now. If one comes back with an old version, it does not follow the fleet, and reports that.
func Upgrade(ctx context.Context, cfg Config, without []string) (from, to int, err error) {
	e, err := cfg.visit()
	if err != nil {
		return 0, 0, err
	}
	defer e.client.Close()
	s, mod, err := e.settings(ctx)
	if err != nil {
		return 0, 0, err
	}
	all, err := e.origin.boxes(ctx)
	if err != nil {
		return 0, 0, err
	}
	if s.Format >= format {
		return s.Format, s.Format, nil
	}
	if err := understand(all, without); err != nil {
		return s.Format, s.Format, err
	}
	from = s.Format
	s.Format = format
	for began := time.Now(); ; {
		switch raised, err := e.raise(ctx, s, mod); {
		case err != nil:
			return from, from, fmt.Errorf("raise the format of fleet %s: %w", cfg.Fleet, err)
		case raised:
			return from, format, nil
		case time.Since(began) > settleTimeout:
			return from, from, fmt.Errorf("raise the format of fleet %s: boxes change something all the time: try again", cfg.Fleet)
		}
		if _, is, err := e.settings(ctx); err != nil || is != mod {
			return from, from, errors.Join(err, errors.New("the settings of the fleet were changed at the same moment: try again"))
		}
	}
}

// raise writes settings with a newer format and a head of that format in one etcd transaction, if the settings in etcd still have the modification
// revision mod. A concurrent commit of a box then fails, and a box that reads the old settings but the new head finds the new format in the head.
func (e *member) raise(ctx context.Context, s *settings, mod int64) (raised bool, err error) {
	now, _, err := e.askHead(ctx)
	if err != nil {
		return false, err
	}
	if now == nil {
		return false, errors.New("etcd has no objects of the fleet")
	}
	if now.Bundle != "" {
		return false, e.applyBundleOf(ctx, now)
	}
	next := now.next(e.cfg.Box)
	next.Format = s.Format
	of, err := json.Marshal(s)
	if err != nil {
		return false, err
	}
	value, err := next.encode()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := e.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(e.key(fleetKey)), "=", mod), clientv3.Compare(clientv3.ModRevision(e.key(headKey)), "=", now.mod)).
		Then(clientv3.OpPut(e.key(fleetKey), string(of)), clientv3.OpPut(e.key(headKey), value)).Commit()
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}

// understand returns an error with the names of the boxes that do not read the newest format, except the boxes listed in without. It also returns an
// error if one of the listed boxes is running or has never reported.
func understand(all []Box, without []string) error {
	var old []string
	named := map[string]bool{}
	for _, b := range all {
		named[b.Box] = true
		left := slices.Contains(without, b.Box)
		switch reads := cmp.Or(b.Format, 1); {
		case left && b.Present:
			return fmt.Errorf("box %s reports, and cannot be left out: stop it first", b.Box)
		case left || reads >= format:
		case b.Present:
			old = append(old, fmt.Sprintf("%s (version %s reads up to format %d)", b.Box, b.Version, reads))
		default:
			old = append(old, fmt.Sprintf("%s (away; version %s read up to format %d)", b.Box, b.Version, reads))
		}
	}
	for _, box := range without {
		if !named[box] {
			return fmt.Errorf("no box %s has ever reported: `svcctl fleet status` names them", box)
		}
	}
	if len(old) > 0 {
		return fmt.Errorf("format %d is too new for %s: install this version there and start it, or leave a box out that is gone for good with --without; nothing is changed",
			format, strings.Join(old, ", "))
	}
	return nil
}

// Reseal encrypts all Secrets and shared keys of a fleet with the first key of the key file, in one commit. It returns their number (all), and how
// many were encrypted with another key before (changed).
func Reseal(ctx context.Context, cfg Config) (all, changed int, err error) {
	e, err := cfg.visit()
	if err != nil {
		return 0, 0, err
	}
	defer e.client.Close()
	fleet, _, err := e.settings(ctx)
	if err == nil {
		err = cfg.sealing(fleet.Format)
	}
	if err != nil {
		return 0, 0, err
	}
	now, have, content, err := e.everything(ctx)
	if err != nil {
		return 0, 0, err
	}
	var ops []operation
	for _, key := range slices.Sorted(maps.Keys(have)) {
		if !engine.IsSealed(have[key]) {
			continue
		}
		all++
		value, err := cfg.Keys.Open(key, have[key])
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w; nothing is changed", key, err)
		}
		if cfg.Keys.Sealed(have[key]) {
			continue
		}
		if value, err = cfg.Keys.Seal(key, value); err != nil {
			return 0, 0, err
		}
		ops = append(ops, operation{Key: key, Value: value})
	}
	if len(ops) == 0 {
		return all, 0, nil
	}
	next := now.next(cfg.Box)
	next.Objects, next.Digest = content.after(ops)
	err = e.flip(ctx, now, next, ops)
	if errors.Is(err, errOvertaken) {
		err = errors.New("a box has changed something at the same moment, and nothing was sealed: try again")
	}
	return all, len(ops), err
}

// OpenSecrets decrypts the Secrets in the data directory of a box that has left its fleet, so that `svcctl serve` without --fleet can use the
// directory. No process may have it open. OpenSecrets returns the number of Secrets.
func OpenSecrets(cfg Config, dir string) (opened int, err error) {
	err = cfg.inDirectory(dir, func(file *engine.File, revision uint64) error {
		out := engine.Transaction{CompareKey: headKey, CompareRevision: revision}
		shared, err := file.Load(sealedPrefix)
		if err != nil {
			return err
		}
		for _, p := range shared { // the fleet's
			out.Deletes = append(out.Deletes, p.Key)
		}
		for _, prefix := range []string{objectPrefix, trialPrefix, rolloutPrefix} {
			pairs, err := file.Load(prefix)
			if err != nil {
				return err
			}
			for _, p := range pairs {
				if !cfg.Secret(p.Key) || !engine.IsSealed(p.Value) {
					continue
				}
				if p.Value, err = cfg.Keys.Open(p.Key, p.Value); err != nil {
					return fmt.Errorf("%s: %w; nothing is changed", p.Key, err)
				}
				out.Puts = append(out.Puts, p)
			}
		}
		if opened = len(out.Puts); opened+len(out.Deletes) == 0 {
			return nil
		}
		return file.Commit(out)
	})
	return opened, err
}
