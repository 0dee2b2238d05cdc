package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/discover/remote"
)

const (
	// wait is the longest time for which the agent is asked to hold a blocking query without a change. The agent adds up to a sixteenth of it.
	wait = time.Minute
	// pace is the least time between two answers to the same question. sharedPace takes its place for questions without a blocking query of their
	// own.
	pace, sharedPace = 100 * time.Millisecond, time.Second
	// polls is the largest number of questions with a blocking query of their own at a time, conns the largest number of connections to the agent.
	polls, conns = 128, 160
	// sweep is the time in seconds over which all questions without a blocking query of their own are asked again.
	sweep = 30
)

// Provider gets endpoints from one agent of Consul.
type Provider struct {
	client   *remote.Client
	token    bool       // a token is configured
	defaults url.Values // query parameters that environment variables set
	slots    chan struct{}
	hubs     map[string]*hub // by the query parameters for datacenter, namespace and partition
	mu       sync.Mutex      // guards hubs
}

// hub has the questions of one datacenter, namespace and partition that share blocking queries.
type hub struct {
	remote.Hub
	mu        sync.Mutex
	unchecked map[provider.Question]bool // questions with an empty last list, or with an instance without a check of its own
}

// New returns a Provider. It takes the address and the credentials from the environment variables of Consul's command line tool.
func New(c provider.Config) (provider.Provider, error) {
	s := remote.HashiCorp(c.Env, "CONSUL_", "CONSUL_HTTP_TOKEN", "X-Consul-Token")
	s.URL, s.Conns = c.URL, conns
	if s.URL == "" {
		ssl, err := remote.Bool(c.Env, "CONSUL_HTTP_SSL", false)
		if err != nil {
			return nil, err
		}
		s.URL = cmp.Or(c.Env["CONSUL_HTTP_ADDR"], "127.0.0.1:8500")
		if !strings.Contains(s.URL, "://") {
			s.URL = "http://" + s.URL
		}
		if rest, is := strings.CutPrefix(s.URL, "http://"); is && ssl {
			s.URL = "https://" + rest
		}
	}
	verify, err := remote.Bool(c.Env, "CONSUL_HTTP_SSL_VERIFY", true)
	if err != nil {
		return nil, err
	}
	s.Insecure = !verify
	client, err := remote.NewClient(s)
	if err != nil {
		return nil, err
	}
	p := &Provider{client: client, token: s.TokenFile != "" || s.Header.Get(s.TokenHeader) != "", defaults: url.Values{}, slots: make(chan struct{}, polls), hubs: map[string]*hub{}}
	for variable, parameter := range map[string]string{"CONSUL_NAMESPACE": "ns", "CONSUL_PARTITION": "partition"} {
		if value := c.Env[variable]; value != "" {
			p.defaults.Set(parameter, value)
		}
	}
	return p, nil
}

// Follow implements provider.Provider. It uses a blocking query for the question if fewer than `polls` of them run, otherwise the shared ones.
func (p *Provider) Follow(ctx context.Context, q provider.Question, take func(provider.Answer)) error {
	params, err := q.Only([]string{"dc", "namespace", "partition"}, "tag")
	if err != nil {
		return err
	}
	if q.Name == "" {
		return errors.New("the name of a service is missing")
	}
	scope := maps.Clone(p.defaults)
	for parameter, name := range map[string]string{"dc": "dc", "ns": "namespace", "partition": "partition"} {
		if value := params.Get(name); value != "" {
			scope.Set(parameter, value)
		}
	}
	query := maps.Clone(scope)
	if tags := params["tag"]; len(tags) > 0 {
		query["tag"] = tags
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	default:
		return p.share(ctx, q, scope, query, take)
	}
	poll := poll{client: p.client, path: pathOf(q), query: query}
	for {
		all, changed, err := p.instances(ctx, &poll)
		if err != nil {
			return err
		}
		if changed {
			answer, _, err := answerOf(q, all)
			if err != nil {
				return err
			}
			take(answer)
		}
		if err := remote.Sleep(ctx, pace); err != nil {
			return err
		}
	}
}

func pathOf(q provider.Question) string { return "/v1/health/service/" + url.PathEscape(q.Name) }

// poll is a blocking query that is repeated.
type poll struct {
	client *remote.Client
	path   string
	query  url.Values
	index  uint64 // X-Consul-Index of the last response; 0: the next request does not block
	header http.Header
}

