package reconcile

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"syscall"
	"time"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store/object"
)

// Kernel reads and changes our nf_tables tables. *kernel.Conn implements it.
type Kernel interface {
	Read() (nft.Ruleset, uint32, error)
	Commit(b *nft.Batch, generation uint32) (uint32, error)
	Check(b *nft.Batch, generation uint32) error
	Forget(f nft.ForgetData, generation uint32) (uint32, error)
}

// maxAttempts is the maximum number of attempts to commit a change within one step of the loop. The loop retries the change later.
const maxAttempts = 5

// applier owns our tables in the kernel: it commits transitions, and brings the tables back to a defined state when a commit fails. It is independent
// of Services.
type applier struct {
	kernel     Kernel
	log        *slog.Logger
	generation uint32    // generation ID of the ruleset after our last read or commit; 0 if unknown
	early      Early     // result of ReadEarly; nil after its first use, or if ReadEarly was not called
	settle     time.Time // when to call nft.Compiler.Settle; zero if no frontend has to be settled
}

// committed holds the statistics of the transactions that commit one change.
type committed struct {
	at           time.Time // when the last transaction was committed
	duration     time.Duration
	transactions int
	operations   int
	elements     int
	applied      bool // the kernel holds the complete plan
}

// reading is the result of reading our tables from the kernel.
type reading struct {
	have       nft.Ruleset
	generation uint32
	err        error
}

// Early is a channel that delivers the result of ReadEarly, once.
type Early <-chan reading

// ReadEarly starts to read our tables in a goroutine, since reading large tables takes long and can run in parallel with other work at startup. The
// caller must already watch for changes of the tables.
func ReadEarly(k Kernel) Early {
	early := make(chan reading, 1)
	go func() {
		var r reading
		r.have, r.generation, r.err = k.Read()
		early <- r
	}()
	return early
}

// read returns the present content of our tables in the kernel. The first call returns the result of ReadEarly instead, if ReadEarly was called.
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

// apply commits the transition tr from the last read or committed state of the kernel to the desired state. from returns the transition from any
// other state. If another program committed meanwhile, or the outcome of a commit is unknown, apply reads the tables and commits the rest. If the
// kernel refuses the change, apply replaces our tables as a whole in one transaction; if that is refused too, the error is a *kernel.OpError.
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

// invalidate makes the next call of apply read the tables from the kernel first.
func (a *applier) invalidate() { a.generation = 0 }

// certain reports whether our tables in the kernel are as this process last read or committed them, as far as it has noticed.
func (a *applier) certain() bool { return a.generation != 0 }

// check asks the kernel whether it would accept a transition, without committing it.
func (a *applier) check(tr nft.Transition) error {
	if tr.Apply.Empty() {
		return nil
	}
	return a.kernel.Check(&tr.Apply, 0)
}

// commit commits all stages of a transition in order, and adds their counts to done.
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

// sweep deletes the affinity entries in forget a second time, since packets may have added them again during the commit.
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

// replacement returns the transition that deletes every table of have and adds the tables of the desired state.
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

// RemoveTables deletes our tables from the kernel.
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

// reasonRefused is the Reason of the problem of a Service that the kernel refuses.
const reasonRefused = "RefusedByKernel"

const (
	// Services that the kernel refuses are tried again when they change, or after a wait that doubles from refusedFirst to refusedLast. The cause may
	// disappear by itself, for instance when a kernel module is loaded.
	refusedFirst = 5 * time.Second
	refusedLast  = 5 * time.Minute
	// maxTrials is the maximum number of checks by the kernel in one search for refused Services. Finding 30 of them among 10,000 takes fewer.
	maxTrials = 500
)

// isRefusal reports whether an error means that the kernel refuses the content of the request. It returns false for missing permission and for errors
// that isExhausted reports.
func isRefusal(err error) bool {
	refused, is := errors.AsType[*kernel.OpError](err)
	return is && !errors.Is(err, kernel.ErrPermission) && !isExhausted(refused)
}

// isExhausted reports whether the kernel refused an operation because of a temporary lack of memory, or because it was interrupted.
func isExhausted(refused *kernel.OpError) bool {
	return slices.Contains([]syscall.Errno{syscall.ENOMEM, syscall.ENOBUFS, syscall.EINTR, syscall.EAGAIN}, refused.Errno)
}

// refusedServices returns the suspects that must be left out so that the kernel accepts the rest, each with the kernel's error. try asks the kernel
// to check a change that includes only some suspects. The search is a bisection: finding one Service among n takes about 2·log n checks. After
// maxTrials checks, whole groups are left out. The returned error is non-nil if leaving out suspects does not help.
func refusedServices(suspects []string, try func(included []string) error) (map[string]error, error) {
	if err := try(nil); err != nil {
		return nil, err
	}
	var good []string
	bad := map[string]error{}
	trials := 0
	var search func(group []string) error
	search = func(group []string) error {
		trials++
		err := try(slices.Concat(good, group))
		if err == nil {
			good = append(good, group...)
			return nil
		}
		if !isRefusal(err) {
			return err
		}
		if len(group) == 1 || trials >= maxTrials {
			for _, key := range group {
				bad[key] = err
			}
			return nil
		}
		half := len(group) / 2
		if err := search(group[:half]); err != nil {
			return err
		}
		return search(group[half:])
	}
	if len(suspects) == 0 {
		return bad, nil
	}
	err := search(suspects)
	return bad, err
}

