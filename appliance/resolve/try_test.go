package resolve

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// TestTriedClaims has a trial of changes decide as the claims themselves, and leaves no trace in them: plain claims without trials stay
// the same.
func TestTriedClaims(t *testing.T) {
	addresses := strings.Fields("172.30.0.1 172.30.0.2 198.51.100.1 198.51.100.2 203.0.113.1 10.0.0.1 192.0.2.1!")
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 5))
		some := func() string {
			var list []string
			for _, a := range addresses {
				if r.IntN(3) == 0 {
					list = append(list, a)
				}
			}
			return strings.Join(list, " ")
		}
		claims, asked := &Claims{}, map[string][]nft.ServicePort{}
		change := func() func(*Claims) string {
			name, since := fmt.Sprintf("default/s%d", r.IntN(6)), r.Uint64N(4)
			ports := portOf(some(), strings.ReplaceAll(some(), "!", ""))
			if r.IntN(3) == 0 {
				for i := range ports[0].Frontends {
					ports[0].Frontends[i].Last = 80 + uint16(r.IntN(3))
				}
			}
			if frontends := ports[0].Frontends; len(frontends) > 0 {
				ports[0].Egress = nft.Egress{Addr: frontends[r.IntN(len(frontends))].Addr, Sources: addrsOf(some())}
			}
			if r.IntN(5) == 0 {
				ports = nil
			}
			asked[name] = ports
			return func(c *Claims) string {
				return fmt.Sprint(c.Set(nil, Claim{Service: name, Ports: ports,
					Since: age(since)}))
			}
		}
		granted := func(c *Claims) string {
			var b strings.Builder
			for i := range 6 {
				name := fmt.Sprintf("s%d", i)
				ports, problems := c.Grant(object.Ref{Kind: object.KindService, Namespace: "default", Name: name}, asked["default/"+name])
				fmt.Fprintln(&b, name, ports, problems)
			}
			return b.String()
		}
		plain := &Claims{} // has no trials
		for step := range 40 {
			before, had := granted(claims), asked
			asked = maps.Clone(had)
			others := []func(*Claims) string{change(), change()}
			asked = maps.Clone(had)
			do, more := change(), change()
			now := asked
			trial := claims.Try()
			foreseen, then := do(&trial), granted(&trial)
			others[0](&trial)
			others[1](&trial)
			trial.PlaceAt(addrsOf(some()))
			if trial.Undo(); step == 0 { // the first change makes the maps
				claims.Set(nil)
			}
			if asked = had; granted(claims) != before {
				t.Fatalf("seed %d, step %d: what was tried is not taken back: granted are\n%s\nwant\n%s", seed, step, granted(claims), before)
			}
			asked = now
			got := do(claims)
			if asked = now; got != foreseen || granted(claims) != then {
				t.Fatalf("seed %d, step %d: tried, it affects %s and grants\n%s\ndone, it affects %s and grants\n%s", seed, step, foreseen, then, got, granted(claims))
			}
			more(claims)
			do(plain)
			more(plain)
			if diff := cmp.Diff(plain, claims, cmp.Exporter(func(reflect.Type) bool { return true }), cmp.Comparer(sameHolders)); diff != "" {
				t.Fatalf("seed %d, step %d: after trials the claims are not those without: %s", seed, step, diff)
			}
		}
	}
}

// sameHolders compares the Services, however they are stored.
func sameHolders(a, b *holders) bool {
	x := netip.Addr{}
	of := func(h *holders) []string { return addressIndex{x.As16(): h}.of(x) }
	return slices.Equal(of(a), of(b))
}
