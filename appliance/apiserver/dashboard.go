package apiserver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/dashboard"
	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/verdict"
	"svcctl.io/svcctl/store/object"
)

// Traffic answers queries about connections through Services. Its methods may be called
// concurrently.
type Traffic interface {
	Traffic(wire.TrafficQuery) (*wire.Traffic, error)
	Connections(wire.ConnectionQuery) (*wire.Connections, error)
	// Kill ends a connection. It returns nil when there is none of that ID.
	Kill(id uint32) (*wire.Connection, error)
	// Services returns the findings of the newest look by Service, "namespace/name", and those of every Service that is not among
	// them. They are not to be changed.
	Services() (busy map[string]*wire.ServiceTraffic, quiet *wire.ServiceTraffic, err error)
	// Clients returns at most that many clients of a Service, "namespace/name", the busiest first.
	Clients(service string, most int) (wire.ServiceClients, error)
	// Histories returns the last samples of Services, by "namespace/name", the oldest first.
	Histories(services []string) map[string][]wire.TrafficSample
}

// pages is the dashboard.Source of the store and the answers.
type pages struct {
	*answers
	backend api.Backend
}

// Status implements dashboard.Source.
func (p *pages) Status() wire.Status { return p.backend.Status() }

// Connections implements dashboard.Source.
func (p *pages) Connections(q wire.ConnectionQuery) (*wire.Connections, error) {
	return p.views.Traffic.Connections(q)
}

// Allocations implements dashboard.Source.
func (p *pages) Allocations() wire.Allocations { return p.allocations(false) }

// Journal implements dashboard.Source.
func (p *pages) Journal(limit int) ([]wire.JournalEntry, error) {
	return p.journal(wire.JournalQuery{Limit: limit})
}

// Trace implements dashboard.Source.
func (p *pages) Trace(ctx context.Context, q wire.TraceQuery, each func(wire.TracedPacket)) error {
	return p.trace(ctx, q, each)
}

// explained are the findings of explain about a Service.
func (p *pages) explained(svc *object.Service, endpointSlices []*object.EndpointSlice, status *wire.Status, state *wire.ServiceState, seen *wire.Traffic) (checks []dashboard.Check) {
	if p.views.Conditions != nil {
		judged := *svc
		judged.Status.Conditions, _ = p.views.Conditions.Of(svc)
		svc = &judged
	}
	f := diagnose.Facts{
		Namespace: svc.Metadata.Namespace, Name: svc.Metadata.Name, Service: svc, Slices: endpointSlices,
		Status: status, State: state, Traffic: seen, NodelessLocal: p.cfg.Services.NodelessEndpoints == config.NodelessLocal,
	}
	if len(svc.Spec.Selector) > 0 {
		f.Pods = p.selected(svc)
	}
	levels := map[diagnose.Level]string{diagnose.Note: "good", diagnose.Good: "good", diagnose.Doubt: "warn", diagnose.Bad: "bad"}
	for _, found := range diagnose.Service(f) {
		checks = append(checks, dashboard.Check{Level: levels[found.Level], Text: found.Text, Details: found.Details, Next: found.Next})
	}
	return checks
}

