package relay

import (
	"bufio"
	"bytes"
	"net/netip"
	"testing"

	proxyproto "github.com/pires/go-proxyproto"
)

func TestHeaders(t *testing.T) {
	for _, tt := range []struct{ from, to, v1 string }{
		{"192.0.2.7:40000", "198.51.100.1:443", "PROXY TCP4 192.0.2.7 198.51.100.1 40000 443\r\n"},
		{"[2001:db8::7]:40000", "[2001:db8:1::1]:443", "PROXY TCP6 2001:db8::7 2001:db8:1::1 40000 443\r\n"},
		{"[::ffff:192.0.2.7]:40000", "198.51.100.1:443", "PROXY TCP4 192.0.2.7 198.51.100.1 40000 443\r\n"},
	} {
		from, to := netip.MustParseAddrPort(tt.from), netip.MustParseAddrPort(tt.to)
		v1, err := headerOf(1, from, to)
		if err != nil || string(v1) != tt.v1 {
			t.Errorf("version 1: %q, %v, want %q", v1, err, tt.v1)
		}
		v2, err := headerOf(2, from, to)
		if err != nil || !bytes.HasPrefix(v2, []byte("\r\n\r\n\x00\r\nQUIT\n\x21")) {
			t.Errorf("version 2: %q, %v", v2, err)
		}
		read, err := proxyproto.Read(bufio.NewReader(bytes.NewReader(v2)))
		if err != nil || read.DestinationAddr.String() != tt.to {
			t.Errorf("version 2 reads as %+v, %v", read, err)
		}
	}
}
