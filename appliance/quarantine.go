package appliance

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/store/object"
)

// reasonRefused is the reason of the problem of a Service that the kernel refuses.
const reasonRefused = "RefusedByKernel"

const (
	// How long those that the kernel refuses wait before they are tried again, unless they
	// change before: the wait doubles from the first to the last. What the kernel refuses
	// today it may take after a module was loaded.
	refusedFirst = 5 * time.Second
	refusedLast  = 5 * time.Minute
	// maxTrials bounds the questions to the kernel in one search; 30 refused Services
	// among 10,000 are found with fewer.
	maxTrials = 500
)

// refusal gives the operation that the kernel refuses, if an error is about what it was
// asked for rather than about its own state.
func refusal(err error) (*kernel.OpError, bool) {
	refused, ok := errors.AsType[*kernel.OpError](err)
	if !ok || errors.Is(err, kernel.ErrPermission) || isExhausted(refused) {
		return nil, false
	}
	return refused, true
}

// isExhausted tells whether the kernel had no room just then.
func isExhausted(refused *kernel.OpError) bool {
	return slices.Contains([]syscall.Errno{syscall.ENOMEM, syscall.ENOBUFS, syscall.EINTR, syscall.EAGAIN}, refused.Errno)
}

// culprits finds those of the suspects that must be left out so that the kernel takes the
// rest; try asks it about some of them, together. They are found by halving, so one among
// n takes some 2·log n questions. When these run out, whole groups are left out. The error
// is one that leaving out suspects does not mend.
func culprits(suspects []string, try func(included []string) error) (map[string]error, error) {
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
		if _, refused := refusal(err); !refused {
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

// leftOut is a Service that the kernel refuses: it has what it had before, if the kernel
// takes that.
type leftOut struct {
	grant
	err error // why; nil while that is being found out
}

// problem is what the status says about it.
func (l *leftOut) problem(ref object.Ref) resolve.Problem {
	kept := "its last version that the kernel took stays in force"
	if len(l.ports) == 0 {
		kept = "it is left out"
	}
	return resolve.Problem{Object: ref, Reason: reasonRefused, Message: fmt.Sprintf(
		"%v; %s, and everything else is in force; it is tried again when it changes, and at least every %v", l.err, kept, refusedLast)}
}

// settled notes that what is planned is in the kernel.
func (p *planner) settled() { p.pending = map[string]grant{} } // once all Services were in it

// suspects are the Services that changed since everything was last in the kernel.
func (p *planner) suspects() []string { return slices.Sorted(maps.Keys(p.pending)) }

// leave plans these suspects as they were when everything was last in the kernel, for
// the reasons given, and all other suspects as they are to be.
func (p *planner) leave(objs objects, out map[string]error) {
	var changed []string
	for key := range p.pending {
		err, leave := out[key]
		if before, left := p.left[key]; left != leave || left && before.err != err {
			changed = append(changed, key)
		}
		if leave {
			p.left[key] = leftOut{p.pending[key], err}
		} else {
			delete(p.left, key)
		}
	}
	p.compiler.Update(nil, p.resolve(objs, changed, nil))
}

// quarantine finds the Services that make the kernel refuse a change, leaves them out,
// and commits the rest. The error is cause, or what came in between, when it is not
// about Services. forget is what the change wanted forgotten.
func (l *loop) quarantine(cause error, forget []nft.ForgetData) (committed, error) {
	have, err := l.kernel.read()
	if err != nil {
		return committed{}, errors.Join(cause, err)
	}
	suspects := l.planner.suspects()
	bad, err := culprits(suspects, func(included []string) error {
		l.watchdog.moved()
		out := make(map[string]error, len(suspects))
		for _, key := range suspects {
			out[key] = nil
		}
		for _, key := range included {
			delete(out, key)
		}
		l.planner.leave(l.store, out)
		return l.kernel.check(l.planner.compiler.From(have))
	})
	if err != nil {
		l.planner.leave(l.store, nil)
		l.kernel.generation = 0 // the kernel does not hold what is planned
		return committed{}, errors.Join(cause, err)
	}
	l.planner.leave(l.store, bad)
	if len(bad) > 0 {
		l.refusedWait = min(max(2*l.refusedWait, refusedFirst), refusedLast)
		l.retryRefused = l.now().Add(l.refusedWait)
	}
	compiler := l.planner.compiler
	tr := compiler.From(have)
	for _, f := range forget {
		if compiler.HasSet(f.Family, f.Set.Name) {
			tr.Forget = append(tr.Forget, f)
		}
	}
	return l.kernel.program(tr, compiler.From)
}

// refused are the Services that were left out and are to be tried again now.
func (l *loop) refused() []string {
	if len(l.planner.left) == 0 {
		l.refusedWait = 0
		return nil
	}
	if l.now().Before(l.retryRefused) {
		return nil
	}
	return slices.Collect(maps.Keys(l.planner.left))
}
