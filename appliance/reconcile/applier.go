package reconcile

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

// Kernel reads and changes our tables of nf_tables; *kernel.Conn implements it.
type Kernel interface {
	Read() (nft.Ruleset, uint32, error)
	Commit(b *nft.Batch, generation uint32) (uint32, error)
	Check(b *nft.Batch, generation uint32) error
	Forget(f nft.ForgetData, generation uint32) (uint32, error)
}

// maxAttempts bounds how often one change is tried at once. After that the loop
// tries again later.
const maxAttempts = 5

// applier owns our tables in the kernel: it commits transitions and recovers a known state when a
// commit fails. It decides nothing about Services.
type applier struct {
	kernel     Kernel
	log        *slog.Logger
	generation uint32         // of the ruleset that our last reading or commit left; 0: not known
	early      <-chan reading // has what readEarly found; nil: it was taken
}

// committed has the figures of the transactions of a change.
type committed struct {
	at           time.Time // when the kernel had it
	duration     time.Duration
	transactions int
	operations   int
	elements     int
	applied      bool // the kernel holds all that was planned
}

// reading is the result of reading our tables from the kernel.
type reading struct {
	have       nft.Ruleset
	generation uint32
	err        error
}

// readEarly begins to read what the kernel holds, for the next call of read: that takes long
// when it is much, and there is more to do meanwhile. Changes must be watched already.
func (a *applier) readEarly() {
	early := make(chan reading, 1)
	a.early = early
	go func() {
		var r reading
		r.have, r.generation, r.err = a.kernel.Read()
		early <- r
	}()
}

// read gives what the kernel holds of ours now, or held when readEarly was called.
func (a *applier) read() (nft.Ruleset, error) {
	var r reading
	if a.early != nil {
		r, a.early = <-a.early, nil
	} else {
		r.have, r.generation, r.err = a.kernel.Read()
	}
	if r.err != nil {
		a.generation = 0
		return nil, fmt.Errorf("read our tables: %w", r.err)
	}
	a.generation = r.generation
	return r.have, nil
}

// apply commits a transition from the known state of the kernel to the desired one; from returns the transition from any other state. When
// another program committed meanwhile, or the outcome of a commit is unknown, it reads again and commits the rest; when the kernel
// refuses the change, it replaces our tables as a whole, in one transaction. When it refuses that too, the error is the *kernel.OpError.
func (a *applier) apply(tr nft.Transition, from func(have nft.Ruleset) nft.Transition) (committed, error) {
	var done committed
	start := time.Now()
	forget := tr.Forget
	if a.generation == 0 {
		have, err := a.read()
		if err != nil {
			return done, err
		}
		tr = from(have)
	}
	replaced := false
	for attempt := 1; ; attempt++ {
		err := a.commit(tr, &done)
		if err == nil {
			break
		}
		refused, isRefused := errors.AsType[*kernel.OpError](err)
		if attempt == maxAttempts || errors.Is(err, kernel.ErrPermission) || isRefused && (replaced || isExhausted(refused)) {
			a.generation = 0
			return done, err
		}
		a.log.Warn("commit again", "attempt", attempt, "err", err)
		have, readErr := a.read()
		if readErr != nil {
			return done, errors.Join(err, readErr)
		}
		if isRefused {
			tr, replaced = replacement(have, from), true
		} else {
			tr = from(have)
		}
	}
	done.duration = time.Since(start)
	done.at = time.Now()
	return done, a.sweep(forget)
}

// invalidate makes the next transaction begin with reading the kernel.
func (a *applier) invalidate() { a.generation = 0 }

// certain reports whether the kernel is known to hold what was applied last.
func (a *applier) certain() bool { return a.generation != 0 }

// check asks the kernel whether it would take a transition.
func (a *applier) check(tr nft.Transition) error {
	if tr.Apply.Empty() {
		return nil
	}
	return a.kernel.Check(&tr.Apply, 0)
}

// commit carries out all parts of a transition.
func (a *applier) commit(tr nft.Transition, done *committed) error {
	for _, batch := range tr.Stages() {
		generation, err := a.kernel.Commit(&batch, a.generation)
		if err != nil {
			return err
		}
		a.generation = generation
		done.transactions++
		done.operations += len(batch.Ops)
		done.elements += elements(&batch)
	}
	return nil
}

// sweep forgets the clients that packets under way during the commit may have put back.
func (a *applier) sweep(forget []nft.ForgetData) error {
	for _, f := range forget {
		generation, err := a.kernel.Forget(f, a.generation)
		if errors.Is(err, kernel.ErrStale) {
			generation, err = a.kernel.Forget(f, 0)
		}
		if err != nil {
			return fmt.Errorf("delete the affinity of removed endpoints: %w", err)
		}
		a.generation = generation
	}
	return nil
}

// replacement deletes every table and adds it again.
func replacement(have nft.Ruleset, from func(have nft.Ruleset) nft.Transition) nft.Transition {
	tr := from(nil)
	var deletes []nft.Op
	for _, f := range nft.Families {
		if have[f] != nil {
			deletes = append(deletes, nft.DeleteTable{Family: f})
		}
	}
	tr.Apply.Ops = append(deletes, tr.Apply.Ops...)
	return tr
}

// elements counts the elements that a batch adds and deletes.
func elements(b *nft.Batch) int {
	n := 0
	for _, op := range b.Ops {
		switch op := op.(type) {
		case nft.AddElements:
			n += len(op.Elements)
		case nft.DeleteElements:
			n += len(op.Elements)
		}
	}
	return n
}

// RemoveTables removes our tables.
func RemoveTables(k Kernel, log *slog.Logger) error {
	a := &applier{kernel: k, log: log}
	have, err := a.read()
	if err != nil || len(have) == 0 {
		return err
	}
	nothing := nft.NewCompiler().From
	_, err = a.apply(replacement(have, nothing), nothing)
	return err
}
