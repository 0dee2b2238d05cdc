package apiserver

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/dashboard"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// pages is the dashboard.Source of what is stored and served.
type pages struct {
	objects *store.Store
	backend Backend
	grants  Grants
	traffic api.Traffic
	service func(namespace, name string, client netip.AddrPort) wire.ServiceState
	alloc   func(repair bool) wire.Allocations
	journal func(limit int, withEvents bool) ([]wire.JournalEntry, error)
}

// Status implements dashboard.Source.
func (p *pages) Status() wire.Status { return p.backend.Status() }

// Connections implements dashboard.Source.
func (p *pages) Connections(q wire.ConnectionQuery) (*wire.Connections, error) {
	return p.traffic.Connections(q)
}

// Allocations implements dashboard.Source.
func (p *pages) Allocations() wire.Allocations { return p.alloc(false) }

// Journal implements dashboard.Source.
func (p *pages) Journal(limit int) ([]wire.JournalEntry, error) { return p.journal(limit, false) }

// found is a Service that a Query asks for.
type found struct {
	key      string
	svc      *object.Service
	counts   wire.PortTraffic
	errors   int
	warnings int
}

// Services implements dashboard.Source. What costs is done for the rows of the page alone.
func (p *pages) Services(q dashboard.Query) (*dashboard.Services, error) {
	counts, err := p.counts(wire.TrafficQuery{Namespace: q.Namespace})
	if err != nil {
		return nil, err
	}
	problems := map[string][2]int{} // errors and warnings, by object
	for _, problem := range p.backend.Status().Problems {
		n := problems[problem.Object]
		if problem.Severity == wire.SeverityError {
			n[0]++
		} else {
			n[1]++
		}
		problems[problem.Object] = n
	}
	list := &dashboard.Services{}
	namespaces := map[string]struct{}{}
	var all []found
	for key, svc := range p.objects.Services() {
		namespaces[svc.Metadata.Namespace] = struct{}{}
		n := problems["Service "+key]
		if q.Namespace != "" && svc.Metadata.Namespace != q.Namespace ||
			q.Problems && n == [2]int{} || !matchesSearch(key, svc, strings.ToLower(q.Search)) {
			continue
		}
		all = append(all, found{key, svc, counts[key], n[0], n[1]})
	}
	list.Namespaces = slices.Sorted(maps.Keys(namespaces))
	list.Total = len(all)
	slices.SortFunc(all, func(a, b found) int {
		return cmp.Or(orderOf(q.Sort, &a.counts, &b.counts), strings.Compare(a.key, b.key))
	})
	first := min((q.Page-1)*dashboard.PageRows, len(all))
	shown := all[first:min(first+dashboard.PageRows, len(all))]
	history := map[string][]wire.TrafficSample{}
	for i := range shown {
		row := p.row(&shown[i])
		if row.Open+row.Unanswered > 0 && len(history) == 0 {
			if history, err = p.histories(q.Namespace); err != nil {
				return nil, err
			}
		}
		row.History = history[shown[i].key]
		list.Rows = append(list.Rows, row)
	}
	return list, nil
}

// matchesSearch reports whether a Service has a text, in lower case, in its name or an address.
func matchesSearch(key string, svc *object.Service, text string) bool {
	return text == "" || strings.Contains(key, text) ||
		slices.ContainsFunc(addressesOf(svc), func(a string) bool { return strings.Contains(a, text) })
}

// addressesOf are where a Service can be reached.
func addressesOf(svc *object.Service) []string {
	var addrs []string
	for _, a := range svc.Spec.ClusterIPs {
		if a != "None" {
			addrs = append(addrs, a)
		}
	}
	for _, in := range svc.Status.LoadBalancer.Ingress {
		addrs = append(addrs, in.IP)
	}
	return append(addrs, svc.Spec.ExternalIPs...)
}

// orderOf compares by one of the orders of a list, the largest first.
func orderOf(by string, a, b *wire.PortTraffic) int {
	switch by {
	case "open":
		return cmp.Compare(b.Open, a.Open)
	case "unanswered":
		return cmp.Compare(b.Unanswered, a.Unanswered)
	case "rate":
		return cmp.Compare(rateOf(b.Rate), rateOf(a.Rate))
	case "refused":
		return cmp.Or(cmp.Compare(rateOf(b.RefusedRate), rateOf(a.RefusedRate)), cmp.Compare(countOf(b.Refused), countOf(a.Refused)))
	}
	return 0
}

func rateOf(rate *float64) float64 {
	if rate == nil {
		return -1
	}
	return *rate
}

func countOf(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n
}

