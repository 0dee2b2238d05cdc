package appliance

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/rest"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/store"
)

// keysName is where the keys of the API are, in the data directory.
const keysName = "keys"

// access is the API and the ways into it.
type access struct {
	server  *api.Server
	objects *rest.Server
	socket  net.Listener
	secure  net.Listener // nil without --listen
}

// openAPI takes the socket and the port of the API.
func openAPI(c *config.Config, objects *store.Store, board *reconcile.Board, m *metrics.Metrics, log *slog.Logger, closers *closers) (*access, error) {
	a := &access{objects: rest.New(rest.Config{Objects: objects, Log: log})}
	cfg := api.Config{
		Socket: c.Socket, SocketGroup: c.SocketGroup, SocketReaders: c.SocketReaders,
		Version: c.Version, Panicked: m.APIPanicked, Observe: m.APICalled, NameOf: rest.NameOf,
		Environment: environment(objects), Objects: a.objects.Handler(), Journal: journal(objects),
		Allocations: allocations(objects),
	}
	if c.Listen != "" {
		ln, err := net.Listen("tcp", c.Listen)
		if err != nil {
			return nil, fmt.Errorf("listen for clients of the API: %w: give another --listen", err)
		}
		closers.add(ignoreClosed(ln.Close))
		a.secure = ln
		if cfg.TLS, err = openTLS(c, ln.Addr().String(), log); err != nil {
			return nil, err
		}
	}
	a.server = api.New(cfg, board, log)
	m.APILoad(a.server.Load)
	var err error
	if a.socket, err = a.server.Listen(); err != nil {
		return nil, err
	}
	closers.add(ignoreClosed(a.socket.Close))
	return a, nil
}

// openTLS reads the keys of the API, or makes them.
func openTLS(c *config.Config, address string, log *slog.Logger) (*api.TLS, error) {
	keys := filepath.Join(c.DataDir, keysName)
	tokens, err := auth.OpenTokens(keys)
	if err != nil {
		return nil, err
	}
	t := &api.TLS{Tokens: tokens, Address: address}
	if c.TLSCert != "" {
		files, err := auth.OpenFiles(c.TLSCert, c.TLSKey, log)
		if err != nil {
			return nil, err
		}
		t.Certificate = files.Certificate
		return t, nil
	}
	authority, err := auth.OpenAuthority(keys, serverNames(c), log)
	if err != nil {
		return nil, err
	}
	t.Certificate, t.CA = authority.Certificate, authority.CA
	return t, nil
}

// serverNames are what clients may call this box; its addresses are added as they are used.
func serverNames(c *config.Config) []string {
	names := []string{c.NodeName}
	if host, err := os.Hostname(); err == nil {
		names = append(names, strings.ToLower(host))
	}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil {
		names = append(names, strings.ToLower(host))
	}
	return names
}

// tasks serve the API, and tidy up behind it.
func (a *access) tasks(log *slog.Logger) []task.Task {
	tasks := []task.Task{
		{Name: "API on the socket", Run: func(ctx context.Context) error { return a.server.Serve(ctx, a.socket) }},
		{Name: "API objects", Run: func(ctx context.Context) error { a.objects.Run(ctx); return nil }},
	}
	if a.secure != nil {
		log.Info("the API is served over TLS", "address", a.secure.Addr().String())
		tasks = append(tasks, task.Task{Name: "API over TLS", Run: func(ctx context.Context) error { return a.server.ServeTLS(ctx, a.secure) }})
	}
	return tasks
}
