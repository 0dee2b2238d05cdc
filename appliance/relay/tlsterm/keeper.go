package tlsterm

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// warnBefore is the time before the expiry of a certificate at which warnings begin.
const warnBefore = 14 * 24 * time.Hour

// Read returns the data of the Secret "namespace/name", and a version that changes whenever the data changes. ok is false if there is no such Secret.
type Read func(secret string) (data map[string][]byte, version string, ok bool)

// Keeper holds, for each Secret, the last usable certificate and CA, so that these stay in use when the Secret becomes unusable. Its methods may be
// called concurrently.
type Keeper struct {
	read Read
	now  func() time.Time

	mu    sync.Mutex
	pairs map[string]*kept[Pair]
	cas   map[string]*kept[Authority]
}

// kept is the last usable certificate or CA of a Secret, and the result of parsing the Secret's present version.
type kept[T any] struct {
	version string
	newest  *T    // that of the present version; nil if it has no usable one
	wrong   error // reason why newest is nil
	good    *T    // the one in use; nil if there was no usable one so far
}

// present returns the entry of a Secret in all, which it makes if there is none, with the result of parsing the Secret's present version. command is the
// rest of the kubectl command that creates the Secret, with %s for the name.
func present[T any](k *Keeper, all map[string]*kept[T], secret, command string, parse func(map[string][]byte) (*T, error)) *kept[T] {
	one := all[secret]
	if one == nil {
		one = &kept[T]{}
		all[secret] = one
	}
	switch data, version, ok := k.read(secret); {
	case !ok:
		namespace, name, _ := strings.Cut(secret, "/")
		one.newest, one.version = nil, ""
		one.wrong = fmt.Errorf("it is not there: make it with `kubectl create secret %s` in namespace %s", fmt.Sprintf(command, name), namespace)
	case version != one.version:
		one.newest, one.wrong = parse(data)
		one.version = version
	}
	return one
}

// NewKeeper returns an empty Keeper that reads Secrets with read.
func NewKeeper(read Read) *Keeper {
	return &Keeper{read: read, now: time.Now, pairs: map[string]*kept[Pair]{}, cas: map[string]*kept[Authority]{}}
}

// Pair returns the certificate to use for a Secret, nil if there was no usable one so far. wrong is the problem of the Secret's present version. soon
// is a warning if the certificate expires soon. Both are "" if there is none.
func (k *Keeper) Pair(secret string) (p *Pair, wrong, soon string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	kept := present(k, k.pairs, secret, "tls %s --cert=FILE --key=FILE", func(data map[string][]byte) (*Pair, error) { return ParsePair(secret, data) })
	if kept.newest.same(kept.good) {
		kept.newest = kept.good // so that clients can resume their TLS sessions
	}
	return choose(kept, k.now())
}

// choose selects the certificate to use. It keeps the one in use if the Secret's present version has no usable one, or if the Secret's certificate is
// not valid now while the one in use has not expired. Otherwise it selects the Secret's certificate. Its results are those of Keeper.Pair.
func choose(kept *kept[Pair], now time.Time) (p *Pair, wrong, soon string) {
	staying := ""
	if kept.good != nil && now.Before(kept.good.Leaf().NotAfter) {
		staying = fmt.Sprintf("; the certificate before (%s) stays in use", kept.good)
	}
	newest := kept.newest
	switch {
	case newest == nil && kept.good != nil && staying == "":
		return kept.good, fmt.Sprintf("%v; the certificate before (%s), which has expired, stays in use", kept.wrong, kept.good), ""
	case newest == nil:
		return kept.good, kept.wrong.Error() + staying, ending(kept.good, now)
	case staying != "" && newest != kept.good && !now.Before(newest.Leaf().NotAfter):
		return kept.good, fmt.Sprintf("its certificate (%s) has expired: renew it%s", newest, staying), ""
	case staying != "" && newest != kept.good && now.Before(newest.Leaf().NotBefore):
		return kept.good, fmt.Sprintf("its certificate does not begin before %s%s until then", stamp(newest.Leaf().NotBefore), staying), ""
	}
	kept.good = newest
	switch {
	case !now.Before(newest.Leaf().NotAfter):
		return newest, fmt.Sprintf("its certificate (%s) has expired, and clients refuse it: renew it", newest), ""
	case now.Before(newest.Leaf().NotBefore):
		return newest, fmt.Sprintf("its certificate does not begin before %s, and clients refuse it until then", stamp(newest.Leaf().NotBefore)), ""
	}
	return newest, "", ending(newest, now)
}

