package auth

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reloadInterval is the time between checks of the files for a new certificate.
const reloadInterval = 10 * time.Second

// reloader reads files again, at most once in an interval. It logs an error once, until it changes.
type reloader struct {
	interval time.Duration
	refusal  string // logged with an error
	log      *slog.Logger
	now      func() time.Time

	mu      sync.Mutex
	looked  time.Time
	refused error // why the present content of the files is not used
}

// reload calls load if the interval is over. Its caller holds mu.
func (r *reloader) reload(load func() error) {
	now := r.now()
	if now.Sub(r.looked) < r.interval {
		return
	}
	r.looked = now
	err := load()
	if err != nil && (r.refused == nil || r.refused.Error() != err.Error()) {
		r.log.Warn(r.refusal, "err", err)
	}
	r.refused = err
}

func newReloader(interval time.Duration, refusal string, log *slog.Logger) reloader {
	return reloader{interval: interval, refusal: refusal, log: log, now: time.Now, looked: time.Now()}
}

// Files provides the operator's certificate to a TLS listener, and reloads it when the
// files are replaced. It is safe for concurrent use.
type Files struct {
	certPath, keyPath string
	reloader
	cert *tls.Certificate
	text [2][]byte // of both files when cert was read
}

// OpenFiles reads a certificate with its chain of issuers from certPath, and its private key from keyPath, both in PEM.
func OpenFiles(certPath, keyPath string, log *slog.Logger) (*Files, error) {
	f := &Files{certPath: certPath, keyPath: keyPath, reloader: newReloader(reloadInterval, "the new certificate of the API is not used", log)}
	if err := f.load(); err != nil {
		return nil, err
	}
	if end := f.cert.Leaf.NotAfter; end.Before(f.now()) {
		log.Warn("the certificate of the API has expired: clients refuse it", "file", certPath, "expired", end)
	}
	return f, nil
}

// load reads the files if they have changed since the last load. If that fails, as between the two files of a renewal, which do not fit, the old
// certificate stays in use.
func (f *Files) load() error {
	certificate, err := readPEM(f.certPath)
	var key []byte
	if err == nil {
		key, err = readPEM(f.keyPath)
	}
	if err == nil && bytes.Equal(certificate, f.text[0]) && bytes.Equal(key, f.text[1]) {
		return nil
	}
	var cert tls.Certificate
	if err == nil {
		cert, err = tls.X509KeyPair(certificate, key)
	}
	if err != nil {
		return fmt.Errorf("read the certificate %s and its key %s: %w: give a certificate and its own key, both PEM", f.certPath, f.keyPath, err)
	}
	if cert.Leaf == nil {
		if cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
			return fmt.Errorf("read the certificate %s: %w", f.certPath, err)
		}
	}
	if f.cert != nil {
		f.log.Info("the API has a new certificate", "file", f.certPath, "expires", cert.Leaf.NotAfter)
	}
	f.cert, f.text = &cert, [2][]byte{certificate, key}
	return nil
}

// maxPEM bounds the size in bytes of a PEM file with certificates or a key.
const maxPEM = 4 << 20

// readPEM reads a file of at most maxPEM bytes. It returns an error if the file is not regular, and does not block on a named pipe.
func readPEM(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	switch info, err := f.Stat(); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", path)
	case info.Size() > maxPEM:
		return nil, fmt.Errorf("%s has %d bytes, more than the limit of %d", path, info.Size(), maxPEM)
	}
	return io.ReadAll(io.LimitReader(f, maxPEM))
}

// Certificate implements tls.Config.GetCertificate. If a new certificate cannot be read,
// the old one stays in use.
func (f *Files) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reload(f.load)
	return f.cert, nil
}

// Validity is the validity of a certificate in use.
type Validity struct {
	File            string
	Begins, Expires time.Time
	// Refused is the reason for which newer content of the files is not used, nil if there is none.
	Refused error
}

// Validity returns the validity of the certificate in use. It reads the files again first, if reloadInterval is over.
func (f *Files) Validity() Validity {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reload(f.load)
	return Validity{File: f.certPath, Begins: f.cert.Leaf.NotBefore, Expires: f.cert.Leaf.NotAfter, Refused: f.refused}
}

