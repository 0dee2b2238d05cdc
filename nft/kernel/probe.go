package kernel

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// Features are the optional features of this kernel.
type Features struct {
	Release string // uname -r
	Destroy bool   // `destroy element`: kernel 6.3
	Owner   bool   // table flag owner: kernel 5.12
	Persist bool   // table flag persist: kernel 6.9
	Timeout bool   // conntrack timeout objects (kernel 4.19, CONFIG_NF_CONNTRACK_TIMEOUT)
	Hash    bool   // jhash (CONFIG_NFT_HASH), which hashes and weights need
	// Limit reports support of rate limits in rules and in dynamic elements (CONFIG_NFT_LIMIT), ConnLimit support of connection limits in dynamic
	// elements (kernel 4.18, CONFIG_NFT_CONNLIMIT).
	Limit, ConnLimit bool
	// Counters reports support of counters in map elements (kernel 5.7) and of named counters (CONFIG_NFT_COUNTER and CONFIG_NFT_OBJREF).
	Counters bool
}

// Present names the features that the kernel has.
func (f Features) Present() []string { return f.names(true) }

// Missing names the features that the kernel lacks. The product works without them.
func (f Features) Missing() []string { return f.names(false) }

func (f Features) names(present bool) []string {
	names := []string{}
	for _, feature := range []struct {
		name string
		has  bool
	}{
		{"destroy element", f.Destroy},
		{"table flag owner", f.Owner},
		{"table flag persist", f.Persist},
		{"connection timeouts", f.Timeout},
		{"jhash", f.Hash},
		{"counters of elements", f.Counters},
		{"rate limits", f.Limit},
		{"counts of connections", f.ConnLimit},
	} {
		if feature.has == present {
			names = append(names, feature.name)
		}
	}
	return names
}

// Probe returns the features that were found when the Conn was opened.
func (c *Conn) Probe() Features { return c.features }

// probeTable names the table of trial batches, which never commit.
const probeTable = "svcctl-probe"

// trial is an operation that tests for one feature of the kernel.
type trial struct {
	needs        string // the kernel option of the feature; "" if the product works without it
	found        *bool  // the result, if the product works without the feature
	prerequisite bool   // later trials depend on this one
	try          func(t *transaction, f nft.Family)
}

// probe tests all features in one transaction. Its last operation deletes a table that does not exist, so that the kernel answers for each operation
// and then undoes all of them. The table is dormant, so that not even empty chains process packets. The kernel checks reject in prerouting (kernel
// 5.10) only when a transaction succeeds, so an older kernel is detected by the first Commit.
func probe(s *socket) (Features, error) {
	var features Features
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		features.Release = unix.ByteSliceToString(name.Release[:])
	}
	var attempts []trial
	t := newTransaction(s, probeTable, 0)
	for _, f := range nft.Families {
		for _, trial := range trials(&features) {
			t.op = len(attempts)
			trial.try(t, f)
			attempts = append(attempts, trial)
		}
	}
	t.abort(len(attempts))
	o, err := t.send()
	switch {
	case err != nil:
		return features, err
	case o.whole.Errno != 0:
		return features, o.whole.Errno
	case o.lost != nil:
		return features, o.lost
	case len(o.refused) == 0:
		return features, errors.New("the kernel did not answer a probe")
	}
	return features, evaluateTrials(t.parts, attempts, o.refused)
}

// evaluateTrials records the detected features, and returns an error that names the required ones that are missing.
func evaluateTrials(parts []part, attempts []trial, refused map[int]nfnetlink.Failure) error {
	var names []string
	prerequisiteMissing := false
	for i, p := range parts {
		f, failed := refused[i]
		if !failed || p.op >= len(attempts) || prerequisiteMissing {
			continue
		}
		if f.Errno == unix.EPERM {
			return f.Errno
		}
		a := attempts[p.op]
		if a.found != nil {
			*a.found = false
		} else if name := fmt.Sprintf("%s (it answers: %v)", a.needs, f.Errno); !slices.Contains(names, name) {
			names = append(names, name)
		}
		prerequisiteMissing = a.prerequisite
	}
	if names != nil {
		return fmt.Errorf("%w: it lacks %s", ErrUnsupported, strings.Join(names, ", "))
	}
	return nil
}

