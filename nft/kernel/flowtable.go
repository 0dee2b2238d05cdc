package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// Attributes and flags of flowtables (linux/netfilter/nf_tables.h), which package unix does not define.
const (
	attrFlowtableTable = 1 // NFTA_FLOWTABLE_TABLE
	attrFlowtableName  = 2 // NFTA_FLOWTABLE_NAME
	attrFlowtableHook  = 3 // NFTA_FLOWTABLE_HOOK
	attrFlowtableFlags = 7 // NFTA_FLOWTABLE_FLAGS, kernel 5.8

	attrHookNumber   = 1 // NFTA_FLOWTABLE_HOOK_NUM
	attrHookPriority = 2 // NFTA_FLOWTABLE_HOOK_PRIORITY
	attrHookDevices  = 3 // NFTA_FLOWTABLE_HOOK_DEVS
	attrDeviceName   = 1 // NFTA_DEVICE_NAME

	hookIngress      = 0 // NF_NETDEV_INGRESS
	flowtableCounter = 2 // NFT_FLOWTABLE_COUNTER
)

// flowtable appends the message of `add flowtable ip svcctl fast { hook ingress priority filter; devices = { "eth0" }; }`, or of the corresponding
// deletion. A deletion with a device removes only that device from the flowtable.
func (t *transaction) flowtable(kind, flags uint16, f nft.Family, name string, counter bool, device string) {
	t.message(kind, flags, f)
	t.parts[len(t.parts)-1].device = device
	t.Text(attrFlowtableName, name)
	if kind == unix.NFT_MSG_NEWFLOWTABLE || device != "" {
		hook := t.Nest(attrFlowtableHook)
		t.Uint32(attrHookNumber, hookIngress)
		t.Uint32(attrHookPriority, 0)
		if device != "" {
			devices := t.Nest(attrHookDevices)
			t.Text(attrDeviceName, device)
			t.EndNest(devices)
		}
		t.EndNest(hook)
	}
	if kind == unix.NFT_MSG_NEWFLOWTABLE && counter {
		t.Uint32(attrFlowtableFlags, flowtableCounter)
	} else if kind == unix.NFT_MSG_NEWFLOWTABLE {
		t.Uint32(attrFlowtableFlags, 0)
	}
	t.End()
}

// flowtableOp writes an operation on a flowtable. Each device that is added or removed gets a separate message, so that an error identifies the
// device. The parameter there holds the flowtable's current devices.
func (t *transaction) flowtableOp(op nft.Op, there []nft.Element) {
	if op, is := op.(nft.DeleteFlowtable); is {
		t.flowtable(unix.NFT_MSG_DELFLOWTABLE, 0, op.Family, op.Name, false, "")
		return
	}
	set := op.(nft.SetFlowtable)
	t.flowtable(unix.NFT_MSG_NEWFLOWTABLE, unix.NLM_F_CREATE, set.Family, set.Name, set.Flowtable.Counter, "")
	for _, d := range set.Flowtable.Devices {
		if !t.without[d.Name] && !slices.Contains(there, nft.Element{Key: d.Name}) {
			t.flowtable(unix.NFT_MSG_NEWFLOWTABLE, unix.NLM_F_CREATE, set.Family, set.Name, set.Flowtable.Counter, d.Name)
		}
	}
	for _, e := range there {
		if !t.without[e.Key] && !slices.ContainsFunc(set.Flowtable.Devices, func(d nft.Device) bool { return d.Name == e.Key }) {
			t.flowtable(unix.NFT_MSG_DELFLOWTABLE, 0, set.Family, set.Name, false, e.Key)
		}
	}
}

// refusedDevices is the error of a transaction in which the kernel refused nothing but devices of flowtables: a device to add does not exist, or a
// device to remove is already gone. The keys are the names of the devices.
type refusedDevices map[string]bool

func (r refusedDevices) Error() string {
	return "the kernel refuses devices of a flowtable: " + strings.Join(slices.Sorted(maps.Keys(r)), ", ")
}

