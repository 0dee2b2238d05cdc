package netlab

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Transaction is one committed change of a Host's nf_tables rules.
type Transaction struct {
	Generation uint32
	PID        uint32
	Process    string
	// Changes counts what was changed.
	Changes map[Change]int
}

// Change is a kind of change ("add element", "delete rule") of one table.
type Change struct {
	Kind  string
	Table string // "ip svcctl"
}

func (t Transaction) String() string {
	parts := []string{fmt.Sprintf("generation %d by %s (%d):", t.Generation, t.Process, t.PID)}
	for c, n := range t.Changes {
		parts = append(parts, fmt.Sprintf("%d × %s in %s,", n, c.Kind, c.Table))
	}
	slices.Sort(parts[1:])
	return strings.TrimSuffix(strings.Join(parts, " "), ",")
}

// Count is the number of changes of a kind, in all tables; of every kind for "".
func (t Transaction) Count(kind string) int {
	total := 0
	for c, n := range t.Changes {
		if kind == "" || c.Kind == kind {
			total += n
		}
	}
	return total
}

// Monitor sees every nf_tables transaction of a Host.
type Monitor struct {
	host *Host
	fd   int
	buf  []byte
	open map[Change]int // changes of a transaction whose end was not read yet
	done []Transaction
	once sync.Once
}

// Monitor starts to see the nf_tables transactions that are committed from now on.
func (h *Host) Monitor() *Monitor {
	h.t.Helper()
	m := &Monitor{host: h, buf: make([]byte, 1<<16), open: map[Change]int{}}
	err := h.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4*receiveBuffer)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
		}
		if err != nil {
			_ = unix.Close(fd)
			return err
		}
		m.fd = fd
		return nil
	})
	if err != nil {
		h.t.Fatalf("host %s: monitor nf_tables: %v", h.Name, err)
	}
	h.onClose(m.Close)
	return m
}

// Close ends the Monitor before its Host does.
func (m *Monitor) Close() { m.once.Do(func() { _ = unix.Close(m.fd) }) }

// Transactions are the transactions committed since the Monitor was started or
// Forget was called.
func (m *Monitor) Transactions() []Transaction {
	m.host.t.Helper()
	for {
		n, _, err := unix.Recvfrom(m.fd, m.buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err == unix.ENOBUFS {
			m.host.t.Fatalf("host %s: the nf_tables monitor lost messages", m.host.Name)
		}
		if err != nil {
			return slices.Clone(m.done) // EAGAIN: all were read
		}
		messages, err := syscall.ParseNetlinkMessage(m.buf[:n])
		if err != nil {
			m.host.t.Fatalf("host %s: nf_tables message: %v", m.host.Name, err)
		}
		for _, msg := range messages {
			m.add(msg)
		}
	}
}

// Forget forgets the transactions committed so far.
func (m *Monitor) Forget() {
	m.host.t.Helper()
	m.Transactions()
	m.done = nil
}

const (
	nfgenmsgLength = 4
	attributeType  = 0x3fff // of an attribute's type, without its flags (linux/netlink.h)
)

// changeNames are the messages of linux/netfilter/nf_tables.h that tell of a change.
var changeNames = map[uint16]string{
	unix.NFT_MSG_NEWTABLE: "add table", unix.NFT_MSG_DELTABLE: "delete table",
	unix.NFT_MSG_NEWCHAIN: "add chain", unix.NFT_MSG_DELCHAIN: "delete chain",
	unix.NFT_MSG_NEWRULE: "add rule", unix.NFT_MSG_DELRULE: "delete rule",
	unix.NFT_MSG_NEWSET: "add set", unix.NFT_MSG_DELSET: "delete set",
	unix.NFT_MSG_NEWSETELEM: "add element", unix.NFT_MSG_DELSETELEM: "delete element",
	unix.NFT_MSG_NEWOBJ: "add object", unix.NFT_MSG_DELOBJ: "delete object",
	unix.NFT_MSG_NEWFLOWTABLE: "add flowtable", unix.NFT_MSG_DELFLOWTABLE: "delete flowtable",
}

func (m *Monitor) add(msg syscall.NetlinkMessage) {
	if msg.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(msg.Data) < nfgenmsgLength {
		return
	}
	attributes := msg.Data[nfgenmsgLength:]
	kind := msg.Header.Type & 0xff
	if kind == unix.NFT_MSG_NEWGEN {
		t := Transaction{Changes: m.open}
		eachAttribute(attributes, func(typ uint16, value []byte) {
			switch {
			case typ == unix.NFTA_GEN_ID && len(value) == 4:
				t.Generation = binary.BigEndian.Uint32(value)
			case typ == unix.NFTA_GEN_PROC_PID && len(value) == 4:
				t.PID = binary.BigEndian.Uint32(value)
			case typ == unix.NFTA_GEN_PROC_NAME:
				t.Process = strings.TrimRight(string(value), "\x00")
			}
		})
		m.open = map[Change]int{}
		m.done = append(m.done, t)
		return
	}
	name, known := changeNames[kind]
	if !known {
		name = fmt.Sprintf("message %d", kind)
	}
	n := 1
	if kind == unix.NFT_MSG_NEWSETELEM || kind == unix.NFT_MSG_DELSETELEM {
		n = countElements(attributes)
	}
	m.open[Change{name, familyNames[msg.Data[0]] + " " + tableOf(attributes)}] += n
}

// familyNames are the families of tables (linux/netfilter.h), as nft calls them.
var familyNames = map[byte]string{
	unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6",
	unix.NFPROTO_ARP: "arp", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev",
}

// tableOf reads the table's name, which is the first attribute of every message:
// NFTA_TABLE_NAME, NFTA_CHAIN_TABLE and so on are all 1.
func tableOf(attributes []byte) (name string) {
	eachAttribute(attributes, func(typ uint16, value []byte) {
		if typ == unix.NFTA_TABLE_NAME {
			name = strings.TrimRight(string(value), "\x00")
		}
	})
	return name
}

func countElements(attributes []byte) int {
	n := 0
	eachAttribute(attributes, func(typ uint16, list []byte) {
		if typ == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			eachAttribute(list, func(uint16, []byte) { n++ })
		}
	})
	return n
}

func eachAttribute(b []byte, do func(typ uint16, value []byte)) {
	for len(b) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofNlAttr || length > len(b) {
			return
		}
		do(binary.NativeEndian.Uint16(b[2:])&attributeType, b[unix.SizeofNlAttr:length])
		b = b[min(len(b), (length+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
}