// trials returns the tests of one family, ordered so that each test depends only on earlier ones.
func trials(features *Features) []trial {
	*features = Features{Release: features.Release, Destroy: true, Owner: true, Persist: true, Timeout: true, Hash: true, Counters: true, Limit: true, ConnLimit: true}
	frontend := []nft.Type{nft.TypeAddr, nft.TypeProto, nft.TypeService}
	slots := nft.Set{Name: "slots", Key: append(frontend[:3:3], nft.TypeSlot), Data: []nft.Type{nft.TypeAddr, nft.TypeService}}
	ranges := nft.Set{Name: "ranges", Key: append(frontend[:3:3], nft.TypeAddr), Interval: true}
	verdicts := nft.Set{Name: "verdicts", Key: frontend, Data: []nft.Type{nft.TypeVerdict}}
	counted := nft.Set{Name: "counted", Key: frontend, Data: verdicts.Data, Counted: true}
	memory := nft.Set{Name: "memory", Key: slots.Key[:1], Data: slots.Data, Dynamic: true, Timeout: time.Hour, Size: 1}
	clients := nft.Set{Name: "clients", Key: slots.Key[:1], Dynamic: true, Size: 1}
	prefixes := nft.Set{Name: "prefixes", Key: slots.Key[:1], Interval: true}
	fields := []nft.Field{nft.Daddr, nft.L4Proto, nft.Dport}
	original := []nft.Field{nft.OriginalDaddr, nft.L4Proto, nft.OriginalDport}

	set := func(s nft.Set) func(*transaction, nft.Family) {
		return func(t *transaction, f nft.Family) { t.addSet(f, &s) }
	}
	rule := func(statements ...nft.Statement) func(*transaction, nft.Family) {
		return func(t *transaction, f nft.Family) { t.addRule(f, "prerouting", statements) }
	}
	return []trial{
		{needs: "CONFIG_NF_TABLES_IPV4 and CONFIG_NF_TABLES_IPV6", prerequisite: true, try: func(t *transaction, f nft.Family) {
			t.addTable(f, unix.NFT_TABLE_F_DORMANT)
		}},
		{needs: "CONFIG_NF_NAT and CONFIG_NFT_NAT", prerequisite: true, try: func(t *transaction, f nft.Family) {
			t.addChain(f, nft.Chain{Name: "prerouting", Hook: nft.HookPrerouting, Priority: nft.PriorityDstNAT})
		}},
		{needs: "maps of concatenations (kernel 4.1)", try: set(slots)},
		{needs: "verdict maps", try: set(verdicts)},
		{needs: "sets that packets add to (CONFIG_NF_TABLES, kernel 4.1)", try: set(memory)},
		{needs: "interval sets", try: set(prefixes)},
		{needs: "interval sets of concatenations (kernel 5.6)", try: set(ranges)},
		{found: &features.Counters, try: set(counted)},
		{found: &features.Counters, try: func(t *transaction, f nft.Family) { t.addCounter(f, nft.RefusedStray) }},
		{found: &features.Counters, try: rule(nft.Counter{Name: nft.RefusedStray})},
		{needs: "CONFIG_NFT_NAT and CONFIG_NFT_NUMGEN", try: rule(nft.DNAT{Key: append(fields[:3:3], nft.Numgen(2)), Map: slots.Name})},
		{needs: "CONFIG_NF_TABLES", try: rule(nft.VerdictMap{Key: fields, Map: verdicts.Name})},
		{needs: "CONFIG_NFT_CT (kernel 4.17)", try: rule(nft.MatchNotDNAT{}, nft.VerdictMap{Key: original, Map: verdicts.Name})},
		{needs: "CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6", try: rule(nft.MatchLocalSource{})},
		{needs: "CONFIG_NF_TABLES", try: rule(nft.Update{Map: memory.Name, Key: fields[:1], Data: []nft.Field{nft.Daddr, nft.Dport}, Timeout: time.Hour})},
		{needs: "CONFIG_NFT_REJECT", try: rule(nft.Reject{With: nft.RejectTCPReset})},
		{needs: "CONFIG_NFT_REDIR", try: rule(nft.Redirect{})},
		// In the chain where it may stand: the kernel checks that at the end of a
		// transaction as a rule, and at once after one that was cut off.
		{needs: "CONFIG_NFT_MASQ", try: func(t *transaction, f nft.Family) {
			t.addChain(f, nft.Chain{Name: "postrouting", Hook: nft.HookPostrouting, Priority: nft.PrioritySrcNAT})
			t.addRule(f, "postrouting", nft.Rule{nft.Masquerade{}})
		}},
		{found: &features.Destroy, try: func(t *transaction, f nft.Family) {
			t.elements(msgDestroySetElem, 0, f, &slots, []nft.Element{{Key: string(make([]byte, nft.KeyLen(slots.Key, f)))}})
		}},
		{found: &features.Timeout, try: func(t *transaction, f nft.Family) {
			t.addTimeout(f, nft.Timeout{Protocol: nft.TCP, Idle: time.Minute})
		}},
		{found: &features.Hash, try: rule(nft.DNAT{Key: append(fields[:3:3], nft.Field{Kind: nft.FieldHashFlow, Mod: 2}), Map: slots.Name})},
		{found: &features.Limit, try: rule(nft.Over{Rate: nft.Rate{Count: 1, Per: time.Second}})},
		{found: &features.Limit, try: set(clients)},
		{found: &features.Limit, try: rule(nft.Update{Map: clients.Name, Key: []nft.Field{nft.Saddr}, Rate: nft.Rate{Count: 1, Per: time.Second}})},
		{found: &features.ConnLimit, try: rule(nft.Update{Map: clients.Name, Key: []nft.Field{nft.Saddr}, Add: true, Connections: 1})},
		{found: &features.Owner, try: ownedTable(tableOwner)},
		{found: &features.Persist, try: ownedTable(tableOwner | tablePersist)},
	}
}

// ownedTable returns a function that appends the message of `add table ip svcctl-probe-3 { flags owner,persist; }`.
func ownedTable(flags uint32) func(*transaction, nft.Family) {
	return func(t *transaction, f nft.Family) {
		t.table = fmt.Sprintf("%s-%d", probeTable, flags)
		t.addTable(f, flags)
		t.table = probeTable
	}
}

// Check asks the kernel whether it would accept every operation of a batch, and changes nothing. The errors are those of Commit. What the kernel
// validates only at the end of a successful transaction (loops of chains) is not detected.
//
// The batch ends with an operation that must fail, so the kernel undoes all of it.
func (c *Conn) Check(b *nft.Batch, generation uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.withoutDevices(func() error { return c.checkOnce(b, generation) })
	if err != nil && !isAnswer(err) {
		c.closeSocket()
	}
	return err
}

func (c *Conn) checkOnce(b *nft.Batch, generation uint32) error {
	t, err := c.write(b, generation)
	if err != nil || t.empty() {
		return err
	}
	bound := len(t.parts)
	t.abort(len(b.Ops))
	o, err := t.send()
	if _, failed := o.refused[bound]; failed {
		delete(o.refused, bound)
		o.acknowledged = true // as it would be without that operation
	}
	return t.result(o, err, func(op, element int) string { return opText(b.Ops, op, element) })
}
