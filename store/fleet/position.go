package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet/stream"
)

// position holds the state of this box and its position in the history of its fleet. The structs that embed it use its lock.
type position struct {
	member
	arrived chan struct{} // has a value when there may be commits for the store to follow

	mu      sync.Mutex
	changed chan struct{} // closed and replaced by signal
	content *content
	// read is the newest head that was followed or committed; nil if there is none yet.
	read *head
	// watched is the etcd revision up to which this box has seen all heads.
	watched  int64
	agreed   settings // settings of the fleet; zero until they are read
	inflight *inflightCommit
	inbox    inbox
	feed     leafFeed
	state    state
}

// inbox holds the commits of other boxes that the store has not followed yet.
type inbox struct {
	queue []engine.Followed
	// taken is the modification revision of the newest head that was passed to the store. published is that of the newest head that readers of the
	// store see.
	taken, published int64
	busy             bool // the store was given commits and has not called Published yet
}

// inflightCommit is a commit of this box that was sent to etcd and is pending.
type inflightCommit struct {
	id   string
	ops  []operation
	note []byte
	// landed is the head of the commit once it took place; nil while the outcome is unknown.
	landed *head
}

// newestRead returns the newest head that this box has followed or committed.
func (e *position) newestRead() *head {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.read
}

// wait waits until holds returns true or ctx is done. It calls holds with e.mu held.
func (e *position) wait(ctx context.Context, holds func() bool) error {
	for {
		e.mu.Lock()
		done, changed := holds(), e.changed
		e.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// signal wakes all callers of wait. e.mu must be held.
func (e *position) signal() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// enqueue queues a commit for the store. e.mu must be held.
func (e *position) enqueue(f engine.Followed) {
	e.inbox.queue = append(e.inbox.queue, f)
	e.signal()
	wake(e.arrived)
}

// idle marks the newest head as followed and published by the store, if the store has nothing left to follow. This is necessary for heads without
// changes, which are not queued for the store.
func (e *position) idle() {
	if !e.inbox.busy && len(e.inbox.queue) == 0 && e.read != nil {
		e.inbox.taken, e.inbox.published = e.read.mod, e.read.mod
	}
}

// followed converts a commit of another box to the form that the store follows.
func followed(ops []operation, h *head, note []byte) engine.Followed {
	f := engine.Followed{Revision: h.Revision, Note: note}
	for i := range ops {
		if ops[i].Remove {
			f.Deletes = append(f.Deletes, ops[i].Key)
		} else {
			f.Puts = append(f.Puts, engine.Pair{Key: ops[i].Key, Value: ops[i].Value, Revision: h.Revision})
		}
	}
	return f
}

// Keep implements engine.Shared.
func (e *position) Keep(t engine.Transaction) {
	e.replica.remove(t.Deletes...)
	e.replica.put(t.Puts...)
}

// Arrived implements engine.Shared.
func (e *position) Arrived() <-chan struct{} { return e.arrived }

// Follow implements engine.Shared.
func (e *position) Follow() []engine.Followed {
	e.mu.Lock()
	defer e.mu.Unlock()
	queue := e.inbox.queue
	e.inbox.queue = nil
	if len(queue) > 0 {
		e.inbox.busy, e.inbox.taken = true, e.read.mod
		e.signal()
	}
	return queue
}

// Published implements engine.Shared.
func (e *position) Published() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inbox.busy, e.inbox.published = false, e.inbox.taken
	e.idle()
	e.signal()
}

// Refuse implements engine.Shared.
func (e *position) Refuse(why error) {
	e.note(&heldError{TooNew, fmt.Sprintf("a commit of the fleet cannot be read by this version: %v; upgrade this box", why)})
}

// keep queues for the replica the operations of a commit, together with the position of the commit's head h. e.mu must be held.
func (e *position) keep(ops []operation, h *head) {
	// A cursor always has a form as JSON.
	_ = e.replica.stand(ops, cursor{e.agreed.ID, h.mod, h.ID, h.standing}, h.Revision)
}

// note sets the state from the result of a join or a watch; nil is success.
func (e *position) note(err error) {
	kind, why := Following, ""
	if held, is := err.(*heldError); is { //nolint:errorlint // it is never wrapped
		kind, why = held.kind, held.why
	} else if err != nil {
		kind, why = CutOff, e.origin.silence(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state.Kind == TooNew && kind != TooNew {
		return // until a newer program starts
	}
	switch {
	case err == nil && e.state.namesake != "": // the join of a box whose name another one has
		kind, why = Namesake, e.state.namesake
	case err != nil && e.read == nil:
		kind, why = Waiting, fmt.Sprintf("this box has no replica and waits for %s: %s; what the kernel has stays in force", e.origin.from(), why)
	case kind == CutOff:
		why = fmt.Sprintf("this box is cut off from %s: %s; what is in force stays, and nothing can be changed", e.origin.from(), why)
	}
	before := e.state.Kind
	if before != kind {
		e.state.Since = time.Now()
	}
	other := before != kind || kind == Waiting && why != e.state.Why || !e.state.Asked
	e.state.Kind, e.state.Why, e.state.Asked = kind, why, true
	if kind != CutOff {
		e.state.Answered, e.state.silent = time.Now(), silence{}
	}
	if other {
		e.signal()
		e.feed.drop() // they ask another core box, or get the state of this one
		if kind == Following {
			e.cfg.Log.Info("follows the fleet", "fleet", e.cfg.Fleet, "revision", e.read.Revision)
		} else {
			e.cfg.Log.Warn("does not follow the fleet", "fleet", e.cfg.Fleet, "state", kind, "why", why)
		}
	}
}

// noteReport sets the state from the result of writing the report to etcd. A missing answer is left to the heartbeat.
func (e *position) noteReport(err error) {
	why := ""
	if err != nil && !NoAnswer(err) {
		why = "etcd does not take the report of this box, and others see an old one: " + e.errUnreachable(err).Error()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if why != e.state.Unreported {
		e.state.Unreported = why
		e.signal()
	}
}

// Changes returns a channel that is closed with the next change of the State, or the next commit that was followed.
func (e *position) Changes() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

// caughtUp records that this box had all commits as of an etcd revision (at), at which the newest head had the modification revision read. It records
// nothing if the newest head of this box has another modification revision. It also ends the state Lagging.
func (e *position) caughtUp(read, at int64) {
	e.mu.Lock()
	if e.read != nil && e.read.mod == read {
		e.watched = max(e.watched, at)
	}
	e.mu.Unlock()
	e.ended(Lagging)
}

// ended records that the reason of a state is gone, if this box is in that state.
func (e *position) ended(of Kind) {
	e.mu.Lock()
	is := e.state.Kind == of
	e.mu.Unlock()
	if is {
		e.note(nil)
	}
}

// noteWatchError sets the state after the watch has failed. If heartbeats were answered recently, it leaves the state unchanged, as etcd may be
// electing a leader.
func (e *position) noteWatchError(err error) {
	e.mu.Lock()
	recent := time.Since(e.state.Answered) < missedBeats*beatEvery+beatTimeout && e.state.Kind == Following
	e.mu.Unlock()
	if held := (*heldError)(nil); recent && !errors.As(err, &held) {
		e.cfg.Log.Debug("the watch of the fleet is restarted", "err", err)
		return
	}
	e.note(err)
}

// fits returns an error if this box cannot follow a fleet with these settings: it is another fleet, or too new.
func (e *position) fits(s *settings) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.agreed.ID != "" && s.ID != e.agreed.ID:
		return &heldError{OtherOne, fmt.Sprintf("etcd has another fleet of the name %s than the one that this box belongs to; what is in force stays: "+
			"correct --etcd, or give this box an empty --data-dir to join that fleet", e.cfg.Fleet)}
	case s.Format > e.reads:
		return e.tooNew(s.Format)
	}
	return nil
}

// agreeOn stores the settings of the fleet after fits has accepted them, and records which of them differ from those of this box.
func (e *position) agreeOn(s *settings) {
	e.mu.Lock()
	defer e.mu.Unlock()
	raised := e.agreed.Format != 0 && e.agreed.Format < s.Format
	e.agreed, e.state.differs = *s, ""
	if !agree(s.Settings, e.cfg.Settings) {
		e.state.differs = fmt.Sprintf("the settings of this box are not those of its fleet: %s; it forwards as the fleet is configured and writes nothing: "+
			"give it the flags of the fleet, which `svcctl fleet status` lists, and restart it", differences(e.cfg.Settings, s.Settings, e.cfg.Flags))
	}
	if raised {
		e.cfg.Log.Info("the fleet has a newer format", "fleet", e.cfg.Fleet, "format", s.Format)
		e.enqueue(engine.Followed{Again: true})
	}
}

// applySettings handles a change of the fleet's settings.
func (e *position) applySettings(value []byte) error {
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
	if e.feed.log != nil {
		e.feed.log.Add(&stream.Commit{Kind: stream.Settings, Head: value}, "")
	}
	return nil
}

// readable returns an error if this program cannot read a commit. Such a commit is not written to the replica, which has to be
// readable at the next start.
func (e *position) readable(ops []operation) error {
	for i := range ops {
		if e.cfg.Readable != nil && !ops[i].Remove && !e.cfg.Readable(ops[i].Key) {
			return &heldError{TooNew, fmt.Sprintf("a newer version of svcctl has written %s, which this one cannot read: upgrade this box; what is in force stays", ops[i].Key)}
		}
	}
	return nil
}

// serves returns the reason that this box serves no leaves now, nil if it does.
func (e *position) serves() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.origin.refusal(); err != nil {
		return err
	}
	if e.state.Kind != Following {
		return &heldError{e.state.Kind, e.state.Why}
	}
	return nil
}

// newest waits until this box has followed all commits made before the call.
func (e *position) newest(ctx context.Context) error {
	if err := e.serves(); err != nil {
		return err
	}
	now, _, err := e.askHead(ctx)
	switch {
	case err != nil:
		return err
	case now == nil:
		return &heldError{Emptied, "etcd has no objects of the fleet"}
	}
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	if err := e.wait(ctx, func() bool { return e.read.mod >= now.mod || e.state.Kind != Following }); err != nil {
		return fmt.Errorf("revision %d of etcd has not come yet", now.Revision)
	}
	return e.serves()
}

// Tries implements engine.Shared.
func (e *position) Tries() error { return e.needsFormat(sealedFormat, "trials") }

// Rolls implements engine.Shared.
func (e *position) Rolls() error { return e.needsFormat(rolloutFormat, "rollouts") }

func (e *position) needsFormat(least int, of string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return needsFormat(e.agreed.Format, least, of)
}

// leafFeed has the log of commits for leaves. It exists while a leaf follows this box.
type leafFeed struct {
	log     *stream.Log  // nil while no leaf follows this box
	limit   atomic.Int64 // maximum size of the log, in bytes; 0 means stream.DefaultLimit; set by tests
	readers int
}

// newLog returns an empty log of the commits after a position, for leaves.
func (l *leafFeed) newLog(at stream.Position) *stream.Log {
	return stream.NewLog(at, cmp.Or(int(l.limit.Load()), stream.DefaultLimit))
}

// add appends a commit to the log, if there is one. position.mu must be held.
func (l *leafFeed) add(h *head, ops []operation, note []byte) {
	if l.log == nil {
		return
	}
	c := &stream.Commit{Kind: stream.Change, Mod: h.mod, Head: []byte(h.text), Ops: ops}
	if h.Note == nil {
		c.Note = note
	}
	l.log.Add(c, h.ID)
}

// drop ends the streams of all leaves, because the next commit does not follow on the last one in the log. position.mu must be held.
func (l *leafFeed) drop() {
	if l.log != nil {
		l.log.Close(errDropped)
		l.log = nil
	}
}

// The keys of a fleet in etcd, without the prefix of the fleet, and prefixes of keys.
const (
	fleetKey         = "fleet"
	headKey          = "head"
	objectPrefix     = "object/"
	sealedPrefix     = "sealed/" // followed by NAME/ID, see SharedKey
	sourcePrefix     = "source/"
	trialPrefix      = "trial/"
	rolloutPrefix    = "rollout/"
	sharedEnd        = "trial0" // the first key after the range of keys that boxes share
	bundlePrefix     = "bundle/"
	alivePrefix      = "alive/"
	boxPrefix        = "box/"
	turnKey          = "turn/writer"
	sourceTurnPrefix = "turn/source/"
)

// format is the newest data format of a fleet that this program reads, and the format of fleets that it creates. All boxes of a fleet have to read
// the fleet's format; Upgrade raises it.
const format = rolloutFormat

// These are the data formats of a fleet, each with what it adds to the previous one. Format 1 has objects and sources.
const (
	sealedFormat  = 2 // adds encrypted Secrets, and trials
	accessFormat  = 3 // adds the encrypted shared keys for tokens and the CA; heads contain their format
	rolloutFormat = 4 // adds rollouts, which an older program would ignore: it would apply a change before its step
)

// needsFormat returns an error if a fleet has a lower format than a feature needs.
func needsFormat(format, least int, feature string) error {
	if format >= least {
		return nil
	}
	return &engine.AwayError{Why: fmt.Sprintf("the fleet has format %d, which has no %s: run `svcctl fleet upgrade` when all boxes have a version that reads format %d", format, feature, least)}
}

// contentPrefixes are the prefixes of the keys that the digest of the head covers.
var contentPrefixes = []string{objectPrefix, rolloutPrefix, sealedPrefix, sourcePrefix, trialPrefix}

// isShared reports whether a key is in etcd, common to all boxes.
func isShared(key string) bool { return key == headKey || isContent(key) }

// isContent reports whether the digest of the head covers a key.
func isContent(key string) bool {
	return slices.ContainsFunc(contentPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// operation puts or removes one key. A commit has at most one operation for each key.
type operation = stream.Op

// sum is a checksum of a key and its value, or the XOR of the checksums of all such pairs.
type sum [16]byte

func sumOf(key string, value []byte) sum {
	h := sha256.New()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(key)))) // writes to a hash never fail
	h.Write([]byte(key))
	h.Write(value)
	return sum(h.Sum(nil)[:len(sum{})])
}

