package nft_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	. "svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/fake"
)

// counting is a Tally and a kernel that counts for it.
type counting struct {
	*testing.T
	Tally
	have map[string]uint64 // by key, of the map services
	goes map[string]string // verdicts
}

func newCounting(t *testing.T) *counting {
	return &counting{T: t, have: map[string]uint64{}, goes: map[string]string{}}
}

var countedServices = CountedSets()[slices.IndexFunc(CountedSets(), func(s Set) bool { return s.Name == "services" })]

func (c *counting) key(port uint16) string { return string(clusterKey(port)) }

func clusterKey(port uint16) Key {
	fe := clusterIP("10.96.0.10", port)
	return Key(nil).Addr(fe.Addr).Proto(TCP).Port(port)
}

func (c *counting) counts() (list []Count) {
	for key, n := range c.have {
		list = append(list, Count{Family: IPv4, Set: "services", Key: key, Verdict: c.goes[key], Packets: n})
	}
	return list
}

// put has an element come, and what was there of its key go, in one transaction.
func (c *counting) put(port uint16, verdict string, told bool) {
	key := c.key(port)
	var b Batch
	var last []Count
	if _, is := c.have[key]; is {
		b.Ops = append(b.Ops, DeleteElements{IPv4, countedServices, []Element{{Key: key}}})
		if told {
			last = []Count{{Family: IPv4, Set: "services", Key: key, Verdict: c.goes[key], Packets: c.have[key]}}
		}
	}
	b.Ops = append(b.Ops, AddElements{IPv4, countedServices, []Element{{Key: key, Data: verdict}}})
	c.Committing()
	c.have[key], c.goes[key] = 0, verdict
	c.Committed(&b, last)
}

func (c *counting) look() {
	c.Helper()
	if !c.Read(c.counts(), c.Before()) {
		c.Fatal("a reading is not used")
	}
}

func (c *counting) want(when string, port uint16, connections, refused uint64) {
	c.Helper()
	for _, f := range c.Totals().Frontends {
		if f.At.Port() == port {
			if f.Connections != connections || f.Refused != refused || f.Protocol != TCP || f.At.Addr().String() != "10.96.0.10" {
				c.Errorf("%s: %+v, want %d connections and %d refused", when, f, connections, refused)
			}
			return
		}
	}
	if connections+refused > 0 {
		c.Errorf("%s: nothing is counted at port %d, want %d connections and %d refused", when, port, connections, refused)
	}
}

func TestTally(t *testing.T) {
	c := newCounting(t)
	web, dns := c.key(80), c.key(53)
	c.have[web], c.goes[web] = 1000, "goto pick-3" // another process counted that
	c.Start(c.counts())
	c.want("at the start", 80, 0, 0)
	c.have[web] += 5
	c.look()
	c.want("in a look", 80, 5, 0)
	c.have[web] += 2
	c.put(80, "goto pick-4", true)
	c.want("replaced, and told", 80, 7, 0)
	c.have[web] = 3
	c.put(80, "goto refuse", true)
	c.have[web] = 4
	c.look()
	c.want("refusing", 80, 10, 4)
	c.put(80, "goto pick-1", true)
	c.have[web] = 1
	c.look()
	c.want("and back", 80, 11, 4)

	c.have[web] = 0 // another program loads the table anew
	c.look()
	c.have[web] = 6
	c.look()
	c.want("reset by another program", 80, 17-1+1, 4)

	// Of a table that is gone the last look is what is known, however much the new one counts.
	delete(c.have, web)
	c.put(80, "goto pick-1", false)
	c.have[web] = 50
	c.look()
	c.want("after a flush", 80, 67, 4)

	c.put(53, "goto by-client", false)
	c.have[dns] = 9
	c.look()
	c.want("counted behind by-client", 53, 0, 0)

	before := c.Before()
	c.have[web]++
	stale := c.counts()
	c.put(80, "goto pick-2", true)
	if c.Read(stale, before) {
		t.Error("a reading is used into which a transaction fell")
	}
	c.Committing()
	if c.Read(c.counts(), c.Before()) {
		t.Error("a reading is used during a transaction")
	}
	c.Committed(nil, nil) // refused
	c.look()
	c.want("beside transactions", 80, 68, 4)

	b := Batch{Ops: []Op{DeleteElements{IPv4, countedServices, []Element{{Key: web}}}}}
	c.Committing()
	c.Committed(&b, []Count{{Family: IPv4, Set: "services", Key: web, Verdict: "goto pick-2", Packets: 9}})
	delete(c.have, web)
	c.want("gone", 80, 0, 0)
	c.put(80, "goto pick-1", false)
	c.have[web] = 2
	c.look()
	c.want("and come again", 80, 2, 0)
}

