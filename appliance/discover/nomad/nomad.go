package nomad

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/discover/remote"
)

const (
	pace = 50 * time.Millisecond
	// conns is the number of connections, below the agent's limit of 100 for each client.
	conns = 64
	// silence is the longest time without a heartbeat before a stream counts as failed; Nomad sends one every 10 s.
	silence = 2 * time.Minute
	// eventBytes is the largest size of one line of the stream in bytes.
	eventBytes = 8 << 20
)

// Provider gets endpoints from one agent of Nomad.
type Provider struct {
	client *remote.Client
	region string
	space  string // namespace of questions that name none

	mu   sync.Mutex
	hubs map[string]*remote.Hub // by namespace
}

// New returns a Provider. It takes the address and the credentials from the environment variables of Nomad's command line tool.
func New(c provider.Config) (provider.Provider, error) {
	s := remote.HashiCorp(c.Env, "NOMAD_", "NOMAD_TOKEN", "X-Nomad-Token")
	s.URL, s.Conns = cmp.Or(c.URL, c.Env["NOMAD_ADDR"], "http://127.0.0.1:4646"), conns
	var err error
	if s.Insecure, err = remote.Bool(c.Env, "NOMAD_SKIP_VERIFY", false); err != nil {
		return nil, err
	}
	client, err := remote.NewClient(s)
	if err != nil {
		return nil, err
	}
	return &Provider{client: client, region: c.Env["NOMAD_REGION"], space: cmp.Or(c.Env["NOMAD_NAMESPACE"], "default"), hubs: map[string]*remote.Hub{}}, nil
}

// Follow implements provider.Provider. It asks again when the stream of events shows a change of the service.
func (p *Provider) Follow(ctx context.Context, q provider.Question, take func(provider.Answer)) error {
	params, err := q.Only([]string{"namespace", "region"}, "tag")
	if err != nil {
		return err
	}
	if q.Name == "" {
		return errors.New("the name of a service is missing")
	}
	if params.Get("namespace") == "*" {
		return errors.New("the parameter namespace must be one namespace")
	}
	scope := url.Values{"namespace": {cmp.Or(params.Get("namespace"), p.space)}}
	if region := cmp.Or(params.Get("region"), p.region); region != "" {
		scope.Set("region", region)
	}
	p.mu.Lock()
	hub := p.hubs[scope.Encode()]
	if hub == nil {
		hub = &remote.Hub{Pace: pace}
		p.hubs[scope.Encode()] = hub
	}
	p.mu.Unlock()
	return hub.Follow(ctx, q, take,
		func(ctx context.Context, e *remote.Events) error { return p.stream(ctx, scope, e) },
		func(ctx context.Context) (provider.Answer, error) { return p.list(ctx, q.Name, scope, params["tag"]) })
}

// list returns the instances of one service as an answer.
func (p *Provider) list(ctx context.Context, name string, scope url.Values, tags []string) (answer provider.Answer, err error) {
	var all []struct {
		ServiceName, Address, AllocID string
		Port                          int
		Tags                          []string
	}
	header, err := p.client.JSON(ctx, "/v1/service/"+url.PathEscape(name), scope, 0, &all)
	if err != nil {
		// Some versions have no empty list. A 404 of something else has no index.
		failed, is := errors.AsType[*remote.StatusError](err)
		if !is || failed.Code != http.StatusNotFound || failed.Header.Get("X-Nomad-Index") == "" {
			return answer, err
		}
		header = failed.Header
	}
	if header.Get("X-Nomad-KnownLeader") == "false" {
		return answer, errors.New("the servers of Nomad have no leader")
	}
	if header.Get("X-Nomad-Index") == "" {
		return answer, errors.New("the answer has no X-Nomad-Index: is this Nomad?")
	}
	for _, r := range all {
		if r.ServiceName != name || r.Port < 0 || r.Port > 65535 {
			return answer, fmt.Errorf("a registration of %.100q has port %d: is this Nomad?", r.ServiceName, r.Port)
		}
		if !slices.ContainsFunc(tags, func(tag string) bool { return !slices.Contains(r.Tags, tag) }) {
			answer.Endpoints = append(answer.Endpoints, provider.Endpoint{Address: r.Address, Port: uint16(r.Port)})
		}
	}
	return answer, nil
}

// stream reads events of the agent, and wakes the questions of services that were registered or deregistered.
func (p *Provider) stream(ctx context.Context, scope url.Values, e *remote.Events) error {
	var names []struct{}
	header, err := p.client.JSON(ctx, "/v1/services", scope, 0, &names)
	if err != nil {
		return err
	}
	index, err := strconv.ParseUint(header.Get("X-Nomad-Index"), 10, 64)
	if err != nil {
		return errors.New("the answer has no X-Nomad-Index: is this Nomad?")
	}
	query := maps.Clone(scope)
	query.Set("topic", "Service")
	query.Set("index", strconv.FormatUint(max(index, 1), 10)) // 0 is the newest event
	e.Ready()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(silence, func() { cancel(fmt.Errorf("the stream of events was silent for %v", silence)) })
	defer quiet.Stop()
	failed := func(err error) error {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return fmt.Errorf("the stream of events ended: %w", remote.Plain(err))
	}
	resp, err := p.client.Get(ctx, "/v1/event/stream", query, nil)
	if err != nil {
		return failed(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, eventBytes)
	for lines.Scan() {
		quiet.Reset(silence)
		var batch struct {
			Events []struct {
				Payload struct{ Service struct{ ServiceName string } }
			}
		}
		if err := remote.Unmarshal(lines.Bytes(), &batch); err != nil {
			return failed(err)
		}
		for _, event := range batch.Events {
			name := event.Payload.Service.ServiceName
			e.Wake(func(q provider.Question) bool { return q.Name == name || name == "" })
		}
	}
	if err := lines.Err(); err != nil {
		return failed(err)
	}
	return failed(errors.New("the agent closed it"))
}