// next waits for the next response and decodes it into the variable that `into` points to. changed reports whether the response may differ from the
// previous one.
func (p *poll) next(ctx context.Context, into any) (changed bool, err error) {
	query := maps.Clone(p.query)
	held := time.Duration(0)
	if p.index > 0 {
		held = wait + wait/16
		query.Set("index", strconv.FormatUint(p.index, 10))
		query.Set("wait", wait.String())
	}
	header, err := p.client.JSON(ctx, p.path, query, held, into)
	if err != nil {
		p.index = 0
		return false, err
	}
	p.header = header
	// The header is false on every answer of a stream, which has no other backend.
	if header.Get("X-Consul-KnownLeader") == "false" && !p.streamed() {
		p.index = 0
		return false, errors.New("the servers of Consul have no leader")
	}
	index, err := strconv.ParseUint(header.Get("X-Consul-Index"), 10, 64)
	if err != nil {
		return false, errors.New("the answer has no X-Consul-Index: is this Consul?")
	}
	changed = p.index == 0 || index != p.index
	// It falls when the servers lost their state. One of 0 would not block.
	p.index = max(index, 1)
	return changed, nil
}

func (p *poll) streamed() bool { return p.header.Get("X-Consul-Query-Backend") == "streaming" }

// instances waits for the next list of instances of a service, as poll.next does. It returns an error if Consul left some out because the
// token may not read them.
func (p *Provider) instances(ctx context.Context, poll *poll) (all []instance, changed bool, err error) {
	changed, err = poll.next(ctx, &all)
	policy := poll.header.Get("X-Consul-Default-ACL-Policy")
	if !changed || err != nil || policy == "" {
		return all, changed, err
	}
	if poll.streamed() { // it does not report omissions
		all, poll.index = nil, 0
		if _, err := poll.next(ctx, &all); err != nil {
			return nil, false, err
		}
	}
	switch {
	case poll.header.Get("X-Consul-Results-Filtered-By-ACLs") == "true":
		err = errors.New("the token may not read all instances: it needs service:read and node:read")
	case len(all) == 0 && policy == "deny" && !p.token: // Consul does not report it without a token
		err = errors.New("without a token an empty answer may be one that nothing may be read of: give a token with service:read and node:read in CONSUL_HTTP_TOKEN_FILE")
	}
	return all, true, err
}

// instance is an element of the response of /v1/health/service.
type instance struct {
	Node *struct {
		Node, Address string
		Meta          map[string]string
	}
	Service *struct {
		Service, Address string
		Port             int
		Weights          struct{ Passing, Warning int }
	}
	Checks []check
}

// check is a health check of an instance, and an element of the response of /v1/health/state/any.
type check struct {
	Node, CheckID, Status, ServiceID, ServiceName string
	ModifyIndex                                   uint64
}

// answerOf returns the endpoints of all instances as an answer. unchecked reports whether an instance has no health check of its own.
func answerOf(q provider.Question, all []instance) (answer provider.Answer, unchecked bool, err error) {
	for _, i := range all {
		if i.Node == nil || i.Service == nil || i.Service.Service == "" {
			return answer, false, errors.New("an instance has no node or no service: is this Consul?")
		}
		if i.Service.Port < 0 || i.Service.Port > 65535 {
			return answer, false, fmt.Errorf("an instance on node %.100q has port %d", i.Node.Node, i.Service.Port)
		}
		e := provider.Endpoint{
			Address: cmp.Or(i.Service.Address, i.Node.Address), Port: uint16(i.Service.Port), Node: i.Node.Node, Zone: i.Node.Meta["zone"],
		}
		weight := i.Service.Weights.Passing
		maintained, own := false, false
		for _, c := range i.Checks {
			own = own || c.ServiceID != ""
			switch c.Status {
			case "passing":
			case "warning":
				weight = i.Service.Weights.Warning
			case "maintenance":
				maintained = true
			default:
				maintained = maintained || c.CheckID == "_node_maintenance" || strings.HasPrefix(c.CheckID, "_service_maintenance:")
				e.State = provider.NotReady
			}
		}
		if maintained {
			e.State = provider.Terminating
		}
		if weight == 0 && i.Service.Weights.Passing > 0 && e.State == provider.Ready {
			e.State = provider.NotReady // Weights.Warning is 0
		}
		unchecked = unchecked || !own
		e.Weight = uint16(min(max(weight, 0), 65535))
		answer.Endpoints = append(answer.Endpoints, e)
	}
	return answer, unchecked, nil
}

