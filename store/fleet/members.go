package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// A leaf that had to leave a core box goes back to it when that has answered for a while. Without that, a restart of each core box, one
// after the other, would end with all leaves at one of them.

const (
	// probeEvery is the interval at which a leaf asks the core boxes that it prefers to the one that it follows.
	probeEvery = 10 * time.Second
	// returnAfter is how long such a core box has to answer each probe before a leaf goes back, and up to twice as long, by a hash of
	// the name of the leaf: those of one core box do not come back together.
	returnAfter = time.Minute
	// mostReturn bounds that time where it grows, see preference.left.
	mostReturn = time.Hour
	// settled is, in such times, how long a core box has to serve after a return for the next one to be as quick.
	settled = 10
)

// preference decides when a leaf goes back to a core box that it prefers to the one that it asks. Core boxes are numbers, from 0, which
// it prefers most. Times are the caller's.
type preference struct {
	least, most time.Duration // the bounds of the time for which a core box has to answer
	cores       []preferred
}

// preferred is the record of a core box that the leaf prefers.
type preferred struct {
	since time.Time     // since when it has answered each probe; zero: it has not answered the last one
	wait  time.Duration // for how long it has to
	back  time.Time     // when the leaf went back to it; zero: it came here in another way
}

// newPreference returns that of a leaf. The times above are divided by pace.
func newPreference(leaf string, cores int, pace time.Duration) preference {
	sum := sha256.Sum256([]byte(leaf))
	share := float64(binary.BigEndian.Uint32(sum[:])) / (1 << 32)
	least := returnAfter + time.Duration(share*float64(returnAfter))
	p := preference{least: least / pace, most: mostReturn / pace, cores: make([]preferred, cores)}
	for i := range p.cores {
		p.cores[i].wait = p.least
	}
	return p
}

// probed notes whether a core box that the leaf does not follow has answered.
func (p *preference) probed(core int, answered bool, now time.Time) {
	switch c := &p.cores[core]; {
	case !answered:
		c.since = time.Time{}
	case c.since.IsZero():
		c.since = now
	}
}

// better returns the core box to go back to from another one, if there is any.
func (p *preference) better(at int, now time.Time) (core int, is bool) {
	for i := range at {
		if c := &p.cores[i]; !c.since.IsZero() {
			return i, now.Sub(c.since) >= c.wait // not first to one that is preferred less, and then to this one
		}
	}
	return 0, false
}

// returned notes that the leaf went back to a core box.
func (p *preference) returned(core int, now time.Time) {
	p.cores[core].back = now
}

// left notes that a core box does not serve. One that fails soon after the return has to answer for twice as long before the next one.
func (p *preference) left(core int, now time.Time) {
	c := &p.cores[core]
	switch {
	case c.back.IsZero():
	case now.Sub(c.back) < settled*c.wait:
		c.wait = min(2*c.wait, p.most)
	default:
		c.wait = p.least
	}
	c.since, c.back = time.Time{}, time.Time{}
}

// returnUntil has the leaf go back to core boxes that it prefers, until ctx is done. While it follows the first one it does nothing.
func (c *atCore) returnUntil(ctx context.Context) {
	for ctx.Err() == nil {
		c.mu.Lock()
		at, left := c.at, c.left
		c.mu.Unlock()
		if at == 0 {
			select {
			case <-ctx.Done():
			case <-left:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(probeEvery / c.e.cfg.pace()):
		}
		for i := range at {
			answered := c.probe(ctx, c.cores[i])
			c.mu.Lock()
			c.preference.probed(i, answered, time.Now())
			c.mu.Unlock()
		}
		c.goBack(time.Now())
	}
}

// probe reports whether a core box would serve this leaf.
func (c *atCore) probe(ctx context.Context, core string) bool {
	resp, err := c.askOne(ctx, core, http.MethodGet, "/head", nil, nil, coreTimeout)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxCoreAnswer))
	return err == nil
}

// goBack has a core box asked that is preferred, if it is time. The stream of commits goes on there where it stood.
func (c *atCore) goBack(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	core, is := c.preference.better(c.at, now)
	if !is {
		return
	}
	c.e.cfg.Log.Info("goes back to the core box that this leaf prefers", "core", c.cores[core], "from", c.cores[c.at])
	c.preference.returned(core, now)
	c.moveTo(core)
}

