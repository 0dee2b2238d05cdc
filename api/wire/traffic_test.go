package wire

import "testing"

func TestTrafficFilter(t *testing.T) {
	for _, c := range []struct {
		filter, port string
		want         bool
	}{
		{"", "shop/web:http", true}, {"web", "shop/web:http", true}, {"WEB:h", "shop/web:http", true}, {"api", "shop/web:http", false},
		{"shop/*", "shop/web:http", true}, {"shop/*", "coffee-shop/web", false}, {"*", "shop/web", true}, {"*/web", "shop/web", true}, {"*/web", "shop/web:http", false},
		{"*/web*", "shop/web:http", true}, {"s*p/*:http", "shop/web:http", true}, {"s*p/*:https", "shop/web:http", false}, {"shop*hop/web", "shop/web", false},
		{"a*a", "a", false}, {"a**b", "ab", true}, {"a*b*c", "a-b", false},
	} {
		if got := TrafficFilter(c.filter, c.port); got != c.want {
			t.Errorf("%q chooses %s: %t, want %t", c.filter, c.port, got, c.want)
		}
	}
}