// Totals go on in another process, as far as the kernel's elements are the same or new ones.
func TestTallyGoesOn(t *testing.T) {
	before := newCounting(t)
	if before.Save() != nil {
		t.Error("totals before a reading")
	}
	web := before.key(80)
	before.have[web], before.goes[web] = 1000, "goto pick-3" // another process counted that
	before.Start(before.counts())
	before.have[web] += 5
	before.look()
	before.put(80, "goto refuse", true)
	before.have[web] = 4
	before.look()

	text, err := json.Marshal(append(before.Save(), Tallied{Set: "of-another-version", Key: []byte{1}, Last: 7}))
	if err != nil {
		t.Fatal(err)
	}
	var saved []Tallied
	if err := json.Unmarshal(text, &saved); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		when        string
		now         uint64
		connections uint64
		refused     uint64
	}{{"as it was", 4, 5, 4}, {"counted meanwhile", 6, 5, 6}, {"another element", 1, 5, 5}} {
		c := newCounting(t)
		c.Restore(saved)
		c.have[web], c.goes[web] = test.now, "goto refuse"
		c.Start(c.counts())
		c.look()
		c.want(test.when, 80, test.connections, test.refused)
	}
	c := newCounting(t)
	c.Restore(nil)
	c.have[web], c.goes[web] = 9, "goto pick-1"
	c.Start(c.counts())
	c.want("nothing was saved", 80, 0, 0)
}

// Whole tables and sets that go take their counts along, but for what comes again.
func TestTallyOfTables(t *testing.T) {
	c := newCounting(t)
	c.Start(nil)
	web, dns := c.key(80), c.key(53)
	c.have[web], c.goes[web], c.have[dns], c.goes[dns] = 4, "goto pick-1", 5, "drop"
	stray := Count{Family: IPv4, Key: RefusedStray, Packets: 3}
	if !c.Read(append(c.counts(), stray), c.Before()) {
		t.Fatal("a reading is not used")
	}
	c.want("before", 53, 0, 5)
	b := Batch{Ops: []Op{DeleteTable{IPv4}, AddTable{IPv4}, AddCounter{IPv4, RefusedStray}, AddElements{IPv4, countedServices, []Element{{Key: web, Data: "goto pick-1"}}}}}
	if !b.Takes() {
		t.Error("deleting a table takes no counts away")
	}
	c.Committing()
	c.Committed(&b, nil)
	c.want("of what came again", 80, 4, 0)
	c.want("of what did not", 53, 0, 0)
	if n := c.Totals().Refusals[RefusedStray]; n != 3 {
		t.Errorf("%d strays, want 3", n)
	}
	stray.Packets = 1
	if !c.Read([]Count{stray}, c.Before()) || c.Totals().Refusals[RefusedStray] != 4 || len(c.Totals().Refusals) != len(Refusals) {
		t.Errorf("refusals are %v", c.Totals().Refusals)
	}
	if b := (Batch{Ops: []Op{AddElements{IPv4, Set{Name: "vips"}, nil}, DeleteSet{IPv4, "hairpin"}}}); b.Takes() {
		t.Error("a change of other sets takes counts away")
	}
}

