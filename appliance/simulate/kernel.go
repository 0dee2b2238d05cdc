package simulate

import (
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"reflect"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/nft/nfttest/fake"
)

// errDead is the answer of everything outside of a process that was killed.
var errDead = errors.New("the process was killed")

// kernelFault is a fault of one call.
type kernelFault string

// tables is the kernel: a fake with faults, and checks at each commit. It outlives processes.
type tables struct {
	fake *fake.Kernel

	mu       sync.Mutex
	picky    uint32              // which elements are refused; 0: none
	faults   map[int]kernelFault // by the number of the commit
	readings map[int]bool        // that fail, by their number
	commits  int                 // calls
	reads    int
	doubts   int      // reasons to read the tables: starts, faults, foreign changes
	wrong    []string // violated invariants
	steps    []step   // all that was asked of the kernel
}

// step is a batch, or a change by another program.
type step struct {
	batch   nft.Batch
	foreign string
}

func newTables() *tables {
	return &tables{fake: fake.New(), faults: map[int]kernelFault{}, readings: map[int]bool{}}
}

// fault has the nth commit from now on fail.
func (t *tables) fault(how kernelFault, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch how {
	case "unreadable":
		t.readings[t.reads+n] = true
		return
	case "picky":
		t.picky = uint32(n)
		return
	}
	t.faults[t.commits+n] = how
}

// calm ends all faults. It reports whether elements were refused, so that Services may wait for the next try.
func (t *tables) calm() (refused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	refused = t.picky > 0
	t.faults, t.readings, t.picky = map[int]kernelFault{}, map[int]bool{}, 0
	return refused
}

// refuses returns the error of a kernel that does not take some elements, as one without a module does.
func (t *tables) refuses(b *nft.Batch) error {
	for i, op := range b.Ops {
		if add, is := op.(nft.AddElements); is && t.picky > 0 {
			for _, e := range add.Elements {
				if crc32.ChecksumIEEE([]byte(e.Key))%8 == t.picky {
					return &kernel.OpError{Op: i, Text: "injected", Errno: unix.EOPNOTSUPP}
				}
			}
		}
	}
	return nil
}

// violated records a violated invariant.
func (t *tables) violated(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wrong = append(t.wrong, fmt.Sprintf(format, args...))
}

// process is the kernel as one process has it: reconcile.Kernel.
type process struct {
	*tables
	life *life
}

func (p process) Read() (nft.Ruleset, uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.dead.Load() {
		return nil, 0, errDead
	}
	p.reads++
	if p.readings[p.reads] {
		p.doubts++
		return nil, 0, fmt.Errorf("read the tables: %w", unix.ENOBUFS)
	}
	have, generation, err := p.fake.Read()
	for family, table := range have { // nf_tables gives marks back, no rules
		for name, chain := range table.Chains {
			read := *chain
			read.Marks, read.Rules = marks(family, chain.Rules), nil
			table.Chains[name] = &read
		}
	}
	return have, generation, err
}

func marks(family nft.Family, rules []nft.Rule) (all []uint64) {
	for _, r := range rules {
		all = append(all, r.Mark(family))
	}
	return all
}

func (p process) Commit(b *nft.Batch, generation uint32) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.dead.Load() {
		return generation, errDead
	}
	p.commits++
	fault := p.faults[p.commits]
	if fault != "" {
		p.doubts++
	}
	if generation == 0 {
		p.wrong = append(p.wrong, "a commit without a generation")
	}
	before, _ := p.fake.View()
	switch fault {
	case "refused":
		return generation, &kernel.OpError{Op: 0, Text: "injected", Errno: unix.ENOMEM}
	case "stale":
		return generation, kernel.ErrStale
	case "lost": // nothing was done, and the answer is lost
		return generation, kernel.ErrOutcomeUnknown
	case "before":
		p.life.kill()
		return generation, errDead
	}
	if err := p.refuses(b); err != nil {
		p.doubts += 2 // one for the search for the Services that are refused
		return generation, err
	}
	next, err := p.fake.Commit(b, generation)
	if !errors.Is(err, kernel.ErrStale) { // a repeated batch that changes nothing leaves the generation of nf_tables as it is
		p.steps = append(p.steps, step{batch: nft.Batch{Ops: slices.Clone(b.Ops)}})
	}
	if err == nil && len(b.Ops) > 0 && !forgets(b) {
		if after, _ := p.fake.View(); reflect.DeepEqual(before, after) { // what is shared is not compared
			p.wrong = append(p.wrong, fmt.Sprintf("a commit of %d operations changes nothing", len(b.Ops)))
		}
	}
	switch {
	case err != nil:
		p.doubts++
		return next, err
	case fault == "unknown":
		return generation, kernel.ErrOutcomeUnknown
	case fault == "after":
		p.life.kill()
		return generation, errDead
	}
	return next, nil
}

