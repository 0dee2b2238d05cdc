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

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store/engine"
)

// member has the configuration of this box in its fleet, and its calls to etcd. It does not change after Open.
type member struct {
	cfg      Config
	client   *clientv3.Client // nil on a leaf
	prefix   string           // prefix of all keys of the fleet in etcd
	origin   origin
	replica  *replica // nil for a command that administers the fleet without being one of its boxes
	instance string   // identifies the data directory
	reads    int      // the newest format that the program reads
	step     func()   // called before and after each call that commits; tests set it
	between  func()   // called by join between reading the settings and the head; tests set it
}

func (e *member) key(key string) string { return e.prefix + key }

// origin is the source of commits that an Engine follows: etcd ([atEtcd]), or on a leaf a core box ([coreClient]).
type origin interface {
	// settings reads the settings of the fleet, and the modification revision of their key, which is 0 on a leaf, as a leaf does not write settings.
	settings(ctx context.Context) (*settings, int64, error)
	// head reads the head as of the etcd revision at (0 means the newest); nil if there is none. It also returns an etcd revision up to which there
	// is no newer head. isCompacted recognizes the error for a revision that is no longer available.
	head(ctx context.Context, at int64) (*head, int64, error)
	// state reads all objects as of one head with a modification revision of at least least. It returns the head, the etcd revision of the read, and
	// the objects.
	state(ctx context.Context, least int64) (now *head, at int64, have map[string][]byte, err error)
	// follow calls use with each transaction after the head read, in order, until ctx is done or a call fails. The caller has all
	// transactions up to the revision watched of etcd.
	follow(ctx context.Context, read *head, watched int64, use func(*transaction) error) error
	boxes(ctx context.Context) ([]Box, error)
	// holders returns, by the name of each source, the box that reads the source for the fleet (has its turn).
	holders(ctx context.Context) (map[string]string, error)
	// refusal returns the reason that this box cannot commit through the origin; nil if it can.
	refusal() error
	// from returns the name of the origin for messages. silence returns the reason why the origin does not answer.
	from() string
	silence(err error) string
	// close ends all connections.
	close() error
}

// atEtcd is the origin of a box that follows etcd itself.
type atEtcd struct{ *member }

func (o atEtcd) head(ctx context.Context, at int64) (*head, int64, error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := ask(call, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return o.client.Get(ctx, o.key(headKey), clientv3.WithRev(at))
	})
	if err != nil {
		return nil, 0, err
	}
	if len(resp.Kvs) == 0 {
		return nil, resp.Header.Revision, nil
	}
	h, err := o.decodeHead(resp.Kvs[0].Value, resp.Kvs[0].ModRevision)
	return h, resp.Header.Revision, err
}

func (o atEtcd) state(ctx context.Context, _ int64) (now *head, at int64, have map[string][]byte, err error) {
	now, at, err = o.head(ctx, 0)
	switch {
	case err != nil:
		return nil, 0, nil, err
	case now == nil:
		return nil, 0, nil, &heldError{Emptied, "etcd has no objects of the fleet any more"}
	}
	have, err = o.objects(ctx, now, at)
	return now, at, have, err
}

func (o atEtcd) follow(ctx context.Context, _ *head, watched int64, use func(*transaction) error) error {
	sharedKeys := o.client.Watch(clientv3.WithRequireLeader(ctx), o.key(fleetKey), clientv3.WithRange(o.key(sharedEnd)), clientv3.WithRev(watched+1))
	for resp := range sharedKeys {
		if err := resp.Err(); err != nil {
			return err
		}
		for _, events := range transactions(resp.Events) {
			it, err := o.decode(events)
			if err == nil {
				err = use(it)
			}
			if err != nil {
				return err
			}
		}
		if err := use(&transaction{watched: resp.Header.Revision}); err != nil {
			return err
		}
	}
	return nil
}

func (o atEtcd) boxes(ctx context.Context) ([]Box, error) {
	reports, present, err := o.reports(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the reports of the boxes: %w", err)
	}
	all := []Box{}
	for _, name := range slices.Sorted(maps.Keys(reports)) {
		b := Box{Present: present[name]}
		if err := json.Unmarshal(reports[name], &b.Report); err != nil || b.Box != name { // somebody else wrote it: the other boxes have theirs
			b.Report = Report{Box: name, State: Following, Failing: fmt.Sprintf("its report cannot be read: remove %s from etcd; a box of that name writes it with its next report", o.key(boxPrefix+name))}
		}
		all = append(all, b)
	}
	return all, nil
}

