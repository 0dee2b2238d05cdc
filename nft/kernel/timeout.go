package kernel

import (
	"encoding/binary"
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
