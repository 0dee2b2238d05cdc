package diagnose_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

// Ten of a list are named, and the others counted; the state stays as it was, which others show.
func TestLongLists(t *testing.T) {
	for _, c := range []struct {
		n           int
		fresh, open string
	}{
		{10, "10.1.2.18:80, 10.1.2.19:80\n", "10.1.2.18:80 1, 10.1.2.19:80 1), 77 since"},
		{12, "10.1.2.19:80, and 2 more\n", "10.1.2.19:80 1, and 2 more), 77 since"},
	} {
		var starting []string
		open := map[string]int{}
		for i := range c.n {
			starting = append(starting, fmt.Sprintf("10.1.2.%d:80", 10+i))
			open[starting[i]] = 1
		}
		f := facts(func(f *diagnose.Facts) {
			f.Service.Metadata.Annotations = map[string]string{"svcctl.io/proxy-mode": "userspace"}
			f.State = state("10.96.0.10:80")
			p := &f.State.Ports[0]
			p.Endpoints, p.Starting, p.Balance = starting, slices.Clone(starting), object.BalanceRandom
			p.Relay, p.RelayLoad = "192.0.2.1:40001", &wire.RelayLoad{Taken: 77, Open: open}
		})
		got := text(diagnose.Service(f))
		if !strings.Contains(got, c.fresh) || !strings.Contains(got, c.open) {
			t.Errorf("of %d: want %q and %q in\n%s", c.n, c.fresh, c.open, got)
		}
		if !slices.Equal(f.State.Ports[0].Starting, starting) {
			t.Errorf("the state has %q", f.State.Ports[0].Starting)
		}
	}
}
