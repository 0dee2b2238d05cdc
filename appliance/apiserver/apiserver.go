package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/dashboard"
	"svcctl.io/svcctl/api/rest"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/listen"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/appliance/verdict"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// keysName names the directory of the API's keys, in the data directory.
const keysName = "keys"

// Server is the API and the listeners it is served on.
type Server struct {
	api     *api.Server
	objects *rest.Server
	socket  net.Listener
	secure  net.Listener // nil without --listen
	keys    *keyring     // nil without --listen

	// Validity returns the validity of the certificate that the operator gave; nil: none was given.
	Validity func() auth.Validity
}

// Backend answers what the API asks the loop.
type Backend interface {
	api.Backend
	// NotStored returns the file and line that declare an object that could not be stored, and why;
	// nil if no file does.
	NotStored(object.Ref) *wire.NotStored
}

// Grants returns what Services were given of the addresses and ports that they ask for.
type Grants interface {
	State(namespace, name string, client netip.AddrPort) wire.ServiceState
	// Unanswered lists at most that many addresses without an answer to neighbors (ARP, NDP), and counts the
	// others.
	Unanswered(most int) (list []wire.Unanswered, more int)
	// Addresses lists the addresses of the box.
	Addresses() []wire.BoxAddress
}

// Health returns the state of endpoints with health checks.
type Health interface {
	State(namespace, name string) []wire.EndpointHealth
}

// Conditions are the conditions of Services, and what they come from.
type Conditions interface {
	rest.Conditions
	// State is what is wrong with a Service, "namespace/name".
	State(key string) verdict.State
}

// Views are the sources of what the API answers besides objects. It has more than 15 fields: one for each source.
type Views struct {
	// Look is rest.Config.Look.
	Look func(*object.Service)
	// Conditions computes the conditions of Services; nil: they have what is stored.
	Conditions Conditions
	Grants     Grants
	Checks     Health
	// Probe is api.Config.Probe.
	Probe func(ctx context.Context, namespace, name string) ([]wire.Probed, error)
	// Traffic and Trace are nil where they cannot be asked.
	Traffic Traffic
	Trace   api.Trace
	// Announced is nil where nothing is announced.
	Announced api.Announcements
	// Changes takes changes back.
	Changes api.Changes
	// Plan is api.Config.Plan.
	Plan func(w http.ResponseWriter, r *http.Request) (*wire.KernelPlan, error)
	// Fleet and Keys are nil on a box of its own.
	Fleet    api.Fleet
	Keys     SharedKeys
	Rollouts api.Rollouts
	// Commits and Forward are those of api.Config.
	Commits http.Handler
	Forward http.RoundTripper
	// Certificates returns the certificates of a Service, "namespace/name"; nil where there are
	// none.
	Certificates func(service string) []wire.ServiceCertificate
	// Bridged returns the endpoints of a Service, "namespace/name", that do not reach themselves.
	Bridged func(service string) []wire.BridgedEndpoint
	// Unrouted returns the addresses of ports to which the box has no route.
	Unrouted func(ports []wire.PortState) []string
}

// Open listens on the socket, and on --listen. What backend publishes and the store holds is
// served by Tasks; Close ends listening.
func Open(c *config.Config, objects *store.Store, backend Backend, views Views, m *metrics.Metrics, log *slog.Logger) (s *Server, err error) {
	computed := states{store: objects, backend: backend, announced: views.Announced, node: c.NodeName, began: time.Now()}
	s = &Server{objects: rest.New(rest.Config{Objects: objects, Look: views.Look, Log: log, Computed: computed.kinds(), Conditions: views.Conditions})}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	grants := views.Grants
	cfg := api.Config{
		Socket: c.API.Socket, SocketGroup: c.API.SocketGroup, SocketReaders: c.API.SocketReaders,
		Version: c.Version, Panicked: m.APIPanicked, Observe: m.APICalled, NameOf: rest.NameOf,
		Environment: environment(objects), Objects: s.objects.Handler(), Journal: journal(objects),
		Allocations: allocations(objects), Announcements: views.Announced, Changes: views.Changes, Plan: views.Plan,
		Service: func(namespace, name string, client netip.AddrPort) wire.ServiceState {
			state := grants.State(namespace, name, client)
			state.Health = views.Checks.State(namespace, name)
			if views.Announced != nil {
				state.Announcements = views.Announced.Of(namespace + "/" + name)
			}
			if views.Certificates != nil {
				state.Certificates = views.Certificates(namespace + "/" + name)
			}
			if views.Bridged != nil {
				state.Bridged = views.Bridged(namespace + "/" + name)
			}
			if views.Unrouted != nil {
				state.Unrouted = views.Unrouted(state.Ports)
			}
			ref := object.Ref{Kind: object.KindService, Namespace: namespace, Name: name}
			state.NotStored, state.Declared = backend.NotStored(ref), declaredIn(objects, ref)
			state.Rollout = inRollout(objects, ref.Key())
			return state
		},
		Health:  views.Checks.State,
		Probe:   views.Probe,
		Setup:   func() wire.Setup { return setup(c, grants, s.Validity) },
		Traffic: views.Traffic, Trace: noted(views.Trace, log), Fleet: views.Fleet, Rollouts: views.Rollouts,
		Commits: views.Commits, LeafWrites: c.Fleet.LeafWrites, Forward: views.Forward,
	}
	if views.Traffic != nil {
		source := &pages{objects: objects, backend: backend, grants: grants, traffic: views.Traffic, service: cfg.Service, alloc: cfg.Allocations, journal: cfg.Journal, trace: cfg.Trace, conditions: views.Conditions, nodelessLocal: c.Services.NodelessEndpoints == config.NodelessLocal}
		cfg.Dashboard = dashboard.Handler(source, func(r *http.Request) bool { return auth.From(r.Context()).Role >= auth.Admin })
		cfg.DashboardUnauthorized = dashboard.Unauthorized
	}
	if c.API.Listen != "" {
		if s.secure, err = listen.TCP(context.Background(), c.API.Listen); err != nil {
			return s, fmt.Errorf("listen for clients of the API: %w: give another --listen", err)
		}
		if cfg.TLS, err = s.openTLS(c, views.Keys, log); err != nil {
			return s, err
		}
		if c.Fleet.LeafCACert != "" {
			if cfg.TLS.Leaves, err = auth.OpenLeaves(c.Fleet.LeafCACert, log); err != nil {
				return s, err
			}
		}
	}
	s.api = api.New(cfg, backend, log)
	m.Scraped("api", func(to metrics.Samples) {
		load := s.api.Load()
		to.Set("svcctl_api_requests_in_flight", float64(load.Requests))
		to.Set("svcctl_api_watches", float64(load.Watches))
	})
	s.socket, err = s.api.Listen()
	return s, err
}

