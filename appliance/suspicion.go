package appliance

import (
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/parts"
	"svcctl.io/svcctl/appliance/prober"
	"svcctl.io/svcctl/nft"
)

// newSuspicion makes the part that looks at failures of clients. It has a prober of its own, whose probes leave from
// ports of the kernel's choice: an endpoint may have a health check of another Service.
func newSuspicion(a *assembly) *parts.Suspicion {
	find := func(c *conntrack.Connection) (parts.Found, bool) {
		p, endpoint, ok := a.traffic.Find(c)
		if !ok {
			return parts.Found{}, false
		}
		return parts.Found{Service: p.Service, Key: p.Key(), Endpoint: endpoint, Apart: p.Relay != nil || p.Last != nil}, true
	}
	served := func() map[string][]nft.ServicePort {
		of, _ := a.grants.Served()
		return of
	}
	s := parts.NewSuspicion(prober.New(prober.Options{Log: a.log}), a.cfg.Services.Traffic != config.TrafficOff, find, served, a.checks.Hasten, a.log)
	a.traffic.Judge(s.Book().Failures, a.checks.State)
	return s
}
