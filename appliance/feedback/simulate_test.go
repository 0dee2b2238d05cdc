package feedback

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// endings are the times at which connections end, the next first.
type endings []ending

type ending struct {
	at       float64
	endpoint int
	id       uint32
}

func (h endings) Len() int           { return len(h) }
func (h endings) Less(i, j int) bool { return h[i].at < h[j].at }
func (h endings) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *endings) Push(x any)        { *h = append(*h, x.(ending)) }
func (h *endings) Pop() any          { old := *h; x := old[len(old)-1]; *h = old[:len(old)-1]; return x }

// load is a Service under connections that come at random, in seconds of a clock of its own.
type load struct {
	rate    float64   // connections a second
	lives   []float64 // mean life at each endpoint, exponentially distributed; 0: it resets its clients
	weights []uint32
	looks   time.Duration // 0: none
	seconds float64
	bursts  bool // all of 10 seconds come at once
}

// outcome has the results of a load, in its second half.
type outcome struct {
	spread float64 // standard deviation of open connections per weight, over their mean
	share  []float64
	moved  float64 // slots, of those of a look
}

func (l *load) run(seed uint64) outcome {
	r := rand.New(rand.NewPCG(seed, 1))
	endpoints := make([]netip.AddrPort, len(l.lives))
	for i := range endpoints {
		endpoints[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(i%250 + 1)}), 80)
	}
	size := map[bool]int{true: 64, false: 256}[len(endpoints) <= 16]
	p, c := &Pool{}, &Connections{}
	p.Set(endpoints, l.weights, (&Pool{}).Joined(endpoints, l.weights, size))
	index := map[netip.AddrPort]int{}
	for i, at := range endpoints {
		index[at] = i
	}
	open, came := make([]int, len(endpoints)), make([]int, len(endpoints))
	alive := make([]map[uint32]bool, len(endpoints))
	for i := range alive {
		alive[i] = map[uint32]bool{}
	}
	var ended endings
	brief := map[uint32]int{} // began and ended since the last look
	id := uint32(0)
	var sum, squares, samples, looks, moved float64
	arrival, look, sample := 0.0, l.looks.Seconds(), l.seconds/2
	begin := func(now float64) {
		id++
		e := index[p.Slots()[r.IntN(size)]]
		if now > l.seconds/2 {
			came[e]++
		}
		if l.lives[e] == 0 {
			return
		}
		open[e]++
		alive[e][id], brief[id] = true, e
		heap.Push(&ended, ending{now + r.ExpFloat64()*l.lives[e], e, id})
	}
	for {
		now := min(arrival, sample)
		if l.looks > 0 {
			now = min(now, look)
		}
		if len(ended) > 0 && ended[0].at <= now {
			e := heap.Pop(&ended).(ending)
			open[e.endpoint]--
			delete(alive[e.endpoint], e.id)
			continue
		}
		if now > l.seconds {
			break
		}
		switch {
		case now == arrival && l.bursts:
			for range int(10 * l.rate) {
				begin(now)
			}
			arrival += 10
		case now == arrival:
			begin(now)
			arrival += r.ExpFloat64() / l.rate
		case now == sample:
			var per []float64
			mean := 0.0
			for i, n := range open {
				if l.lives[i] > 0 {
					per = append(per, float64(n)/float64(l.weights[i]))
					mean += float64(n) / float64(l.weights[i])
				}
			}
			mean /= float64(len(per))
			for _, x := range per {
				squares += (x - mean) * (x - mean) / float64(len(per))
			}
			sum, samples = sum+mean, samples+1
			sample += 0.25
		default:
			for e, ids := range alive {
				for id := range ids {
					c.See(endpoints[e], id, false)
				}
			}
			for id, e := range brief {
				if !alive[e][id] {
					c.See(endpoints[e], id, true)
				}
			}
			clear(brief)
			before := p.Slots()
			if counts := c.Done(); counts != nil && p.Look(l.looks, counts) {
				for i, at := range p.Slots() {
					if at != before[i] {
						moved++
					}
				}
			}
			looks++
			look += l.looks.Seconds()
		}
	}
	o := outcome{spread: math.Sqrt(squares/samples) / (sum / samples), moved: moved / max(looks, 1)}
	total := 0
	for _, n := range came {
		total += n
	}
	for _, n := range came {
		o.share = append(o.share, float64(n)/float64(total))
	}
	return o
}

func equal(n int) []uint32 { return slices.Repeat([]uint32{1}, n) }

// everyOther are the lives at n endpoints of which every other one is slower.
func everyOther(n int, fast, slow float64) (lives []float64) {
	for i := range n {
		lives = append(lives, map[bool]float64{true: fast, false: slow}[i%2 == 0])
	}
	return lives
}

// Spreads of open connections, simulated, against those of chance.
func TestSpread(t *testing.T) {
	three := equal(10)
	for i := range three {
		if i%2 == 0 {
			three[i] = 3
		}
	}
	for _, tt := range []struct {
		name   string
		load   load
		spread float64 // at most
	}{
		{"ten alike", load{rate: 200, lives: everyOther(10, 10, 10), weights: equal(10), seconds: 300}, 0.05},
		{"every other one 3 x slower", load{rate: 200, lives: everyOther(10, 10, 30), weights: equal(10), seconds: 400}, 0.04},
		{"the same, short", load{rate: 2000, lives: everyOther(10, 0.5, 1.5), weights: equal(10), seconds: 60}, 0.15},
		{"weights 3:1", load{rate: 200, lives: everyOther(10, 10, 10), weights: three, seconds: 300}, 0.06},
		{"few connections", load{rate: 2, lives: everyOther(5, 10, 10), weights: equal(5), seconds: 2000}, 0.42},
		{"bursts", load{rate: 50, lives: everyOther(10, 10, 10), weights: equal(10), seconds: 600, bursts: true}, 0.2},
		{"a hundred, every other one 3 x slower", load{rate: 1000, lives: everyOther(100, 10, 30), weights: equal(100), seconds: 300}, 0.09},
		{"the page's on real TCP", load{rate: 150, lives: everyOther(10, 2, 6), weights: equal(10), seconds: 150}, 0.17},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			random := tt.load.run(1)
			tt.load.looks = time.Second
			got := tt.load.run(1)
			t.Logf("spread %.1f %%, random %.1f %%; %.1f slots moved a look", 100*got.spread, 100*random.spread, got.moved)
			if got.spread > tt.spread || got.spread > random.spread*1.05 {
				t.Errorf("spread %.3f, want at most %.3f, and not above chance, %.3f", got.spread, tt.spread, random.spread)
			}
		})
	}
}

// An endpoint that resets its clients looks idle for ever. It gets little more than its share.
func TestRefusingEndpointGetsItsShare(t *testing.T) {
	for _, n := range []int{2, 3, 10} {
		lives := everyOther(n, 5, 5)
		lives[0] = 0
		o := (&load{rate: 100, lives: lives, weights: equal(n), seconds: 300, looks: time.Second}).run(1)
		t.Logf("of %d endpoints the one that refuses gets %.3f", n, o.share[0])
		if o.share[0] > 1.3/float64(n) {
			t.Errorf("of %d endpoints the one that refuses gets %.3f of all connections", n, o.share[0])
		}
	}
}