// rejected is a Service whose present version the kernel refuses. It embeds the last version that the kernel accepted.
type rejected struct {
	Service
	err error // the kernel's refusal; nil while bisect still searches for the refused Services
}

// problem returns the problem to report for a refused Service.
func (l *rejected) problem(ref object.Ref) resolve.Problem {
	kept := "its last version that the kernel took stays in force"
	if len(l.Ports) == 0 {
		kept = "it is left out"
	}
	return resolve.Problem{Object: ref, Reason: reasonRefused, Message: fmt.Sprintf(
		"%v; %s, and everything else is in force; it is tried again when it changes, and at least every %v", l.err, kept, refusedLast)}
}

// quarantine holds the planned Services, the Services changed since the last commit, and the Services that the kernel refuses.
type quarantine struct {
	now     map[string]*Service // all planned Services by key, except those with neither ports nor checks
	applied map[string]*Service // previous version, as in the kernel, of each Service changed since the last commit; nil if it had no ports
	left    map[string]rejected // Services that the kernel refuses, by key

	wait    time.Duration // delay between two attempts to commit the refused Services
	retryAt time.Time
}

// granted records the new plan of a Service. If the previous plan is the one in the kernel, it is kept in applied.
func (q *quarantine) granted(svc *Service) {
	if _, changedBefore := q.applied[svc.Key]; !changedBefore {
		q.applied[svc.Key] = q.now[svc.Key]
	}
	if len(svc.Ports)+len(svc.Checked) == 0 {
		delete(q.now, svc.Key)
		return
	}
	q.now[svc.Key] = svc
}

// portsOf returns the planned ports of a Service, nil if it is not planned.
func (q *quarantine) portsOf(key string) []nft.ServicePort {
	if svc := q.now[key]; svc != nil {
		return svc.Ports
	}
	return nil
}

// settled records that the kernel holds all plans.
func (q *quarantine) settled() { q.applied = map[string]*Service{} }

// due returns the keys of the refused Services if it is time to try them again, and nil otherwise.
func (q *quarantine) due(now time.Time) []string {
	if len(q.left) == 0 {
		q.wait = 0
		return nil
	}
	if now.Before(q.retryAt) {
		return nil
	}
	return slices.Collect(maps.Keys(q.left))
}

// leave plans each Service that is a key of out in the last version that the kernel accepted, and records its error from out. All other changed
// Services are planned as their objects specify.
func (p *planner) leave(objs Objects, out map[string]error) {
	q := &p.quarantine
	var changed []string
	for key, applied := range q.applied {
		err, leave := out[key]
		if before, left := q.left[key]; left != leave || left && before.err != err {
			changed = append(changed, key)
		}
		if leave {
			if applied == nil {
				applied = &Service{}
			}
			q.left[key] = rejected{*applied, err}
		} else {
			delete(q.left, key)
		}
	}
	p.compiler.Update(nil, p.resolve(objs, changed))
}

// bisect finds the Services that make the kernel refuse a change, leaves them out, and commits the rest. cause is the error of the refused commit. If
// leaving out Services does not help, bisect returns cause joined with the later error. forget holds the affinity entries that the change deletes.
func (l *Loop) bisect(cause error, forget []nft.ForgetData) (committed, error) {
	have, err := l.applier.read()
	if err != nil {
		return committed{}, errors.Join(cause, err)
	}
	suspects := slices.Sorted(maps.Keys(l.planner.quarantine.applied))
	bad, err := refusedServices(suspects, func(included []string) error {
		l.planner.progress()
		out := make(map[string]error, len(suspects))
		for _, key := range suspects {
			out[key] = nil
		}
		for _, key := range included {
			delete(out, key)
		}
		l.planner.leave(l.objects(), out)
		return l.applier.check(l.planner.compiler.From(have))
	})
	if err != nil {
		l.planner.leave(l.objects(), nil)
		l.applier.invalidate() // the kernel does not hold the plan
		return committed{}, errors.Join(cause, err)
	}
	l.planner.leave(l.objects(), bad)
	if len(bad) > 0 {
		q := &l.planner.quarantine
		q.wait = min(max(2*q.wait, refusedFirst), refusedLast)
		q.retryAt = l.opts.Clock().Add(q.wait)
	}
	from := l.planner.compiler.From
	tr := from(have)
	tr.Forget = forget // of a map that is left out there is nothing to forget
	return l.applier.apply(tr, from)
}
