package apiserver

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/dashboard"
	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/verdict"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// Traffic returns connections through Services and their counters. Its methods may be called concurrently.
type Traffic interface {
	Traffic(wire.TrafficQuery) (*wire.Traffic, error)
	Connections(wire.ConnectionQuery) (*wire.Connections, error)
	// Kill ends a connection and returns it. It returns nil if no connection has that ID.
	Kill(id uint32) (*wire.Connection, error)
	// Services returns the traffic in the latest scan: busy by Service, "namespace/name", and quiet for each Service that is not in busy. The
	// caller must not modify them.
	Services() (busy map[string]*wire.ServiceTraffic, quiet *wire.ServiceTraffic, err error)
	// Clients returns the busiest clients of a Service, "namespace/name", in descending order, at most the given number.
	Clients(service string, most int) (wire.ServiceClients, error)
	// Graph returns the traffic of a Service, "namespace/name", or of all Services if it is "". It covers a day if day is set, otherwise 15
	// minutes.
	Graph(service string, day bool) wire.TrafficGraph
}

// pages implements dashboard.Source with the store and the answers of the API.
type pages struct {
	*answers
	backend api.Backend
}

// Status returns the status of the appliance.
func (p *pages) Status() wire.Status { return p.backend.Status() }

// Connections returns the open connections that match a query.
func (p *pages) Connections(q wire.ConnectionQuery) (*wire.Connections, error) {
	return p.views.Traffic.Connections(q)
}

// Allocations returns the allocated addresses and ports of all pools, with at most dashboard.MostHolders holders of each pool.
func (p *pages) Allocations() wire.Allocations {
	return p.allocations(false, "", dashboard.MostHolders)
}

// Journal returns the newest changes of objects, at most limit.
func (p *pages) Journal(limit int) ([]wire.JournalEntry, error) {
	return p.journal(wire.JournalQuery{Limit: limit})
}

