package conntrack

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"time"

	"golang.org/x/net/bpf"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// ListenFailed is Listen for DESTROY events of TCP connections that the endpoint did not answer. The kernel drops all
// others at the socket: a connection that was answered wakes nobody up. Events of kernels before 5.8 have no protocol
// state, and do not come.
func ListenFailed(netns int) (*Events, error) {
	return listen(netns, unanswered, failedBuffer)
}

// failedBuffer has room for some 800 messages. What does not fit is lost: each endpoint needs one.
const failedBuffer = 1 << 20

// unanswered is a program (bpf(7), classic) that passes messages about entries with protocol state, which UDP has none
// of, with the status bit DST_NAT and without SEEN_REPLY.
var unanswered = []bpf.Instruction{
	bpf.LoadConstant{Dst: bpf.RegX, Val: ctaProtoInfo},
	bpf.LoadConstant{Dst: bpf.RegA, Val: nfnetlink.HeaderLen + nfnetlink.GenHeaderLen},
	bpf.LoadExtension{Num: bpf.ExtNetlinkAttr},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 9},
	bpf.LoadConstant{Dst: bpf.RegX, Val: ctaStatus},
	bpf.LoadConstant{Dst: bpf.RegA, Val: nfnetlink.HeaderLen + nfnetlink.GenHeaderLen},
	bpf.LoadExtension{Num: bpf.ExtNetlinkAttr},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 5},
	bpf.TAX{},
	bpf.LoadIndirect{Off: 4, Size: 4}, // behind the attribute's header
	bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: statusDstNAT, SkipTrue: 2},
	bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: statusSeenReply, SkipTrue: 1},
	bpf.RetConstant{Val: math.MaxUint32},
	bpf.RetConstant{Val: 0},
}

// Pause stops the events, and with on false begins them again. For connections that begin during a pause the kernel
// prepares no message.
func (v *Events) Pause(on bool) error {
	if on {
		return v.stream.Leave(groupDestroy)
	}
	return v.stream.Join(groupDestroy)
}

// Failure is how a connection to an endpoint failed.
type Failure uint8

// The failures.
const (
	NoFailure Failure = iota
	// Refused: the first packet after the client's SYN was a reset. Whether the endpoint or the client sent it the
	// entry does not have (nf_conntrack_proto_tcp.c deletes it either way).
	Refused
	// Silent: no answer until the kernel forgot the SYN (net.netfilter.nf_conntrack_tcp_timeout_syn_sent).
	Silent
)

// Failure classifies a connection that ended. An entry that was deleted has time left, and is no failure.
func (e *Event) Failure() Failure {
	switch {
	case !e.Over || e.Protocol != nft.TCP || e.Answered:
	case e.State == tcpStates[tcpClose]:
		return Refused
	case e.State == tcpStates[tcpSynSent] && e.Expires == 0:
		return Silent
	}
	return NoFailure
}

// Attempts looks for TCP connections that wait for the first answer of their endpoint.
type Attempts struct {
	table *kernelTable
	seen  map[attempt]time.Time // when those of the last look were seen first
}

// NewAttempts opens nothing yet.
func NewAttempts(options Options) *Attempts {
	return &Attempts{table: &kernelTable{netns: options.NetNS}}
}

// Look hands each unanswered connection to each, with the time since the look that found it first, and deletes the
// entry if that returns true, so that the client's next SYN begins a new connection. entries is the size of the
// table, found the number of unanswered connections.
func (a *Attempts) Look(now time.Time, each func(c *Connection, waited time.Duration) (forget bool)) (entries uint32, found int, err error) {
	if err := a.table.open(); err != nil {
		return 0, 0, explain(err)
	}
	seeing := map[attempt]time.Time{}
	if entries, err = a.table.reader.count(); err != nil {
		return 0, 0, errors.Join(explain(err), a.table.close())
	}
	if entries == 0 {
		a.seen = seeing
		return 0, 0, nil
	}
	var c Connection
	for _, family := range nft.Families {
		_, err := a.table.clean(query{family: family, protocol: nft.TCP, unanswered: true}, func(list []entry, verdicts []verdict) ([]verdict, map[nft.Family]netip.Addr) {
			for i := range list {
				e := &list[i]
				verdicts = append(verdicts, leave)
				if e.family != family || e.protocol != nft.TCP || e.state != tcpSynSent || e.answered || !e.isThrough() {
					continue
				}
				found++
				key := attempt{binary.BigEndian.Uint32(e.id), e.replyFrom}
				since, known := a.seen[key]
				if !known {
					since = now
				}
				if len(seeing) < mostAttempts {
					seeing[key] = since
				}
				if e.describe(&c); each(&c, now.Sub(since)) {
					verdicts[len(verdicts)-1] = forget
				}
			}
			return verdicts, nil
		})
		if err != nil {
			return entries, found, err
		}
	}
	a.seen = seeing
	return entries, found, nil
}

// Close forgets what was seen, and closes the table until the next look.
func (a *Attempts) Close() error {
	a.seen = nil
	return a.table.close()
}
