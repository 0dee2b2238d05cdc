package fake

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

// Kernel keeps tables in memory. It is safe for concurrent use.
type Kernel struct {
	mu         sync.Mutex
	tables     nft.Ruleset
	generation uint32
	commits    int
	fault      func(b *nft.Batch) error
	readFault  func() error
	forgotten  []nft.ForgetData
}

// New returns a Kernel without tables.
func New() *Kernel { return &Kernel{tables: nft.Ruleset{}, generation: 1} }

// Inject calls fault for every later commit, which fails with its error. After
// kernel.ErrOutcomeUnknown the commit is applied nevertheless.
func (k *Kernel) Inject(fault func(b *nft.Batch) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fault = fault
}

// InjectRead calls fault for every later Read, which fails with its error.
func (k *Kernel) InjectRead(fault func() error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.readFault = fault
}

// Commits returns the number of applied transactions.
func (k *Kernel) Commits() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.commits
}

// Forgotten returns the applied ForgetData operations.
func (k *Kernel) Forgotten() []nft.ForgetData {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.forgotten
}

// Tamper changes the tables as another program would.
func (k *Kernel) Tamper(change func(nft.Ruleset)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tables = clone(k.tables)
	change(k.tables)
	k.generation++
}

// Read is kernel.Conn.Read. The caller may modify the result.
func (k *Kernel) Read() (nft.Ruleset, uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.readFault != nil {
		if err := k.readFault(); err != nil {
			return nil, 0, err
		}
	}
	return clone(k.tables), k.generation, nil
}

// View returns the tables as they are. Later changes leave what is returned as it is, and so must the caller.
func (k *Kernel) View() (nft.Ruleset, uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tables, k.generation
}

// Commit is kernel.Conn.Commit.
func (k *Kernel) Commit(b *nft.Batch, generation uint32) (uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if generation != 0 && generation != k.generation {
		return generation, kernel.ErrStale
	}
	var fault error
	if k.fault != nil {
		fault = k.fault(b)
	}
	if fault != nil && !errors.Is(fault, kernel.ErrOutcomeUnknown) {
		return generation, fault
	}
	next, err := k.carryOut(b)
	if err != nil {
		return generation, err
	}
	for _, op := range b.Ops {
		if f, ok := op.(nft.ForgetData); ok {
			k.forgotten = append(k.forgotten, f)
		}
	}
	k.tables = next
	if len(b.Ops) > 0 {
		k.generation++
		k.commits++
	}
	if fault != nil {
		return generation, fault
	}
	if generation == 0 {
		return 0, nil
	}
	return k.generation, nil
}

// Check is kernel.Conn.Check. Injected faults fail it too, except
// kernel.ErrOutcomeUnknown.
func (k *Kernel) Check(b *nft.Batch, generation uint32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if generation != 0 && generation != k.generation {
		return kernel.ErrStale
	}
	if k.fault != nil {
		if err := k.fault(b); err != nil && !errors.Is(err, kernel.ErrOutcomeUnknown) {
			return err
		}
	}
	_, err := k.carryOut(b)
	return err
}

// Forget is kernel.Conn.Forget. There are no packets, so there is nothing to delete.
func (k *Kernel) Forget(f nft.ForgetData, generation uint32) (uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgotten = append(k.forgotten, f)
	return generation, nil
}

// carryOut returns the tables after a batch. They share with those before what the batch does not change.
func (k *Kernel) carryOut(b *nft.Batch) (nft.Ruleset, error) {
	next := draft{tables: nft.Ruleset{}, copied: map[*nft.SetContent]bool{}}
	for f, t := range k.tables {
		c := *t
		c.Sets, c.Chains, c.Timeouts, c.Flowtables = maps.Clone(t.Sets), maps.Clone(t.Chains), maps.Clone(t.Timeouts), maps.Clone(t.Flowtables)
		c.Counters = slices.Clone(t.Counters)
		next.tables[f] = &c
	}
	for i, op := range b.Ops {
		if err := next.apply(op); err != nil {
			return nil, &kernel.OpError{Op: i, Text: fmt.Sprintf("%T: %v", op, err), Errno: errno(err)}
		}
	}
	return next.tables, nil
}