// explained returns the findings of `svcctl explain` for a Service.
func (p *pages) explained(svc *object.Service, endpointSlices []*object.EndpointSlice, status *wire.Status, state *wire.ServiceState, seen *wire.Traffic) (checks []dashboard.Check) {
	if p.views.Conditions != nil {
		judged := *svc
		judged.Status.Conditions, _ = p.views.Conditions.Of(svc)
		svc = &judged
	}
	f := diagnose.Facts{
		Namespace: svc.Metadata.Namespace, Name: svc.Metadata.Name, Service: svc, Slices: endpointSlices, Led: p.led(svc),
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

// selected returns the Pods that match the selector of a Service.
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

// found is a Service that matches the query of a list, with its sort keys.
type found struct {
	key     string
	svc     *object.Service
	traffic *wire.ServiceTraffic
	rank    int // result of rankOf
}

// Services returns one page of the list of Services. Costly values are computed for the rows of the page alone; objects are read for these, and for
// a search by address.
func (p *pages) Services(q dashboard.Query) (*dashboard.Services, error) {
	traffic, quiet, err := p.views.Traffic.Services()
	if err != nil {
		return nil, err
	}
	wanted := p.chosen(q.State)
	search := strings.ToLower(q.Search)
	var byAddress map[string]bool
	if search != "" {
		byAddress = p.withAddress(q.Namespace, search)
	}
	list := &dashboard.Services{}
	namespaces := map[string]struct{}{}
	all := make([]found, 0, len(traffic)) // garbage of a page that is open costs more than the page
	for _, key := range p.objects.Services() {
		namespace := object.ServiceRef(key).Namespace
		namespaces[namespace] = struct{}{}
		if q.Namespace != "" && namespace != q.Namespace || !strings.Contains(key, search) && !byAddress[key] {
			continue
		}
		f := found{key, nil, cmp.Or(traffic[key], quiet), rankOf(p.judged(key))}
		if wanted == nil || wanted(&f) {
			all = append(all, f)
		}
	}
	list.Namespaces = slices.Sorted(maps.Keys(namespaces))
	list.Total = len(all)
	slices.SortFunc(all, func(a, b found) int {
		return cmp.Or(orderOf(q.Sort, &a, &b), strings.Compare(a.key, b.key))
	})
	first := min((q.Page-1)*dashboard.PageRows, len(all))
	list.Rows = p.rows(all[first:], dashboard.PageRows)
	return list, nil
}

// rankOf ranks the state of a Service for sorting, worst first: 0 fails, 1 stale, 2 warning or idle, 3 settling, 4 any other.
func rankOf(s verdict.State) int {
	switch s.Word() {
	case wire.ServiceFails:
		return 0
	case wire.ServiceStale:
		return 1
	case wire.ServiceWarning, wire.ServiceIdle:
		return 2
	case wire.ServiceSettling:
		return 3
	}
	return 4
}

// chosen returns a filter for Services by the state in a query; nil if the query selects no state.
func (p *pages) chosen(state string) func(*found) bool {
	switch state {
	case "bad":
		return func(f *found) bool { return f.rank < 2 }
	case "warning":
		return func(f *found) bool { return f.rank == 2 }
	case "good":
		return func(f *found) bool { return f.rank == 4 }
	case "unchecked":
		checked := map[string]bool{}
		for _, h := range p.views.Checked("", "") {
			checked[h.Service] = checked[h.Service] || isCheck(&h)
		}
		return func(f *found) bool {
			state := p.stateOf(f.key)
			return !checked[f.key] && slices.ContainsFunc(state.Ports, func(port wire.PortState) bool { return len(port.AllEndpoints()) > 0 })
		}
	}
	return nil
}

// isCheck reports whether an endpoint has a configured health check. Endpoints without one are listed only if they were taken out of
// service or refuse connections.
func isCheck(h *wire.EndpointHealth) bool { return h.Check != "" && h.Check != wire.CheckOfFailures }

// Busiest returns the Services with the most traffic, at most the given number.
func (p *pages) Busiest(most int) ([]dashboard.Row, error) {
	traffic, _, err := p.views.Traffic.Services()
	if err != nil {
		return nil, err
	}
	var all []found
	for key, t := range traffic {
		if t.Open+t.Unanswered > 0 || rateOf(t.Rate) > 0 || rateOf(t.RefusedRate) > 0 {
			all = append(all, found{key: key, traffic: t})
		}
	}
	slices.SortFunc(all, func(a, b found) int {
		return cmp.Or(orderOf("rate", &a, &b), orderOf("refused", &a, &b), orderOf("open", &a, &b), strings.Compare(a.key, b.key))
	})
	return p.rows(all, most), nil
}

// Box returns the totals of this box: traffic, conntrack entries and announced addresses.
func (p *pages) Box() (box dashboard.Box, err error) {
	seen, err := p.views.Traffic.Traffic(wire.TrafficQuery{Sort: "open", Limit: 1})
	if err != nil {
		return box, err
	}
	box.ServiceTraffic, box.Tracked, box.Counted = seen.Totals, seen.Tracked, seen.Counted
	if text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max"); err == nil {
		box.MostTracked, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if p.views.Announced != nil {
		for _, a := range p.views.Announced.List().Items {
			if box.Addresses++; slices.ContainsFunc(a.Places, func(at wire.Place) bool { return at.State == "announced" || at.State == "host" }) {
				box.Announced++
			}
		}
	}
	return box, nil
}

// Graph returns the traffic of a Service, or of all Services if it is "". It covers a day if day is set, otherwise 15 minutes.
func (p *pages) Graph(service string, day bool) wire.TrafficGraph {
	return p.views.Traffic.Graph(service, day)
}

// changesLooked is the number of latest changes of objects that Happened searches for events.
const changesLooked = 200

// Happened returns the newest events, at most limit: transitions on this box and, if admin is set, changes of objects. namespace and name
// select one Service, or all if they are empty.
func (p *pages) Happened(namespace, name string, since time.Duration, limit int, admin bool) (events []dashboard.Event) {
	if p.views.History != nil {
		levels := map[string]string{"error": "bad", "warning": "warn", "": "good"}
		for _, e := range p.history(wire.HistoryQuery{Since: since, Limit: limit, Namespace: namespace, Name: name}).Entries {
			events = append(events, dashboard.Event{At: e.Time, Level: levels[e.Severity], Text: e.Text, Mark: e.Severity != "" && e.Kind != history.KindProblem})
		}
	}
	if admin {
		changes, _ := p.journal(wire.JournalQuery{Limit: changesLooked, Namespace: namespace}) // none while they cannot be read
		events = append(events, changesOf(changes, time.Now().Add(-since), func(e *wire.JournalEntry) bool {
			return name == "" || e.Kind == object.KindService && e.Namespace == namespace && e.Name == name
		})...)
	}
	slices.SortStableFunc(events, func(a, b dashboard.Event) int { return b.At.Compare(a.At) })
	return events[:min(len(events), limit)]
}

// changesOf converts changes of objects to events. Changes by one author within 10 s are combined into one event.
func changesOf(changes []wire.JournalEntry, since time.Time, about func(*wire.JournalEntry) bool) (events []dashboard.Event) {
	n, last := 0, ""
	for i := range changes {
		e := &changes[i]
		if e.Time.Before(since) || e.Controller != "" || !about(e) {
			continue
		}
		who := e.Author()
		if e.File != "" {
			who = filepath.Base(e.File)
		}
		if k := len(events) - 1; k >= 0 && who == last && e.Time.Sub(events[k].At) < 10*time.Second {
			n++
			events[k].Text = fmt.Sprintf("%s changed %d objects", who, n)
			continue
		}
		n, last = 1, who
		what := e.Kind + " " + e.Name
		if e.Namespace != "" {
			what = e.Kind + " " + e.Namespace + "/" + e.Name
		}
		verbs := map[string]string{"create": "created", "delete": "deleted"}
		events = append(events, dashboard.Event{At: e.Time, Text: who + " " + cmp.Or(verbs[e.Verb], "changed") + " " + what})
	}
	return events
}

// withAddress returns the keys of the Services in a namespace, "" for all, with an address that contains a text.
func (p *pages) withAddress(namespace, text string) map[string]bool {
	keys := map[string]bool{}
	all, _, _ := p.objects.ListPacked(object.KindService, namespace, 0) // the newest revision is always there
	for _, o := range store.SelectedOf(all, "", text) {
		if o != nil && slices.ContainsFunc(addressesOf(o.(*object.Service)), func(a string) bool { return strings.Contains(a, text) }) {
			keys[object.RefOf(o).Key()] = true
		}
	}
	return keys
}

// addressesOf returns the cluster IPs, load balancer IPs and external IPs of a Service.
func addressesOf(svc *object.Service) []string {
	var addrs []string
	for _, a := range svc.Spec.ClusterIPs {
		if a != "None" {
			addrs = append(addrs, a)
		}
	}
	return slices.Concat(addrs, svc.IngressIPs(), svc.Spec.ExternalIPs)
}

// orderOf compares two Services by a column of the list, for descending order; the column "state" sorts the worst first.
func orderOf(by string, a, b *found) int {
	switch by {
	case "state":
		return cmp.Compare(a.rank, b.rank)
	case "open":
		return cmp.Compare(b.traffic.Open, a.traffic.Open)
	case "rate":
		return cmp.Compare(rateOf(b.traffic.Rate), rateOf(a.traffic.Rate))
	case "refused":
		return cmp.Or(cmp.Compare(rateOf(b.traffic.RefusedRate), rateOf(a.traffic.RefusedRate)), cmp.Compare(object.Deref(b.traffic.Refused), object.Deref(a.traffic.Refused)))
	}
	return 0
}

func rateOf(rate *float64) float64 {
	if rate == nil {
		return -1
	}
	return *rate
}

// rows returns the rows of the list for the first Services that are still there, at most the given number.
func (p *pages) rows(all []found, most int) (rows []dashboard.Row) {
	for _, f := range all {
		if len(rows) == most {
			break
		}
		if f.svc, _, _ = p.objects.Service(f.key); f.svc != nil {
			state := p.stateOf(f.key)
			rows = append(rows, p.rowOf(f, &state))
		}
	}
	return rows
}

// stateOf returns the endpoints and frontends of a Service.
func (p *pages) stateOf(key string) wire.ServiceState {
	ref := object.ServiceRef(key)
	return p.views.Grants.State(ref.Namespace, ref.Name, netip.AddrPort{})
}

// judged returns the state of a Service, as counted in the status of the appliance.
func (p *pages) judged(key string) verdict.State {
	if p.views.Conditions == nil {
		return verdict.State{}
	}
	return p.views.Conditions.State(key)
}

func (p *pages) rowOf(f found, state *wire.ServiceState) dashboard.Row {
	svc, judged := f.svc, p.judged(f.key)
	worst := cmp.Or(judged.Failing, judged.Stale, judged.Doubt)
	row := dashboard.Row{
		Namespace: svc.Metadata.Namespace, Name: svc.Metadata.Name, Type: svc.Spec.Type,
		Addresses: addressesOf(svc), Up: -1, All: -1, State: judged.Word(), Reason: worst.Reason, Why: worst.Message, ServiceTraffic: *f.traffic,
		Graph: p.views.Traffic.Graph(f.key, false),
	}
	for _, port := range svc.Spec.Ports {
		text := fmt.Sprint(port.Port)
		if port.NodePort != 0 {
			text += fmt.Sprintf(":%d", port.NodePort)
		}
		row.Ports = append(row.Ports, text+"/"+port.Protocol)
	}
	if len(state.Ports) == 0 {
		row.ServiceTraffic = wire.ServiceTraffic{} // nothing is served that could be counted
		return row
	}
	// Endpoints of several ports count once for each address and port.
	up := map[string]bool{}
	for i := range state.Ports {
		for _, at := range state.Ports[i].AllEndpoints() {
			up[at] = true
		}
	}
	row.Unchecked = len(up) > 0
	for _, h := range p.views.Checked(svc.Metadata.Namespace, svc.Metadata.Name) {
		row.Unchecked = row.Unchecked && !isCheck(&h)
		if h.State == wire.HealthDown || h.State == wire.HealthOut {
			up[h.Endpoint] = false
		}
	}
	row.Up, row.All = 0, len(up)
	for _, is := range up {
		if is {
			row.Up++
		}
	}
	return row
}

// Service returns the page of one Service; nil if there is none.
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
	detail := &dashboard.Service{Clients: clients, Ports: seen.Ports, Routes: p.routes(namespace, name), State: p.service(namespace, name, netip.AddrPort{}), Annotations: svc.Metadata.Annotations}
	status := p.backend.Status()
	for _, problem := range status.Problems {
		if problem.Object == "Service "+key {
			detail.Problems = append(detail.Problems, problem)
		}
	}
	detail.Checks = p.explained(svc, endpointSlices, &status, &detail.State, seen)
	detail.Row = p.rowOf(found{key: key, svc: svc, traffic: cmp.Or(traffic[key], quiet)}, &detail.State)
	detail.Down, detail.Known = p.down(namespace, name)
	ref := object.RefOf(svc)
	detail.File, detail.Line = p.objects.Location(ref)
	for _, m := range svc.Metadata.ManagedFields {
		if m.Subresource == "" && !slices.Contains(detail.Managers, m.Manager) {
			detail.Managers = append(detail.Managers, m.Manager)
		}
	}
	return detail, nil
}

// down returns, by endpoint, the periods in the last day in which endpoints of a Service were down. known is the time at which this record
// begins.
func (p *pages) down(namespace, name string) (spans map[string][]dashboard.Span, known time.Time) {
	now := time.Now()
	if p.views.History == nil {
		return nil, now
	}
	spans = map[string][]dashboard.Span{}
	list, known := p.views.History.Transitions(time.Time{})
	for i := range list {
		t := &list[i]
		if t.Kind != history.KindEndpoint || !t.IsAbout(namespace, name) {
			continue
		}
		at := t.Endpoint()
		of := spans[at]
		open := len(of) > 0 && of[len(of)-1].To.Equal(now)
		switch {
		case t.State != "" && !open:
			spans[at] = append(of, dashboard.Span{From: t.At, To: now, Why: t.Why})
		case t.State == "" && open:
			of[len(of)-1].To = t.At
		case t.State == "" && len(of) == 0:
			spans[at] = []dashboard.Span{{From: t.At.Add(-time.Duration(t.Lasted) * time.Second), To: t.At, Why: t.Why}}
		}
	}
	return spans, known
}
