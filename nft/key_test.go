package nft

import (
	"net/netip"
	"slices"
	"testing"
)

func TestKey(t *testing.T) {
	vip4, vip6 := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")
	for _, tt := range []struct {
		name, got, want string
	}{
		// The bytes nft 1.0.6 sends for the same elements (nft --debug=netlink).
		{"frontend", string(Key(nil).Addr(vip4).Proto(TCP).Port(8080)), "\x0a\x60\x00\x0a" + "\x06\x00\x00\x00" + "\x1f\x90\x00\x00"},
		{"frontend ip6", string(Key(nil).Addr(vip6).Proto(UDP).Port(53)), "\xfd\x00\x00\x96\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x10" + "\x11\x00\x00\x00" + "\x00\x35\x00\x00"},
		{"address", AddrKey(vip4), "\x0a\x60\x00\x0a"},
		{"endpoint", AddrPortData(netip.AddrPortFrom(vip4, 80)), "\x0a\x60\x00\x0a" + "\x00\x50\x00\x00"},
		{"one port", JoinKey(Value{Type: TypeService, Num: 80}), "\x00\x50"},
		{"one protocol", JoinKey(Value{Type: TypeProto, Num: 132}), "\x84"},
		{"one address", JoinKey(Value{Type: TypeAddr, Addr: vip4}), "\x0a\x60\x00\x0a"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s is %x, want %x", tt.name, tt.got, tt.want)
		}
	}
}

func TestSplitKey(t *testing.T) {
	addr := Value{Type: TypeAddr, Addr: netip.MustParseAddr("10.96.0.10")}
	addr6 := Value{Type: TypeAddr, Addr: netip.MustParseAddr("fd00:96::10")}
	proto := Value{Type: TypeProto, Num: 6}
	port := Value{Type: TypeService, Num: 0x1234}
	slot := Value{Type: TypeSlot, Num: 0x12345678}
	iface := Value{Type: TypeIface, Num: 300}
	for _, values := range [][]Value{
		{addr}, {addr6}, {proto}, {port}, {slot}, {iface},
		{addr, proto, port, slot}, {addr6, proto, port, slot}, {iface, iface}, {iface, addr}, {proto, port},
	} {
		f := IPv4
		types := make([]Type, len(values))
		for i, v := range values {
			types[i] = v.Type
			if v.Addr.Is6() {
				f = IPv6
			}
		}
		key := JoinKey(values...)
		if got := SplitKey(types, f, key); !slices.Equal(got, values) {
			t.Errorf("%v became %v", values, got)
		}
		if got, want := SplitKey(types, f, key+key), slices.Concat(values, values); !slices.Equal(got, want) {
			t.Errorf("interval of %v became %v", values, got)
		}
		if got := SplitKey(types, f, key+key+"x"); got != nil {
			t.Errorf("a key of the wrong length became %v", got)
		}
	}
	if SplitKey(nil, IPv4, "") != nil || SplitKey([]Type{TypeAddr}, IPv4, "") != nil {
		t.Error("an empty key has values")
	}
}

func TestPrefixRange(t *testing.T) {
	for prefix, want := range map[string][2]string{
		"10.1.2.3/8":    {"10.0.0.0", "10.255.255.255"},
		"10.1.2.3/31":   {"10.1.2.2", "10.1.2.3"},
		"10.1.2.3/32":   {"10.1.2.3", "10.1.2.3"},
		"0.0.0.0/0":     {"0.0.0.0", "255.255.255.255"},
		"fd00:1::5/112": {"fd00:1::", "fd00:1::ffff"},
	} {
		r := PrefixRange(netip.MustParsePrefix(prefix))
		if got := [2]string{r.First.String(), r.Last.String()}; got != want {
			t.Errorf("%s is %v, want %v", prefix, got, want)
		}
	}
}

func FuzzSplitKey(f *testing.F) {
	f.Add("\x01\x02\x03\x04", "0123456789abcdef", true)
	f.Fuzz(func(t *testing.T, kinds, key string, six bool) {
		family := IPv4
		if six {
			family = IPv6
		}
		var types []Type
		for _, k := range []byte(kinds) {
			types = append(types, Type(k%5)+TypeAddr)
		}
		values := SplitKey(types, family, key)
		if len(values) != len(types) {
			return // refused, or an interval
		}
		if again := SplitKey(types, family, JoinKey(values...)); !slices.Equal(again, values) {
			t.Errorf("%v became %v", values, again)
		}
	})
}

func BenchmarkKey(b *testing.B) {
	vip := netip.MustParseAddr("fd00:96::10")
	b.ReportAllocs()
	var room [32]byte
	var key string
	for b.Loop() {
		key = string(Key(room[:0]).Addr(vip).Proto(TCP).Port(80).Slot(3))
	}
	_ = key
}
