package apiserver

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/rest"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/env"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/rollout"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

// answers implements the operations of the appliance's own API that report on objects and their state.
type answers struct {
	cfg      *config.Config
	objects  *store.Store
	views    Views
	validity func() auth.Validity // of the operator's certificate; nil if none is configured
	log      *slog.Logger
	// checking serializes requests that list allocations. Each one blocks writes to the store; without checking, a writer would wait for all of
	// these requests in a row.
	checking sync.Mutex
}

// endpoints returns the operations with their handlers.
func (a *answers) endpoints() []api.Endpoint {
	list := []api.Endpoint{
		api.Answer(wire.GetService, func(_ *http.Request, q wire.ServiceQuery) (state wire.ServiceState, err error) {
			if q.Name == "" {
				return state, wire.BadRequest("name is missing: give that of the Service")
			}
			client, err := parseClient(q.Client)
			if err != nil {
				return state, err
			}
			return a.service(q.Namespace, q.Name, client), nil
		}),
		api.Answer(wire.GetHealth, func(_ *http.Request, q wire.ObjectQuery) (wire.Health, error) {
			if q.Name != "" {
				q.Namespace = cmp.Or(q.Namespace, defaultNamespace)
			}
			return wire.Health{Endpoints: a.views.Checked(q.Namespace, q.Name)}, nil
		}),
		api.Answer(wire.GetEnvironment, a.environment),
		api.Answer(wire.GetAllocations, func(_ *http.Request, q wire.AllocationsQuery) (wire.Allocations, error) {
			return a.allocations(false, q.Value, math.MaxInt), nil
		}),
		api.Answer(wire.Repair, func(*http.Request, wire.None) (wire.Allocations, error) {
			return a.allocations(true, "", math.MaxInt), nil
		}),
		api.Answer(wire.GetSetup, func(*http.Request, wire.None) (wire.Setup, error) { return a.setup(), nil }),
		api.Answer(wire.GetHistory, func(_ *http.Request, q wire.HistoryQuery) (wire.History, error) { return a.history(q), nil }),
		api.Stream(wire.GetJournal, func(_ *http.Request, q wire.JournalQuery, each func(wire.JournalEntry) error) error {
			entries, err := a.journal(q)
			if err != nil {
				return wire.NewFailure(http.StatusInternalServerError, wire.ReasonInternalError, "the journal cannot be read: "+err.Error())
			}
			for i := range entries {
				if err := each(entries[i]); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	if a.views.Traffic != nil {
		list = append(list, api.Answer(wire.GetTraffic, func(_ *http.Request, q wire.TrafficQuery) (wire.Traffic, error) {
			answer, err := pointed(a.views.Traffic.Traffic(q))
			answer.Node, answer.Routes = a.cfg.NodeName, a.routes(q.Namespace, q.Service)
			return answer, err
		}), api.Answer(wire.GetConnections, a.connections), api.Answer(wire.Kill, a.kill))
	}
	if a.views.Trace != nil {
		list = append(list, api.Stream(wire.Trace, func(r *http.Request, q wire.TraceQuery, each func(wire.TracedPacket) error) error {
			return a.Trace(r.Context(), q, func(p wire.TracedPacket) { _ = each(p) }) // an error ends the context
		}))
	}
	return list
}

// defaultNamespace is the namespace of requests that name none.
const defaultNamespace = "default"

// parseClient parses ADDRESS or ADDRESS:PORT; "" is the zero AddrPort.
func parseClient(text string) (client netip.AddrPort, err error) {
	if text == "" {
		return client, nil
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(addr.Unmap(), 0), nil
	}
	if client, err = netip.ParseAddrPort(text); err != nil {
		return client, wire.BadRequest("client: %q is neither ADDRESS nor ADDRESS:PORT", text)
	}
	return netip.AddrPortFrom(client.Addr().Unmap(), client.Port()), nil
}

// service returns the state of a Service. If client is not the zero AddrPort, it includes the endpoint that this client gets; port 0 stands
// for any port.
func (a *answers) service(namespace, name string, client netip.AddrPort) wire.ServiceState {
	state := a.views.Grants.State(namespace, name, client)
	state.Health = a.views.Checked(namespace, name)
	ref := object.Ref{Kind: object.KindService, Namespace: namespace, Name: name}
	if a.views.Announced != nil {
		state.Announcements = a.views.Announced.Of(ref.Key())
	}
	if a.views.Certificates != nil {
		state.Certificates = a.views.Certificates(ref.Key())
	}
	if a.views.Bridged != nil {
		state.Bridged = a.views.Bridged(ref.Key())
	}
	if a.views.Unrouted != nil {
		state.Unrouted = a.views.Unrouted(state.Ports)
	}
	if a.views.NotStored != nil {
		state.NotStored = a.views.NotStored(ref)
	}
	state.Declared, state.Rollout = declaredIn(a.objects, ref), inRollout(a.objects, ref.Key())
	return state
}

// declaredIn returns the file that declares an object in a source of the fleet, as SOURCE:PATH or SOURCE:PATH:LINE; "" if none does.
func declaredIn(objects *store.Store, ref object.Ref) string {
	path, line := objects.Location(ref)
	switch {
	case store.SourceOf(path) == "":
		return ""
	case line == 0:
		return path
	}
	return path + ":" + strconv.Itoa(line)
}

// environment returns the environment variables for the Services of a namespace.
func (a *answers) environment(_ *http.Request, q wire.EnvironmentQuery) (wire.Environment, error) {
	e := wire.Environment{Namespace: q.Namespace, Variables: []wire.Variable{}}
	var services []*object.Service
	for _, key := range a.objects.Services() {
		if strings.HasPrefix(key, q.Namespace+"/") {
			if svc, _, _ := a.objects.Service(key); svc != nil {
				services = append(services, svc)
			}
		}
	}
	for _, v := range env.Of(services) {
		e.Variables = append(e.Variables, wire.Variable(v))
	}
	return e, nil
}

// allocations returns the allocated addresses and ports by pool, with at most `most` holders of each pool. If value is not "", only its holder is
// included. If value is "" and repair is set, allocations that disagree with the Services are also corrected.
func (a *answers) allocations(repair bool, value string, most int) wire.Allocations {
	a.checking.Lock()
	defer a.checking.Unlock()
	// The check comes first: the pools are then listed as they were corrected.
	list := wire.Allocations{Pools: []wire.Pool{}, Disagreements: []wire.Disagreement{}}
	if value == "" {
		for _, d := range a.objects.CheckPools(repair) {
			list.Disagreements = append(list.Disagreements, wire.Disagreement(d))
		}
	}
	for _, p := range a.objects.Pools(most) {
		pool := wire.Pool{Kind: p.Kind, Family: p.Family, Range: p.Range, Name: p.Name, Internal: p.Internal, Size: p.Size, Used: p.Used, Held: p.Held, Holders: []wire.Holder{}}
		for _, h := range p.Holders {
			if value == "" || h.Value == value {
				pool.Holders = append(pool.Holders, wire.Holder(h))
			}
		}
		list.Pools = append(list.Pools, pool)
	}
	return list
}

func (a *answers) connections(_ *http.Request, asked wire.ConnectionsQuery) (c wire.Connections, err error) {
	q := wire.ConnectionQuery{Namespace: asked.Namespace, Service: asked.Service, Limit: asked.Limit}
	if asked.Endpoint != "" {
		if q.Endpoint, err = netip.ParseAddrPort(asked.Endpoint); err != nil {
			if q.EndpointAddr, err = netip.ParseAddr(asked.Endpoint); err != nil {
				return c, wire.BadRequest("endpoint=%q: want an address, or an address and port as 10.1.2.11:8080", asked.Endpoint)
			}
		}
	}
	if asked.Client != "" {
		if q.Client, err = wire.ParseClients(asked.Client); err != nil {
			return c, wire.BadRequest("client=%v", err)
		}
	}
	return pointed(a.views.Traffic.Connections(q))
}

// pointed returns *p, or the zero value and err if err is not nil.
func pointed[T any](p *T, err error) (t T, _ error) {
	if err != nil {
		return t, err
	}
	return *p, nil
}

// routes returns the paths of the Gateway API routes that lead to a Service: the lines of diagnose.Paths.
func (a *answers) routes(namespace, name string) []string {
	svc, _, _ := a.objects.Service(namespace + "/" + name)
	return strings.FieldsFunc(diagnose.Paths(a.led(svc), "Service/"+namespace+"/"+name, ""), func(r rune) bool { return r == '\n' })
}

// led returns the EndpointSlices of all Services that were generated for the same Gateway as svc; nil if svc was generated for no Gateway.
func (a *answers) led(svc *object.Service) (led []*object.EndpointSlice) {
	if svc == nil || svc.Metadata.Labels[object.LabelGateway] == "" {
		return nil
	}
	gateway := svc.Metadata.Labels[object.LabelGateway]
	all, _, _ := a.objects.ListPacked(object.KindService, svc.Metadata.Namespace, 0) // the newest revision is always there
	for _, o := range store.SelectedOf(all, "", `"`+object.LabelGateway+`":"`+gateway+`"`) {
		if o != nil && o.GetMeta().Labels[object.LabelGateway] == gateway {
			_, list, _ := a.objects.Service(object.RefOf(o).Key())
			led = append(led, list...)
		}
	}
	return led
}

func (a *answers) kill(r *http.Request, q wire.KillQuery) (wire.Connection, error) {
	killed, err := a.views.Traffic.Kill(q.ID)
	switch {
	case err != nil:
		return wire.Connection{}, err
	case killed == nil:
		return wire.Connection{}, wire.NotFound("no Service has a connection %d: it ended, or never was", q.ID)
	}
	a.log.Info("a connection was ended", "svc", killed.Namespace+"/"+killed.Service, "client", killed.Client, "endpoint", killed.Endpoint, "user", api.UserOf(r))
	return *killed, nil
}

// Trace calls each with the packets that a trace reports. It logs the trace with its user, unless q.Predict is set.
func (a *answers) Trace(ctx context.Context, q wire.TraceQuery, each func(wire.TracedPacket)) error {
	if !q.Predict {
		a.log.Info("a trace was asked for", "from", q.From, "to", q.To, "port", q.Port, "user", auth.From(ctx).Name)
	}
	return a.views.Trace(ctx, q, each)
}

// maxUnanswered is the largest number of unanswered addresses that setup lists.
const maxUnanswered = 20

// setup returns the appliance's directories, certificate and the addresses that no host answers for, for svcctl doctor.
func (a *answers) setup() wire.Setup {
	s := wire.Setup{DataDir: absolute(a.cfg.DataDir)}
	for _, dir := range a.cfg.ManifestDirs() {
		s.Manifests = append(s.Manifests, absolute(dir))
	}
	if a.validity != nil {
		s.Certificate = certificate(a.validity(), time.Now())
	}
	s.Unanswered, s.MoreUnanswered = a.views.Grants.Unanswered(maxUnanswered)
	s.Addresses = a.views.Grants.Addresses()
	return s
}

// absolute returns path as an absolute path, for use by processes with another working directory.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// journal returns the newest changes of objects that match the query, the oldest first.
func (a *answers) journal(q wire.JournalQuery) ([]wire.JournalEntry, error) {
	about := func(ref object.Ref) bool {
		return (q.Events || ref.Kind != object.KindEvent) && (q.Namespace == "" || q.Namespace == ref.Namespace) &&
			(q.Name == "" || slices.Contains([]string{object.KindService, object.KindEndpointSlice, object.KindEndpoints, object.KindEvent}, ref.Kind))
	}
	read := q.Limit
	if q.Name != "" || q.Since > 0 { // which are left out is known when they are read
		read = maxJournal
	}
	events, err := a.objects.EventsAbout(a.objects.Recent(read, about), 0, about)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	events = slices.DeleteFunc(events, func(e store.Event) bool { // others may have come since
		return !about(e.Ref) || q.Since > 0 && now.Sub(e.At) > q.Since || q.Name != "" && !isOf(&e, q.Name)
	})
	events = events[max(0, len(events)-q.Limit):]
	entries := make([]wire.JournalEntry, len(events))
	for i, e := range events {
		entries[i] = wire.JournalEntry{
			Revision: e.Revision, Time: e.At.UTC(), Verb: verbOf(&e),
			Kind: e.Ref.Kind, Namespace: e.Ref.Namespace, Name: e.Ref.Name,
			User: e.By.User, Manager: e.By.Manager, Agent: e.By.Agent,
		}
		if e.By == (store.Caller{}) {
			entries[i].File, entries[i].Controller = e.Owner.File, e.Owner.Controller
		}
	}
	return entries, nil
}

// maxJournal is the approximate number of changes that the journal keeps.
const maxJournal = 10_000

// isOf reports whether a change is about the Service of this name: the changed object is the Service, its Endpoints, one of its EndpointSlices, or an
// Event about it.
func isOf(e *store.Event, service string) bool {
	switch o := cmp.Or(e.New, e.Old).(type) {
	case *object.EndpointSlice:
		return o.Metadata.Labels[object.LabelServiceName] == service
	case *object.Event:
		return o.InvolvedObject.Kind == object.KindService && o.InvolvedObject.Name == service
	}
	return e.Ref.Name == service
}

// history returns the transitions of problems, endpoints and conditions on this box, as the query selects them.
func (a *answers) history(q wire.HistoryQuery) wire.History {
	now := time.Now()
	if a.views.History == nil {
		return wire.History{At: now.UTC(), From: now.UTC(), Entries: []wire.HistoryEntry{}}
	}
	list, from := a.views.History.Transitions(now.Add(-q.Since))
	if q.Namespace+q.Name != "" {
		list = slices.DeleteFunc(list, func(t history.Transition) bool { return !t.IsAbout(q.Namespace, q.Name) })
	}
	answer := wire.History{At: now.UTC(), From: from.UTC(), Entries: []wire.HistoryEntry{}}
	story := history.Story(list)
	for _, e := range story[max(0, len(story)-q.Limit):] {
		answer.Entries = append(answer.Entries, wire.HistoryEntry{Time: e.At, Kind: e.Kind, Severity: e.Severity, Text: e.Text, Services: e.Services, Concerned: e.Concerned})
	}
	return answer
}

// verbOf returns the verb of the request that made a change, or create, update or delete for a change without a request.
func verbOf(e *store.Event) string {
	switch {
	case e.By.Verb != "":
		return e.By.Verb
	case e.Old == nil:
		return "create"
	case e.New == nil:
		return "delete"
	}
	return "update"
}

// inRollout returns the state of the staged rollout that includes a Service; nil if no pending rollout does.
func inRollout(objects *store.Store, service string) *wire.ServiceRollout {
	if head, is := objects.PendingHead(pending.Staged); !is || !head.Pending() {
		return nil
	}
	state, _ := objects.Pending(pending.Staged)
	if _, found := slices.BinarySearch(state.Services, service); !found {
		return nil
	}
	r := rollout.Of(state.Head)
	return &wire.ServiceRollout{ID: r.ID, Phase: string(r.Phase), New: state.Here, Step: r.Step + 1, Of: len(r.Steps), Why: r.Why}
}

// CertificateFinding returns a finding for svcctl doctor: whether the operator's API certificate is valid and was renewed in time.
func CertificateFinding(v auth.Validity, now time.Time) checkup.Finding {
	until := "the certificate in use is valid until " + v.Expires.UTC().Format(time.RFC3339)
	const renew = "put a renewed certificate and its key into the files of --tls-cert and --tls-key; they are read again within 10 s"
	switch {
	case !now.Before(v.Expires):
		f := checkup.Fault(checkup.Certificate, fmt.Sprintf("the certificate of the API, %s, expired at %s: clients refuse it", v.File, v.Expires.UTC().Format(time.RFC3339)), renew)
		if v.Refused != nil {
			f.Message += fmt.Sprintf("; its successor cannot be used: %v", v.Refused)
		}
		return f
	case v.Refused != nil:
		return checkup.Fault(checkup.Certificate, fmt.Sprintf("the new certificate of the API cannot be used, and the next start would fail: %v; %s", v.Refused, until), renew)
	case v.Expires.Sub(now) < min(v.Expires.Sub(v.Begins)/5, 14*24*time.Hour): // automatic renewal (ACME clients, RFC 8555) happens at a third
		return checkup.Doubt(checkup.Certificate, fmt.Sprintf("the certificate of the API, %s, expires soon: %s", v.File, until), renew)
	}
	return checkup.Well(checkup.Certificate, fmt.Sprintf("the certificate of the API, %s, is valid until %s", v.File, v.Expires.UTC().Format(time.RFC3339)))
}

// certificate converts the finding about a certificate to the type of the API.
func certificate(v auth.Validity, now time.Time) *wire.Certificate {
	c := &wire.Certificate{File: v.File, Expires: v.Expires}
	if f := CertificateFinding(v, now); f.Level != checkup.OK {
		c.Problem, c.Advice, c.Bad = f.Message, f.Advice, f.Level == checkup.Error
	}
	return c
}

// CertificateOffline returns the finding about the certificate files that serve would load at its next start.
func CertificateOffline(cert, key string, now time.Time) checkup.Finding {
	files, err := auth.OpenFiles(cert, key, slog.New(slog.DiscardHandler))
	if err != nil {
		return checkup.Fault(checkup.Certificate, err.Error(), "replace it: `svcctl serve` does not start with it")
	}
	return CertificateFinding(files.Validity(), now)
}

// states computes the objects of MetalLB's status kinds, such as ServiceL2Status, from the announcements and problems of this box. They are
// not stored.
type states struct {
	store     *store.Store
	backend   api.Backend
	announced api.Announcements // nil if nothing is announced
	node      string
	began     time.Time
}

func (s *states) kinds() map[string]func() []object.Object {
	return map[string]func() []object.Object{
		object.KindServiceL2Status:    s.onSegments,
		object.KindServiceBGPStatus:   s.toPeers,
		object.KindConfigurationState: s.configuration,
	}
}

// The labels of status objects, as MetalLB sets them.
const (
	labelNode             = "metallb.io/node"
	labelNodeName         = "metallb.io/node-name"
	labelServiceName      = "metallb.io/service-name"
	labelServiceNamespace = "metallb.io/service-namespace"
	labelComponent        = "metallb.io/component-type"
)

// placement lists where the addresses of one Service are announced.
type placement struct {
	namespace string // namespace of the status object
	where     []string
	since     time.Time
}

// places returns the placements of all Services, by "namespace/name". It includes the places whose name begins with `by` ("l2 " or "bgp ") and for
// which the function `counts` returns true.
func (s *states) places(by string, counts func(p *wire.Place) bool) map[string]*placement {
	all := map[string]*placement{}
	if s.announced == nil {
		return all
	}
	use := s.store.IngressPools()
	list := s.announced.List()
	for i := range list.Items {
		item := &list.Items[i]
		for j := range item.Places {
			p := &item.Places[j]
			name, is := strings.CutPrefix(p.By, by)
			if !is || !counts(p) {
				continue
			}
			for _, service := range item.Services {
				t := all[service]
				if t == nil {
					t = &placement{namespace: namespaceOf(item.Address, use), since: p.Since}
					all[service] = t
				}
				if p.Since.Before(t.since) {
					t.since = p.Since
				}
				if !slices.Contains(t.where, name) {
					t.where = append(t.where, name)
				}
			}
		}
	}
	for _, t := range all {
		slices.Sort(t.where)
	}
	return all
}

// namespaceOf returns the namespace of the IPAddressPool that contains an address, or MetalLB's own namespace if none does.
func namespaceOf(address string, use []store.Pool) string {
	addr, err := netip.ParseAddr(address)
	for i := range use {
		if err == nil && use[i].Name != "" && object.InAddressRange(addr, use[i].Range) {
			namespace, _, _ := strings.Cut(use[i].Name, "/")
			return namespace
		}
	}
	return object.MetalLBNamespace
}

func (s *states) onSegments() (all []object.Object) {
	for service, t := range s.places("l2 ", func(p *wire.Place) bool { return p.State == "announced" }) {
		o := &object.ServiceL2Status{TypeMeta: object.TypeMeta{Kind: object.KindServiceL2Status, APIVersion: object.APIVersionMetalLB}, Metadata: s.meta("l2-", service, t)}
		o.Status.Node = s.node
		o.Status.ServiceNamespace, o.Status.ServiceName, _ = strings.Cut(service, "/")
		for _, name := range t.where {
			o.Status.Interfaces = append(o.Status.Interfaces, object.InterfaceInfo{Name: name})
		}
		all = append(all, o)
	}
	return all
}

func (s *states) toPeers() (all []object.Object) {
	meant := func(p *wire.Place) bool { return p.State != "unsent" && p.State != "drained" }
	for service, t := range s.places("bgp ", meant) {
		o := &object.ServiceBGPStatus{TypeMeta: object.TypeMeta{Kind: object.KindServiceBGPStatus, APIVersion: object.APIVersionMetalLB}, Metadata: s.meta("bgp-", service, t)}
		o.Status.Node, o.Status.Peers = s.node, t.where
		o.Status.ServiceNamespace, o.Status.ServiceName, _ = strings.Cut(service, "/")
		all = append(all, o)
	}
	return all
}

// meta returns the metadata of the status object of a Service on this box. The name is a hash of the box and the Service; MetalLB uses a
// random name.
func (s *states) meta(prefix, service string, t *placement) object.ObjectMeta {
	namespace, name, _ := strings.Cut(service, "/")
	m := s.named(t.namespace, prefix+fmt.Sprintf("%x", sha256.Sum256([]byte(s.node+"/"+service)))[:10])
	if since := t.since.UTC().Truncate(time.Second); !t.since.IsZero() {
		m.CreationTimestamp = &since
	}
	m.Labels = map[string]string{labelNode: s.node, labelServiceName: name, labelServiceNamespace: namespace}
	return m
}

func (s *states) named(namespace, name string) object.ObjectMeta {
	began := s.began.UTC().Truncate(time.Second)
	return object.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: &began, UID: rest.DerivedUID(namespace+"/"+name, s.node)}
}

// configuration returns one ConfigurationState for MetalLB's speaker and one for its controller, in MetalLB's format.
func (s *states) configuration() []object.Object {
	status := s.backend.Status()
	wrong := func(kinds ...string) (texts []string) {
		for _, p := range status.Problems {
			kind, _, _ := strings.Cut(p.Object, " ")
			if p.Severity == wire.SeverityError && slices.Contains(kinds, kind) {
				texts = append(texts, p.Object+": "+p.Field+": "+p.Message)
			}
		}
		return texts
	}
	state := func(name, component, condition string, wrong []string) *object.ConfigurationState {
		o := &object.ConfigurationState{TypeMeta: object.TypeMeta{Kind: object.KindConfigurationState, APIVersion: object.APIVersionMetalLB}, Metadata: s.named(object.MetalLBNamespace, name)}
		o.Metadata.Labels = map[string]string{labelComponent: component}
		is := object.Condition{Type: condition, Status: "True", Reason: "Reconciled", LastTransitionTime: *o.Metadata.CreationTimestamp}
		o.Status.Result = "Valid"
		if len(wrong) > 0 {
			is.Status, is.Reason, is.Message = "False", "ConfigurationError", strings.Join(wrong, "\n")
			o.Status.Result, o.Status.ErrorSummary = "Invalid", is.Message
		}
		o.Status.Conditions = []object.Condition{is}
		return o
	}
	speaker := state("speaker-"+s.node, "speaker", "configReconcilerValid",
		wrong(object.KindL2Advertisement, object.KindBGPAdvertisement, object.KindCommunity, object.KindBFDProfile, object.KindBGPPeer))
	speaker.Metadata.Labels[labelNodeName] = s.node
	return []object.Object{state("controller", "controller", "poolReconcilerValid", wrong(object.KindIPAddressPool)), speaker}
}