// ending returns a warning if the certificate in use expires within warnBefore, and "" otherwise.
func ending(used *Pair, now time.Time) string {
	if used == nil || now.Before(used.Leaf().NotAfter.Add(-warnBefore)) {
		return ""
	}
	return fmt.Sprintf("its certificate (%s) expires within %d days: renew it, which cuts no connection", used, int(warnBefore/24/time.Hour))
}

// Authority returns the CA to use for a Secret, nil if there was no usable one so far. wrong is the problem of the Secret's present version, "" if
// there is none.
func (k *Keeper) Authority(secret string) (a *Authority, wrong string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch kept := present(k, k.cas, secret, "generic %s --from-file=ca.crt=FILE", ParseAuthority); {
	case kept.newest != nil:
		kept.good = kept.newest
		return kept.good, ""
	case kept.good != nil:
		return kept.good, kept.wrong.Error() + "; the CA before stays in use"
	default:
		return nil, kept.wrong.Error()
	}
}

// InUse returns the certificate and the CA in use for a Secret, as of the last calls of Pair and Authority. Each is nil if there is none.
func (k *Keeper) InUse(secret string) (p *Pair, a *Authority) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if kept := k.pairs[secret]; kept != nil {
		p = kept.good
	}
	if kept := k.cas[secret]; kept != nil {
		a = kept.good
	}
	return p, a
}

// ForgetPair drops the certificate of a Secret that no port uses any more.
func (k *Keeper) ForgetPair(secret string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pairs, secret)
}

// ForgetAuthority drops the CA of a Secret that no port uses any more.
func (k *Keeper) ForgetAuthority(secret string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.cas, secret)
}

// Pairs returns the certificates in use, sorted by Secret.
func (k *Keeper) Pairs() (list []*Pair) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, kept := range k.pairs {
		if kept.good != nil {
			list = append(list, kept.good)
		}
	}
	slices.SortFunc(list, func(a, b *Pair) int { return cmp.Compare(a.Secret, b.Secret) })
	return list
}

// Due returns the first time after the given one at which a result of Pair changes without a change of the Secret, because a certificate becomes
// valid, is about to expire (warnBefore) or expires. secrets are the affected Secrets. ok is false if there is no such time.
func (k *Keeper) Due(after time.Time) (at time.Time, secrets []string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for secret, kept := range k.pairs {
		for _, p := range []*Pair{kept.good, kept.newest} {
			if p == nil {
				continue
			}
			for _, t := range []time.Time{p.Leaf().NotBefore, p.Leaf().NotAfter.Add(-warnBefore), p.Leaf().NotAfter} {
				switch {
				case !t.After(after) || ok && t.After(at):
				case ok && t.Equal(at):
					secrets = append(secrets, secret)
				default:
					at, secrets, ok = t, []string{secret}, true
				}
			}
		}
	}
	slices.Sort(secrets)
	return at, slices.Compact(secrets), ok
}

// Keys in the data of a Secret (core/v1 SecretTypeTLS, and ca.crt by convention).
const (
	certKey = "tls.crt"
	keyKey  = "tls.key"
	caKey   = "ca.crt"
)

// Pair is a certificate with its chain and private key.
type Pair struct {
	Secret      string // "namespace/name" of the Secret it was read from
	certificate tls.Certificate
}

// same reports whether two Pairs have the same certificate and chain. It returns false if one of them is nil.
func (p *Pair) same(o *Pair) bool {
	return p != nil && o != nil && slices.EqualFunc(p.certificate.Certificate, o.certificate.Certificate, bytes.Equal)
}

// Leaf returns the parsed server certificate, without its chain.
func (p *Pair) Leaf() *x509.Certificate { return p.certificate.Leaf }