// refusedError returns the error of a transaction with refused messages: refusedDevices if only devices were refused, else an OpError.
func (t *transaction) refusedError(refused map[int]nfnetlink.Failure, text func(op, element int) string) error {
	devices := refusedDevices{}
	for i := range refused {
		if t.parts[i].device == "" || refused[i].Errno == unix.EPERM {
			return t.opError(refused, text)
		}
		devices[t.parts[i].device] = true
	}
	return devices
}

// commit commits a batch, without the devices of flowtables that the kernel refuses.
func (c *Conn) commit(b *nft.Batch, generation uint32) (next uint32, err error) {
	err = c.withoutDevices(func() (err error) {
		next, err = c.commitOnce(b, generation)
		return err
	})
	return next, err
}

// withoutDevices calls try. While the kernel refuses devices of flowtables, it calls try again without them.
func (c *Conn) withoutDevices(try func() error) error {
	c.without = map[string]bool{}
	for {
		err := try()
		refused, is := errors.AsType[refusedDevices](err)
		known := len(c.without)
		maps.Copy(c.without, refused)
		if !is || len(c.without) == known {
			return err
		}
	}
}

// devicesBefore reads the devices of the flowtable that op sets, as keys. It returns none if an earlier operation of the batch deletes the flowtable
// or its table.
func devicesBefore(s *socket, earlier []nft.Op, op nft.SetFlowtable) (devices []nft.Element, err error) {
	for _, before := range earlier {
		switch before := before.(type) {
		case nft.DeleteTable:
			if before.Family == op.Family {
				return nil, nil
			}
		case nft.DeleteFlowtable:
			if before.Family == op.Family && before.Name == op.Name {
				return nil, nil
			}
		}
	}
	flowtables := map[string]nft.Flowtable{}
	err = readFlowtables(s, op.Family, flowtables)
	for _, d := range flowtables[op.Name].Devices {
		devices = append(devices, nft.Element{Key: d.Name})
	}
	return devices, err
}

// readFlowtables reads the flowtables of our table of a family into flowtables.
func readFlowtables(s *socket, f nft.Family, flowtables map[string]nft.Flowtable) error {
	err := s.dump(unix.NFT_MSG_GETFLOWTABLE, protocols[f].family,
		func(w *writer) { w.Text(attrFlowtableTable, nft.TableName) },
		func(m message) {
			if table, name, flowtable := decodeFlowtable(&m); table == nft.TableName {
				flowtables[name] = flowtable
			}
		})
	if isErrno(err, unix.EINVAL, unix.EOPNOTSUPP) {
		return nil // a kernel that has none
	}
	return err
}

// decodeFlowtable reads a flowtable from a netlink message, with its devices sorted.
func decodeFlowtable(m *message) (table, name string, w nft.Flowtable) {
	for kind, value := range m.Attributes() {
		switch kind {
		case attrFlowtableTable:
			table = nfnetlink.Text(value)
		case attrFlowtableName:
			name = nfnetlink.Text(value)
		case attrFlowtableFlags:
			flags := nfnetlink.Number(value)
			w.Counter, w.Foreign = flags&flowtableCounter != 0, w.Foreign || flags&^flowtableCounter != 0
		case attrFlowtableHook:
			for kind, value := range nfnetlink.Attributes(value) {
				switch {
				case kind == attrHookDevices:
					for kind, value := range nfnetlink.Attributes(value) {
						if kind == attrDeviceName {
							w.Devices = append(w.Devices, nft.Device{Name: nfnetlink.Text(value)})
						}
					}
				case (kind == attrHookNumber || kind == attrHookPriority) && nfnetlink.Number(value) != 0:
					w.Foreign = true
				}
			}
		}
	}
	slices.SortFunc(w.Devices, func(a, b nft.Device) int { return cmp.Compare(a.Name, b.Name) })
	return table, name, w
}

// ForeignFlowtable is a flowtable of another program.
type ForeignFlowtable struct {
	Family, Table, Name string
	Devices             []string
}

