package docker

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/discover/remote"
)

const (
	pace  = 50 * time.Millisecond
	again = time.Second
	conns = 32
	// before is how far in the past a stream of events starts, since a list of containers may be older than its response.
	before = 2 * time.Second
	// eventBytes is the largest size of one event in bytes.
	eventBytes = 1 << 20
	// newest is the newest minor version of the API that the fields used here were checked against. It is also used with daemons that support a newer
	// one.
	newest = 55

	labelWeight, labelPriority, labelZone = "svcctl.io/weight", "svcctl.io/priority", "svcctl.io/zone"
)

// Provider gets endpoints from the containers of one Docker daemon or Podman.
type Provider struct {
	client *remote.Client
	hub    remote.Hub
	node   string // node name of the endpoints; empty: the daemon is on another host
	host   string // an address of the daemon's host; empty: this host

	mu         sync.Mutex
	containers map[string]container // containers seen in events, by container ID
	version    string               // API version as a path prefix: /v1.55
}

// container is the state of a container according to events.
type container struct {
	labels map[string]string // labels and other attributes in the last event
	ended  bool
}

// New returns a Provider. It takes the address and the credentials from the environment variables of the command line tools of Docker and
// Podman.
func New(c provider.Config) (provider.Provider, error) {
	address := cmp.Or(c.URL, c.Env["DOCKER_HOST"], c.Env["CONTAINER_HOST"], "unix:///var/run/docker.sock") // the third is Podman's
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("%q is no URL", address)
	}
	s := remote.Server{Conns: conns}
	verify := c.Env["DOCKER_TLS_VERIFY"] != "" // any value, as the tool has it
	certs := c.Env["DOCKER_CERT_PATH"]
	if certs == "" && verify {
		certs = filepath.Join(c.Env["HOME"], ".docker")
	}
	switch u.Scheme {
	case "tcp", "http":
		u.Scheme = "http"
		if verify || certs != "" {
			u.Scheme = "https"
		}
	case "unix", "https":
	default:
		return nil, fmt.Errorf("%q: must be unix:///PATH, tcp://HOST:PORT or https://HOST:PORT", u.Redacted())
	}
	if u.Scheme == "https" {
		if u.Port() == "" {
			u.Host = net.JoinHostPort(u.Hostname(), "2376")
		}
		if certs != "" {
			s.Cert, s.Key = filepath.Join(certs, "cert.pem"), filepath.Join(certs, "key.pem")
			s.CA = filepath.Join(certs, "ca.pem")
			s.Insecure = !verify && c.Env["DOCKER_TLS"] != ""
		}
	}
	s.URL = u.String()
	p := &Provider{hub: remote.Hub{Pace: pace, Again: again}}
	if u.Scheme == "unix" {
		p.node = c.Node
	} else {
		p.host = u.Hostname()
	}
	p.client, err = remote.NewClient(s)
	return p, err
}

// Follow implements provider.Provider. It lists the containers again after each event about one that matches.
func (p *Provider) Follow(ctx context.Context, q provider.Question, take func(provider.Answer)) error {
	params, err := q.Only([]string{"network", "published"})
	if err != nil {
		return err
	}
	if params.Has("published") && q.Port == 0 {
		return errors.New("the parameter published needs a targetPort that is a number")
	}
	labels, err := provider.SelectorOf(q.Name)
	if err != nil {
		return err
	}
	return p.hub.Follow(ctx, q, take, p.stream, func(ctx context.Context) (provider.Answer, error) { return p.list(ctx, q, labels) })
}

// filters returns the URL parameter "filters" in JSON.
func filters(by map[string][]string) url.Values {
	text, _ := json.Marshal(by)
	return url.Values{"filters": {string(text)}}
}

// listed is an element of the response of /containers/json.
type listed struct {
	ID              string `json:"Id"`
	Names           []string
	State, Status   string
	Labels          map[string]string
	Ports           []published
	HostConfig      struct{ NetworkMode string }
	NetworkSettings struct{ Networks map[string]network }
}

type network struct{ IPAddress, GlobalIPv6Address string }

type published struct {
	IP, Type                string
	PrivatePort, PublicPort uint16
}

func (c *listed) name() string {
	if len(c.Names) > 0 {
		return strings.TrimPrefix(c.Names[0], "/")
	}
	return c.ID
}

// list returns an answer with the endpoints in all running and paused containers that have the given labels.
func (p *Provider) list(ctx context.Context, q provider.Question, labels provider.Selector) (provider.Answer, error) {
	answer := provider.Answer{Proved: true}
	var all []listed
	by := map[string][]string{"label": labels, "status": {"running", "paused"}}
	path := p.versioned("/containers/json")
	header, err := p.client.JSON(ctx, path, filters(by), 0, &all)
	if err != nil {
		return answer, err
	}
	var sick []listed // of Podman, which has the health in no status
	if strings.HasPrefix(header.Get("Server"), "Libpod/") {
		by["health"] = []string{"starting", "unhealthy"}
		if _, err := p.client.JSON(ctx, path, filters(by), 0, &sick); err != nil {
			return answer, err
		}
	}
	params := q.Values()
	for _, c := range all {
		if c.ID == "" || !labels.Matches(c.Labels) {
			return answer, errors.New("a container has no ID or other labels: is this Docker?")
		}
		e := provider.Endpoint{Node: p.node}
		switch {
		case p.ended(c.ID) || c.State != "running" && c.State != "paused":
			continue
		case c.State == "paused" || strings.HasSuffix(c.Status, "(unhealthy)") || strings.HasSuffix(c.Status, "starting)"),
			slices.ContainsFunc(sick, func(s listed) bool { return s.ID == c.ID }):
			e.State = provider.NotReady
		}
		for _, label := range []string{labelWeight, labelPriority, labelZone} {
			if err := e.Label(label, c.Labels[label]); err != nil {
				return answer, fmt.Errorf("container %s: %w", c.name(), err)
			}
		}
		addresses, err := p.addresses(&c, params, q.Port)
		if err != nil {
			return answer, fmt.Errorf("container %s: %w", c.name(), err)
		}
		for _, a := range addresses {
			e.Address, e.Port = a.address, a.port
			answer.Endpoints = append(answer.Endpoints, e)
		}
	}
	return answer, nil
}

