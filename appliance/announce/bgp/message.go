package bgp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// Lengths of messages in bytes (RFC 4271).
const (
	headerLength = bgp.BGP_HEADER_LENGTH
	maxMessage   = bgp.BGP_MAX_MESSAGE_LENGTH
)

// The types of messages (RFC 4271).
const (
	typeOpen         = bgp.BGP_MSG_OPEN
	typeUpdate       = bgp.BGP_MSG_UPDATE
	typeNotification = bgp.BGP_MSG_NOTIFICATION
	typeKeepalive    = bgp.BGP_MSG_KEEPALIVE
	typeRefresh      = bgp.BGP_MSG_ROUTE_REFRESH
)

// minLength is the minimum length of each type of message, in bytes including the header.
var minLength = map[uint8]int{
	typeOpen: 29, typeUpdate: 23, typeNotification: 21, typeKeepalive: headerLength, typeRefresh: 23,
}

// header is the decoded header of a message.
type header struct {
	kind   uint8
	length int // in bytes, including the header
}

// notification is the content of a NOTIFICATION, sent or received, as an error (RFC 4271, section 4.5).
type notification struct {
	code, subcode uint8
	data          []byte
	received      bool
	detail        string // description of the error, only if it is sent
}

// parseHeader decodes the header of a message. Its error is a *notification to send to the peer.
func parseHeader(b []byte) (header, error) {
	refuse := func(subcode uint8, data []byte, format string, args ...any) (header, error) {
		return header{}, &notification{
			code: bgp.BGP_ERROR_MESSAGE_HEADER_ERROR, subcode: subcode, data: data, detail: fmt.Sprintf(format, args...),
		}
	}
	if slices.ContainsFunc(b[:16], func(marker byte) bool { return marker != 0xff }) {
		return refuse(bgp.BGP_ERROR_SUB_CONNECTION_NOT_SYNCHRONIZED, nil, "the peer sent what is no BGP message")
	}
	h := header{kind: b[18], length: int(binary.BigEndian.Uint16(b[16:]))}
	switch least, known := minLength[h.kind]; {
	case !known:
		return refuse(bgp.BGP_ERROR_SUB_BAD_MESSAGE_TYPE, b[18:19], "the peer sent a message of unknown type %d", h.kind)
	case h.length < least || h.length > maxMessage || h.kind == typeKeepalive && h.length != least:
		return refuse(bgp.BGP_ERROR_SUB_BAD_MESSAGE_LENGTH, b[16:18], "the peer sent a message of type %d with the length %d", h.kind, h.length)
	}
	return h, nil
}

// open is the decoded content of an OPEN message.
type open struct {
	as       uint32
	fourAS   bool // as comes from the four-octet AS capability
	id       netip.Addr
	hold     time.Duration
	families bool // ipv4 and ipv6 come from multiprotocol capabilities; without any the peer supports only IPv4
	ipv4     bool
	ipv6     bool
	// nextHop6 reports whether IPv4 routes may have IPv6 next hops (RFC 8950).
	nextHop6   bool
	restarting bool
	restart    *time.Duration // the restart time of graceful restart (RFC 4724); nil: no such capability
}

// encode returns the OPEN message of this side.
func (o open) encode() []byte {
	var caps []bgp.ParameterCapabilityInterface
	var tuples []*bgp.CapGracefulRestartTuple
	for _, f := range []struct {
		is     bool
		family bgp.Family
	}{{o.ipv4, bgp.RF_IPv4_UC}, {o.ipv6, bgp.RF_IPv6_UC}} {
		if f.is {
			caps = append(caps, bgp.NewCapMultiProtocol(f.family))
			// The forwarding state is preserved: what forwards is the kernel.
			tuples = append(tuples, bgp.NewCapGracefulRestartTuple(f.family, true))
		}
	}
	caps = append(caps, bgp.NewCapRouteRefresh())
	if o.nextHop6 {
		caps = append(caps, bgp.NewCapExtendedNexthop([]*bgp.CapExtendedNexthopTuple{
			bgp.NewCapExtendedNexthopTuple(bgp.RF_IPv4_UC, bgp.AFI_IP6),
		}))
	}
	if o.restart != nil {
		caps = append(caps, bgp.NewCapGracefulRestart(o.restarting, false, uint16(*o.restart/time.Second), tuples))
	}
	caps = append(caps, bgp.NewCapFourOctetASNumber(o.as))
	message, err := bgp.NewBGPOpenMessage(twoOctets(o.as), uint16(o.hold/time.Second), o.id,
		[]bgp.OptionParameterInterface{bgp.NewOptionParameterCapability(caps)})
	if err != nil {
		panic("bgp: the router ID " + o.id.String() + " is no IPv4 address") // checked by openOf
	}
	return serialize(message)
}