// draft has tables that are changed. Sets are copied when elements come or go.
type draft struct {
	tables nft.Ruleset
	copied map[*nft.SetContent]bool
}

// set returns a set whose elements may be changed, nil if there is none.
func (d *draft) set(t *nft.Table, name string) *nft.SetContent {
	s := t.Sets[name]
	if s != nil && !d.copied[s] {
		s = &nft.SetContent{Set: s.Set, Elements: maps.Clone(s.Elements)}
		t.Sets[name], d.copied[s] = s, true
	}
	return s
}

func errno(err error) unix.Errno {
	var e unix.Errno
	errors.As(err, &e)
	return e
}

func clone(rs nft.Ruleset) nft.Ruleset {
	out := nft.Ruleset{}
	for f, t := range rs {
		c := &nft.Table{Sets: map[string]*nft.SetContent{}, Chains: map[string]*nft.Chain{}, Timeouts: maps.Clone(t.Timeouts), Flowtables: maps.Clone(t.Flowtables)}
		for name, s := range t.Sets {
			c.Sets[name] = &nft.SetContent{Set: s.Set, Elements: maps.Clone(s.Elements)}
		}
		c.Counters = slices.Clone(t.Counters)
		for name, chain := range t.Chains {
			copied := *chain
			c.Chains[name] = &copied
		}
		out[f] = c
	}
	return out
}

// apply applies one operation. Errors wrap the kernel's error number.
func (d *draft) apply(op nft.Op) error {
	rs := d.tables
	switch op := op.(type) {
	case nft.AddTable:
		if rs[op.Family] == nil {
			rs[op.Family] = &nft.Table{Sets: map[string]*nft.SetContent{}, Chains: map[string]*nft.Chain{}, Timeouts: map[string]nft.Timeout{}}
		}
		return nil
	case nft.DeleteTable: // the transaction adds it before, so that it is there
		delete(rs, op.Family)
		return nil
	}
	t := rs[nft.Family(reflect.ValueOf(op).FieldByName("Family").Uint())]
	if t == nil {
		return fmt.Errorf("no table: %w", unix.ENOENT)
	}
	switch op := op.(type) {
	case nft.AddCounter:
		i, is := slices.BinarySearch(t.Counters, op.Name)
		if is {
			return fmt.Errorf("counter %s exists: %w", op.Name, unix.EEXIST)
		}
		t.Counters = slices.Insert(t.Counters, i, op.Name)
	case nft.DeleteCounter:
		if err := (reference{aCounter, op.Name}).mayGo(t); err != nil {
			return err
		}
		t.Counters = slices.DeleteFunc(t.Counters, func(name string) bool { return name == op.Name })
	case nft.AddSet:
		if old := t.Sets[op.Set.Name]; old != nil {
			return fmt.Errorf("set %s exists: %w", op.Set.Name, unix.EEXIST)
		}
		t.Sets[op.Set.Name] = &nft.SetContent{Set: op.Set, Elements: nft.Elements{}}
	case nft.DeleteSet:
		if err := (reference{aSet, op.Name}).mayGo(t); err != nil {
			return err
		}
		delete(t.Sets, op.Name)
	case nft.AddTimeout:
		name := op.Timeout.Name()
		if _, there := t.Timeouts[name]; there {
			return fmt.Errorf("timeout %s exists: %w", name, unix.EEXIST)
		}
		if t.Timeouts == nil { // of a table that a test made
			t.Timeouts = map[string]nft.Timeout{}
		}
		t.Timeouts[name] = op.Timeout
	case nft.DeleteTimeout:
		if err := (reference{aTimeout, op.Name}).mayGo(t); err != nil {
			return err
		}
		delete(t.Timeouts, op.Name)
	case nft.SetFlowtable:
		if t.Flowtables == nil {
			t.Flowtables = map[string]nft.Flowtable{}
		}
		t.Flowtables[op.Name] = op.Flowtable
	case nft.DeleteFlowtable:
		if err := (reference{aFlowtable, op.Name}).mayGo(t); err != nil {
			return err
		}
		delete(t.Flowtables, op.Name)
	case nft.AddChain:
		if t.Chains[op.Chain.Name] != nil {
			return fmt.Errorf("chain %s exists: %w", op.Chain.Name, unix.EEXIST)
		}
		c := op.Chain
		c.Rules = nil
		t.Chains[c.Name] = &c
	case nft.SetRules:
		return setRules(t, op)
	case nft.DeleteChain:
		if err := (reference{aChain, op.Name}).mayGo(t); err != nil {
			return err
		}
		delete(t.Chains, op.Name)
	case nft.AddElements:
		return addElements(t, d.set(t, op.Set.Name), op)
	case nft.DeleteElements:
		return deleteElements(d.set(t, op.Set.Name), op)
	case nft.CapTimeouts:
		if t.Sets[op.Set.Name] == nil {
			return fmt.Errorf("no map %s: %w", op.Set.Name, unix.ENOENT)
		}
	case nft.ForgetData:
		if t.Sets[op.Set.Name] == nil {
			return fmt.Errorf("no map %s: %w", op.Set.Name, unix.ENOENT)
		}
	}
	return nil
}