type address struct {
	address string
	port    uint16 // 0: use the targetPort of the Service
}

// addresses returns the addresses of a container in the network that the parameter "network" names, or else in its only network. For a container in
// the host's network it returns the host's address. With the parameter "published" it returns the host's addresses and ports that lead to the given
// port of the container.
func (p *Provider) addresses(c *listed, params url.Values, port uint16) (all []address, err error) {
	if params.Has("published") {
		for _, published := range c.Ports {
			if published.PrivatePort != port || published.PublicPort == 0 {
				continue
			}
			a := address{published.IP, published.PublicPort}
			if ip, err := netip.ParseAddr(published.IP); err != nil || ip.IsUnspecified() {
				if ip.Is6() {
					continue // the same port is published for IPv4, too
				}
				if a.address, err = p.hostAddress(params.Get("published")); err != nil {
					return nil, err
				}
			}
			if !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
		return all, nil
	}
	networks := c.NetworkSettings.Networks
	_, onHost := networks["host"]
	if want := params.Get("network"); want != "" {
		networks = map[string]network{want: networks[want]}
		onHost = onHost && want == "host"
	}
	switch {
	case onHost || c.HostConfig.NetworkMode == "host" && params.Get("network") == "":
		host, err := p.hostAddress("")
		return []address{{host, 0}}, err
	case len(networks) > 1:
		return nil, fmt.Errorf("is in the networks %s: add the parameter network=NAME", strings.Join(slices.Sorted(maps.Keys(networks)), ", "))
	}
	for _, n := range networks {
		for _, ip := range []string{n.IPAddress, n.GlobalIPv6Address} {
			if ip != "" {
				all = append(all, address{ip, 0})
			}
		}
	}
	return all, nil
}

// hostAddress returns the address of the daemon's host. This is the argument if it is not empty, else the address in the daemon's URL, else the
// source address of this host's default route.
func (p *Provider) hostAddress(given string) (string, error) {
	if given = cmp.Or(given, p.host); given != "" {
		if _, err := netip.ParseAddr(given); err != nil {
			return "", fmt.Errorf("%q is no IP address: add the parameter published=ADDRESS", given)
		}
		return given, nil
	}
	// No packet is sent: the address is one for documentation (RFC 5737).
	conn, err := net.DialTimeout("udp4", "192.0.2.1:9", time.Minute)
	if err != nil {
		return "", fmt.Errorf("the host has no default route, so its address is unknown: add the parameter published=ADDRESS")
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().String(), nil
}

func (p *Provider) versioned(path string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.version + path
}

func (p *Provider) ended(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.containers[id].ended
}

// event is an element of the response of /events.
type event struct {
	Type, Action string
	Actor        struct {
		ID         string
		Attributes map[string]string
	}
}

// stream reads events of the daemon, and wakes the questions that match the labels of containers which changed.
func (p *Provider) stream(ctx context.Context, e *remote.Events) error {
	resp, err := p.client.Get(ctx, "/_ping", nil, nil)
	if err != nil {
		return err
	}
	resp.Body.Close()
	query := filters(map[string][]string{"type": {"container", "network"}})
	if now, err := http.ParseTime(resp.Header.Get("Date")); err == nil { // by the clock of the daemon
		query.Set("since", strconv.FormatInt(now.Add(-before).Unix(), 10))
	}
	// A path without a version is deprecated. The daemon may have been upgraded since the last stream.
	version, minor := "", 0
	if _, err := fmt.Sscanf(resp.Header.Get("Api-Version"), "1.%d", &minor); err == nil {
		version = fmt.Sprintf("/v1.%d", min(minor, newest))
	}
	p.mu.Lock()
	p.containers, p.version = map[string]container{}, version
	p.mu.Unlock()
	resp, err = p.client.Get(ctx, p.versioned("/events"), query, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	e.Ready()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, eventBytes)
	for lines.Scan() {
		var event event
		if err := remote.Unmarshal(lines.Bytes(), &event); err != nil {
			return fmt.Errorf("the stream of events: %w", err)
		}
		if labels, concerned := p.note(&event); concerned {
			e.Wake(func(q provider.Question) bool {
				selector, err := provider.SelectorOf(q.Name)
				return labels == nil || err == nil && selector.Matches(labels)
			})
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("the stream of events ended: %w", remote.Plain(err))
	}
	return errors.New("the stream of events ended: the daemon closed it")
}

// note records an event, and returns the labels of the container that changed, or nil if they cannot be determined. concerned is false for events
// that cannot change endpoints.
func (p *Provider) note(e *event) (labels map[string]string, concerned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Type == "network" {
		c, known := p.containers[e.Actor.Attributes["container"]]
		if !known {
			return nil, true
		}
		return c.labels, true
	}
	id := e.Actor.ID
	c := container{e.Actor.Attributes, p.containers[id].ended}
	action, _, _ := strings.Cut(e.Action, ":")
	switch action {
	case "create", "pause", "unpause", "health_status":
	case "start", "restart":
		c.ended = false
	case "die", "died": // Podman's
		c.ended = true
	case "destroy", "remove":
		delete(p.containers, id)
		return c.labels, true
	default: // exec_start of each health check, for example
		return nil, false
	}
	p.containers[id] = c
	return c.labels, true
}