func twoOctets(as uint32) uint16 {
	if as > 0xffff {
		return asTrans
	}
	return uint16(as)
}

// parseOpen decodes the body of an OPEN. Its error is a *notification to send to the peer.
func parseOpen(body []byte) (open, error) {
	if body[0] != 4 {
		return open{}, &notification{
			code: bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, subcode: bgp.BGP_ERROR_SUB_UNSUPPORTED_VERSION_NUMBER, data: []byte{0, 4},
			detail: fmt.Sprintf("the peer speaks version %d of BGP, not 4", body[0]),
		}
	}
	var m bgp.BGPOpen
	if err := m.DecodeFromBytes(body); err != nil {
		n := &notification{code: bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, detail: "the peer sent a malformed OPEN: " + err.Error()}
		if of, is := errors.AsType[*bgp.MessageError](err); is && of.TypeCode == bgp.BGP_ERROR_OPEN_MESSAGE_ERROR {
			n.subcode = of.SubTypeCode
		}
		return open{}, n
	}
	o := open{as: uint32(m.MyAS), id: m.ID, hold: time.Duration(m.HoldTime) * time.Second}
	for _, parameter := range m.OptParams {
		capabilities, is := parameter.(*bgp.OptionParameterCapability)
		if !is {
			return open{}, &notification{
				code: bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, subcode: bgp.BGP_ERROR_SUB_UNSUPPORTED_OPTIONAL_PARAMETER,
				detail: "the peer sent an OPEN with an optional parameter that is no capability",
			}
		}
		for _, c := range capabilities.Capability {
			o.take(c)
		}
	}
	if !o.families {
		o.ipv4 = true // RFC 4760: BGP without the capability carries IPv4
	}
	return o, nil
}

func (o *open) take(c bgp.ParameterCapabilityInterface) {
	switch c := c.(type) {
	case *bgp.CapMultiProtocol:
		o.families = true
		o.ipv4 = o.ipv4 || c.CapValue == bgp.RF_IPv4_UC
		o.ipv6 = o.ipv6 || c.CapValue == bgp.RF_IPv6_UC
	case *bgp.CapFourOctetASNumber:
		o.as, o.fourAS = c.CapValue, true
	case *bgp.CapExtendedNexthop:
		for _, t := range c.Tuples {
			o.nextHop6 = o.nextHop6 || t.NLRIAFI == bgp.AFI_IP && t.NLRISAFI == bgp.SAFI_UNICAST && t.NexthopAFI == bgp.AFI_IP6
		}
	case *bgp.CapGracefulRestart:
		seconds := time.Duration(c.Time) * time.Second
		o.restart, o.restarting = &seconds, c.Flags&0x08 != 0
	}
}

// parseNotification decodes the body of a NOTIFICATION.
func parseNotification(body []byte) *notification {
	return &notification{code: body[0], subcode: body[1], data: body[2:], received: true}
}

// parseRefresh decodes the body of a ROUTE-REFRESH (RFC 2918), and reports which family's routes are to be sent again. Both results are false if the
// body is invalid.
func parseRefresh(body []byte) (ipv4, ipv6 bool) {
	var m bgp.BGPRouteRefresh
	if m.DecodeFromBytes(body) != nil || m.SAFI != bgp.SAFI_UNICAST || m.Demarcation != 0 {
		return false, false
	}
	return m.AFI == bgp.AFI_IP, m.AFI == bgp.AFI_IP6
}