// noted has the log say who follows packets; predictions are not logged.
func noted(trace api.Trace, log *slog.Logger) api.Trace {
	if trace == nil {
		return nil
	}
	return func(ctx context.Context, q wire.TraceQuery, each func(wire.TracedPacket)) error {
		if !q.Predict {
			log.Info("a trace was asked for", "from", q.From, "to", q.To, "port", q.Port, "user", auth.From(ctx).Name)
		}
		return trace(ctx, q, each)
	}
}

// Close ends listening.
func (s *Server) Close() error {
	var errs []error
	for _, ln := range []net.Listener{s.socket, s.secure} {
		if ln == nil {
			continue
		}
		if err := ln.Close(); !errors.Is(err, net.ErrClosed) { // serving closes it, too
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// openTLS reads the keys of the API, or makes them.
func (s *Server) openTLS(c *config.Config, shared SharedKeys, log *slog.Logger) (t *api.TLS, err error) {
	dir := filepath.Join(c.DataDir, keysName)
	if s.keys, err = openKeyring(dir, shared, log); err != nil {
		return nil, err
	}
	t = &api.TLS{Tokens: s.keys.tokens, Address: s.secure.Addr().String()}
	if shared != nil {
		t.Revoke = s.keys.revoke
	}
	if c.API.TLSCert != "" {
		files, err := auth.OpenFiles(c.API.TLSCert, c.API.TLSKey, log)
		if err != nil {
			return nil, err
		}
		t.Certificate, s.Validity = files.Certificate, files.Validity
		return t, nil
	}
	authority, err := auth.OpenAuthority(dir, serverNames(c), log)
	if err != nil {
		return nil, err
	}
	t.Certificate, t.CA, s.keys.authority = authority.Certificate, authority.CA, authority
	if shared == nil {
		return t, nil
	}
	return t, s.keys.follow()
}

// declaredIn is the file of a source that declares an object, with the line if that is known; "": none does.
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

// maxUnanswered bounds the addresses that setup names.
const maxUnanswered = 20

// setup describes the appliance's directories, certificate and unanswered addresses, for svcctl
// doctor.
func setup(c *config.Config, grants Grants, validity func() auth.Validity) wire.Setup {
	s := wire.Setup{DataDir: absolute(c.DataDir)}
	for _, dir := range c.ManifestDirs() {
		s.Manifests = append(s.Manifests, absolute(dir))
	}
	if validity != nil {
		s.Certificate = certificate(validity(), time.Now())
	}
	s.Unanswered, s.MoreUnanswered = grants.Unanswered(maxUnanswered)
	s.Addresses = grants.Addresses()
	return s
}

// absolute is a path as a process with another working directory finds it.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// serverNames returns the DNS names of the server certificate. Addresses are added as they are used.
func serverNames(c *config.Config) []string {
	names := []string{c.NodeName}
	if host, err := os.Hostname(); err == nil {
		names = append(names, strings.ToLower(host))
	}
	if host, _, err := net.SplitHostPort(c.API.Listen); err == nil {
		names = append(names, strings.ToLower(host))
	}
	return names
}

// Tasks serve the API, and tidy up behind it.
func (s *Server) Tasks(log *slog.Logger) []task.Task {
	tasks := []task.Task{
		{Name: "API on the socket", Run: func(ctx context.Context) error { return s.api.Serve(ctx, s.socket) }},
		{Name: "API objects", Run: func(ctx context.Context) error { s.objects.Run(ctx); return nil }},
	}
	if s.secure != nil {
		log.Info("the API is served over TLS", "address", s.secure.Addr().String())
		if s.keys.shared != nil {
			tasks = append(tasks, task.Task{Name: "shared keys of the API", Run: s.keys.run})
		}
		tasks = append(tasks, task.Task{Name: "API over TLS", Run: func(ctx context.Context) error { return s.api.ServeTLS(ctx, s.secure) }})
	}
	return tasks
}
