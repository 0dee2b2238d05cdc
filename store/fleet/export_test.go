package fleet

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Format is the newest one that this program reads.
const Format = format

// OnJoin has f called after the settings of the fleet were read, and before its head is.
func (e *Engine) OnJoin(f func()) { e.between = f }

// Joined is Open and Await.
func Joined(ctx context.Context, cfg Config) (*Engine, error) {
	e, err := Open(cfg)
	if err != nil {
		return nil, err
	}
	if err := e.Await(ctx); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// Old is Open of a program that reads up to a format; for f see OnJoin.
func Old(cfg Config, format int, f func()) (*Engine, error) {
	r, err := openReplica(cfg.Dir, cfg.DataKey)
	if err != nil {
		return nil, err
	}
	e := newEngine(cfg, r)
	e.reads, e.between = format, f
	return e, e.open()
}

// OnStep has f called before and after each call of etcd that commits something.
func (e *Engine) OnStep(f func()) { e.step = f }

// Sweep does the cleaning of the box with the turn once.
func (e *Engine) Sweep(ctx context.Context) error { return e.deleteStaleParts(ctx) }

// Join looks whether etcd has the history of this box, as the follower does.
func (e *Engine) Join(ctx context.Context) error { return e.join(ctx) }

// Kept reports whether a core box keeps commits for leaves, and for how many.
func (e *Engine) Kept() (log bool, leaves int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.feed.log == nil {
		return false, 0
	}
	return true, e.feed.readers
}

// LimitStream has a core box keep less for leaves that come from now on.
func (e *Engine) LimitStream(bytes int64) { e.feed.limit.Store(bytes) }

// HurryBack has a leaf go back to core boxes that it prefers so many times sooner.
func (c *Config) HurryBack(times int) { c.hurry = time.Duration(times) }

// Preference is the preference of a leaf for its core boxes.
type Preference struct{ coreSelector }

// NewPreference returns that of a leaf.
func NewPreference(leaf string, cores int) *Preference {
	return &Preference{newCoreSelector(leaf, cores, 1)}
}

// Least is how long a core box has to answer at least.
func (p *Preference) Least() time.Duration { return p.least }

// Probed, Better, Returned and Left are those of the preference.
func (p *Preference) Probed(core int, answered bool, now time.Time) { p.probed(core, answered, now) }

func (p *Preference) Better(at int, now time.Time) (int, bool) { return p.better(at, now) }

func (p *Preference) Returned(core int, now time.Time) { p.returned(core, now) }

func (p *Preference) Left(core int, now time.Time) { p.left(core, now) }

// counting counts the questions for the head.
type counting struct {
	origin
	n *atomic.Int64
}

func (c counting) head(ctx context.Context, at int64) (*head, int64, error) {
	c.n.Add(1)
	return c.origin.head(ctx, at)
}

// CountQuestions counts the questions for the head from now on. It comes before Run.
func (e *Engine) CountQuestions() *atomic.Int64 {
	n := new(atomic.Int64)
	e.origin = counting{e.origin, n}
	return n
}