func keepalive() []byte { return serialize(bgp.NewBGPKeepAliveMessage()) }

func familyOf(ipv6 bool) bgp.Family {
	if ipv6 {
		return bgp.RF_IPv6_UC
	}
	return bgp.RF_IPv4_UC
}

// path holds the attributes that all routes of a session share.
type path struct {
	as, peerAS uint32
	fourAS     bool         // the peer supports four-octet AS numbers
	next4      []netip.Addr // next hops of IPv4 routes; IPv6 addresses if RFC 8950 was agreed
	next6      []netip.Addr // next hops of IPv6 routes: global, link-local, or both
}

// updates returns the UPDATE messages that announce a group of routes, as many as its prefixes need.
func (p path) updates(g group) [][]byte {
	next := p.next4
	if g.ipv6 {
		next = p.next6
	}
	attributes := p.attributes(g.attributes)
	if !g.ipv6 && next[0].Is4() {
		hop, err := bgp.NewPathAttributeNextHop(next[0])
		if err != nil {
			panic(err) // an address is always a next hop
		}
		attributes = inOrder(append(attributes, hop))
		return chunked(g, room(attributes), func(nlri []bgp.PathNLRI) *bgp.BGPMessage {
			return bgp.NewBGPUpdateMessage(nil, attributes, nlri)
		})
	}
	const reach = 4 + 3 + 1 + 32 + 1 // the attribute's header, family, next hops, reserved
	return chunked(g, room(attributes)-reach, func(nlri []bgp.PathNLRI) *bgp.BGPMessage {
		mp, err := bgp.NewPathAttributeMpReachNLRI(familyOf(g.ipv6), nlri, next...)
		if err != nil {
			panic(err) // there is a prefix
		}
		return bgp.NewBGPUpdateMessage(nil, append([]bgp.PathAttributeInterface{mp}, attributes...), nil)
	})
}

// withdrawals returns the UPDATE messages that withdraw the prefixes of a group.
func withdrawals(g group) [][]byte {
	if !g.ipv6 {
		return chunked(g, room(nil), func(nlri []bgp.PathNLRI) *bgp.BGPMessage {
			return bgp.NewBGPUpdateMessage(nlri, nil, nil)
		})
	}
	const unreach = 4 + 3
	return chunked(g, room(nil)-unreach, func(nlri []bgp.PathNLRI) *bgp.BGPMessage {
		mp, err := bgp.NewPathAttributeMpUnreachNLRI(bgp.RF_IPv6_UC, nlri)
		if err != nil {
			panic(err) // it has no way to fail
		}
		return bgp.NewBGPUpdateMessage(nil, []bgp.PathAttributeInterface{mp}, nil)
	})
}

// room returns how many bytes of an UPDATE with these attributes are left for prefixes.
func room(attributes []bgp.PathAttributeInterface) int {
	return maxMessage - len(serialize(bgp.NewBGPUpdateMessage(nil, attributes, nil)))
}

func chunked(g group, room int, message func([]bgp.PathNLRI) *bgp.BGPMessage) [][]byte {
	var all [][]byte
	var nlri []bgp.PathNLRI
	left := room
	for _, prefix := range g.prefixes {
		p, err := bgp.NewIPAddrPrefix(prefix)
		if err != nil {
			panic(err) // the rib takes no other prefixes
		}
		if p.Len() > left {
			all = append(all, serialize(message(nlri)))
			nlri, left = nil, room
		}
		nlri = append(nlri, bgp.PathNLRI{NLRI: p})
		left -= p.Len()
	}
	return append(all, serialize(message(nlri)))
}