// ForeignFlowtables lists the flowtables of other programs.
func (c *Conn) ForeignFlowtables() ([]ForeignFlowtable, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := c.ensureSocket()
	if err != nil {
		return nil, err
	}
	var all []ForeignFlowtable
	err = s.dump(unix.NFT_MSG_GETFLOWTABLE, unix.NFPROTO_UNSPEC, nil, func(m message) {
		table, name, w := decodeFlowtable(&m)
		if table == nft.TableName {
			return
		}
		foreign := ForeignFlowtable{Family: ipFamilies[m.Family()], Table: table, Name: name}
		for _, d := range w.Devices {
			foreign.Devices = append(foreign.Devices, d.Name)
		}
		all = append(all, foreign)
	})
	if err != nil {
		c.closeSocket()
		return nil, fmt.Errorf("list the flowtables: %w", err)
	}
	return all, nil
}

// matchFast appends the expressions of `ct status dnat ct status assured numgen random mod 16 0`.
func (e *encoder) matchFast(s nft.MatchFast) {
	for _, bit := range []uint32{statusDNAT, statusAssured} {
		e.matchBit(&expr.Ct{Key: expr.CtKeySTATUS, Register: firstRegister}, bit, expr.CmpOpNeq)
	}
	e.add(&expr.Numgen{Register: firstRegister, Type: unix.NFT_NG_RANDOM, Modulus: s.OneOf()}, equals(hostOrder(0)))
}

// FastPath is the result of a test of the kernel's flowtables: whether svcctl may use them, and if not why.
type FastPath struct {
	// Lacks is the reason why the fast path is unavailable, with advice to the administrator; "" if it is available.
	Lacks string
	// Doubt describes a bug of this kernel in spite of which the fast path is used; "" if there is none.
	Doubt string
}

// FastPath tests whether the kernel has usable flowtables. The test loads their kernel modules, so call it only if the fast path is requested.
func (c *Conn) FastPath() FastPath {
	release := c.features.Release
	answer := kernelsWithFastPath(release)
	if answer.Lacks != "" {
		return answer
	}
	err := c.Check(&nft.Batch{Ops: fastPathTrial()}, 0)
	if refused, is := errors.AsType[*OpError](err); is {
		answer.Doubt = ""
		answer.Lacks = fmt.Sprintf("kernel %s has no flowtables (it answers: %v): load them with `modprobe -a nf_flow_table_inet nft_flow_offload` and restart svcctl, or run a kernel with CONFIG_NF_FLOW_TABLE_INET and CONFIG_NFT_FLOW_OFFLOAD", release, refused.Errno)
	} else if err != nil {
		answer.Lacks = fmt.Sprintf("whether kernel %s has flowtables could not be tried: %v", release, err)
	}
	return answer
}

// fastPathTrial returns operations that use every feature the fast path needs, in both families.
func fastPathTrial() (ops []nft.Op) {
	for _, f := range nft.Families {
		const name = "svcctl-probe"
		ops = append(ops, nft.AddTable{Family: f}, nft.SetFlowtable{Family: f, Name: name}, nft.AddChain{Family: f, Chain: nft.Chain{Name: name}},
			nft.SetRules{Family: f, Chain: name, Rules: []nft.Rule{{nft.MatchFast{}, nft.FlowAdd{Flowtable: name}}}})
	}
	return ops
}

// kernelsWithFastPath returns the bugs of flowtables in a kernel release that a test cannot detect, as a FastPath. It returns the zero FastPath if
// there are none.
func kernelsWithFastPath(release string) (f FastPath) {
	var version [2]int
	for i, text := range strings.SplitN(release, ".", 3)[:min(2, strings.Count(release, ".")+1)] {
		end := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(text)
		}
		version[i], _ = strconv.Atoi(text[:end])
	}
	switch major, minor := version[0], version[1]; {
	case major < 6 || major == 6 && minor < 1:
		f.Lacks = fmt.Sprintf("in kernel %s connections of flowtables hang when they are idle, and cannot be ended: use Linux 6.1 or later", release)
	case major > 6 || minor >= 19:
		f.Lacks = fmt.Sprintf("kernel %s was not tried, and in Linux 6.19 TCP connections through NAT stop in a flowtable: use Linux 6.1 to 6.18", release)
	case minor > 12:
		f.Doubt = fmt.Sprintf("kernel %s may break connections that never pause after a day, as Linux 6.18 does: use Linux 6.1 or 6.12, or --fast-path off", release)
	}
	return f
}
