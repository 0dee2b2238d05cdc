package conntrack

import (
	"cmp"
	"context"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
)

// Retry gives clients another endpoint when theirs is silent. The kernel sends all that a client
// repeats of its SYN to the endpoint that the first one went to. Retry forgets such a connection
// when nothing came back within the time that its Service sets; the next SYN is a first packet then.
//
// The age of an entry is not in the table, as each SYN restarts its timeout. So Retry
// remembers when it saw an entry first: by then it had been there for up to one pause between
// looks. It looks while there is a frontend that asks for it, and not otherwise.
//
// An answer that comes between the look and the deletion is lost: its connection is balanced again
// too, and breaks. So the time is to be longer than any endpoint takes for its answer.
type Retry struct {
	log   *slog.Logger
	table table
	wake  chan struct{} // holds one

	mu      sync.Mutex
	asked   expirySet
	retried uint64
	err     error

	// Of Run alone: when the entries that were there at the last look were seen first, and of the
	// look that is under way.
	seen, seeing map[attempt]time.Time
}

// attempt is an entry. The kernel may give a later connection of the same client the same id.
type attempt struct {
	id       uint32
	endpoint netip.AddrPort
}

const (
	// mostAttempts bounds the remembered entries, some 5 MB. Others wait until there is room.
	mostAttempts = 1 << 16
	// longestPause bounds the pause between two looks.
	longestPause = 2 * time.Second
)

// NewRetry returns a Retry without frontends.
func NewRetry(options Options) *Retry {
	options.Log = cmp.Or(options.Log, slog.Default())
	return newRetry(&kernelTable{netns: options.NetNS}, options.Log)
}

func newRetry(table table, log *slog.Logger) *Retry {
	return &Retry{log: log, table: table, wake: make(chan struct{}, 1), asked: newExpirySet()}
}

// Retrying is the time after which connections to some ports are balanced again; 0: never.
type Retrying struct {
	After time.Duration
	Ports []nft.ServicePort
}

// Update takes the box, if it changed, and the Services that changed.
func (r *Retry) Update(box *nft.Box, changes map[string]Retrying) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if box != nil {
		r.asked.nodePorts = addressSet(box.NodePortAddresses)
	}
	before := r.asked.any()
	for name := range changes {
		r.asked.drop(name)
	}
	for name, c := range changes {
		for i := range c.Ports {
			r.asked.add(name, &c.Ports[i], c.After)
		}
	}
	if r.asked.any() != before {
		task.Wake(r.wake)
	}
}

// Retried counts the connections that were forgotten.
func (r *Retry) Retried() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.retried
}

// Err returns the error that keeps connections from being forgotten, nil when there is none.
func (r *Retry) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Run works until ctx is done. What fails is tried again. After a look it rests, so that looks
// through a large table keep no more than a twentieth of a CPU busy.
func (r *Retry) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return r.table.close()
		case <-r.wake:
		case <-timer.C:
		}
		queries, pause := r.queries()
		if len(queries) == 0 {
			r.seen = nil
			timer.Stop()
			if err := r.table.close(); err != nil {
				r.log.Debug("close the connection tracking table", "err", err)
			}
			continue
		}
		start := time.Now()
		if err := r.scan(ctx, queries); err != nil {
			pause = idleRetry
		}
		timer.Reset(max(pause, RestFor*time.Since(start)))
	}
}

// queries cover the frontends, and pause is how long to wait after them.
func (r *Retry) queries() (queries []query, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	shortest := longestPause
	for _, after := range r.asked.times {
		shortest = min(shortest, after/2)
	}
	return queriesOf(r.asked.times, true), shortest
}

// scan deletes the entries that are due.
func (r *Retry) scan(ctx context.Context, queries []query) (err error) {
	r.seeing = make(map[attempt]time.Time, len(r.seen))
	var total tally
	for _, q := range queries {
		if ctx.Err() != nil {
			return nil
		}
		var done tally
		done, err = r.table.deleteMatching(q, r.selectRetries)
		total.add(done)
		if err != nil {
			break
		}
	}
	if err == nil {
		r.seen = r.seeing
	}
	r.mu.Lock()
	r.retried += uint64(total.forgotten)
	before := r.err
	r.err = err
	r.mu.Unlock()
	switch {
	case err != nil && before == nil:
		r.log.Warn("clients stay with endpoints that do not answer; it is tried again", "err", err, "retry", idleRetry)
	case err == nil && before != nil:
		r.log.Info("clients of endpoints that do not answer get another one again")
	}
	return err
}

func (r *Retry) selectRetries(entries []entry, verdicts []verdict) ([]verdict, map[nft.Family]netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for i := range entries {
		verdicts = append(verdicts, r.judge(&entries[i], now))
	}
	return verdicts, nil
}

// judge returns the verdict about an entry.
func (r *Retry) judge(e *entry, now time.Time) verdict {
	if e.protocol != nft.TCP || e.state != tcpSynSent || e.answered || e.replyFrom == e.to || e.isDeadEnd() {
		return leave
	}
	after := r.asked.of(e)
	if after == 0 {
		return leave
	}
	key := attempt{binary.BigEndian.Uint32(e.id), e.replyFrom}
	since, known := r.seen[key]
	if !known {
		since = now
	}
	switch {
	case now.Sub(since) >= after:
		return forget
	case len(r.seeing) < mostAttempts:
		r.seeing[key] = since
	}
	return leave
}