// Counters come and go with one transaction that replaces no table.
func TestCountersComeAndGo(t *testing.T) {
	state := State{Box: testBox(), Services: map[string][]ServicePort{"default/web": {webPort("10.1.0.1:80", "10.1.0.2:80")}}}
	k := fake.New()
	mustCommit(t, k, NewCompiler().Load(state))
	for _, counters := range []bool{false, true} {
		state.Box.Counters = counters
		tr := NewCompiler().Adopt(held(k), state)
		for _, op := range tr.Apply.Ops {
			if _, is := op.(DeleteTable); is {
				t.Error("the table is replaced")
			}
		}
		mustCommit(t, k, tr)
		if got, want := text(t, held(k)), text(t, Compile(state)); got != want {
			t.Errorf("counters %t:\n%s\nwant\n%s", counters, got, want)
		}
	}
}

// The total of a frontend stays while limits, policies and endpoints come and go, which lead its clients by other maps, and
// goes with the frontend.
func TestTotalsStayWhileMapsChange(t *testing.T) {
	state := State{Box: testBox(), Services: map[string][]ServicePort{}}
	state.Box.Counters = true
	k, c := fake.New(), NewCompiler()
	var tally Tally
	commit := func(tr Transition) {
		t.Helper()
		for _, b := range []*Batch{&tr.Apply, &tr.Cleanup} {
			tally.Committing()
			tally.Committed(b, nil)
		}
		mustCommit(t, k, tr)
	}
	tally.Start(nil)
	commit(c.Load(state))
	rate, connections := Limits{Rate: Rate{Count: 5, Per: time.Second}}, Limits{ClientConnections: 5}
	var made, refused, limited, dropped uint64 // limited is what the counter in the kernel says
	for _, round := range []struct {
		limits    Limits
		outside   Route
		endpoints []string
		in        string // where clients from inside are counted
	}{
		{Limits{}, Route{}, []string{"10.1.0.1:80"}, "services"},
		{rate, Route{}, []string{"10.1.0.1:80"}, "limited-services"},
		{connections, Route{}, []string{"10.1.0.1:80", "10.1.0.2:80"}, "limited-services"},
		{connections, Route{}, nil, "services"}, // which refuses
		{connections, Route{}, []string{"10.1.0.1:80"}, "limited-services"},
		{Limits{}, Route{}, []string{"10.1.0.1:80"}, "services"},
		{Limits{}, Route{Pool: PoolLocal, Fallback: Blackhole}, []string{"10.1.0.1:80"}, "inside-services"},
		{rate, Route{Pool: PoolLocal, Fallback: Blackhole}, []string{"10.1.0.1:80"}, "limited-services"},
		{Limits{}, Route{}, []string{"10.1.0.1:80"}, "services"},
	} {
		port := webPort(round.endpoints...)
		port.Limits, port.Frontends[0].External = round.limits, round.outside
		commit(c.Update(nil, map[string][]ServicePort{"default/web": {port}}))
		set := held(k)[IPv4].Sets[round.in]
		if set == nil || set.Elements[string(clusterKey(80))] == "" {
			t.Fatalf("%+v: nothing in %s", round, round.in)
		}
		if round.limits.Any() && round.endpoints != nil {
			limited, dropped = limited+2, dropped+2
		} else {
			limited = 0 // nothing is limited, and the counter is gone
		}
		counts := []Count{{Family: IPv4, Set: round.in, Key: string(clusterKey(80)), Verdict: set.Elements[string(clusterKey(80))], Packets: 1}}
		if limited > 0 {
			counts = append(counts, Count{Family: IPv4, Key: RefusedRate, Packets: limited})
		}
		if !tally.Read(counts, tally.Before()) {
			t.Fatal("a reading is not used")
		}
		if round.endpoints == nil {
			refused++
		} else {
			made++
		}
		var sum FrontendTotal
		for _, f := range tally.Totals().Frontends {
			sum.Connections += f.Connections
			sum.Refused += f.Refused
		}
		if sum.Connections != made || sum.Refused != refused {
			t.Errorf("%+v: %d connections and %d refused, want %d and %d", round, sum.Connections, sum.Refused, made, refused)
		}
		if n := tally.Totals().Refusals[RefusedRate]; n != dropped {
			t.Errorf("%+v: %d over their rate, want %d", round, n, dropped)
		}
	}
	commit(c.Load(state)) // as after a foreign flush, without the Service
	if left := tally.Totals().Frontends; len(left) != 0 {
		t.Errorf("of a frontend that is gone there is %v", left)
	}
}