// current is the core box that is asked, left is closed when another one is.
func (c *atCore) current() (core string, left <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cores[c.at], c.left
}

// leaveCore has the next core box asked, unless that is so already.
func (c *atCore) leaveCore(core string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.cores) == 1 || c.cores[c.at] != core {
		return
	}
	c.preference.left(c.at, time.Now())
	c.moveTo((c.at + 1) % len(c.cores))
}

// moveTo has another core box asked. c.mu must be held.
func (c *atCore) moveTo(core int) {
	c.at, c.anew, c.told = core, true, nil
	close(c.left)
	c.left = make(chan struct{})
	c.http.CloseIdleConnections()
}

// coreError is the refusal of a core box.
type coreError struct {
	core string
	refusal
}

func (e *coreError) Error() string { return fmt.Sprintf("core box %s says: %s", e.core, e.Message) }

// ask asks the core boxes until one does not refuse for its own state. The body of the answer is the caller's to close; left is
// closed when another core box is asked than the one that it is of.
func (c *atCore) ask(ctx context.Context, method, path string, query url.Values, body []byte, patience time.Duration) (resp *http.Response, left <-chan struct{}, err error) {
	var failed []error
	for range c.cores {
		core, left := c.current()
		resp, err := c.askOne(ctx, core, method, path, query, body, patience)
		if err == nil {
			return resp, left, nil
		}
		if refused := (*coreError)(nil); errors.As(err, &refused) {
			switch refused.Code {
			case http.StatusGone:
				return nil, nil, errForgotten
			case http.StatusPreconditionFailed:
				return nil, nil, errNoSuchCommit
			}
		}
		failed = append(failed, err)
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.leaveCore(core)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, nil, c.verdict(failed)
}

// verdict combines the refusals of all core boxes: the state of one that holds something, which the leaf holds too.
func (c *atCore) verdict(failed []error) error {
	for _, err := range failed {
		var refused *coreError
		if !errors.As(err, &refused) {
			continue
		}
		switch s := (State{Kind: refused.Details.State}); {
		case s.Held(), s.Kind == Lagging:
			return &heldError{s.Kind, err.Error()}
		case s.Kind == Namesake && refused.Code == http.StatusConflict:
			return &heldError{Namesake, fmt.Sprintf("another box of this fleet is named %s: give one of the two another --node-name", c.e.cfg.Box)}
		}
	}
	return errors.Join(failed...)
}

// askOne asks one core box.
func (c *atCore) askOne(ctx context.Context, core, method, path string, query url.Values, body []byte, patience time.Duration) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(patience, func() { cancel(fmt.Errorf("core box %s does not answer", core)) })
	req, err := http.NewRequestWithContext(ctx, method, core+CommitsPath+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := c.http.Do(req)
	if !late.Stop() && err == nil {
		resp.Body.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil && !errors.Is(cause, context.Canceled) {
			err = cause
		}
		cancel(nil)
		return nil, err
	}
	resp.Body = &endsContext{resp.Body, func() { cancel(nil) }}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	refused := &coreError{core: core}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxLeafReport))
	if err != nil || json.Unmarshal(text, &refused.refusal) != nil || refused.Kind != "Status" {
		refused.Message = fmt.Sprintf("%s: is it `svcctl serve --listen` of this version that answers there?", resp.Status)
	}
	if refused.Code = resp.StatusCode; refused.Code == http.StatusUnauthorized || refused.Code == http.StatusForbidden {
		refused.Message += " (the certificate in --core-cert is to be of the CA that core boxes have in --leaf-cacert, and to name this box)"
	}
	return nil, refused
}

// endsContext is a body whose request ends when it is closed.
type endsContext struct {
	io.ReadCloser
	end func()
}

func (b *endsContext) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// get asks for an answer that is no stream.
func (c *atCore) get(ctx context.Context, method, path string, query url.Values, body []byte, v any) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, _, err := c.ask(call, method, path, query, body, coreTimeout)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(io.LimitReader(resp.Body, maxCoreAnswer)).Decode(v)
}

const (
	// rounds bounds how often each endpoint is asked, on average, for a call that its member refuses as it cannot serve it.
	// Calls take the endpoints in turn, and those of other tasks come in between.
	rounds = 4
	// betweenRounds is the wait before members that have refused are asked again: a leader is elected in a second or more.
	betweenRounds = 100 * time.Millisecond
)

