package sim

import (
	"time"

	"svcctl.io/svcctl/nft"
)

// limits hold what the packets of Send have used of limits: by chain or set, and of a set by key.
type limits struct {
	buckets map[limited]bucket
	open    map[limited]uint32 // connections, none of which is closed
}

type limited struct {
	family    nft.Family
	name, key string
}

// bucket holds the time that new connections may still take, as the kernel's does (nft_limit.c): each
// takes the period of the rate divided by its count.
type bucket struct {
	left time.Duration
	at   time.Time
}

// overRate reports whether a new connection is over a rate, and takes its part if it is not.
func (f *flow) overRate(name, key string, r nft.Rate) bool {
	if !f.sent || f.isReset {
		return false
	}
	l, id, now := &f.host.limits, limited{f.family, name, key}, f.host.clock
	each := r.Per / time.Duration(r.Count)
	full := each * time.Duration(r.Burst())
	b, used := l.buckets[id]
	if !used {
		b = bucket{full, now}
	}
	b.left, b.at = min(full, b.left+now.Sub(b.at)), now
	over := b.left < each
	if !over {
		b.left -= each
	}
	if l.buckets == nil {
		l.buckets = map[limited]bucket{}
	}
	l.buckets[id] = b
	return over
}

// overConnections reports whether a client has as many open connections as it may. If it has not, this
// one is counted, provided that it is delivered.
func (f *flow) overConnections(name, key string, most uint32) bool {
	if !f.sent || f.isReset {
		return false
	}
	id := limited{f.family, name, key}
	if f.host.limits.open[id] >= most {
		return true
	}
	f.opens = append(f.opens, id)
	return false
}

// opened counts the connections of a packet that was delivered.
func (l *limits) opened(ids []limited) {
	if l.open == nil {
		l.open = map[limited]uint32{}
	}
	for _, id := range ids {
		l.open[id]++
	}
}
