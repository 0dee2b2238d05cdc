package trace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// TableName is the name of the table that chooses the traced packets.
const TableName = "svcctl-trace"

// perSecond bounds the packets that are traced in a second.
const perSecond = 10

// buffer is the size of the receive buffer in bytes: no less than Linux gives by default.
const buffer = 256 << 10

// Filter chooses packets. A zero field matches all.
type Filter struct {
	Family   nft.Family
	From     netip.Prefix
	To       netip.Addr
	Protocol nft.Protocol
	Port     uint16 // the destination's; needs Protocol
	// Established traces packets of connections that are tracked already, instead of first packets.
	Established bool
}

// ErrBusy reports that another trace runs: there is one at a time.
var ErrBusy = errors.New("another trace runs already: wait until it ends")

// Run traces what the filters choose until ctx is done, and hands each Step to each. netns is a
// file descriptor of the network namespace, 0: the current one.
func Run(ctx context.Context, netns int, filters []Filter, each func(Step)) error {
	heard, err := nfnetlink.Listen(nfnetlink.Options{NetNS: netns}, unix.NFNLGRP_NFTRACE, buffer)
	if err != nil {
		return fmt.Errorf("listen for traces: %w", err)
	}
	defer heard.Close()
	rules, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(netns))
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}
	defer func() { _ = rules.CloseLasting() }() // its table goes with it
	if err := choose(rules, filters, nftables.TableFlagOwner); errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		// Before 5.12 a table has no owner.
		if err := choose(rules, filters, 0); err != nil {
			return err
		}
		defer remove(rules, filters)
	} else if err != nil {
		return err
	}
	ended := context.AfterFunc(ctx, func() { _ = heard.Close() })
	defer ended()
	for {
		messages, err := heard.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			continue // some were lost: a packet whose story has a gap
		case err != nil:
			return fmt.Errorf("listen for traces: %w", err)
		}
		for _, m := range messages {
			if step, ok := decode(&m); ok && step.Table != TableName {
				each(step)
			}
		}
	}
}

func tableOf(f nft.Family, flags nftables.TableFlags) *nftables.Table {
	family := nftables.TableFamilyIPv4
	if f == nft.IPv6 {
		family = nftables.TableFamilyIPv6
	}
	return &nftables.Table{Family: family, Name: TableName, Flags: flags}
}

// remove deletes tables that belong to no socket.
func remove(conn *nftables.Conn, filters []Filter) {
	for _, f := range familiesOf(filters) {
		conn.DelTable(tableOf(f, 0))
	}
	_ = conn.Flush()
}

func familiesOf(filters []Filter) (families []nft.Family) {
	seen := map[nft.Family]bool{}
	for _, f := range filters {
		if !seen[f.Family] {
			seen[f.Family] = true
			families = append(families, f.Family)
		}
	}
	return families
}

// choose is, for each family,
//
//	create table ip svcctl-trace { flags owner; }
//	chain prerouting { type filter hook prerouting priority mangle; … meta nftrace set 1; }
//	chain output { type filter hook output priority mangle; … meta nftrace set 1; }
func choose(conn *nftables.Conn, filters []Filter, flags nftables.TableFlags) error {
	for _, family := range familiesOf(filters) {
		table := conn.CreateTable(tableOf(family, flags))
		for name, hook := range map[string]*nftables.ChainHook{"prerouting": nftables.ChainHookPrerouting, "output": nftables.ChainHookOutput} {
			chain := conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityMangle})
			for _, f := range filters {
				if f.Family == family {
					conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: f.expressions()})
				}
			}
		}
	}
	err := conn.Flush()
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EPERM) {
		return ErrBusy
	}
	if err != nil {
		return fmt.Errorf("make table %s: %w", TableName, err)
	}
	return nil
}

// expressions is `ip saddr … ip daddr … meta l4proto … th dport … ct state new limit rate 10/second
// meta nftrace set 1`.
func (f *Filter) expressions() (out []expr.Any) {
	add := func(more ...expr.Any) { out = append(out, more...) }
	source, destination, length := uint32(12), uint32(16), uint32(4)
	if f.Family == nft.IPv6 {
		source, destination, length = 8, 24, 16
	}
	if f.From.IsValid() {
		add(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: source, Len: length},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: length, Mask: net.CIDRMask(f.From.Bits(), f.From.Addr().BitLen()), Xor: make([]byte, length)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: f.From.Masked().Addr().AsSlice()})
	}
	if f.To.IsValid() {
		add(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: destination, Len: length},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: f.To.AsSlice()})
	}
	if f.Protocol != 0 {
		add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(f.Protocol)}})
	}
	if f.Port != 0 {
		add(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(f.Port)})
	}
	state := uint32(expr.CtStateBitNEW | expr.CtStateBitINVALID | expr.CtStateBitUNTRACKED)
	if f.Established {
		state = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED
	}
	add(&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(state), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		&expr.Limit{Type: expr.LimitTypePkts, Rate: perSecond, Unit: expr.LimitTimeSecond, Burst: perSecond},
		&expr.Immediate{Register: 1, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: 1})
	return out
}