// forgets reports whether a batch removes data of rules, or connections of a flowtable, which the fake does not have.
func forgets(b *nft.Batch) bool {
	return slices.ContainsFunc(b.Ops, func(op nft.Op) bool {
		switch op.(type) {
		case nft.ForgetData, nft.CapTimeouts, nft.DeleteFlowtable:
			return true
		}
		return false
	})
}

func (p process) Check(b *nft.Batch, generation uint32) error {
	if p.life.dead.Load() {
		return errDead
	}
	p.mu.Lock()
	err := p.refuses(b)
	p.mu.Unlock()
	if err != nil {
		return err
	}
	return p.fake.Check(b, generation)
}

func (p process) Forget(f nft.ForgetData, generation uint32) (uint32, error) {
	if p.life.dead.Load() {
		return generation, errDead
	}
	return p.fake.Forget(f, generation)
}

// foreign is a change by another program.
func (t *tables) foreign(what string) {
	t.mu.Lock()
	t.doubts++
	if what != "others" {
		t.steps = append(t.steps, step{foreign: what})
	}
	t.mu.Unlock()
	t.fake.Tamper(func(rs nft.Ruleset) { _ = tamper(rs, what) })
}

// tamper makes a change of another program to tables, at the first place where it is possible. It returns the change as operations.
func tamper(rs nft.Ruleset, what string) (ops []nft.Op) {
	for _, family := range nft.Families {
		table := rs[family]
		switch {
		case table == nil || what == "others":
		case what == "flush":
			delete(rs, family)
			ops = append(ops, nft.DeleteTable{Family: family})
		case what == "chain": // a base chain loses its first rule
			for _, name := range slices.Sorted(maps.Keys(table.Chains)) {
				if chain := *table.Chains[name]; len(chain.Rules) > 0 {
					chain.Rules, chain.Marks = chain.Rules[1:], nil
					table.Chains[name] = &chain
					return []nft.Op{nft.SetRules{Family: family, Chain: name, Rules: chain.Rules}}
				}
			}
		default:
			for _, name := range slices.Sorted(maps.Keys(table.Sets)) {
				if ops := tamperSet(family, table.Sets[name], what); ops != nil {
					return ops
				}
			}
		}
	}
	return ops
}

// tamperSet changes a set; nil if it cannot be changed so.
func tamperSet(family nft.Family, set *nft.SetContent, what string) []nft.Op {
	var all []nft.Element
	for _, key := range slices.Sorted(maps.Keys(set.Elements)) {
		all = append(all, nft.Element{Key: key, Data: set.Elements[key]})
	}
	switch {
	case len(all) == 0 || set.Dynamic:
		return nil
	case what == "elements": // it loses its elements
		set.Elements = nft.Elements{}
		return []nft.Op{nft.DeleteElements{Family: family, Set: set.Set, Elements: all}}
	case what == "data": // an element leads to where another one does
		for _, other := range all[1:] {
			if other.Data != all[0].Data {
				set.Elements[all[0].Key] = other.Data
				return []nft.Op{nft.DeleteElements{Family: family, Set: set.Set, Elements: all[:1]},
					nft.AddElements{Family: family, Set: set.Set, Elements: []nft.Element{{Key: all[0].Key, Data: other.Data}}}}
			}
		}
		return nil
	}
	return nil
}
