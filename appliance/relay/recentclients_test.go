package relay

import (
	"fmt"
	"net/netip"
	"testing"
)

// The endpoints of a client are known while it is connected and after that, until too many others have ended.
func TestLately(t *testing.T) {
	client := func(n int) recentKey {
		return recentKey{TCP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 5000), 10270}
	}
	one, other := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("192.0.2.2:80")
	l := &recentClients{}
	has := func(when string, k recentKey, want ...netip.AddrPort) {
		t.Helper()
		if got := l.endpoints(k); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	has("nothing", client(1))
	l.begin(client(1), one, false)
	l.begin(client(1), other, true) // a second request over HTTP
	l.begin(client(1), one, true)
	has("connected", client(1), one, other)
	for range 4 { // one more than there were
		l.end(client(1))
	}
	has("ended", client(1), one, other)
	l.begin(client(1), one, true)
	l.end(client(1))
	has("the same client later", client(1), one, other)
	l.begin(client(1), other, false)
	has("another client of that address", client(1), other)
	l.begin(client(2), one, false)
	for n := range maxRecent {
		l.begin(client(10+n), one, false)
		l.end(client(10 + n))
	}
	has("it is open", client(1), other)
	has("it is open", client(2), one)
	has("the last", client(10+maxRecent-1), one)
	if has("of those that ended", client(10), one); len(l.of) != maxRecent+2 {
		t.Errorf("%d are known", len(l.of))
	}
	l.end(client(2))
	l.end(client(1))
	if has("two more ended", client(10)); len(l.of) != maxRecent {
		t.Errorf("%d are known, want %d", len(l.of), maxRecent)
	}
	many := client(3)
	for n := range 2 * maxEndpointsOf {
		l.begin(many, netip.AddrPortFrom(one.Addr(), uint16(n+1)), n > 0)
	}
	if got := len(l.endpoints(many)); got != maxEndpointsOf {
		t.Errorf("%d endpoints of a client are kept", got)
	}
}