// otherMember has a call that one member of etcd cannot serve asked of the next one: a learner serves nothing, and a member that is
// cut off from a majority of the others knows no leader. Without the request for a leader such a member would leave the call
// unanswered until its time is up. Nothing has happened where a call is refused for these reasons.
func otherMember(endpoints int) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) (err error) {
		ctx = clientv3.WithRequireLeader(ctx)
		for n := 1; ; n++ {
			if err = invoke(ctx, method, req, reply, cc, opts...); !isOfMember(err) || n == rounds*endpoints {
				return err
			}
			if n%endpoints != 0 {
				continue
			}
			select {
			case <-ctx.Done():
				return err
			case <-time.After(betweenRounds):
			}
		}
	}
}

// errLearner is the refusal of a member that does not vote yet.
var errLearner = rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner)

// isOfMember reports whether a call was refused for the state of the member that got it.
func isOfMember(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrNoLeader) || errors.Is(err, errLearner) || errors.Is(err, rpctypes.ErrAuthOldRevision)
}

// leaseTimeout bounds one of the questions of keepLease, so that a member that hangs does not use up the time of the beat.
const leaseTimeout = time.Second

// keepLease renews a lease, and asks another member where one does not answer. gone says that etcd does not have it any
// more; with any other error it may go on.
func keepLease(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID) (gone bool, err error) {
	for ctx.Err() == nil {
		ask, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), leaseTimeout)
		_, err = client.KeepAliveOnce(ask, lease)
		silent := ask.Err() != nil
		cancel()
		if !silent && !isOfMember(err) {
			break
		}
		if silent {
			continue
		}
		select { // a refusal comes at once
		case <-ctx.Done():
		case <-time.After(betweenRounds):
		}
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return true, nil
	}
	return false, err
}

// silentFor is the time after which a question that was not answered is asked of another member as well: a member that
// hangs keeps its connections for as long as a keepalive ping and its timeout take.
const silentFor = 700 * time.Millisecond

// ask asks a question that changes nothing, and another member as well where the first one is silent. The first answer is taken, and
// an error when there is none.
func ask[T any](ctx context.Context, question func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithCancel(ctx) // who is late is not waited for
	defer cancel()
	type reply struct {
		value T
		err   error
	}
	replies := make(chan reply, 2)
	put := func() {
		value, err := question(ctx)
		replies <- reply{value, err}
	}
	go put()
	asked := 1
	silent := time.NewTimer(silentFor)
	defer silent.Stop()
	for {
		select {
		case <-silent.C:
			go put()
			asked++
		case r := <-replies:
			if asked--; r.err == nil || asked == 0 {
				return r.value, r.err
			}
		}
	}
}

// renewal is the last time that the watch was begun anew because nothing came.
type renewal struct {
	at       time.Time
	read     int64 // the mod at which the box stood
	patience time.Duration
}

const (
	// leastPatience is the time from which it counts that nothing came on the watch although there is something. It grows fourfold each time
	// that beginning anew was of no use, up to mostPatience: over a slow connection a large commit takes its time.
	leastPatience, mostPatience = 1500 * time.Millisecond, time.Minute
)

// again begins the watch anew, unless what comes may still be under way: the member that serves it may hang.
func (e *Engine) again() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.restart == nil || e.read == nil {
		return
	}
	if e.renewed.due(e.read.mod, time.Now()) {
		e.restart()
	}
}

// due reports whether to begin anew where a box stands at a mod and has something to come.
func (r *renewal) due(read int64, now time.Time) bool {
	switch {
	case read != r.read: // something came
		r.read, r.patience = read, max(r.patience/4, leastPatience)
		if r.patience > leastPatience {
			r.at = now
			return false
		}
	case now.Sub(r.at) < r.patience:
		return false
	default:
		r.patience = min(4*r.patience, mostPatience)
	}
	r.at = now
	return true
}

// rejoin has the watch end at once, so that join looks at what etcd has.
func (e *Engine) rejoin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.restart != nil {
		e.restart()
	}
}

// awaitHead waits until the box stands at a mod of etcd's head, or something else holds.
func (e *Engine) awaitHead(ctx context.Context, mod int64, holds func() bool) error {
	for {
		some, cancel := context.WithTimeout(ctx, leastPatience)
		err := e.wait(some, func() bool { return holds() || e.read.mod >= mod })
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		e.again()
	}
}