// Peer identifies the process at the other end of a unix socket, as of when it connected
// (SO_PEERCRED).
type Peer struct {
	PID      int32
	UID, GID uint32
	Groups   []uint32 // IDs of the supplementary groups (SO_PEERGROUPS, Linux 4.13)
}

// PeerOf asks the kernel for the peer. It returns false if the connection is no unix socket, or if the kernel returns an error.
func PeerOf(conn net.Conn) (Peer, bool) {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return Peer{}, false
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return Peer{}, false
	}
	var cred *unix.Ucred
	var groups []uint32
	var credErr error
	err = raw.Control(func(fd uintptr) {
		if cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); credErr == nil {
			groups = peerGroups(int(fd))
		}
	})
	if err != nil || credErr != nil {
		return Peer{}, false
	}
	return Peer{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid, Groups: groups}, true
}

// maxGroups is the largest number of supplementary groups of a process (NGROUPS_MAX).
const maxGroups = 65536

// peerGroups returns the supplementary groups of the peer of a unix socket, or nil if the kernel does not support SO_PEERGROUPS. Reading them from
// /proc is unsafe, because the process ID may have been reused.
func peerGroups(fd int) []uint32 {
	for n := 64; n <= maxGroups; {
		groups := make([]uint32, n)
		size := uint32(n) * uint32(unsafe.Sizeof(groups[0]))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch have := int(size / uint32(unsafe.Sizeof(groups[0]))); {
		case errno == 0 && have <= n:
			return groups[:have]
		case errno == syscall.ERANGE && have > n: // it returns the size that it needs
			n = have
		default:
			return nil
		}
	}
	return nil
}

// discoverUser is the user of svcctl-discover.service.
const discoverUser = "svcctl-discover"

// Local authorizes local users on the unix socket. Root and the appliance's own user are
// admins, the user svcctl-discover has the role endpoints, and any other user that the mode of the
// socket lets in is a reader. The zero Local has no admin group.
type Local struct {
	group   uint32
	grouped bool
}

// LocalGroup returns a Local with a group whose members are admins.
func LocalGroup(gid uint32) Local { return Local{group: gid, grouped: true} }

// LookupGroup returns the ID of a group of this host, given by name or ID.
func LookupGroup(name string) (uint32, error) {
	text := name
	if g, err := user.LookupGroup(name); err == nil {
		text = g.Gid
	}
	gid, err := strconv.ParseUint(text, 10, 32)
	if err != nil || gid == noGroup {
		return 0, fmt.Errorf("there is no group %q on this box: make it with `groupadd --system %s`, or name another one", name, name)
	}
	return uint32(gid), nil
}

// noGroup is chown(2)'s value for "leave unchanged".
const noGroup = 1<<32 - 1

// User returns the user and role of the peer of a socket.
func (l Local) User(p Peer) User {
	name := "uid:" + strconv.FormatUint(uint64(p.UID), 10)
	if p.UID == 0 {
		name = "root"
	}
	if p.UID == 0 || int(p.UID) == os.Geteuid() || l.grouped && (p.GID == l.group || slices.Contains(p.Groups, l.group)) {
		return newUser(name, Admin)
	}
	if u, err := user.LookupId(strconv.FormatUint(uint64(p.UID), 10)); err == nil && u.Username == discoverUser {
		return newUser(discoverUser, Endpoints)
	}
	return newUser(name, Reader)
}

// boxPrefix begins the names of users that are boxes.
const boxPrefix = "box:"

// GroupBoxes is the group of the users that are boxes, which authenticate to this box as leaves of its fleet.
const GroupBoxes = "svcctl:boxes"

// Leaves authenticates boxes by client certificates from a CA of the operator: the common name is the name of the box. A
// PEM file has the certificates of the CA and may have its certificate revocation lists (RFC 5280, section 5). A method that
// uses the file reads it again if leavesInterval is over. Leaves is safe for concurrent use.
type Leaves struct {
	path string
	reloader
	text    []byte
	pool    *x509.CertPool
	revoked map[string]bool // revoked certificates, keyed by raw issuer followed by serial number
}

// leavesInterval is the minimum time between checks of the file for changes.
const leavesInterval = 2 * time.Second

// OpenLeaves reads the certificates and revocation lists of the CA from a PEM file.
func OpenLeaves(path string, log *slog.Logger) (*Leaves, error) {
	l := &Leaves{path: path, reloader: newReloader(leavesInterval, "the new CA of leaves is not used", log)}
	if err := l.load(); err != nil {
		return nil, fmt.Errorf("read the CA of leaves: %w", err)
	}
	return l, nil
}