func setRules(t *nft.Table, op nft.SetRules) error {
	old := t.Chains[op.Chain]
	if old == nil {
		return fmt.Errorf("no chain %s: %w", op.Chain, unix.ENOENT)
	}
	for _, r := range op.Rules {
		for _, s := range r {
			if ref, is := referred(s); is && !ref.isIn(t) {
				return fmt.Errorf("a rule of chain %s refers to %s %s, which is not there: %w", op.Chain, ref.kind, ref.name, unix.ENOENT)
			}
		}
	}
	c := *old
	c.Rules, c.Marks = op.Rules, nil
	t.Chains[op.Chain] = &c
	return nil
}

func addElements(t *nft.Table, s *nft.SetContent, op nft.AddElements) error {
	if s == nil {
		return fmt.Errorf("no set %s: %w", op.Set.Name, unix.ENOENT)
	}
	for _, e := range op.Elements {
		if chain, ok := target(e.Data); ok && isVerdictMap(s) && t.Chains[chain] == nil {
			return fmt.Errorf("an element of %s goes to chain %s, which is not there: %w", op.Set.Name, chain, unix.ENOENT)
		}
		if data, ok := s.Elements[e.Key]; ok && data != e.Data {
			return fmt.Errorf("set %s has that element with other data: %w", op.Set.Name, unix.EEXIST)
		}
		s.Elements[e.Key] = e.Data
	}
	if s.Interval && overlap(s, op) {
		return fmt.Errorf("set %s has an element that overlaps: %w", op.Set.Name, unix.EEXIST)
	}
	return nil
}

// overlap reports whether a new range overlaps another one of its set. Of ranges with several fields nf_tables looks only for those
// in which the new one begins or ends, and takes one that is around others.
func overlap(s *nft.SetContent, op nft.AddElements) bool {
	if len(s.Key) == 1 {
		keys := slices.Sorted(maps.Keys(s.Elements))
		for i, key := range keys[:max(0, len(keys)-1)] {
			if half := len(key) / 2; key[half:] >= keys[i+1][:half] {
				return true
			}
		}
		return false
	}
	for _, e := range op.Elements {
		half := len(e.Key) / 2
		for other := range s.Elements {
			if other != e.Key && (isWithin(s.Key, op.Family, e.Key[:half], other) || isWithin(s.Key, op.Family, e.Key[half:], other)) {
				return true
			}
		}
	}
	return false
}

// isWithin reports whether each field of a key lies between those of both ends of a range.
func isWithin(fields []nft.Type, f nft.Family, key, ends string) bool {
	at, half := 0, len(key)
	for _, field := range fields {
		end := at + (field.Len(f)+3)&^3 // fields are padded
		if key[at:end] < ends[at:end] || key[at:end] > ends[half+at:half+end] {
			return false
		}
		at = end
	}
	return true
}

func deleteElements(s *nft.SetContent, op nft.DeleteElements) error {
	if s == nil {
		return fmt.Errorf("no set %s: %w", op.Set.Name, unix.ENOENT)
	}
	for _, e := range op.Elements {
		if _, ok := s.Elements[e.Key]; !ok {
			return fmt.Errorf("set %s has no such element: %w", op.Set.Name, unix.ENOENT)
		}
		delete(s.Elements, e.Key)
	}
	return nil
}
