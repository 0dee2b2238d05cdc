package kernel

import (
	"encoding/binary"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// written returns the bytes that a function writes to a transaction, without
// NFNL_MSG_BATCH_BEGIN.
func written(write func(*transaction)) []byte {
	t := newTransaction(&socket{Socket: &nfnetlink.Socket{}}, nft.TableName, 0)
	start := len(t.Buf)
	write(t)
	return t.Buf[start:]
}

// The bytes of messages, taken apart as the kernel does. All are for a little-endian
// machine: netlink headers are in host byte order.
func TestMessageBytes(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the goldens are for little-endian machines")
	}
	services := nft.Set{Name: "services", Key: frontendKey, Data: verdict}
	sources := nft.Set{Name: "sources", Key: frontendKey[:1], Interval: true}
	for _, test := range []struct {
		name  string
		write func(*transaction)
		want  string
	}{
		{"add table", func(t *transaction) { t.addTable(nft.IPv6, 0) }, `
			28000000 000a 0104 02000000 00000000  0a 00 0000
			0b000100 73766363746c00 00
			08000200 00000000`},
		{"element of a map", func(t *transaction) {
			t.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, nft.IPv4, &backends, []nft.Element{slotElement(nft.IPv4, 7)})
		}, `
			60000000 0c0a 0104 02000000 00000000  02 00 0000
			0b000100 73766363746c00 00
			0d000200 6261636b656e6473 00 000000
			30000380
			  2c000180
			    18000180 14000100 0a000007 06000000 00500000 02000000
			    10000280 0c000100 0a000008 1f900000`},
		{"verdict", func(t *transaction) {
			t.elements(unix.NFT_MSG_DELSETELEM, 0, nft.IPv4, &services, []nft.Element{
				{Key: string(nft.Key(nil).Addr(address(nft.IPv4, 1)).Proto(nft.UDP).Port(53)), Data: "goto pick-5"}})
		}, `
			4c000000 0e0a 0100 02000000 00000000  02 00 0000
			0b000100 73766363746c00 00
			0d000200 7365727669636573 00 000000
			1c000380 18000180 14000180 10000100 0a000001 11000000 00350000`},
		{"interval", func(t *transaction) {
			t.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, nft.IPv4, &sources, []nft.Element{
				{Key: "\x0a\x00\x00\x00\x0a\xff\xff\xff"}, {Key: "\xf0\x00\x00\x00\xff\xff\xff\xff"}})
		}, `
			68000000 0c0a 0104 02000000 00000000  02 00 0000
			0b000100 73766363746c00 00
			0c000200 736f7572636573 00
			3c000380
			  10000180 0c000180 08000100 0a000000
			  18000180 0c000180 08000100 0b000000 08000300 00000001
			  10000180 0c000180 08000100 f0000000`},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := strings.Join(strings.Fields(test.want), "")
			got := hex.EncodeToString(written(test.write))
			if got != want {
				t.Errorf("\n got %s\nwant %s", got, want)
			}
		})
	}
}

func TestMarkOf(t *testing.T) {
	comment := []byte{0, 3, 'a', 'b', 0}
	for _, test := range []struct {
		userdata []byte
		want     uint64
	}{
		{nil, 0},
		{comment, 0},
		{markData(0x0102030405060708), 0x0102030405060708},
		{append(comment, markData(7)...), 7},
		{markData(7)[:9], 0},
		{[]byte{markType, 1, 1}, 0},
		{[]byte{markType}, 0},
	} {
		if got := markOf(test.userdata); got != test.want {
			t.Errorf("the mark in %x is %d, want %d", test.userdata, got, test.want)
		}
	}
}

// decodeAll reads elements out of NEWSETELEM messages, as Read does.
func decodeAll(b []byte, f nft.Family, set *nft.Set) (nft.Elements, bool) {
	d := elementDecoder{set: set, key: nft.KeyLen(set.Key, f), verdicts: map[string]string{}}
	if set.Data != nil && !isVerdictMap(set) {
		d.data = nft.KeyLen(set.Data, f)
	}
	bounds, elements, ours := []element(nil), nft.Elements{}, true
	for m := range nfnetlink.Messages(b) {
		for kind, list := range m.Attributes() {
			if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			for _, value := range nfnetlink.Attributes(list) {
				e := d.decode(value)
				ours = ours && e.ours
				if set.Interval && len(set.Key) == 1 {
					bounds = append(bounds, e)
				} else {
					elements[swapHostOrder(set, f, e.key)+swapHostOrder(set, f, e.keyEnd)] = e.data
				}
			}
		}
	}
	joinIntervals(elements, set, f, bounds)
	return elements, ours
}

