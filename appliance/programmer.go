package appliance

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

// table is what the programmer needs of the kernel.
type table interface {
	Read() (nft.Ruleset, uint32, error)
	Commit(b *nft.Batch, generation uint32) (uint32, error)
	Check(b *nft.Batch, generation uint32) error
	Forget(f nft.ForgetData, generation uint32) (uint32, error)
}

// maxAttempts bounds how often one change is tried at once. After that the loop
// tries again later.
const maxAttempts = 5

// programmer is the one owner of our tables in the kernel: it commits transitions and
// finds back to a known state when a commit fails. It does what it is told and
// decides nothing about Services.
type programmer struct {
	kernel     table
	log        *slog.Logger
	generation uint32         // of the ruleset that our last reading or commit left; 0: not known
	early      <-chan reading // has what readEarly found; nil: it was taken
}

// committed is what a change took.
type committed struct {
	at           time.Time // when the kernel had it
	duration     time.Duration
	transactions int
	operations   int
	elements     int
}

// reading is what the kernel held.
type reading struct {
	have       nft.Ruleset
	generation uint32
	err        error
}

// readEarly begins to read what the kernel holds, for the next call of read: that takes long
// when it is much, and there is more to do meanwhile. Changes must be watched already.
func (p *programmer) readEarly() {
	early := make(chan reading, 1)
	p.early = early
	go func() {
		var r reading
		r.have, r.generation, r.err = p.kernel.Read()
		early <- r
	}()
}

// read gives what the kernel holds of ours now, or held when readEarly was called.
func (p *programmer) read() (nft.Ruleset, error) {
	var r reading
	if p.early != nil {
		r, p.early = <-p.early, nil
	} else {
		r.have, r.generation, r.err = p.kernel.Read()
	}
	if r.err != nil {
		p.generation = 0
		return nil, fmt.Errorf("read our tables: %w", r.err)
	}
	p.generation = r.generation
	return r.have, nil
}

// program commits a transition that leads from what the kernel is known to hold to what is
// wanted; from gives the one that leads there from anything else. When somebody else committed meanwhile, or the outcome of a commit is unknown,
// it reads again and commits what is still missing; when the kernel refuses the change,
// it replaces our tables as a whole, in one transaction. When it refuses that too, the
// error is the *kernel.OpError.
func (p *programmer) program(tr nft.Transition, from func(have nft.Ruleset) nft.Transition) (committed, error) {
	var done committed
	start := time.Now()
	forget := tr.Forget
	if p.generation == 0 {
		have, err := p.read()
		if err != nil {
			return done, err
		}
		tr = from(have)
	}
	replaced := false
	for attempt := 1; ; attempt++ {
		err := p.commit(tr, &done)
		if err == nil {
			break
		}
		refused, isRefused := errors.AsType[*kernel.OpError](err)
		if attempt == maxAttempts || errors.Is(err, kernel.ErrPermission) || isRefused && (replaced || isExhausted(refused)) {
			p.generation = 0
			return done, err
		}
		p.log.Warn("commit again", "attempt", attempt, "err", err)
		have, readErr := p.read()
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
	return done, p.sweep(forget)
}

// check asks the kernel whether it would take a transition.
func (p *programmer) check(tr nft.Transition) error {
	if tr.Apply.Empty() {
		return nil
	}
	return p.kernel.Check(&tr.Apply, 0)
}

// commit carries out all parts of a transition.
func (p *programmer) commit(tr nft.Transition, done *committed) error {
	for _, batch := range tr.Stages() {
		generation, err := p.kernel.Commit(&batch, p.generation)
		if err != nil {
			return err
		}
		p.generation = generation
		done.transactions++
		done.operations += len(batch.Ops)
		done.elements += elements(&batch)
	}
	return nil
}

// sweep forgets the clients that packets under way during the commit may have put back.
func (p *programmer) sweep(forget []nft.ForgetData) error {
	for _, f := range forget {
		generation, err := p.kernel.Forget(f, p.generation)
		if errors.Is(err, kernel.ErrStale) {
			generation, err = p.kernel.Forget(f, 0)
		}
		if err != nil {
			return fmt.Errorf("forget the clients of endpoints that are gone: %w", err)
		}
		p.generation = generation
	}
	return nil
}

// replacement deletes and makes every table anew.
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