func (o atEtcd) holders(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := o.client.Get(ctx, o.key(sourceTurnPrefix), clientv3.WithPrefix())
	if err != nil {
		return nil, o.errUnreachable(err)
	}
	holders := make(map[string]string, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		holder, _, _ := strings.Cut(string(kv.Value), " ")
		holders[strings.TrimPrefix(string(kv.Key), o.key(sourceTurnPrefix))] = holder
	}
	return holders, nil
}

func (atEtcd) refusal() error { return nil }

func (atEtcd) from() string { return "etcd" }

func (o atEtcd) silence(err error) string {
	if isDenied(err) {
		return o.denied(err)
	}
	if NoAnswer(err) {
		return "no member of etcd answers: " + o.cfg.Unreached(context.Background())
	}
	return err.Error()
}

func (o atEtcd) close() error { return o.client.Close() }

// decodeHead decodes a head. If its format is newer than this program reads, the error is a heldError.
func (e *member) decodeHead(value []byte, mod int64) (*head, error) {
	h := &head{mod: mod, text: string(value)}
	if err := json.Unmarshal(value, h); err != nil {
		return nil, fmt.Errorf("read the head of the fleet: %w", err)
	}
	if h.Revision == 0 || h.ID == "" {
		return nil, errors.New("read the head of the fleet: it has no revision or no id")
	}
	if h.Format > e.reads {
		return nil, e.tooNew(h.Format)
	}
	return h, nil
}

// tooNew returns the error for a format that is newer than this program reads.
func (e *member) tooNew(format int) error {
	return &heldError{TooNew, fmt.Sprintf("the fleet has format %d, and this version reads up to %d: upgrade this box", format, e.reads)}
}

// askHead reads the newest head, linearizably, and the revision of etcd. The head is nil if there is none.
func (e *member) askHead(ctx context.Context) (*head, int64, error) { return e.origin.head(ctx, 0) }

func (e *member) wentBack(read, now *head) error {
	return &heldError{WentBack, fmt.Sprintf("etcd went back: it has revision %d and this box %d, or another history; as that may be an accident, "+
		"what is in force stays: put etcd's data back, or run `svcctl fleet accept` to take what etcd has", now.Revision, read.Revision)}
}

// settings reads the settings of the fleet and the modification revision of their key.
func (e *member) settings(ctx context.Context) (*settings, int64, error) {
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

// pageSize is the number of objects that are read in one call to etcd.
const pageSize = 500

// objects returns the objects in etcd at a revision (0: the newest), with those in the bundle of the head.
func (e *member) objects(ctx context.Context, now *head, at int64) (map[string][]byte, error) {
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
			if ops[i].Remove {
				delete(have, ops[i].Key)
			} else {
				have[ops[i].Key] = ops[i].Value
			}
		}
	}
	return have, nil
}

// transactions groups consecutive events by their etcd transaction (modification revision).
func transactions(events []*clientv3.Event) (parts [][]*clientv3.Event) {
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Kv.ModRevision == events[0].Kv.ModRevision {
			n++
		}
		parts = append(parts, events[:n])
		events = events[n:]
	}
	return parts
}

// transaction holds the changes of one etcd transaction.
type transaction struct {
	head     *head // nil if the transaction is not a commit
	ops      []operation
	note     []byte
	settings []byte // new settings of the fleet; nil if they are unchanged
	mod      int64  // its revision in etcd
	watched  int64  // all transactions up to this revision have been delivered; 0 means that more may follow
}

// decode decodes the events of one transaction. It leaves out the writes that copy the objects of a bundle to their keys.
func (e *member) decode(events []*clientv3.Event) (*transaction, error) {
	it := &transaction{mod: events[0].Kv.ModRevision}
	for _, event := range events {
		key := strings.TrimPrefix(string(event.Kv.Key), e.prefix)
		switch remove := event.Type == clientv3.EventTypeDelete; {
		case key == fleetKey && !remove:
			it.settings = event.Kv.Value
		case key == headKey && remove:
			return nil, &heldError{Emptied, "the objects of the fleet were removed from etcd"}
		case key == headKey:
			h, err := e.decodeHead(event.Kv.Value, event.Kv.ModRevision)
			if err != nil {
				return nil, err
			}
			it.head, it.note = h, h.Note
		case isContent(key):
			it.ops = append(it.ops, operation{Key: key, Value: event.Kv.Value, Remove: remove})
		}
	}
	return it, nil
}