func (s *sum) toggle(other sum) {
	for i := range s {
		s[i] ^= other[i]
	}
}

// MarshalText implements encoding.TextMarshaler.
func (s sum) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(s[:])), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *sum) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(s) {
		return fmt.Errorf("%q is no digest", text)
	}
	copy(s[:], b)
	return nil
}

// content has the checksum of each object, by key, and the digest of all of them.
type content struct {
	sums   map[string]sum
	digest sum
}

func newContent() *content { return &content{sums: map[string]sum{}} }

func contentOf(objects map[string][]byte) *content {
	c := newContent()
	for key, value := range objects {
		c.put(key, value)
	}
	return c
}

func (c *content) put(key string, value []byte) {
	c.delete(key)
	s := sumOf(key, value)
	c.sums[key] = s
	c.digest.toggle(s)
}

func (c *content) delete(key string) {
	if s, has := c.sums[key]; has {
		c.digest.toggle(s)
		delete(c.sums, key)
	}
}

// after returns the number of objects and the digest that the content would have after some operations. The content itself does not change.
func (c *content) after(ops []operation) (objects int, digest sum) {
	objects, digest = len(c.sums), c.digest
	for i := range ops {
		if before, had := c.sums[ops[i].Key]; had {
			digest.toggle(before)
			objects--
		}
		if !ops[i].Remove {
			digest.toggle(sumOf(ops[i].Key, ops[i].Value))
			objects++
		}
	}
	return objects, digest
}

