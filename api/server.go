package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// Health is the source of the health endpoints. Both methods return at once.
type Health interface {
	// Healthy returns nil while the appliance itself works, even if its objects are invalid.
	Healthy() error
	// Ready returns nil once everything that the appliance was given at its start is in the kernel.
	Ready() error
}

// Backend is the appliance's state that the API shows and waits for. All methods may be called
// concurrently.
type Backend interface {
	Health
	// Status returns a consistent copy, which the caller owns.
	Status() wire.Status
	// Synced waits until everything accepted up to revision is in the kernel. Revision 0 means everything accepted before the call. It returns an
	// error if ctx is done first, or if the wait cannot succeed.
	Synced(ctx context.Context, revision uint64) error
	// Release removes Services that are kept in force although no object declares them (Status.HeldRemovals, Status.UnknownFrontends), and returns
	// their numbers.
	Release(ctx context.Context) (wire.Released, error)
}

// Config configures a Server.
type Config struct {
	Socket Socket
	// TLS configures the API over TCP; nil means that it is not served over TCP.
	TLS *TLS
	// Version is the version of the program, as v0.1.0.
	Version string
	// Waiting is set on a box that has no objects yet: its status, its version and its health are answered, and all else is refused with
	// the reason of the status.
	Waiting bool
	// Panicked, when not nil, is called for every request whose handler panicked.
	Panicked func()
	// Observe, when not nil, is called for every request that was answered. It may be called
	// concurrently, and has to be quick.
	Observe func(Call)
	// NameOf returns Call.Verb and Call.Resource of a request for objects, and "" for other requests. It is nil if no objects are served.
	NameOf func(*http.Request) (verb, resource string)
	// Endpoints are served in addition to those of the Server.
	Endpoints []Endpoint
	// Objects serves /, all paths below /api, /apis and /openapi, and /svcctl/v1/apply, for users that may at least read. If nil, these paths are not
	// served.
	Objects http.Handler
	// Dashboard serves /dashboard/ for users that may at least read. If nil, the path is not served.
	Dashboard http.Handler
	// DashboardUnauthorized answers requests for the dashboard without a token with a 401 page for browsers. If nil, they are answered as for other
	// paths.
	DashboardUnauthorized http.HandlerFunc
	// Announcements provides the announced addresses. If nil, the paths for them are not served.
	Announcements Announcements
	// Commits serves leaf boxes below /svcctl/v1/commits. If nil, the paths are not served. LeafWrites permits leaf boxes to change objects on behalf
	// of their admins.
	Commits    http.Handler
	LeafWrites bool
	// Forward, on a leaf box, sends requests that change objects to a core box. If nil, they are served here.
	Forward http.RoundTripper
}

// Socket is the unix socket of the API.
type Socket struct {
	Path string
	// Group is the group, by name or number, whose members may do everything over
	// the socket; empty: none.
	Group string
	// Readers lets every user of the box read over the socket.
	Readers bool
}

// Announcements gives access to the announced addresses. All methods may be called concurrently.
type Announcements interface {
	List() wire.Announcements
	// Of returns the announcements of a Service, "namespace/name".
	Of(service string) []wire.Announcement
	// Watch calls send with all announcements and then with their changes, until ctx is done or send fails; announces is set when the watcher is the
	// announcer.
	Watch(ctx context.Context, announces bool, send func(wire.AnnouncementsEvent) error) error
	// Report stores the announcer's report of the states of addresses.
	Report(wire.AnnouncerReport)
}

// TLS configures the API over TCP.
type TLS struct {
	// Tokens authenticate clients.
	Tokens *auth.Tokens
	// Revoke revokes all tokens on all boxes that share the signing key, as Tokens.RevokeAll does on one. pending names the boxes that still accept
	// them, and why. Revoke is nil if the key is not shared.
	Revoke func(ctx context.Context) (pending, err error)
	// Certificate is tls.Config.GetCertificate.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// CA returns the CA certificate in PEM that clients should trust. It is nil if the server certificate is not signed by a CA of the appliance.
	CA func() []byte
	// Leaves authenticates boxes by their client certificates; nil means that no client certificates are requested.
	Leaves *auth.Leaves
	// Address is the address of the TCP listener, host:port, with the actual port.
	Address string
}

// Server answers the API's requests.
type Server struct {
	cfg     Config
	backend Backend
	log     *slog.Logger
	local   auth.Local
	limits  limits
	onTLS   budget // requests in progress over TLS
	onUnix  budget
}

// New returns a Server that has not opened its socket yet.
func New(cfg Config, backend Backend, log *slog.Logger) *Server {
	return &Server{cfg: cfg, backend: backend, log: log, limits: defaultLimits}
}