// share answers a question without a blocking query of its own: it asks again when the shared queries of its hub find a change.
func (p *Provider) share(ctx context.Context, q provider.Question, scope, query url.Values, take func(provider.Answer)) error {
	p.mu.Lock()
	h := p.hubs[scope.Encode()]
	if h == nil {
		h = &hub{Hub: remote.Hub{Pace: sharedPace}, unchecked: map[provider.Question]bool{}}
		p.hubs[scope.Encode()] = h
	}
	p.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.unchecked, q)
	}()
	return h.Follow(ctx, q, take,
		func(ctx context.Context, e *remote.Events) error { return p.watch(ctx, h, scope, e) },
		func(ctx context.Context) (provider.Answer, error) {
			all, _, err := p.instances(ctx, &poll{client: p.client, path: pathOf(q), query: query})
			if err != nil {
				return provider.Answer{}, err
			}
			answer, unchecked, err := answerOf(q, all)
			h.mu.Lock()
			defer h.mu.Unlock()
			h.unchecked[q] = unchecked || len(all) == 0
			return answer, err
		})
}

// watch runs the shared blocking queries of a hub, and wakes the questions whose service changed. It returns the first error.
func (p *Provider) watch(ctx context.Context, h *hub, scope url.Values, e *remote.Events) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 3)
	read, moved := make(chan struct{}, 2), make(chan struct{}, 1)
	go func() { failed <- p.watchChecks(ctx, scope, e, read) }()
	go func() { failed <- p.watchNames(ctx, h, scope, e, read, moved) }()
	go func() { failed <- sweepAfter(ctx, e, moved) }()
	for range 2 {
		select {
		case <-read:
		case err := <-failed:
			return err
		}
	}
	e.Ready()
	return <-failed
}

// watchChecks wakes the questions of services whose health checks changed, and all questions if a check of a node changed.
func (p *Provider) watchChecks(ctx context.Context, scope url.Values, e *remote.Events, read chan<- struct{}) error {
	type state struct {
		checks int
		index  uint64
	}
	poll := poll{client: p.client, path: "/v1/health/state/any", query: scope}
	var before map[string]state
	for {
		var all []check
		changed, err := poll.next(ctx, &all)
		if err != nil {
			return err
		}
		now := make(map[string]state, len(before))
		for _, c := range all {
			s := now[c.ServiceName]
			now[c.ServiceName] = state{s.checks + 1, max(s.index, c.ModifyIndex)}
		}
		if before == nil {
			read <- struct{}{}
		} else if changed {
			nodes := now[""] != before[""]
			e.Wake(func(q provider.Question) bool { return nodes || now[q.Name] != before[q.Name] })
		}
		before = now
		if err := remote.Sleep(ctx, pace); err != nil {
			return err
		}
	}
}

// watchNames wakes the questions of services without health checks when any service changed, since watchChecks does not detect that.
func (p *Provider) watchNames(ctx context.Context, h *hub, scope url.Values, e *remote.Events, read, moved chan<- struct{}) error {
	poll := poll{client: p.client, path: "/v1/catalog/services", query: scope}
	var before map[string][]string
	for {
		var now map[string][]string
		changed, err := poll.next(ctx, &now)
		if err != nil {
			return err
		}
		if before == nil {
			read <- struct{}{}
		} else if changed {
			h.mu.Lock()
			unchecked := maps.Clone(h.unchecked)
			h.mu.Unlock()
			e.Wake(func(q provider.Question) bool { return unchecked[q] || !slices.Equal(now[q.Name], before[q.Name]) })
			select {
			case moved <- struct{}{}:
			default:
			}
		}
		before = now
		if err := remote.Sleep(ctx, pace); err != nil {
			return err
		}
	}
}

// sweepAfter wakes all questions, spread over sweep seconds, after any service changed. It is needed because the shared queries do not show which
// service changed if an instance is registered with another address but the same name, tags and checks.
func sweepAfter(ctx context.Context, e *remote.Events, moved <-chan struct{}) error {
	for {
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
		for part := range uint32(sweep) {
			if err := remote.Sleep(ctx, time.Second); err != nil {
				return err
			}
			e.Wake(func(q provider.Question) bool { return crc32.ChecksumIEEE([]byte(q.Name))%sweep == part })
		}
	}
}
