package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// Timeout objects (linux/netfilter/nf_tables.h and nfnetlink_cttimeout.h), of which package unix
// names the attributes of objects alone.
const (
	objectTimeout = 7 // NFT_OBJECT_CT_TIMEOUT, kernel 4.19

	attrTimeoutL3Proto = 1 // NFTA_CT_TIMEOUT_L3PROTO
	attrTimeoutL4Proto = 2 // NFTA_CT_TIMEOUT_L4PROTO
	attrTimeoutData    = 3 // NFTA_CT_TIMEOUT_DATA

	timeoutTCPEstablished = 3 // CTA_TIMEOUT_TCP_ESTABLISHED
	timeoutUDPUnreplied   = 1 // CTA_TIMEOUT_UDP_UNREPLIED
	timeoutUDPReplied     = 2 // CTA_TIMEOUT_UDP_REPLIED
)

// addTimeout is `create ct timeout ip svcctl idle-tcp-60 { protocol tcp; l3proto ip; policy = {
// established : 60 }; }`. States that are not named have the times of the network namespace.
func (t *transaction) addTimeout(f nft.Family, timeout nft.Timeout) {
	t.addObject(f, timeout.Name(), objectTimeout)
	object := t.Nest(unix.NFTA_OBJ_DATA)
	t.Uint16(attrTimeoutL3Proto, uint16(protocolFamily(f)))
	t.Bytes(attrTimeoutL4Proto, []byte{byte(timeout.Protocol)})
	data := t.Nest(attrTimeoutData)
	for _, state := range idleStates(timeout.Protocol) {
		t.Uint32(state, uint32(timeout.Idle/time.Second))
	}
	t.EndNest(data)
	t.EndNest(object)
	t.End()
}

// idleStates returns the conntrack states whose timeout an idle timeout replaces.
func idleStates(p nft.Protocol) []uint16 {
	if p == nft.UDP {
		return []uint16{timeoutUDPUnreplied, timeoutUDPReplied}
	}
	return []uint16{timeoutTCPEstablished}
}

// readTimeouts reads the timeout objects of our table.
func readTimeouts(s *socket, f nft.Family, timeouts map[string]nft.Timeout) error {
	return dumpObjects(s, f, objectTimeout, func(name string, data []byte) { timeouts[name] = decodeTimeout(data) })
}

// decodeTimeout reads an object. One with several times for what has one here is the zero one.
func decodeTimeout(b []byte) (t nft.Timeout) {
	seconds := map[uint16]uint32{}
	for attr, value := range nfnetlink.Attributes(b) {
		switch attr {
		case attrTimeoutL4Proto:
			t.Protocol = nft.Protocol(value[0])
		case attrTimeoutData:
			for state, value := range nfnetlink.Attributes(value) {
				if len(value) == 4 {
					seconds[state] = binary.BigEndian.Uint32(value)
				}
			}
		}
	}
	if t.Protocol != nft.TCP && t.Protocol != nft.UDP {
		return nft.Timeout{}
	}
	states := idleStates(t.Protocol)
	for _, state := range states {
		if seconds[state] != seconds[states[0]] {
			return nft.Timeout{}
		}
	}
	t.Idle = time.Duration(seconds[states[0]]) * time.Second
	return t
}

// readEntries finds the entries that dynamic operations are about, by the index of the
// operation. An entry that is forgotten in the same batch is not given another timeout.
func readEntries(s *socket, ops []nft.Op) (map[int][]nft.Element, error) {
	entries := map[int][]nft.Element{}
	for i, op := range ops {
		var err error
		switch op := op.(type) {
		case nft.ForgetData:
			entries[i], err = readMap(s, op.Family, &op.Set, func(e element) bool {
				return slices.Contains(op.Data, e.data)
			})
		case nft.SetFlowtable:
			entries[i], err = devicesBefore(s, ops[:i], op)
		case nft.CapTimeouts:
			entries[i], err = readMap(s, op.Family, &op.Set, func(e element) bool {
				return e.expiresIn > op.Timeout && !isForgotten(ops, op, e.data)
			})
		}
		if err != nil {
			return nil, fmt.Errorf("prepare operation %d, read a dynamic map: %w", i, err)
		}
	}
	return entries, nil
}

func isForgotten(ops []nft.Op, c nft.CapTimeouts, data string) bool {
	return slices.ContainsFunc(ops, func(op nft.Op) bool {
		f, ok := op.(nft.ForgetData)
		return ok && f.Family == c.Family && f.Set.Name == c.Set.Name && slices.Contains(f.Data, data)
	})
}

// readMap gives the entries of a dynamic map that are wanted.
func readMap(s *socket, f nft.Family, set *nft.Set, wanted func(element) bool) (entries []nft.Element, err error) {
	seen := map[string]bool{}
	err = readAll(s, nft.TableName, f, set, -1, func(e element) bool {
		known := seen[e.key]
		seen[e.key] = true
		if !known && e.ours && wanted(e) {
			entries = append(entries, nft.Element{Key: e.key, Data: e.data})
		}
		return !known
	})
	switch {
	case isErrno(err, unix.ENOENT):
		return nil, nil // a map that does not exist yet remembers nothing
	case errors.Is(err, ErrChanging):
		return entries, nil // clients keep coming
	}
	return entries, err
}

// forget is `destroy element ip svcctl affinity-1 { … }`. Before kernel 6.3 there is only
// `delete element`, for which an entry that expires meanwhile is an error.
func (t *transaction) forget(f nft.Family, set *nft.Set, entries []nft.Element, destroy bool) {
	kind := uint16(unix.NFT_MSG_DELSETELEM)
	if destroy {
		kind = msgDestroySetElem
	}
	t.elements(kind, 0, f, set, entries)
}

// addCapped is `add element ip svcctl affinity-1 { ip saddr timeout 10m : … }` for entries
// that were deleted before: only kernel 6.12 changes the timeout of one that is there.
func (t *transaction) addCapped(c nft.CapTimeouts, entries []nft.Element) {
	t.timeout = c.Timeout
	t.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, c.Family, &c.Set, entries)
	t.timeout = 0
}
