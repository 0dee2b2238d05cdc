package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	// authorityName is the file in the key directory with the certificate and the key of
	// the CA. It is one file, so that a crash cannot leave one without the other.
	authorityName = "ca.pem"

	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
	// renewBefore is the remaining lifetime at which a certificate is replaced.
	renewBefore = 30 * 24 * time.Hour
	// leafBackdate is subtracted from the start of a certificate, for clients with slow
	// clocks.
	leafBackdate = 24 * time.Hour
	// maxAddresses bounds the addresses in a certificate in addition to the configured ones.
	maxAddresses = 100

	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

// authorityBegin is the start of the CA's validity. It lies far in the past, so that the certificate is also valid on a host whose clock is wrong
// after it was off.
var authorityBegin = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// serialBits is the length of a serial number in bits: RFC 5280, section 4.1.2.2 allows
// 20 octets.
const serialBits = 128

// Authority provides the server certificate of a TLS listener, signed by its own CA, or by one that
// several boxes share. Its own CA is kept in a file; the certificate is created at each start and before it expires.
// It is safe for concurrent use.
type Authority struct {
	path string
	log  *slog.Logger
	now  func() time.Time

	mu        sync.Mutex
	ca        *x509.Certificate
	caKey     *ecdsa.PrivateKey
	shared    bool // the CA is one that boxes share
	leaf      *tls.Certificate
	names     []string     // subject alternative names of the certificate
	addresses []netip.Addr // the same for addresses: configured ones, then at most maxAddresses that clients connected to
	// configured is how many of addresses are.
	configured int
}

// OpenAuthority reads the CA from a file in dir, and creates dir and the CA if they do not exist. names are the DNS names and IP addresses of the
// server. Addresses that clients connect to are added to the certificate later.
func OpenAuthority(dir string, names []string, log *slog.Logger) (*Authority, error) {
	a := &Authority{path: filepath.Join(dir, authorityName), log: log, now: time.Now}
	for _, name := range append([]string{"localhost", "127.0.0.1", "::1"}, names...) {
		if addr, err := netip.ParseAddr(name); err == nil {
			a.addAddress(addr)
			a.configured = len(a.addresses)
		} else if name != "" && !slices.Contains(a.names, name) {
			a.names = append(a.names, name)
		}
	}
	if err := a.load(); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a, a.renewAuthority()
}

// load reads the CA if the file exists.
func (a *Authority) load() error {
	data, err := readKeyFile(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		a.ca, a.caKey, err = parseAuthority(data)
	}
	if err != nil {
		return fmt.Errorf("read the CA of the API from %s: %w: remove it, and a new one is created; clients need a new kubeconfig then", a.path, err)
	}
	return nil
}

func parseAuthority(data []byte) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	first, rest := pem.Decode(data)
	if first == nil || first.Type != pemCertificate {
		return nil, nil, errors.New("it does not begin with a certificate")
	}
	second, _ := pem.Decode(rest)
	if second == nil || second.Type != pemKey {
		return nil, nil, errors.New("it has no key")
	}
	cert, err := x509.ParseCertificate(first.Bytes)
	if err != nil {
		return nil, nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(second.Bytes)
	if err != nil {
		return nil, nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !cert.IsCA || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, errors.New("the key is not that of the certificate of a CA")
	}
	return cert, key, nil
}

// renewAuthority creates a CA of this box's own if there is none, or if it expires within renewBefore.
func (a *Authority) renewAuthority() error {
	if a.shared || a.ca != nil && !a.ends() {
		return nil
	}
	if a.ca != nil {
		a.log.Warn("the CA of the API is at its end and replaced: make the kubeconfigs of clients again", "expires", a.ca.NotAfter)
	}
	data, err := NewAuthorityKey(a.now())
	if err != nil {
		return err
	}
	cert, key, err := parseAuthority(data)
	if err != nil {
		return fmt.Errorf("make a CA: %w", err)
	}
	if err := writeKeyFile(a.path, data); err != nil {
		return fmt.Errorf("keep the CA of the API: %w", err)
	}
	a.ca, a.caKey, a.leaf = cert, key, nil
	return nil
}

// ends reports whether the CA expires within renewBefore, so that it has to be replaced.
func (a *Authority) ends() bool { return !a.now().Add(renewBefore).Before(a.ca.NotAfter) }