func TestElementsDecodeToWhatWasEncoded(t *testing.T) {
	for _, f := range nft.Families {
		for _, s := range everySet(f) {
			var elements []nft.Element
			for k, d := range s.Elements {
				elements = append(elements, nft.Element{Key: k, Data: d})
			}
			b := written(func(tr *transaction) {
				tr.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, f, &s.Set, elements)
				if tr.err != nil {
					t.Error(tr.err)
				}
			})
			got, ours := decodeAll(b, f, &s.Set)
			if !ours || !reflect.DeepEqual(got, s.Elements) {
				t.Errorf("%s %s: decoded %d elements of %d, or others", f, s.Name, len(got), len(s.Elements))
			}
		}
	}
}

func TestDefinitionsDecodeToWhatWasEncoded(t *testing.T) {
	for _, f := range nft.Families {
		for _, s := range everySet(f) {
			for m := range nfnetlink.Messages(written(func(tr *transaction) { tr.addSet(f, &s.Set) })) {
				if got := decodeSet(&m, f); !reflect.DeepEqual(got.Set, s.Set) || got.anonymous {
					t.Errorf("%s %s decodes to %+v", f, s.Name, got)
				}
			}
		}
		for _, c := range everyChain(f) {
			c.Rules = nil
			for m := range nfnetlink.Messages(written(func(tr *transaction) { tr.addChain(f, c) })) {
				if listed := decodeChain(&m); !reflect.DeepEqual(listed.chain(), c) || listed.table != nft.TableName {
					t.Errorf("%s %s decodes to %+v", f, c.Name, decodeChain(&m))
				}
			}
		}
	}
}

// Elements that do not fit into one attribute go into several messages, each of which
// the kernel can take.
func TestElementsAreSplit(t *testing.T) {
	const count = 20_000
	elements := make([]nft.Element, count)
	for i := range elements {
		elements[i] = slotElement(nft.IPv6, i)
	}
	b := written(func(tr *transaction) {
		tr.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, nft.IPv6, &backends, elements)
		sum := 0
		for i, p := range tr.parts {
			if p.element < sum || i > 0 && p.element == 0 {
				t.Errorf("message %d starts with element %d", i, p.element)
			}
			sum = p.element
		}
		if len(tr.parts) < 10 {
			t.Errorf("%d elements are in %d messages", count, len(tr.parts))
		}
	})
	if got, _ := decodeAll(b, nft.IPv6, &backends); len(got) != count {
		t.Errorf("%d elements of %d arrive", len(got), count)
	}
}

func TestElementsThatCannotBeEncoded(t *testing.T) {
	services := nft.Set{Name: "services", Key: frontendKey, Data: verdict}
	sources := nft.Set{Name: "sources", Key: frontendKey[:1], Interval: true}
	front := string(nft.Key(nil).Addr(address(nft.IPv4, 1)).Proto(nft.UDP).Port(53))
	for _, test := range []struct {
		set     nft.Set
		element nft.Element
		want    string
	}{
		{services, nft.Element{Key: "short", Data: "drop"}, "is not 12 bytes long"},
		{services, nft.Element{Key: front, Data: "fly away"}, `"fly away" is no verdict`},
		{services, nft.Element{Key: front, Data: "goto"}, `"goto" is no verdict`},
		{services, nft.Element{Key: front, Data: "drop it"}, `"drop it" is no verdict`},
		{sources, nft.Element{Key: "\x0a\x00\x00\x00"}, "is not 8 bytes long"},
		{sources, nft.Element{Key: "\x0a\x00\x00\x01\x0a\x00\x00\x00"}, "ends before it starts"},
	} {
		tr := newTransaction(&socket{Socket: &nfnetlink.Socket{}}, nft.TableName, 0)
		tr.elements(unix.NFT_MSG_NEWSETELEM, 0, nft.IPv4, &test.set, []nft.Element{test.element})
		if tr.err == nil || !strings.Contains(tr.err.Error(), test.want) {
			t.Errorf("%q: %v, want %q", test.element, tr.err, test.want)
		}
	}
}

// Whatever the kernel or tables of others hold, reading them does not crash.
func FuzzDecode(f *testing.F) {
	for _, s := range everySet(nft.IPv6) {
		f.Add(written(func(t *transaction) { t.addSet(nft.IPv6, &s.Set) }))
	}
	f.Add(written(func(t *transaction) {
		t.addChain(nft.IPv4, everyChain(nft.IPv4)[0])
		t.addRule(nft.IPv4, "postrouting", nft.Rule{nft.Masquerade{}})
		t.elements(unix.NFT_MSG_NEWSETELEM, 0, nft.IPv4, &backends, []nft.Element{slotElement(nft.IPv4, 1)})
	}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var change Change
		for m := range nfnetlink.Messages(b) {
			m.Failure()
			m.Errno()
			change, _ = change.merge(m)
			decodeChain(&m)
			for _, value := range m.Attributes() {
				markOf(value)
			}
			for _, family := range nft.Families {
				set := decodeSet(&m, family).Set
				for _, s := range append(everySet(family)[1:], &nft.SetContent{Set: set}) {
					if s.Key != nil {
						decodeAll(b, family, &s.Set)
					}
				}
			}
		}
	})
}