// attributes returns the path attributes of a route, except for the next hop.
func (p path) attributes(a *Attributes) []bgp.PathAttributeInterface {
	internal := p.as == p.peerAS
	var ases []uint32
	if !internal {
		for range 1 + a.Prepend {
			ases = append(ases, p.as)
		}
	}
	all := append([]bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP)}, asPath(ases, p.fourAS)...)
	if a.MED != 0 {
		all = append(all, bgp.NewPathAttributeMultiExitDisc(a.MED))
	}
	if internal {
		preference := cmp.Or(a.LocalPref, defaultLocalPref)
		if slices.Contains(a.Communities, gracefulShutdown) {
			preference = 0
		}
		all = append(all, bgp.NewPathAttributeLocalPref(preference))
	}
	if len(a.Communities) > 0 {
		all = append(all, bgp.NewPathAttributeCommunities(a.Communities))
	}
	if len(a.Large) > 0 {
		large := make([]*bgp.LargeCommunity, len(a.Large))
		for i, c := range a.Large {
			large[i] = bgp.NewLargeCommunity(c[0], c[1], c[2])
		}
		all = append(all, bgp.NewPathAttributeLargeCommunities(large))
	}
	return inOrder(all)
}

// inOrder sorts attributes by their type codes, in place, as RFC 4271 recommends.
func inOrder(all []bgp.PathAttributeInterface) []bgp.PathAttributeInterface {
	slices.SortFunc(all, func(a, b bgp.PathAttributeInterface) int { return cmp.Compare(a.GetType(), b.GetType()) })
	return all
}

// asPath returns the AS_PATH attribute with these ASes. For a peer without four-octet ASes it adds AS4_PATH where it is needed (RFC 6793).
func asPath(ases []uint32, fourAS bool) []bgp.PathAttributeInterface {
	if len(ases) == 0 {
		return []bgp.PathAttributeInterface{bgp.NewPathAttributeAsPath(nil)}
	}
	four := bgp.NewAs4PathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, ases)
	if fourAS {
		return []bgp.PathAttributeInterface{bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{four})}
	}
	short := make([]uint16, len(ases))
	for i, as := range ases {
		short[i] = twoOctets(as)
	}
	all := []bgp.PathAttributeInterface{bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{
		bgp.NewAsPathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, short),
	})}
	if ases[0] > 0xffff {
		all = append(all, bgp.NewPathAttributeAs4Path([]*bgp.As4PathParam{four}))
	}
	return all
}

// serialize encodes a message. It panics on an error, which cannot occur: the parts were checked, and lengths are bounded.
func serialize(m *bgp.BGPMessage) []byte {
	m.Header.Len = 0
	b, err := m.Serialize()
	if err != nil {
		panic(fmt.Sprintf("bgp: encode a message: %v", err))
	}
	return b
}

// Attributes are the path attributes of a route that differ between routes. They are shared between routes, compared by pointer and by
// content, and must not change after a Speaker got them.
type Attributes struct {
	// LocalPref is sent to internal peers only; 0 means 100.
	LocalPref uint32
	// MED is sent when it is not 0.
	MED uint32
	// Prepend is the number of additional copies of our AS in the path to external peers.
	Prepend int
	// Communities has communities of RFC 1997, Large those of RFC 8092.
	Communities []uint32
	Large       []LargeCommunity
}

// LargeCommunity holds the global administrator and the two parts of local data (RFC 8092).
type LargeCommunity [3]uint32

const (
	defaultLocalPref = 100
	// gracefulShutdown is the well-known community that asks routers to prefer other paths (RFC 8326).
	gracefulShutdown uint32 = 65535 << 16
)

// plain stands for the Attributes of a route for which nil was passed: all defaults.
var plain = &Attributes{}

// maxCommunities is the maximum size, in bytes, of all communities of a route. It leaves room for prefixes in the UPDATE.
const maxCommunities = 2048

// Check returns an error if Prepend is out of range or the communities are too large for a message.
func (a *Attributes) Check() error {
	if a.Prepend < 0 || a.Prepend > 100 {
		return fmt.Errorf("prepend %d is not from 0 to 100", a.Prepend)
	}
	if size := 4*len(a.Communities) + 12*len(a.Large); size > maxCommunities {
		return fmt.Errorf("%d communities and %d large ones are too many for a message", len(a.Communities), len(a.Large))
	}
	return nil
}

// key returns a string that is equal for Attributes of equal content.
func (a *Attributes) key() string {
	b := make([]byte, 0, 16+4*len(a.Communities)+12*len(a.Large))
	for _, v := range []uint32{a.LocalPref, a.MED, uint32(a.Prepend), uint32(len(a.Communities))} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	for _, c := range a.Communities {
		b = binary.BigEndian.AppendUint32(b, c)
	}
	for _, c := range a.Large {
		for _, v := range c {
			b = binary.BigEndian.AppendUint32(b, v)
		}
	}
	return string(b)
}

