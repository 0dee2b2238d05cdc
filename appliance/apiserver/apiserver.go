package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/dashboard"
	"svcctl.io/svcctl/api/rest"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/listen"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/appliance/verdict"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// keysName is the subdirectory of the data directory that holds the API's keys.
const keysName = "keys"

// Server serves the API on its listeners.
type Server struct {
	api     *api.Server
	objects *rest.Server
	socket  net.Listener
	secure  net.Listener // nil without --listen
	keys    *keyring     // nil without --listen

	// Validity returns the validity of the operator's certificate; nil if none is configured.
	Validity func() auth.Validity
}

// Grants reports which addresses and ports Services have on this box.
type Grants interface {
	State(namespace, name string, client netip.AddrPort) wire.ServiceState
	// Unanswered lists at most the given number of addresses for which no host answers ARP or NDP, and counts the rest.
	Unanswered(most int) (list []wire.Unanswered, more int)
	// Addresses lists the addresses of the box.
	Addresses() []wire.BoxAddress
}

// Conditions computes the conditions of Services, and the problems behind them.
type Conditions interface {
	rest.Conditions
	// State returns the state of a Service, by its key "namespace/name".
	State(key string) verdict.State
}

// Views are the sources of the API's responses other than the stored objects. It has more than 15 fields: one for each source.
type Views struct {
	// Look is called before a Service is written (rest.Config.Look).
	Look func(*object.Service)
	// Conditions computes the conditions of Services. If it is nil, the stored conditions are shown.
	Conditions Conditions
	Grants     Grants
	// Checked returns the health of endpoints with health checks. An empty name selects all Services of the namespace; empty strings select all
	// Services.
	Checked func(namespace, name string) []wire.EndpointHealth
	// NotStored returns the file and line that declare an object that could not be stored, and why;
	// nil if no file does.
	NotStored func(object.Ref) *wire.NotStored
	// History records transitions on this box; nil if they are not recorded.
	History *history.Book
	// Traffic reports connections and their counters, and Trace traces packets. Each is nil if it is not available.
	Traffic Traffic
	Trace   Trace
	// Announced is nil if nothing is announced.
	Announced api.Announcements
	// Keys is nil if the box is not in a fleet.
	Keys SharedKeys
	// Endpoints, Commits and Forward are passed to api.Config.
	Endpoints []api.Endpoint
	Commits   http.Handler
	Forward   http.RoundTripper
	// Certificates returns the certificates of a Service, "namespace/name"; the function is nil if there are none.
	Certificates func(service string) []wire.ServiceCertificate
	// Bridged returns the endpoints of a Service, "namespace/name", that cannot connect to their own Service because they are behind a bridge
	// with bridge-nf-call-iptables.
	Bridged func(service string) []wire.BridgedEndpoint
	// Unrouted returns the addresses of ports to which the box has no route.
	Unrouted func(ports []wire.PortState) []string
}

// Trace calls each for every matching packet, until the packet count or duration in q is reached, or ctx is done. While another trace runs,
// it returns wire.ErrTracing.
type Trace = func(ctx context.Context, q wire.TraceQuery, each func(wire.TracedPacket)) error