// Listen opens the socket. It fails when another server answers on it, when it cannot be created, or when the configured group does not
// exist.
func (s *Server) Listen() (net.Listener, error) {
	access := socketAccess{readers: s.cfg.Socket.Readers}
	if s.cfg.Socket.Group != "" {
		gid, err := auth.LookupGroup(s.cfg.Socket.Group)
		if err != nil {
			return nil, err
		}
		access.group, access.grouped = int(gid), true
		s.local = auth.LocalGroup(gid)
	}
	ln, err := listenUnix(s.cfg.Socket.Path, access)
	if err != nil {
		return nil, err
	}
	if why := access.barred(s.cfg.Socket.Path); why != "" {
		s.log.Warn("some permitted users cannot reach the API socket", "socket", s.cfg.Socket.Path, "why", why)
	}
	return ln, nil
}

// Serve answers requests on the socket until ctx is done. Then it closes the socket, waits up to shutdownTimeout for the requests in progress, cuts
// the rest, and returns nil.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	return s.limits.serve(ctx, ln, s.Handler(), s.log, s.cfg.Panicked)
}

// ServeTLS serves a TCP listener over TLS, as Serve does the socket. Config.TLS must be set.
func (s *Server) ServeTLS(ctx context.Context, ln net.Listener) error {
	of := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: s.cfg.TLS.Certificate,
	}
	if leaves := s.cfg.TLS.Leaves; leaves != nil {
		plain := of.Clone()
		of.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			asks := plain.Clone()
			asks.ClientAuth, asks.ClientCAs = tls.RequestClientCert, leaves.CAs() // each request has it verified
			return asks, nil
		}
	}
	return s.limits.serve(ctx, tls.NewListener(ln, of), s.Handler(), s.log, s.cfg.Panicked)
}

// Handler returns the handler of the whole API, for any listener. The user of a request comes from the Peer in its context, which Serve sets, or from
// its token or client certificate.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	health := HealthHandler(s.backend)
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		mux.Handle(path, health)
	}
	// Clients generated from the OpenAPI document of Kubernetes, as that for Python, ask for
	// /version/.
	for _, path := range []string{"/version", "/version/{$}"} {
		mux.Handle(path, get(s.version))
	}
	reader := func(path string, h http.Handler) { mux.Handle(path, needs(auth.Reader, h)) }
	s.register(mux, Answer(wire.GetStatus, s.status))
	if s.cfg.Waiting {
		reader("/", http.HandlerFunc(s.refuse))
		return s.observe(mux, s.identify(s.admit(mux)))
	}
	for _, e := range slices.Concat([]Endpoint{Answer(wire.Wait, s.wait), Answer(wire.Release, s.release), Answer(wire.GetEndpoint, s.endpoint)}, s.cfg.Endpoints) {
		s.register(mux, e)
	}
	if s.cfg.Commits != nil {
		mux.Handle(commitsPath, leaves(s.streaming(s.cfg.Commits)))
		mux.Handle(commitsPath+"/", leaves(s.streaming(s.cfg.Commits)))
	}
	if s.cfg.Dashboard != nil {
		mux.Handle("/dashboard/", s.dashboard())
	}
	if s.cfg.Announcements != nil {
		s.register(mux, Handle(wire.GetAnnouncements.Operation, s.announcements))
		s.register(mux, Handle(wire.ReportAnnouncements.Operation, s.announcerReport))
	}
	reader("/svcctl/v1/token", http.HandlerFunc(s.token))
	reader(profilePath, profiles())
	if s.cfg.Objects != nil {
		for _, path := range []string{"/{$}", "/api", "/api/", "/apis", "/apis/", "/openapi/", applyPath} {
			reader(path, s.streaming(s.cfg.Objects))
		}
	}
	reader("/", http.HandlerFunc(notFound))
	return s.observe(mux, s.identify(s.admit(s.forward(mux))))
}

const (
	socketDirMode   = 0o750
	socketMode      = 0o660
	openDirMode     = 0o755
	openSocketMode  = 0o666 // connecting to a unix socket requires write permission
	closedUntilMode = 0o600 // until the socket has its configured group
	// probeTimeout bounds the wait for another server to accept a connection.
	probeTimeout = 2 * time.Second
	// lockPatience bounds the wait for the lock of another server that is starting; such a one holds it for probeTimeout at most.
	lockPatience, lockRetry = 5 * time.Second, 20 * time.Millisecond
)

// ErrInUse is wrapped by the error of Listen when another server answers on the socket.
var ErrInUse = errors.New("another svcctl serves")