func (c *content) apply(ops []operation) {
	for i := range ops {
		if ops[i].Remove {
			c.delete(ops[i].Key)
		} else {
			c.put(ops[i].Key, ops[i].Value)
		}
	}
}

// head is the value of the head key in etcd. Each commit replaces the head, after comparing it with the previous one, so that the heads determine the
// order of commits.
type head struct {
	Revision uint64 `json:"revision"`
	ID       string `json:"id"`
	// Previous is the ID of the previous head.
	Previous string `json:"previous,omitempty"`
	Box      string `json:"box"`
	standing
	// Note is the store's description of the commit. If the commit has a bundle, its note is in the bundle instead.
	Note json.RawMessage `json:"note,omitempty"`

	mod int64 // the modification revision of the key
	// text is the value of the key as it was read or written, "" if it is not known.
	text string
}

// standing is the part of a head that describes the objects after its commit. A replica has it in its cursor.
type standing struct {
	// Epoch increases each time an operator declares the content of etcd valid.
	Epoch uint64 `json:"epoch,omitempty"`
	// Objects is the number of all objects after this commit, and Digest is their digest.
	Objects int `json:"objects"`
	Digest  sum `json:"digest"`
	// Bundle is the name of the bundle with the operations of this commit, "" if there is none. Parts is the number of its parts.
	Bundle string `json:"bundle,omitempty"`
	Parts  int    `json:"parts,omitempty"`
	// Format is the data format of the fleet; 0 means a format below 3. A program that cannot read the format commits no head after this one.
	Format int `json:"format,omitempty"`
}

func (h *head) encode() (string, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return "", fmt.Errorf("encode the head of the fleet: %w", err)
	}
	h.text = string(text)
	return h.text, nil
}

// next returns a head that follows h, for a commit by a box. It still has the number and the digest of the objects of h.
func (h *head) next(box string) *head {
	n := *h
	n.Revision, n.ID, n.Previous, n.Box, n.Note = h.Revision+1, newID(), h.ID, box, nil
	return &n
}

// newID returns a random identifier.
func newID() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// settings is the JSON value of fleetKey.
type settings struct {
	ID     string `json:"id"`
	Format int    `json:"format"`
	// Settings are the settings that must be the same on all boxes; nil until the first box has joined.
	Settings json.RawMessage `json:"settings,omitempty"`
}

func decodeSettings(value []byte) (*settings, error) {
	s := &settings{}
	if err := json.Unmarshal(value, s); err != nil {
		return nil, fmt.Errorf("read the settings of the fleet: %w", err)
	}
	return s, nil
}