// IsValid reports whether clients may accept the certificate at a time: it has begun and has not expired.
func (p *Pair) IsValid(at time.Time) bool {
	return !at.Before(p.Leaf().NotBefore) && at.Before(p.Leaf().NotAfter)
}

// String returns the names and the expiry of the certificate, for messages.
func (p *Pair) String() string {
	return fmt.Sprintf("for %s, until %s", strings.Join(p.Names(), ", "), stamp(p.Leaf().NotAfter))
}

// stamp formats a time for messages, in UTC and minutes.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// maxNames is the maximum number of names of a certificate that a message shows.
const maxNames = 5

// Names returns the DNS names and IP addresses of the certificate. Beyond maxNames, the last element states how many more there are.
func (p *Pair) Names() (names []string) {
	leaf := p.Leaf()
	names = append(names, leaf.DNSNames...)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		names = []string{"no name"}
	}
	if more := len(names) - maxNames; more > 0 {
		names = append(names[:maxNames:maxNames], fmt.Sprintf("%d more", more))
	}
	return names
}

// ParsePair parses the certificate and private key of a Secret. Its errors name the faulty key of the data, but contain nothing of its value.
func ParsePair(secret string, data map[string][]byte) (*Pair, error) {
	crt, key := bytes.TrimSpace(data[certKey]), bytes.TrimSpace(data[keyKey])
	switch {
	case len(crt) == 0:
		return nil, fmt.Errorf("data[%s] is empty: it has the certificate in PEM, and those of its issuers behind it", certKey)
	case len(key) == 0:
		return nil, fmt.Errorf("data[%s] is empty: it has the private key in PEM", keyKey)
	}
	if err := checkPEM(crt, "CERTIFICATE"); err != nil {
		return nil, fmt.Errorf("data[%s] %w", certKey, err)
	}
	if err := checkPEM(key, "PRIVATE KEY"); err != nil {
		return nil, fmt.Errorf("data[%s] %w", keyKey, err)
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		text := strings.TrimPrefix(err.Error(), "tls: ")
		if strings.Contains(text, "does not match") {
			return nil, fmt.Errorf("the key in data[%s] does not belong to the certificate in data[%s]: put both of one pair there, in one write", keyKey, certKey)
		}
		return nil, fmt.Errorf("data[%s] and data[%s] cannot be used: %s", certKey, keyKey, text)
	}
	return &Pair{Secret: secret, certificate: pair}, nil
}

// checkPEM returns an error unless text is a sequence of complete, unencrypted PEM blocks (RFC 7468), at least one of the type kind. This detects a
// file that was only partly written.
func checkPEM(text []byte, kind string) error {
	found := false
	for len(text) > 0 {
		block, rest := pem.Decode(text)
		if block == nil {
			return errors.New("is not PEM, or ends in the middle: write it whole")
		}
		if strings.Contains(block.Type, "ENCRYPTED") || block.Headers["DEK-Info"] != "" {
			return errors.New("is encrypted: put the key there without a passphrase")
		}
		found = found || strings.HasSuffix(block.Type, kind)
		text = bytes.TrimSpace(rest)
	}
	if !found {
		return fmt.Errorf("has no PEM block of type %s", kind)
	}
	return nil
}

// Authority is a set of CA certificates.
type Authority struct{ pool *x509.CertPool }

// ParseAuthority parses the CA certificates (ca.crt) of a Secret.
func ParseAuthority(data map[string][]byte) (*Authority, error) {
	text := bytes.TrimSpace(data[caKey])
	if len(text) == 0 {
		return nil, fmt.Errorf("data[%s] is empty: it has the certificates of the CA in PEM", caKey)
	}
	if err := checkPEM(text, "CERTIFICATE"); err != nil {
		return nil, fmt.Errorf("data[%s] %w", caKey, err)
	}
	pool := x509.NewCertPool()
	for len(text) > 0 {
		var block *pem.Block
		block, text = pem.Decode(text)
		if block == nil {
			break
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("data[%s] is not a certificate: %w", caKey, err)
		}
		pool.AddCert(certificate)
	}
	return &Authority{pool}, nil
}