// selected are the Pods that a Service selects.
func (p *pages) selected(svc *object.Service) (pods []*object.Pod) {
	list, _, err := p.objects.List(object.KindPod, svc.Metadata.Namespace, 0)
	if err != nil {
		return nil // then the findings have endpoints and no Pod
	}
	selector := object.LabelSelector{MatchLabels: svc.Spec.Selector}
	for _, o := range list {
		if pod, is := o.(*object.Pod); is && selector.Matches(pod.Metadata.Labels) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// found is a Service that matches a request.
type found struct {
	key     string
	svc     *object.Service
	traffic *wire.ServiceTraffic
}

// Services implements dashboard.Source. What costs is done for the rows of the page alone.
func (p *pages) Services(q dashboard.Query) (*dashboard.Services, error) {
	traffic, quiet, err := p.views.Traffic.Services()
	if err != nil {
		return nil, err
	}
	search := strings.ToLower(q.Search)
	list := &dashboard.Services{}
	namespaces := map[string]struct{}{}
	all := make([]found, 0, len(traffic)) // garbage of a page that is open costs more than the page
	for key, svc := range p.objects.Services() {
		namespaces[svc.Metadata.Namespace] = struct{}{}
		if q.Namespace != "" && svc.Metadata.Namespace != q.Namespace ||
			q.Problems && p.judged(key) == (verdict.State{}) || !matchesSearch(key, svc, search) {
			continue
		}
		all = append(all, found{key, svc, cmp.Or(traffic[key], quiet)})
	}
	list.Namespaces = slices.Sorted(maps.Keys(namespaces))
	list.Total = len(all)
	slices.SortFunc(all, func(a, b found) int {
		return cmp.Or(orderOf(q.Sort, a.traffic, b.traffic), strings.Compare(a.key, b.key))
	})
	first := min((q.Page-1)*dashboard.PageRows, len(all))
	for _, f := range all[first:min(first+dashboard.PageRows, len(all))] {
		list.Rows = append(list.Rows, p.row(f))
	}
	return list, nil
}

// Busiest implements dashboard.Source.
func (p *pages) Busiest(order string, most int, listed func(*wire.ServiceTraffic) bool) ([]dashboard.Row, error) {
	traffic, _, err := p.views.Traffic.Services()
	if err != nil {
		return nil, err
	}
	var all []found
	for key, t := range traffic {
		if listed(t) {
			all = append(all, found{key: key, traffic: t})
		}
	}
	slices.SortFunc(all, func(a, b found) int {
		return cmp.Or(orderOf(order, a.traffic, b.traffic), strings.Compare(a.key, b.key))
	})
	var rows []dashboard.Row
	var keys []string
	for _, f := range all {
		if len(rows) == most {
			break
		}
		if f.svc, _, _ = p.objects.Service(f.key); f.svc != nil {
			rows, keys = append(rows, p.row(f)), append(keys, f.key)
		}
	}
	histories := p.views.Traffic.Histories(keys)
	for i := range rows {
		rows[i].History = histories[keys[i]]
	}
	return rows, nil
}

// matchesSearch reports whether a Service has a text, in lower case, in its name or an address.
func matchesSearch(key string, svc *object.Service, text string) bool {
	return text == "" || strings.Contains(key, text) ||
		slices.ContainsFunc(addressesOf(svc), func(a string) bool { return strings.Contains(a, text) })
}

// addressesOf returns the addresses at which a Service can be reached.
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
func orderOf(by string, a, b *wire.ServiceTraffic) int {
	switch by {
	case "open":
		return cmp.Compare(b.Open, a.Open)
	case "unanswered":
		return cmp.Compare(b.Unanswered, a.Unanswered)
	case "rate":
		return cmp.Compare(rateOf(b.Rate), rateOf(a.Rate))
	case "refused":
		return cmp.Or(cmp.Compare(rateOf(b.RefusedRate), rateOf(a.RefusedRate)), cmp.Compare(object.Deref(b.Refused), object.Deref(a.Refused)))
	}
	return 0
}

func rateOf(rate *float64) float64 {
	if rate == nil {
		return -1
	}
	return *rate
}

// row is a Service of a list.
func (p *pages) row(f found) dashboard.Row {
	state := p.views.Grants.State(f.svc.Metadata.Namespace, f.svc.Metadata.Name, netip.AddrPort{})
	return p.rowOf(f, &state)
}

// judged is the state of a Service, as the status counts it.
func (p *pages) judged(key string) verdict.State {
	if p.views.Conditions == nil {
		return verdict.State{}
	}
	return p.views.Conditions.State(key)
}

func (p *pages) rowOf(f found, state *wire.ServiceState) dashboard.Row {
	svc, judged := f.svc, p.judged(f.key)
	row := dashboard.Row{
		Namespace: svc.Metadata.Namespace, Name: svc.Metadata.Name, Type: svc.Spec.Type,
		Addresses: addressesOf(svc), Endpoints: -1, State: judged.Word(), Why: cmp.Or(judged.Failing, judged.Stale, judged.Doubt).Message, ServiceTraffic: *f.traffic,
	}
	for _, port := range svc.Spec.Ports {
		text := fmt.Sprint(port.Port)
		if port.NodePort != 0 {
			text += fmt.Sprintf(":%d", port.NodePort)
		}
		row.Ports = append(row.Ports, text+"/"+port.Protocol)
	}
	if len(state.Ports) > 0 {
		row.Endpoints = 0
	} else {
		row.ServiceTraffic = wire.ServiceTraffic{} // nothing is served that could be counted
	}
	for i := range state.Ports {
		row.Endpoints += len(state.Ports[i].AllEndpoints())
	}
	return row
}

// Service implements dashboard.Source.
func (p *pages) Service(namespace, name string) (*dashboard.Service, error) {
	key := namespace + "/" + name
	svc, endpointSlices, _ := p.objects.Service(key)
	if svc == nil {
		return nil, nil
	}
	seen, err := p.views.Traffic.Traffic(wire.TrafficQuery{Namespace: namespace, Service: name, Sort: "name", Limit: len(svc.Spec.Ports), Endpoints: true})
	if err != nil {
		return nil, err
	}
	traffic, quiet, err := p.views.Traffic.Services()
	if err != nil {
		return nil, err
	}
	clients, err := p.views.Traffic.Clients(key, dashboard.MostClients)
	if err != nil {
		return nil, err
	}
	detail := &dashboard.Service{Clients: clients, Ports: seen.Ports, State: p.service(namespace, name, netip.AddrPort{}), Annotations: svc.Metadata.Annotations}
	status := p.backend.Status()
	for _, problem := range status.Problems {
		if problem.Object == "Service "+key {
			detail.Problems = append(detail.Problems, problem)
		}
	}
	detail.Checks = p.explained(svc, endpointSlices, &status, &detail.State, seen)
	detail.Row = p.rowOf(found{key: key, svc: svc, traffic: cmp.Or(traffic[key], quiet)}, &detail.State)
	detail.History = p.views.Traffic.Histories([]string{key})[key]
	ref := object.RefOf(svc)
	detail.File, detail.Line = p.objects.Location(ref)
	for _, m := range svc.Metadata.ManagedFields {
		if m.Subresource == "" && !slices.Contains(detail.Managers, m.Manager) {
			detail.Managers = append(detail.Managers, m.Manager)
		}
	}
	return detail, nil
}
