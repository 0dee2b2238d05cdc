package bench

import (
	"fmt"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/store/manifest/styles"
)

// busyServices have connections while pages are shown.
const busyServices = 2_000

// BenchmarkDashboard measures a page of the dashboard at 10,000 Services of kubectl's files. Each
// page is asked for after a look through connection tracking was made, and beside it.
func BenchmarkDashboard(b *testing.B) {
	const section, services, views = "Dashboard: CPU of a page at 10,000 Services", 10_000, 20
	x := newBoxOf(b, netlab.New(b), func(d netlab.Dir) {
		for i := range services {
			writeFile(d, styles.All[0], i, 0)
		}
	})
	x.Start()
	connections(b, x, busyServices)
	for _, page := range []string{"", "services", "services?sort=open", "services/default/s00000"} {
		x.get(b, "/dashboard/"+page) // makes a look
		before, began := x.cpu(b), time.Now()
		size := 0
		for range views {
			size = len(x.get(b, "/dashboard/"+page))
		}
		results.add(section, "/dashboard/"+page, ms((x.cpu(b)-before)/views), fmt.Sprintf("%d KB; %s until it is there", size/1000, ms(time.Since(began)/views)))
	}
}
