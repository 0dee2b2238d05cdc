package fleet

import "context"

// Format is the newest one that this program reads.
const Format = format

// Reads has the program be one that reads up to another format.
func (e *Engine) Reads(format int) { e.reads = format }

// OnJoin has f called after the settings of the fleet were read, and before its head is.
func (e *Engine) OnJoin(f func()) { e.between = f }

// OnStep has f called before and after each call of etcd that commits something.
func (e *Engine) OnStep(f func()) { e.step = f }

// Sweep does the cleaning of the box with the turn once.
func (e *Engine) Sweep(ctx context.Context) error { return e.sweep(ctx) }

// Join looks whether etcd has the history of this box, as the follower does.
func (e *Engine) Join(ctx context.Context) error { return e.join(ctx) }