// Share makes the Authority sign certificates with a CA that several boxes share, in PEM as returned by Export and NewAuthorityKey. If shared is nil,
// the Authority uses this box's own CA again. Open connections are kept.
func (a *Authority) Share(shared []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if shared == nil {
		if !a.shared {
			return nil
		}
		a.ca, a.caKey, a.leaf, a.shared = nil, nil, nil, false
		if err := a.load(); err != nil {
			return err
		}
		return a.renewAuthority()
	}
	cert, key, err := parseAuthority(shared)
	if err != nil {
		return fmt.Errorf("read the CA that boxes share: %w", err)
	}
	a.shared = true
	if a.ca == nil || !a.ca.Equal(cert) {
		a.ca, a.caKey, a.leaf = cert, key, nil
	}
	return nil
}

// Export returns the CA with its key, in PEM, and whether the CA has to be replaced.
func (a *Authority) Export() (key []byte, ends bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key, err = encodeAuthority(a.ca.Raw, a.caKey)
	return key, a.ends(), err
}

// NewAuthorityKey makes a CA, and returns its certificate and its key in PEM.
func NewAuthorityKey(now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a CA: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: fmt.Sprintf("svcctl %x", serial().Bytes()[:4])},
		NotBefore:             authorityBegin,
		NotAfter:              now.Add(authorityLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make a CA: %w", err)
	}
	return encodeAuthority(der, key)
}

// encodeAuthority returns a certificate and its key in PEM.
func encodeAuthority(der []byte, key *ecdsa.PrivateKey) ([]byte, error) {
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key of a CA: %w", err)
	}
	return append(encodePEM(pemCertificate, der), encodePEM(pemKey, secret)...), nil
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func serial() *big.Int {
	var b [serialBits / 8]byte
	rand.Read(b[:]) // never fails
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b[:])
}

// CA returns the certificate of the CA in PEM.
func (a *Authority) CA() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return encodePEM(pemCertificate, a.ca.Raw)
}

// Certificate implements tls.Config.GetCertificate. The certificate is valid now and for
// the address that the client connected to.
func (a *Authority) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if hello != nil && hello.Conn != nil {
		if at, ok := hello.Conn.LocalAddr().(*net.TCPAddr); ok && a.addAddress(at.AddrPort().Addr()) {
			a.leaf = nil
		}
	}
	now := a.now()
	if a.leaf != nil && now.After(a.leaf.Leaf.NotBefore) && now.Before(a.renewal()) {
		return a.leaf, nil
	}
	err := a.renewAuthority()
	if err == nil {
		err = a.renewLeaf(now)
	}
	if err != nil {
		a.log.Error("the certificate of the API cannot be renewed", "err", err)
		return nil, err
	}
	return a.leaf, nil
}

// renewal returns the time at which the server certificate must be replaced: renewBefore ahead of its expiry, or at its expiry if a shared CA expires
// at the same time, since that CA cannot issue one that is valid longer.
func (a *Authority) renewal() time.Time {
	if end := a.leaf.Leaf.NotAfter; a.shared && end.Equal(a.ca.NotAfter) {
		return end
	}
	return a.leaf.Leaf.NotAfter.Add(-renewBefore)
}

// addAddress adds an address to the certificate, and reports whether it is new. If the certificate already has maxAddresses addresses that are not
// configured, addAddress drops the oldest of them.
func (a *Authority) addAddress(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if addr.IsUnspecified() || slices.Contains(a.addresses, addr) {
		return false
	}
	if len(a.addresses) >= max(maxAddresses, a.configured+maxAddresses/2) {
		a.addresses = slices.Delete(a.addresses, a.configured, a.configured+1)
	}
	a.addresses = append(a.addresses, addr)
	return true
}

// renewLeaf creates a server certificate.
func (a *Authority) renewLeaf(now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	end := now.Add(leafLife)
	if end.After(a.ca.NotAfter) {
		end = a.ca.NotAfter
	}
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "svcctl"},
		NotBefore:             now.Add(-leafBackdate),
		NotAfter:              end,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:              a.names,
	}
	for _, addr := range a.addresses {
		template.IPAddresses = append(template.IPAddresses, addr.AsSlice())
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.ca, &key.PublicKey, a.caKey)
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	a.leaf = &tls.Certificate{Certificate: [][]byte{der, a.ca.Raw}, PrivateKey: key, Leaf: leaf}
	return nil
}
