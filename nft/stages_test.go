package nft_test

import (
	"net/netip"
	"strconv"
	"testing"

	. "svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/fake"
)

// A large table from nothing comes in several transactions, and no packet sees anything of
// it before the last one.
func TestStages(t *testing.T) {
	s := manyServices(20_000)
	six := ServicePort{ID: "default/six", Family: IPv6, Protocol: TCP, Frontends: []Frontend{clusterIP("fd00::1", 80)}, Pools: [NumPools][]netip.AddrPort{PoolCluster: addrPorts("[fd00:1::1]:80")}}
	s.Services["default/six"] = []ServicePort{six}
	c := NewCompiler()
	tr := c.Load(s)
	stages := tr.Stages()
	if len(stages) < 3 {
		t.Fatalf("%d stages", len(stages))
	}
	k := fake.New()
	for i, stage := range stages {
		have, now, err := k.Read()
		if err != nil {
			t.Fatal(err)
		}
		for f, table := range have {
			for name, chain := range table.Chains {
				if chain.Hook != HookNone {
					t.Errorf("before stage %d table %s has the base chain %s", i, f, name)
				}
			}
		}
		n := 0
		for _, op := range stage.Ops {
			if op, is := op.(AddElements); is {
				n += len(op.Elements)
			}
		}
		if n > 8_000 {
			t.Errorf("stage %d has %d elements", i, n)
		}
		if _, err = k.Commit(&stage, now); err != nil {
			t.Fatalf("stage %d: %v", i, err)
		}
	}
	have, _, _ := k.Read()
	if tr := Diff(have, c.Ruleset()); !tr.Empty() {
		t.Errorf("afterwards there is something to do: %.500v", tr)
	}
	if tr := c.Load(manyServices(100)); len(tr.Stages()) > 2 {
		t.Errorf("a change comes in %d stages", len(tr.Stages()))
	}
}

// Where many Services come to those that are there, their backends come first, and packets
// meet either none of them or all.
func TestStagesAhead(t *testing.T) {
	few, many := manyServices(1_000), manyServices(26_000)
	c := NewCompiler()
	tr := c.Load(few)
	k := fake.New()
	now := uint32(1)
	commit := func(b Batch) {
		t.Helper()
		var err error
		if now, err = k.Commit(&b, now); err != nil {
			t.Fatal(err)
		}
	}
	commit(tr.Apply)
	before := reached(t, k, 26_000)
	tr = c.Load(many)
	stages := tr.Stages()
	if len(stages) < 3 {
		t.Fatalf("%d stages", len(stages))
	}
	for i, stage := range stages[:len(stages)-1] {
		commit(stage)
		if n := reached(t, k, 26_000); n != before || before != 1_000 {
			t.Errorf("after stage %d %d Services are reached, before %d", i, n, before)
		}
	}
	commit(stages[len(stages)-1])
	if n := reached(t, k, 26_000); n != 26_000 {
		t.Errorf("in the end %d Services are reached", n)
	}
	have, _, _ := k.Read()
	if tr := Diff(have, c.Ruleset()); !tr.Empty() {
		t.Errorf("afterwards there is something to do: %.500v", tr)
	}
	// Where endpoints change, too, nothing is put ahead of that.
	for i := range 100 {
		many.Services["default/s"+strconv.Itoa(i)] = []ServicePort{numbered(i, 1)}
	}
	if tr := Diff(Compile(few), Compile(many)); len(tr.Stages()) != 1 {
		t.Errorf("a change of everything comes in %d stages", len(tr.Stages()))
	}
}

// reached counts the Services that the maps lead to.
func reached(t *testing.T, k *fake.Kernel, most int) (n int) {
	t.Helper()
	have, _, err := k.Read()
	if err != nil {
		t.Fatal(err)
	}
	services := have[IPv4].Sets["services"].Elements
	for i := range most {
		if _, is := services[string(Key(nil).Addr(numbered(i, 0).Frontends[0].Addr).Proto(TCP).Port(80))]; is {
			n++
		}
	}
	return n
}