// counts are those of Services with all their ports together, by "namespace/name".
func (p *pages) counts(q wire.TrafficQuery) (map[string]wire.PortTraffic, error) {
	q.Sort, q.Limit = "name", 1<<30
	seen, err := p.traffic.Traffic(q)
	if err != nil {
		return nil, err
	}
	sums := make(map[string]wire.PortTraffic, len(seen.Ports))
	for i := range seen.Ports {
		port := &seen.Ports[i]
		sum := sums[port.Namespace+"/"+port.Service]
		sum.Open += port.Open
		sum.Unanswered += port.Unanswered
		sum.Rate = addRates(sum.Rate, port.Rate)
		if port.Connections != nil {
			made, refused := countOf(sum.Connections)+*port.Connections, countOf(sum.Refused)+*port.Refused
			sum.Connections, sum.Refused = &made, &refused
			sum.RefusedRate = addRates(sum.RefusedRate, port.RefusedRate)
		}
		sum.History = addHistory(sum.History, port.History)
		sums[port.Namespace+"/"+port.Service] = sum
	}
	return sums, nil
}

// addRates adds rates, of which none may be known.
func addRates(sum, more *float64) *float64 {
	if more == nil {
		return sum
	}
	rate := max(rateOf(sum), 0) + *more
	return &rate
}

// histories are what the last looks found of Services that have connections.
func (p *pages) histories(namespace string) (map[string][]wire.TrafficSample, error) {
	sums, err := p.counts(wire.TrafficQuery{Namespace: namespace, History: true})
	if err != nil {
		return nil, err
	}
	histories := make(map[string][]wire.TrafficSample, len(sums))
	for key, sum := range sums {
		histories[key] = sum.History
	}
	return histories, nil
}

// addHistory adds the history of another port of a Service: both end with the same look.
func addHistory(a, b []wire.TrafficSample) []wire.TrafficSample {
	if len(a) < len(b) {
		a, b = b, a
	}
	sum := slices.Clone(a)
	for i := range b {
		sum[len(sum)-len(b)+i].Open += b[i].Open
	}
	return sum
}

// row is a Service of a list.
func (p *pages) row(f *found) dashboard.Row {
	svc := f.svc
	row := dashboard.Row{
		Namespace: svc.Metadata.Namespace, Name: svc.Metadata.Name, Type: svc.Spec.Type,
		Addresses: addressesOf(svc), Endpoints: -1, Errors: f.errors, Warnings: f.warnings, ConnectionCounts: f.counts.ConnectionCounts, TrafficTotals: f.counts.TrafficTotals,
	}
	for _, port := range svc.Spec.Ports {
		text := fmt.Sprint(port.Port)
		if port.NodePort != 0 {
			text += fmt.Sprintf(":%d", port.NodePort)
		}
		row.Ports = append(row.Ports, text+"/"+port.Protocol)
	}
	state := p.grants.State(row.Namespace, row.Name, netip.AddrPort{})
	if len(state.Ports) > 0 {
		row.Endpoints = 0
	}
	for _, port := range state.Ports {
		row.Endpoints += len(endpointsOf(port))
	}
	return row
}

// endpointsOf are the endpoints of a port that new connections go to by any way.
func endpointsOf(p wire.PortState) []string {
	all := slices.Concat(p.Endpoints, p.Local)
	slices.Sort(all)
	return slices.Compact(all)
}

// Service implements dashboard.Source.
func (p *pages) Service(namespace, name string) (*dashboard.Service, error) {
	key := namespace + "/" + name
	svc, _, _ := p.objects.Service(key)
	if svc == nil {
		return nil, nil
	}
	seen, err := p.traffic.Traffic(wire.TrafficQuery{Namespace: namespace, Service: name, Sort: "name", Limit: 1 << 30, Endpoints: true, History: true})
	if err != nil {
		return nil, err
	}
	f := found{key: key, svc: svc}
	detail := &dashboard.Service{Ports: seen.Ports, State: p.service(namespace, name, netip.AddrPort{}), Annotations: svc.Metadata.Annotations}
	for _, problem := range p.backend.Status().Problems {
		if problem.Object != "Service "+key {
			continue
		}
		detail.Problems = append(detail.Problems, problem)
		if problem.Severity == wire.SeverityError {
			f.errors++
		} else {
			f.warnings++
		}
	}
	sums, err := p.counts(wire.TrafficQuery{Namespace: namespace, Service: name, History: true})
	if err != nil {
		return nil, err
	}
	f.counts = sums[key]
	detail.Row = p.row(&f)
	detail.History = sums[key].History
	ref := object.RefOf(svc)
	detail.File, detail.Line = p.objects.Location(ref)
	for _, m := range svc.Metadata.ManagedFields {
		if m.Subresource == "" && !slices.Contains(detail.Managers, m.Manager) {
			detail.Managers = append(detail.Managers, m.Manager)
		}
	}
	return detail, nil
}