// Open listens on the unix socket and on --listen. Requests are served once Tasks run; Close closes the listeners.
func Open(c *config.Config, objects *store.Store, backend api.Backend, views Views, m *metrics.Metrics, log *slog.Logger) (s *Server, err error) {
	computed := states{store: objects, backend: backend, announced: views.Announced, node: c.NodeName, began: time.Now()}
	s = &Server{objects: rest.New(rest.Config{Objects: objects, Look: views.Look, Log: log, Computed: computed.kinds(), Conditions: views.Conditions})}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	var secure *api.TLS
	if c.API.Listen != "" {
		if s.secure, err = listen.TCP(context.Background(), c.API.Listen); err != nil {
			return s, fmt.Errorf("listen for clients of the API: %w: give another --listen", err)
		}
		if secure, err = s.openTLS(c, views.Keys, log); err != nil {
			return s, err
		}
	}
	a := &answers{cfg: c, objects: objects, views: views, validity: s.Validity, log: log}
	cfg := api.Config{
		Socket: api.Socket{Path: c.API.Socket, Group: c.API.SocketGroup, Readers: c.API.SocketReaders}, TLS: secure,
		Version: c.Version, Panicked: m.APIPanicked, Observe: m.APICalled, NameOf: rest.NameOf, Objects: s.objects.Handler(),
		Endpoints: slices.Concat(a.endpoints(), views.Endpoints), Announcements: views.Announced,
		Commits: views.Commits, LeafWrites: c.Fleet.LeafWrites, Forward: views.Forward,
	}
	if views.Traffic != nil {
		source := &pages{answers: a, backend: backend}
		cfg.Dashboard = dashboard.Handler(source, func(r *http.Request) bool { return auth.From(r.Context()).Role >= auth.Admin })
		cfg.DashboardUnauthorized = dashboard.Unauthorized
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

// Close closes the listeners.
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

// openTLS opens the keys of the API, and creates missing ones. shared holds the keys of the fleet; nil if the box is not in a fleet.
func (s *Server) openTLS(c *config.Config, shared SharedKeys, log *slog.Logger) (t *api.TLS, err error) {
	dir := filepath.Join(c.DataDir, keysName)
	if s.keys, err = openKeyring(dir, shared, log); err != nil {
		return nil, err
	}
	t = &api.TLS{Tokens: s.keys.tokens, Address: s.secure.Addr().String()}
	if shared != nil {
		t.Revoke = s.keys.revoke
	}
	if c.Fleet.LeafCACert != "" {
		if t.Leaves, err = auth.OpenLeaves(c.Fleet.LeafCACert, log); err != nil {
			return nil, err
		}
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

// serverNames returns the DNS names for the server certificate. IP addresses are added when a client connects to them.
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

// Tasks returns the tasks that serve the API and remove expired objects.
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

// SharedKeys holds the keys that all boxes of a fleet share. All methods may be called concurrently.
type SharedKeys interface {
	// Tokens returns the key that signs tokens, and its ID. The ID is "" if no key exists; the key is nil if this box cannot decrypt it. CA
	// does the same for the CA of the API's certificates, in the format of auth.Authority.Share.
	Tokens() (id string, key []byte)
	CA() (id string, key []byte)
	// ReplaceTokens stores key as the key that signs tokens, if the current key still has the ID before ("" if none exists). ReplaceCA does the
	// same for the CA.
	ReplaceTokens(ctx context.Context, before string, key []byte) error
	ReplaceCA(ctx context.Context, before string, key []byte) error
	// Sharing returns the reason why this box does not share keys; nil if it does.
	Sharing() error
	// Changes returns a channel that is closed at the next change of a key.
	Changes() <-chan struct{}
}

const (
	// keyringRetry is the delay before a shared key that could not be created or stored is tried again.
	keyringRetry = 5 * time.Second
	// keyringLook is the interval at which the CA is checked for expiry.
	keyringLook = time.Hour
)

// keyring makes this box use the token key and the CA of its fleet. While the fleet has none, the box uses its own. While the box cannot decrypt
// them, it uses a token key of its own, and the CA that it used before.
type keyring struct {
	shared    SharedKeys // nil: the box is not in a fleet
	tokens    *auth.Tokens
	authority *auth.Authority // nil: the operator configured a certificate
	log       *slog.Logger
	looked    time.Time // last check of the expiry of the CA; used only by run

	mu   sync.Mutex
	caID string // ID of the shared CA in use by authority; "" if the box uses its own CA
}

// openKeyring opens the keys in dir, and creates missing ones. If shared is not nil and has a token key, it uses that key instead.
func openKeyring(dir string, shared SharedKeys, log *slog.Logger) (k *keyring, err error) {
	k = &keyring{shared: shared, log: log}
	if shared != nil {
		if id, key := shared.Tokens(); key != nil {
			k.tokens, err = auth.OpenShared(dir, id, key)
			return k, err
		}
	}
	k.tokens, err = auth.OpenTokens(dir)
	return k, err
}

// follow puts the current shared keys into use on this box. If the shared CA cannot be decrypted, the previous CA stays in use.
func (k *keyring) follow() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	id, key := k.shared.Tokens()
	if key == nil {
		id = "" // what it had is not in force any more
	}
	err := k.tokens.Share(id, key)
	if k.authority == nil {
		return err
	}
	id, key = k.shared.CA()
	if id == k.caID || id != "" && key == nil { // a CA that cannot be read leaves the one before
		return err
	}
	if caErr := k.authority.Share(key); caErr != nil {
		return errors.Join(err, caErr)
	}
	k.caID = id
	return err
}

// keep creates missing shared keys, and replaces a CA that is about to expire. It also replaces the token key if tokens were revoked on
// this box and the other boxes could not be notified.
func (k *keyring) keep(ctx context.Context) error {
	if k.shared.Sharing() != nil {
		return nil
	}
	id, key := k.shared.Tokens()
	mine, ended := k.tokens.Shared()
	var errs []error
	if id == "" || key != nil && ended && mine == id {
		errs = append(errs, k.shared.ReplaceTokens(ctx, id, auth.NewTokenKey()))
	}
	id, key = k.shared.CA()
	if k.authority == nil || id != "" && (key == nil || time.Since(k.looked) < keyringLook) {
		return errors.Join(errs...)
	}
	k.looked = time.Now()
	ca, ends, err := k.authority.Export()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	if id == "" || ends {
		if ends {
			if ca, err = auth.NewAuthorityKey(time.Now()); err != nil {
				return errors.Join(append(errs, err)...)
			}
		}
		errs = append(errs, k.shared.ReplaceCA(ctx, id, ca))
	}
	return errors.Join(errs...)
}

// run keeps the shared keys current on this box until ctx is done.
func (k *keyring) run(ctx context.Context) error {
	for ctx.Err() == nil {
		changed := k.shared.Changes()
		wait := keyringLook
		if err := k.follow(); err != nil {
			k.log.Error("the keys of the fleet are not used", "err", err)
			wait = keyringRetry
		}
		if err := k.keep(ctx); err != nil && ctx.Err() == nil {
			k.log.Debug("the fleet has no new keys yet", "err", err)
			wait = keyringRetry
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(wait):
		}
	}
	return nil
}

// revoke implements api.TLS.Revoke. It revokes all tokens, by creating a new key for the whole fleet. pending is the reason why the
// revocation has not reached the other boxes, or nil.
func (k *keyring) revoke(ctx context.Context) (pending, err error) {
	mine, _ := k.tokens.Shared()
	if mine == "" {
		if err := k.tokens.RevokeAll(); err != nil {
			return nil, err
		}
		if id, _ := k.shared.Tokens(); id != "" && k.shared.Sharing() == nil {
			return errors.New("this box cannot read the key of its fleet's tokens: run it on a box that can"), nil
		}
		return nil, nil
	}
	if err := k.tokens.End(mine); err != nil {
		return nil, err
	}
	pending = k.shared.ReplaceTokens(ctx, mine, auth.NewTokenKey())
	if err := k.follow(); err != nil {
		k.log.Error("the keys of the fleet are not used", "err", err)
	}
	if id, _ := k.shared.Tokens(); id != mine {
		return nil, nil // by this call, or by another box
	}
	return fmt.Errorf("the other boxes of the fleet accept them until this one reaches etcd (%w)", pending), nil
}

// Rehearse applies the objects in body, a request body for /svcctl/v1/apply, to objects and returns the result for each. objects must be a
// copy of the store that belongs to the caller. r supplies the query, the media type and the user.
func Rehearse(objects *store.Store, look func(*object.Service), r *http.Request, body []byte) ([]wire.Applied, error) {
	server := rest.New(rest.Config{Objects: objects, Look: look, Log: slog.New(slog.DiscardHandler)})
	asked := r.Clone(r.Context())
	asked.URL.Path, asked.URL.RawPath = "/svcctl/v1/apply", ""
	answer, err := answerTo(server, asked, body)
	if err != nil {
		return nil, err
	}
	var all []wire.Applied
	for d := json.NewDecoder(&answer.body); ; {
		var a wire.Applied
		switch err := d.Decode(&a); err {
		case nil:
			all = append(all, a)
		case io.EOF:
			return all, nil
		default:
			return nil, fmt.Errorf("read what became of the objects: %w", err)
		}
	}
}

// RehearseRemovals removes objects from a copy of the store that belongs to the caller. It returns the refused removals, by the path of the
// object. A missing object is not refused.
func RehearseRemovals(objects *store.Store, r *http.Request, removals []wire.PlanRemoval) (refused map[string]*wire.Failure, err error) {
	server := rest.New(rest.Config{Objects: objects, Log: slog.New(slog.DiscardHandler)})
	refused = map[string]*wire.Failure{}
	for i := range removals {
		options := map[string]any{"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
		if uid := removals[i].UID; uid != "" {
			options["preconditions"] = map[string]any{"uid": uid}
		}
		body, err := json.Marshal(options)
		if err != nil {
			return nil, err
		}
		asked := r.Clone(r.Context())
		asked.Method, asked.URL = http.MethodDelete, &url.URL{Path: removals[i].Path}
		asked.Header.Set("Content-Type", "application/json")
		asked.Header.Del("Accept") // a Table, or protobuf
		_, err = answerTo(server, asked, body)
		failure, is := errors.AsType[*wire.Failure](err)
		switch {
		case err != nil && !is:
			return nil, err
		case is && failure.Code != http.StatusNotFound:
			refused[removals[i].Path] = failure
		}
	}
	return refused, nil
}

// answerTo serves a request in memory and returns the response. A status of 400 or more is an error, a *wire.Failure if the body has one.
func answerTo(server *rest.Server, r *http.Request, body []byte) (*recordedAnswer, error) {
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.Header.Del("Accept-Encoding") // the answer is read here
	answer := &recordedAnswer{header: http.Header{}, code: http.StatusOK}
	server.Handler().ServeHTTP(answer, r)
	if answer.code < http.StatusBadRequest {
		return answer, nil
	}
	var failure wire.Failure
	if err := json.Unmarshal(answer.body.Bytes(), &failure); err != nil {
		return nil, fmt.Errorf("%s %s cannot be done: %s", r.Method, r.URL.Path, &answer.body)
	}
	return nil, &failure
}

// recordedAnswer is an http.ResponseWriter that records the response instead of sending it.
type recordedAnswer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (k *recordedAnswer) Header() http.Header { return k.header }

// WriteHeader implements http.ResponseWriter.
func (k *recordedAnswer) WriteHeader(code int) { k.code = code }

// Write implements http.ResponseWriter.
func (k *recordedAnswer) Write(b []byte) (int, error) { return k.body.Write(b) }
