package resolve

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// TestClonedClaims has a clone decide as the claims it was made of, and leaves these alone.
func TestClonedClaims(t *testing.T) {
	addresses := strings.Fields("172.30.0.1 172.30.0.2 198.51.100.1 198.51.100.2 203.0.113.1 10.0.0.1 192.0.2.1!")
	for seed := range uint64(20) {
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
		for step := range 40 {
			clone, before := claims.Clone(), granted(claims)
			if got := granted(clone); got != before {
				t.Fatalf("seed %d, step %d: a clone grants\n%s\nwant\n%s", seed, step, got, before)
			}
			had := asked
			asked = map[string][]nft.ServicePort{}
			for name, ports := range had {
				asked[name] = ports
			}
			do := change()
			now := asked
			foreseen := do(clone)
			if asked = had; granted(claims) != before {
				t.Fatalf("seed %d, step %d: a change of the clone is one of the claims", seed, step)
			}
			asked = now
			if got := do(claims); got != foreseen || granted(claims) != granted(clone) {
				t.Fatalf("seed %d, step %d: the clone affects %s and grants\n%s\nthe claims affect %s and grant\n%s", seed, step, foreseen, granted(clone), got, granted(claims))
			}
		}
	}
}
