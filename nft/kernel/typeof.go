package kernel

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

// What libnftnl and nft 1.0.6 call the parts of a set's userdata. Each is a type and a
// length of one byte and a value; numbers are 4 bytes in host byte order.
const (
	udataKeyByteOrder  = 0 // NFTNL_UDATA_SET_KEYBYTEORDER
	udataDataByteOrder = 1 // NFTNL_UDATA_SET_DATABYTEORDER
	udataKeyTypeof     = 3 // NFTNL_UDATA_SET_KEY_TYPEOF
	udataDataTypeof    = 4 // NFTNL_UDATA_SET_DATA_TYPEOF
	udataDataInterval  = 6 // NFTNL_UDATA_SET_DATA_INTERVAL

	udataTypeofExpr = 0 // NFTNL_UDATA_SET_TYPEOF_EXPR: which kind of expression
	udataTypeofData = 1 // NFTNL_UDATA_SET_TYPEOF_DATA: its arguments

	exprPayload = 7  // EXPR_PAYLOAD (enum expr_types of nft)
	exprMeta    = 9  // EXPR_META
	exprConcat  = 13 // EXPR_CONCAT
	exprNumgen  = 23 // EXPR_NUMGEN

	protocolTransport = 11 // PROTO_DESC_TH
	protocolIPv4      = 12 // PROTO_DESC_IP
	protocolIPv6      = 13 // PROTO_DESC_IP6

	headerIPv4Daddr = 12 // IPHDR_DADDR
	headerIPv6Daddr = 9  // IP6HDR_DADDR
	headerDport     = 2  // THDR_DPORT
)

// typeofData is the userdata from which `nft list` prints the types of a set by
// example: `typeof ip daddr . meta l4proto . th dport . numgen random mod 1 : ip daddr .
// th dport`. Only keys with a slot need it: an integer has no length of its own, so nft
// could neither print nor load it as a `type`. Of a set of interfaces it has the byte order
// alone, without which nft prints their numbers turned around. It is nil for every other set,
// where nft finds all it needs in the type codes.
func typeofData(f nft.Family, s *nft.Set) []byte {
	if len(s.Key) == 1 && s.Key[0] == nft.TypeIface && !s.Interval {
		return appendNumber(nil, udataKeyByteOrder, byteOrder(s.Key))
	}
	if !slices.Contains(s.Key, nft.TypeSlot) {
		return nil
	}
	values := s.Data != nil && !isVerdictMap(s)
	u := appendNumber(nil, udataKeyByteOrder, byteOrder(s.Key))
	if values {
		u = appendNumber(u, udataDataByteOrder, byteOrder(s.Data))
	}
	u = appendUdata(u, udataKeyTypeof, typeofTypes(f, s.Key))
	if values {
		u = appendUdata(u, udataDataTypeof, typeofTypes(f, s.Data))
		u = appendNumber(u, udataDataInterval, 0)
	}
	return u
}

// byteOrder is nft's number of it (enum byteorder). The fields of a concatenation have
// their own.
func byteOrder(types []nft.Type) uint32 {
	const mixed, host, network = 0, 1, 2
	switch {
	case len(types) > 1:
		return mixed
	case types[0] == nft.TypeSlot || types[0] == nft.TypeIface:
		return host
	}
	return network
}

func typeofTypes(f nft.Family, types []nft.Type) []byte {
	if len(types) == 1 {
		return fieldTypeof(f, types[0])
	}
	var fields []byte
	for i, t := range types {
		fields = appendUdata(fields, byte(i), fieldTypeof(f, t))
	}
	return typeof(exprConcat, fields)
}

// fieldTypeof is the expression that stands for a type.
func fieldTypeof(f nft.Family, t nft.Type) []byte {
	switch t {
	case nft.TypeAddr: // ip daddr
		if f == nft.IPv6 {
			return typeof(exprPayload, numbers(protocolIPv6, headerIPv6Daddr))
		}
		return typeof(exprPayload, numbers(protocolIPv4, headerIPv4Daddr))
	case nft.TypeProto: // meta l4proto
		return typeof(exprMeta, numbers(unix.NFT_META_L4PROTO))
	case nft.TypeService: // th dport
		return typeof(exprPayload, numbers(protocolTransport, headerDport))
	case nft.TypeSlot: // numgen random mod 1
		return typeof(exprNumgen, numbers(unix.NFT_NG_RANDOM, 1, 0))
	case nft.TypeIface: // iif
		return typeof(exprMeta, numbers(unix.NFT_META_IIF))
	}
	panic("nft/kernel: type that stands for no expression")
}

func typeof(expression uint32, data []byte) []byte {
	return appendUdata(appendNumber(nil, udataTypeofExpr, expression), udataTypeofData, data)
}

// numbers are userdata with the types 0, 1, …
func numbers(values ...uint32) (u []byte) {
	for i, v := range values {
		u = appendNumber(u, byte(i), v)
	}
	return u
}

func appendNumber(u []byte, kind byte, v uint32) []byte {
	return appendUdata(u, kind, binary.NativeEndian.AppendUint32(nil, v))
}

func appendUdata(u []byte, kind byte, value []byte) []byte {
	return append(append(u, kind, byte(len(value))), value...)
}