// load reads the file if it has changed since the last load. A file with errors leaves the last good content in use; a file that was removed
// revokes all certificates.
func (l *Leaves) load() error {
	text, err := readPEM(l.path)
	if errors.Is(err, os.ErrNotExist) {
		l.text, l.pool, l.revoked = nil, x509.NewCertPool(), nil
	}
	if err != nil || l.pool != nil && bytes.Equal(text, l.text) {
		return err
	}
	pool, revoked, err := parseLeaves(text)
	if err != nil {
		return fmt.Errorf("%s: %w", l.path, err)
	}
	l.text, l.pool, l.revoked = text, pool, revoked
	return nil
}

// parseLeaves parses the CA certificates and the revocation lists in a PEM file. It returns the certificates, and the set of revoked certificates
// with the keys of Leaves.revoked.
func parseLeaves(text []byte) (*x509.CertPool, map[string]bool, error) {
	var issuers []*x509.Certificate
	var lists []*x509.RevocationList
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		switch block.Type {
		case pemCertificate:
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, nil, err
			}
			issuers = append(issuers, cert)
		case "X509 CRL":
			list, err := x509.ParseRevocationList(block.Bytes)
			if err != nil {
				return nil, nil, err
			}
			lists = append(lists, list)
		default:
			return nil, nil, fmt.Errorf("it has a %s: give certificates of a CA and its revocation lists", block.Type)
		}
	}
	if len(issuers) == 0 {
		return nil, nil, errors.New("it has no certificate in PEM")
	}
	pool, revoked := x509.NewCertPool(), map[string]bool{}
	for _, cert := range issuers {
		pool.AddCert(cert)
	}
	for _, list := range lists {
		if !slices.ContainsFunc(issuers, func(c *x509.Certificate) bool {
			return bytes.Equal(list.RawIssuer, c.RawSubject) && list.CheckSignatureFrom(c) == nil
		}) {
			return nil, nil, fmt.Errorf("no certificate in it has signed its revocation list of %s: put those of its issuer in front of it", list.Issuer)
		}
		for _, entry := range list.RevokedCertificateEntries {
			revoked[string(list.RawIssuer)+entry.SerialNumber.String()] = true
		}
	}
	return pool, revoked, nil
}

// CAs returns the certificates of the CA, which a TLS server sends so that clients can choose a certificate.
func (l *Leaves) CAs() *x509.CertPool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reload(l.load)
	return l.pool
}

// Verify verifies a client certificate, chain[0], with the intermediate certificates that follow it, and returns the box that it names. The error
// wraps ErrCertificate.
func (l *Leaves) Verify(chain []*x509.Certificate) (User, error) {
	l.mu.Lock()
	l.reload(l.load)
	pool, revoked := l.pool, l.revoked
	l.mu.Unlock()
	cert, between := chain[0], x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := cert.Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, CurrentTime: l.now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	name := cert.Subject.CommonName
	switch {
	case err != nil:
		return User{}, fmt.Errorf("%w: %w", ErrCertificate, err)
	case revoked[string(cert.RawIssuer)+cert.SerialNumber.String()]:
		return User{}, fmt.Errorf("%w: it is revoked", ErrCertificate)
	case name == "" || strings.Contains(name, ":"):
		return User{}, fmt.Errorf("%w: its common name %q is no name of a box", ErrCertificate, name)
	}
	return User{Name: boxPrefix + name, Groups: []string{GroupBoxes, GroupAuthenticated}, Role: Box}, nil
}

// ErrCertificate means that a client certificate does not authenticate a box of the fleet: it is revoked or does not
// verify, or its common name is no name of a box.
var ErrCertificate = errors.New("the certificate is not that of a leaf")

// BoxName returns the name of the box if the user is a box, else "".
func (u User) BoxName() string {
	if u.Role != Box {
		return ""
	}
	return strings.TrimPrefix(u.Name, boxPrefix)
}

// Behind returns the user of a change that a leaf box forwards for one of its admins. The user is named after the box and the admin, "box:BOX:NAME",
// and has the role Admin.
func Behind(box User, name string) User { return newUser(box.Name+":"+name, Admin) }
