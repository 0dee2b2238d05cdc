package discover

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/discover/ledger"
	"svcctl.io/svcctl/appliance/discover/provider"
)

// An answer is written at once, with others when there was a write just before, and never waits for what waits itself: a slice that the
// API refused is written again after half a minute.
func TestWritesDoNotWait(t *testing.T) {
	now := time.Now()
	d := newSchedule()
	touch := func(service string) time.Duration {
		d.touch(now, service)
		return d.at.Sub(now)
	}
	if after := touch("default/web"); after != 0 {
		t.Errorf("the first answer is written after %v", after)
	}
	if keys := d.due(now); len(keys) != 1 {
		t.Errorf("due: %v", keys)
	}
	d.wrote(now, "default/web")
	if after := touch("default/db"); after != joined {
		t.Errorf("the second answer is written after %v", after)
	}
	d.at = time.Time{}
	d.by(now.Add(refusedRetry))
	if after := touch("default/web"); after != joined {
		t.Errorf("beside a slice that was refused, an answer is written after %v", after)
	}
	if keys := d.due(now.Add(joined)); len(keys) != 1 || keys[0] != "default/db" || d.at.Sub(now) != writeEach {
		t.Errorf("a Service that was just written: due %v, and the rest after %v", keys, d.at.Sub(now))
	}
	d.failed(now)
	if after := touch("default/db"); after < 80*time.Millisecond || !d.at.Equal(d.rest) {
		t.Errorf("while the API is away, it is asked after %v", after)
	}
}

// A provider that flaps has its Service written five times a second at most, and its last answer.
func Test1015_a_flapping_service_is_written_five_times_a_second(t *testing.T) {
	now := time.Now()
	d, writes := newSchedule(), 0
	for range 10_000 { // an answer each millisecond, for ten seconds
		d.touch(now, "default/web")
		for _, key := range d.due(now) {
			writes++
			d.wrote(now, key)
		}
		now = now.Add(time.Millisecond)
	}
	if writes > 51 || writes < 40 {
		t.Errorf("%d writes in ten seconds", writes)
	}
	if d.due(now); len(d.dirty) > 0 && len(d.due(now.Add(writeEach))) != 1 {
		t.Error("the last answer is not written")
	}
}

// manyNames is a discovery of n Services whose targetPort is a name, each five with one name in DNS.
func manyNames(n int) (d *discovery, all []ledger.Asked) {
	d = &discovery{ledger: ledger.New(time.Now()), claims: map[string]map[ledger.Key]want{}}
	for i := range n {
		of := ledger.Asked{Provider: "dns", Question: provider.Question{Name: fmt.Sprintf("s%d.test", i/5)}}
		key := ledger.Key{Service: fmt.Sprintf("default/s%d", i), Port: "http", Asked: of}
		d.ledger.Claim(time.Now(), key, ledger.Terms{Target: 80}, nil)
		d.claims[key.Service] = map[ledger.Key]want{key: {key: key, byName: true}}
		all = append(all, of)
	}
	return d, all
}

// The report on an answer without ports has one text while the answer lasts, since each other text is a write of a Lease.
func TestPortlessIsStable(t *testing.T) {
	d, all := manyNames(10)
	portless := &provider.Answer{Endpoints: []provider.Endpoint{{Address: "10.0.0.1"}}}
	first := d.portless(all[0], portless)
	if len(first) != 5 {
		t.Fatalf("%q", first)
	}
	for range 50 {
		if again := d.portless(all[0], portless); !slices.Equal(again, first) {
			t.Fatalf("%q, and then %q", first, again)
		}
	}
	if bad := d.portless(all[0], &provider.Answer{Endpoints: []provider.Endpoint{{Address: "10.0.0.1", Port: 80}}}); bad != nil {
		t.Errorf("an answer with ports: %q", bad)
	}
}

// BenchmarkAnswer is what one answer of a name server costs beside the questions of 10,000 Services.
func BenchmarkAnswer(b *testing.B) {
	d, all := manyNames(10_000)
	a := provider.Answer{Endpoints: []provider.Endpoint{{Address: "10.0.0.1"}}}
	for i := 0; b.Loop(); i++ {
		of := all[i%len(all)]
		d.ledger.Answer(time.Now(), of, a, d.portless(of, &a))
		d.ledger.Next(time.Now())
	}
}