func (a *Attributes) equal(b *Attributes) bool {
	return a == b || a.LocalPref == b.LocalPref && a.MED == b.MED && a.Prepend == b.Prepend &&
		slices.Equal(a.Communities, b.Communities) && slices.Equal(a.Large, b.Large)
}

// Leaving returns a copy of the routes with the community GRACEFUL_SHUTDOWN, by which routers prefer any other path (RFC 8326). Routes that
// share Attributes share the new ones as well.
func Leaving(routes map[netip.Prefix]*Attributes) map[netip.Prefix]*Attributes {
	leaving, of := map[netip.Prefix]*Attributes{}, map[*Attributes]*Attributes{}
	for prefix, a := range routes {
		if of[a] == nil {
			b := *a
			b.Communities = append(slices.Clone(a.Communities), gracefulShutdown)
			of[a] = &b
		}
		leaving[prefix] = of[a]
	}
	return leaving
}

// group holds routes of one family with equal attributes, which one UPDATE can announce together.
type group struct {
	attributes *Attributes
	ipv6       bool
	prefixes   []netip.Prefix
}

// grouped sorts routes into groups, in an order that depends on nothing but the routes.
func grouped(routes map[netip.Prefix]*Attributes) []group {
	type id struct {
		key  string
		ipv6 bool
	}
	keys := map[*Attributes]string{}
	index := map[id]int{}
	var all []group
	for prefix, a := range routes {
		key, known := keys[a]
		if !known {
			key = a.key()
			keys[a] = key
		}
		ipv6 := prefix.Addr().Is6()
		at, known := index[id{key, ipv6}]
		if !known {
			at = len(all)
			index[id{key, ipv6}] = at
			all = append(all, group{attributes: a, ipv6: ipv6})
		}
		all[at].prefixes = append(all[at].prefixes, prefix)
	}
	for _, g := range all {
		slices.SortFunc(g.prefixes, netip.Prefix.Compare)
	}
	slices.SortFunc(all, func(a, b group) int { return a.prefixes[0].Compare(b.prefixes[0]) })
	return all
}

// rib holds the routes to announce to a peer, and which of them changed since the last take. It is not safe for concurrent use.
type rib struct {
	wanted map[netip.Prefix]*Attributes
	dirty  map[netip.Prefix]struct{}
}

// normal returns a prefix as it is sent: without host bits and zone, and an IPv4-mapped one as IPv4.
func normal(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return netip.PrefixFrom(p.Addr().WithZone(""), p.Bits()).Masked()
}

// set replaces all routes of the rib.
func (r *rib) set(routes map[netip.Prefix]*Attributes) {
	gone := maps.Clone(r.wanted)
	for prefix := range routes {
		delete(gone, normal(prefix))
	}
	r.update(routes, slices.Collect(maps.Keys(gone)))
}

// update adds or changes the routes in announce, and removes those in withdraw.
func (r *rib) update(announce map[netip.Prefix]*Attributes, withdraw []netip.Prefix) {
	for _, prefix := range withdraw {
		prefix = normal(prefix)
		if _, had := r.wanted[prefix]; had {
			delete(r.wanted, prefix)
			r.dirty[prefix] = struct{}{}
		}
	}
	for prefix, a := range announce {
		prefix, a = normal(prefix), cmp.Or(a, plain)
		if !prefix.IsValid() {
			continue
		}
		if old, had := r.wanted[prefix]; !had || !old.equal(a) {
			r.wanted[prefix] = a
			r.dirty[prefix] = struct{}{}
		}
	}
}

// take returns the routes that changed since the last take. The value of a removed route is nil.
func (r *rib) take() map[netip.Prefix]*Attributes {
	changes := make(map[netip.Prefix]*Attributes, len(r.dirty))
	for prefix := range r.dirty {
		changes[prefix] = r.wanted[prefix]
	}
	clear(r.dirty)
	return changes
}
