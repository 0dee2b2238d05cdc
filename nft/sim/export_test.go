package sim

import "iter"

// Numbers for the tests' own packets.
const (
	ProtoICMP   = protoICMP
	ProtoICMPv6 = protoICMPv6
)

// Runs runs a packet once for each sequence of draws. What it leaves behind and its trace are valid until the next run.
func (h *Host) Runs(p Packet) iter.Seq2[Trail, Result] {
	return func(yield func(Trail, Result) bool) {
		for f, r := range h.runs(p) {
			if !yield(f.trail, r) {
				return
			}
		}
	}
}
