package appliance

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/rest"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// keysName is where the keys of the API are, in the data directory.
const keysName = "keys"

// access is the API and the ways into it.
type access struct {
	server  *api.Server
	objects *rest.Server
	socket  net.Listener
	secure  net.Listener // nil without --listen
	// validity is that of the certificate that the operator gave; nil: none is given.
	validity func() auth.Validity
}

// openAPI takes the socket and the port of the API.
func (c *Config) openAPI(objects *store.Store, state *published, m *metrics.Metrics, log *slog.Logger, granted *grants, closers *closers) (*access, error) {
	a := &access{objects: rest.New(rest.Config{Objects: objects, Log: log})}
	cfg := api.Config{
		Socket: c.Socket, SocketGroup: c.SocketGroup, SocketReaders: c.SocketReaders,
		Version: c.Version, Panicked: m.APIPanicked, Observe: m.APICalled, NameOf: rest.NameOf,
		Environment: environment(objects), Objects: a.objects.Handler(), Journal: journal(objects),
		Allocations: allocations(objects),
		Service: func(namespace, name string) wire.ServiceState {
			s := granted.state(namespace, name)
			s.NotStored = state.notStored(object.Ref{Kind: object.KindService, Namespace: namespace, Name: name})
			return s
		},
		Setup: func() wire.Setup { return c.setup(granted, a.validity) },
	}
	if c.Listen != "" {
		ln, err := net.Listen("tcp", c.Listen)
		if err != nil {
			return nil, fmt.Errorf("listen for clients of the API: %w: give another --listen", err)
		}
		closers.add(ignoreClosed(ln.Close))
		a.secure = ln
		if cfg.TLS, a.validity, err = c.openTLS(ln.Addr().String(), log); err != nil {
			return nil, err
		}
	}
	a.server = api.New(cfg, state, log)
	m.APILoad(a.server.Load)
	var err error
	if a.socket, err = a.server.Listen(); err != nil {
		return nil, err
	}
	closers.add(ignoreClosed(a.socket.Close))
	return a, nil
}

// openTLS reads the keys of the API, or makes them.
func (c *Config) openTLS(address string, log *slog.Logger) (*api.TLS, func() auth.Validity, error) {
	keys := filepath.Join(c.DataDir, keysName)
	tokens, err := auth.OpenTokens(keys)
	if err != nil {
		return nil, nil, err
	}
	t := &api.TLS{Tokens: tokens, Address: address}
	if c.TLSCert != "" {
		files, err := auth.OpenFiles(c.TLSCert, c.TLSKey, log)
		if err != nil {
			return nil, nil, err
		}
		t.Certificate = files.Certificate
		return t, files.Validity, nil
	}
	authority, err := auth.OpenAuthority(keys, c.serverNames(), log)
	if err != nil {
		return nil, nil, err
	}
	t.Certificate, t.CA = authority.Certificate, authority.CA
	return t, nil, nil
}

// maxUnanswered is how many addresses setup names.
const maxUnanswered = 20

// setup is where the appliance has what is its own, for svcctl doctor.
func (c *Config) setup(granted *grants, validity func() auth.Validity) wire.Setup {
	s := wire.Setup{DataDir: c.DataDir, Manifests: c.Manifests}
	if validity != nil {
		s.Certificate = certificate(validity(), time.Now())
	}
	s.Unanswered, s.MoreUnanswered = granted.unanswered(maxUnanswered)
	return s
}

// serverNames are what clients may call this box; its addresses are added as they are used.
func (c *Config) serverNames() []string {
	names := []string{c.NodeName}
	if host, err := os.Hostname(); err == nil {
		names = append(names, strings.ToLower(host))
	}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil {
		names = append(names, strings.ToLower(host))
	}
	return names
}

// serve serves the API, and tidies up behind it, until ctx is done.
func (a *access) serve(ctx context.Context, tasks *errgroup.Group, log *slog.Logger) {
	tasks.Go(func() error { return a.server.Serve(ctx, a.socket) })
	tasks.Go(func() error { a.objects.Run(ctx); return nil })
	if a.secure != nil {
		log.Info("the API is served over TLS", "address", a.secure.Addr().String())
		tasks.Go(func() error { return a.server.ServeTLS(ctx, a.secure) })
	}
}