// socketAccess has the group and users that may open the socket, in addition to the user that the appliance runs as. Package auth decides about their
// requests.
type socketAccess struct {
	group   int // permitted group if grouped is set; else the appliance's own
	grouped bool
	readers bool // all users are permitted
}

func (a socketAccess) mode() fs.FileMode {
	if a.readers {
		return openSocketMode
	}
	return socketMode
}

// grant sets the group and mode of a file or directory of the socket, to give the permitted users access.
func (a socketAccess) grant(path string, mode fs.FileMode) error {
	if info, err := os.Stat(path); err != nil {
		return err
	} else if status, ok := info.Sys().(*syscall.Stat_t); a.grouped && (!ok || int(status.Gid) != a.group) {
		if err := os.Chown(path, -1, a.group); err != nil {
			return fmt.Errorf("%w: the appliance must be root, or a member of the group", err)
		}
	}
	return os.Chmod(path, mode)
}

// barred describes which permitted users cannot open the socket because its directory denies them access, and the remedy. It returns "" if there are
// none. The mode of an existing directory is never changed.
func (a socketAccess) barred(path string) string {
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	if err != nil {
		return ""
	}
	status, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode().Perm(); {
	case !ok || mode&0o001 != 0:
		return ""
	case a.readers:
		return fmt.Sprintf("others may not enter %s (mode %04o): run `chmod o+x %s`", dir, mode, dir)
	case a.grouped && (int(status.Gid) != a.group || mode&0o010 == 0):
		return fmt.Sprintf("the group may not enter %s: run `chgrp %d %s && chmod g+x %s`", dir, a.group, dir, dir)
	}
	return ""
}

// makeDir makes the directory of the socket, unless it is there.
func (a socketAccess) makeDir(dir string) error {
	var made []string
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Lstat(d); !errors.Is(err, fs.ErrNotExist) || d == filepath.Dir(d) {
			break
		}
		made = append(made, d)
	}
	if err := os.MkdirAll(dir, socketDirMode); err != nil {
		return err
	}
	if !a.grouped && !a.readers {
		return nil
	}
	mode := fs.FileMode(socketDirMode)
	if a.readers {
		mode = openDirMode
	}
	for _, d := range made {
		if err := a.grant(d, mode); err != nil {
			return err
		}
	}
	return nil
}

// listenUnix makes the socket at path, and its directory when that is missing. A stale socket is
// replaced; one with a listening process is not.
func listenUnix(path string, access socketAccess) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := access.makeDir(dir); err != nil {
		return nil, fmt.Errorf("make the directory of the API socket: %w: run as root, or give another --socket", err)
	}
	unlock, err := lockSocket(path, lockPatience)
	if err != nil {
		return nil, fmt.Errorf("open the API socket: %w", err)
	}
	defer unlock()
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// The mode that a unix socket's descriptor has when it is bound is the mode of the file, less
	// the umask: so no client gets in before the Chmod.
	first := uint32(socketMode)
	if access.grouped {
		first = closedUntilMode
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), first) }); e != nil {
			return e
		}
		return err
	}}
	ln, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("open the API socket: %w: give another --socket", err)
	}
	if err := access.grant(path, access.mode()); err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("open the API socket: %w", err)
	}
	return ln, nil
}

// lockSocket keeps two servers that start at the same moment from removing each other's socket. It waits at most atMost for the lock. It locks a
// separate file, because a lock on the directory could be taken by any user with read access to it. unlock removes the file, which releases the lock.
func lockSocket(path string, atMost time.Duration) (unlock func(), err error) {
	name := path + ".lock"
	for end := time.Now().Add(atMost); ; time.Sleep(lockRetry) {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && isAt(f, name) {
			return func() { _ = os.Remove(name); _ = f.Close() }, nil
		}
		_ = f.Close()
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("another process has kept %s locked for %v: end it (`fuser -v %s` names it), or give another --socket", name, atMost, name)
		}
	}
}

// isAt reports whether the open file is still the one with this name: a process that had it locked may have removed it.
func isAt(f *os.File, name string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(name)
	return err == nil && os.SameFile(mine, there)
}

// removeStale removes the socket at path unless a process listens on it.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at the API socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is there and is no socket: remove it, or give another --socket", path)
	}
	conn, err := net.DialTimeout("unix", path, probeTimeout)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("%w on %s: stop it first, or give another --socket", ErrInUse, path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		// EAGAIN, for one, is a server whose queue is full.
		return fmt.Errorf("cannot find out whether another svcctl serves on %s: %w: stop it, or give another --socket", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the API socket that is left over: %w", err)
	}
	return nil
}