// compareHead runs operations in one etcd transaction if seen is still the newest head. Otherwise won is false and now is the newest head, or nil if
// there is none or this program cannot read it. If the value of seen is available, it is compared as well, since after a restore etcd may reach the
// same revision with another head.
func (e *member) compareHead(ctx context.Context, seen *head, ops ...clientv3.Op) (won bool, now *head, err error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	same := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(e.key(headKey)), "=", seen.mod)}
	if seen.text != "" {
		same = append(same, clientv3.Compare(clientv3.Value(e.key(headKey)), "=", seen.text))
	}
	e.step()
	resp, err := e.client.Txn(call).If(same...).
		Then(ops...).
		Else(clientv3.OpGet(e.key(headKey))).Commit()
	e.step()
	if err != nil {
		return false, nil, err
	}
	if resp.Succeeded {
		return true, &head{mod: resp.Header.Revision}, nil
	}
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		now, err = e.decodeHead(kvs[0].Value, kvs[0].ModRevision)
		if held := (*heldError)(nil); errors.As(err, &held) {
			return false, nil, nil // the follower reports it
		}
	}
	return false, now, err
}

// putHead writes the head next and its operations if seen is still the newest head; see compareHead.
func (e *member) putHead(ctx context.Context, seen, next *head, ops []operation) (won bool, now *head, err error) {
	value, err := next.encode()
	if err != nil {
		return false, nil, err
	}
	all := make([]clientv3.Op, 0, len(ops)+1)
	for i := range ops {
		all = append(all, e.op(&ops[i]))
	}
	return e.compareHead(ctx, seen, append(all, clientv3.OpPut(e.key(headKey), value))...)
}

// op converts an operation to one of the etcd client.
func (e *member) op(o *operation) clientv3.Op {
	if o.Remove {
		return clientv3.OpDelete(e.key(o.Key))
	}
	return clientv3.OpPut(e.key(o.Key), string(o.Value))
}

// refused converts an error that etcd returned for a commit or a read to an error of package engine. The parameter what begins its text, unless the
// database is full or a permission is missing.
func (e *member) refused(what string, err error) error {
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return fullError{err}
	}
	if isDenied(err) {
		return &engine.AwayError{Why: e.denied(err)}
	}
	return &engine.AwayError{Why: fmt.Sprintf("%s: %v", what, err)}
}

// errUnreachable returns the engine's error for a commit or read that etcd did not answer and that had no effect.
func (e *member) errUnreachable(err error) error {
	if e.client == nil || NoAnswer(err) {
		return &engine.AwayError{Why: e.origin.silence(err)}
	}
	return e.refused("etcd does not answer", err)
}

// denied returns the message for a call that etcd refused for lack of permission. The message ends with what to do next.
func (e *member) denied(err error) string {
	return fmt.Sprintf("etcd refuses this box (%v): give the user that the certificate in --etcd-cert names a role that may read and write %s", err, e.prefix)
}

// claimName takes the name of this box in etcd, unless a process with another data directory has it. A restarted process takes the name over from its
// predecessor, whose lease may not have expired yet. The caller sets named if this process already had the name with its current lease. If the name
// then has another lease, another process uses a copy of the data directory, and copied is set.
func (e *member) claimName(ctx context.Context, box, instance string, lease clientv3.LeaseID, named bool) (mine, copied bool, err error) {
	key := e.key(alivePrefix + box)
	put := clientv3.OpPut(key, instance, clientv3.WithLease(lease))
	resp, err := e.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(put).Else(clientv3.OpGet(key)).Commit()
	if err != nil || resp.Succeeded {
		return true, false, err
	}
	switch kvs := resp.Responses[0].GetResponseRange().Kvs; {
	case len(kvs) == 0:
		return true, false, nil // gone between the two; the next beat takes it
	case string(kvs[0].Value) != instance:
		return false, false, nil
	case kvs[0].Lease != int64(lease) && named:
		return false, true, nil
	case kvs[0].Lease != int64(lease): // of the process before the restart, or of another core box
		_, err = e.client.Do(ctx, put)
	}
	return true, false, err
}

