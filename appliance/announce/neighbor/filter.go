package neighbor

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/net/bpf"
)

// maxFilterPrefixes bounds the programs: each prefix is a few instructions, which every frame
// pays for. With more of them the kernel passes all frames.
const maxFilterPrefixes = 64

// Offsets in an Ethernet frame.
const (
	offEtherType  = 12
	offARPSender  = etherLen + 14
	offARPTarget  = etherLen + 24
	offNextHeader = etherLen + 6
	offHopLimit   = etherLen + 7
	offSource     = etherLen + 8
	offICMPType   = etherLen + ipv6Len
	offNDPTarget  = etherLen + ipv6Len + 8
)

// snapLen bounds the bytes of a frame that are read.
const snapLen = 2048

// condition is a word of a frame that is compared with a value, under a mask.
type condition struct{ offset, mask, value uint32 }

// filter returns a program (bpf(7), classic) that passes the ARP packets, or with v6 the neighbor
// solicitations and advertisements, that are about an address of the prefixes.
func filter(prefixes []netip.Prefix, v6 bool) ([]bpf.RawInstruction, error) {
	var of []netip.Prefix
	for _, p := range prefixes {
		if p.Addr().Is6() == v6 {
			of = append(of, p.Masked())
		}
	}
	if len(of) == 0 {
		return bpf.Assemble([]bpf.Instruction{bpf.RetConstant{Val: 0}})
	}
	var common [][]condition
	var at []uint32
	if v6 {
		at = []uint32{offNDPTarget, offSource}
		for _, kind := range []uint32{solicitation, advertisement} {
			common = append(common, []condition{
				{offEtherType - 2, 0xffff, etherIPv6}, {offNextHeader - 3, 0xff, protoICMPv6}, {offHopLimit - 3, 0xff, hopLimit}, {offICMPType, 0xff << 24, kind << 24},
			})
		}
	} else {
		at = []uint32{offARPTarget, offARPSender}
		common = [][]condition{{{offEtherType - 2, 0xffff, etherARP}}}
	}
	if len(of) > maxFilterPrefixes {
		of = []netip.Prefix{netip.PrefixFrom(of[0].Addr(), 0).Masked()}
	}
	var program []bpf.Instruction
	for _, kind := range common {
		for _, p := range of {
			for _, offset := range at {
				all := append(kind[:len(kind):len(kind)], inPrefix(offset, p)...)
				for i, c := range all {
					next := uint8(3*(len(all)-i-1) + 1) // behind the end of these conditions
					program = append(program,
						bpf.LoadAbsolute{Off: c.offset, Size: 4},
						bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: c.mask},
						bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: c.value, SkipTrue: next})
				}
				program = append(program, bpf.RetConstant{Val: snapLen})
			}
		}
	}
	return bpf.Assemble(append(program, bpf.RetConstant{Val: 0}))
}

// inPrefix returns the conditions under which the address at an offset lies in a prefix.
func inPrefix(offset uint32, p netip.Prefix) (all []condition) {
	words := p.Addr().AsSlice()
	for left := p.Bits(); left > 0; left -= 32 {
		mask := ^uint32(0)
		if left < 32 {
			mask <<= 32 - left
		}
		all = append(all, condition{offset, mask, binary.BigEndian.Uint32(words) & mask})
		words, offset = words[4:], offset+4
	}
	return all
}