// claim takes a key with the lease of this box if wants is set and no box has the key. If wants is not set, claim gives the key up. It returns the
// name of the box that has the key afterwards.
func (e *member) claim(ctx context.Context, key string, lease clientv3.LeaseID, wants bool) (holder string, mine bool, err error) {
	key = e.key(key)
	me := e.cfg.Box + " " + fmt.Sprint(int64(lease))
	txn := e.client.Txn(ctx)
	if wants {
		txn = txn.If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(clientv3.OpPut(key, me, clientv3.WithLease(lease))).Else(clientv3.OpGet(key))
	} else {
		txn = txn.Then(clientv3.OpGet(key))
	}
	resp, err := txn.Commit()
	switch {
	case err != nil:
		return "", false, err
	case wants && resp.Succeeded:
		return e.cfg.Box, true, nil
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	switch {
	case len(kvs) == 0:
		return "", false, nil
	case string(kvs[0].Value) == me && !wants:
		_, err := e.client.Delete(ctx, key)
		return "", false, err
	}
	holder, _, _ = strings.Cut(string(kvs[0].Value), " ")
	return holder, string(kvs[0].Value) == me, nil
}

// Instance returns the random identifier of this data directory.
func (e *member) Instance() string { return e.instance }

// IsLeaf reports whether this box follows a core box rather than etcd.
func (e *member) IsLeaf() bool { return e.client == nil }

// namesake returns the error for a box that cannot use its name because another box has it.
func (e *member) namesake() *heldError {
	return &heldError{Namesake, fmt.Sprintf("another box of this fleet is named %s: give one of the two another --node-name", e.cfg.Box)}
}

// SourceHolders returns, by the name of each source, the box that reads the source for the fleet (has its turn).
func (e *member) SourceHolders(ctx context.Context) (map[string]string, error) {
	return e.origin.holders(ctx)
}

// Names returns the boxes that ever reported, and those with a valid lease, as of one revision of etcd. It is not for leaves.
func (e *member) Names(ctx context.Context) (reported, present map[string]bool, err error) {
	reports, present, err := e.reports(ctx, clientv3.WithKeysOnly())
	if err != nil {
		return nil, nil, err
	}
	reported = map[string]bool{}
	for box := range reports {
		reported[box] = true
	}
	return reported, present, nil
}

// reports reads the reports of all boxes that ever made one, and the boxes with a valid lease, as of one revision of etcd.
func (e *member) reports(ctx context.Context, options ...clientv3.OpOption) (reports map[string][]byte, present map[string]bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := e.client.Txn(ctx).Then(
		clientv3.OpGet(e.key(boxPrefix), append(options, clientv3.WithPrefix())...),
		clientv3.OpGet(e.key(alivePrefix), clientv3.WithPrefix(), clientv3.WithKeysOnly()),
	).Commit()
	if err != nil {
		return nil, nil, err
	}
	reports, present = map[string][]byte{}, map[string]bool{}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		reports[strings.TrimPrefix(string(kv.Key), e.key(boxPrefix))] = kv.Value
	}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		present[strings.TrimPrefix(string(kv.Key), e.key(alivePrefix))] = true
	}
	return reports, present, nil
}

// Forget removes the report of a box, unless its lease is valid. The box reports again when it comes back.
func (e *member) Forget(ctx context.Context, box string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := e.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(e.key(alivePrefix+box)), "=", 0)).
		Then(clientv3.OpDelete(e.key(boxPrefix + box))).Commit()
	return err
}

// Report is a box's report to the other boxes, stored in etcd.
type Report struct {
	Box     string `json:"box"`
	Zone    string `json:"zone,omitempty"`
	Version string `json:"version"`
	// Accepted is the revision that the box has followed. Programmed is the revision that is in force in its kernel.
	Accepted   uint64 `json:"accepted"`
	Programmed uint64 `json:"programmed"`
	// Problems is the number of errors in the status of the box. Failing is the reason why an accepted change is not in force.
	Problems int `json:"problems,omitempty"`
	// Errors are the first of the errors that Problems counts.
	Errors  []ReportedProblem `json:"errors,omitempty"`
	Failing string            `json:"failing,omitempty"`
	// Format is the newest data format that the version of the box reads; 0 means 1.
	Format int `json:"format,omitempty"`
	// Core is the core box that a leaf follows; "" for a box that follows etcd.
	Core string `json:"core,omitempty"`
	// Sources are the directories of manifests on the box.
	Sources []string `json:"sources,omitempty"`
	// State is the state of the box as a member of its fleet.
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

// Box is a box of the fleet with its last report.
type Box struct {
	Report
	// Present is set while the box has a valid lease, so it is running and reporting.
	Present bool
}

// Boxes returns all boxes that have reported, sorted by name.
func (e *member) Boxes(ctx context.Context) ([]Box, error) {
	all, err := e.origin.boxes(ctx)
	if err != nil && e.client != nil {
		err = e.errUnreachable(err)
	}
	return all, err
}
