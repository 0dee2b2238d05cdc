package auth

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// reloadInterval is the time between checks of the files for a new certificate.
const reloadInterval = 10 * time.Second

// Files provides the operator's certificate to a TLS listener, and reloads it when the
// files are replaced. It is safe for concurrent use.
type Files struct {
	certPath, keyPath string
	log               *slog.Logger
	now               func() time.Time

	mu       sync.Mutex
	cert     *tls.Certificate
	looked   time.Time
	modified [2]time.Time // modification times of both files at the last check
}

// OpenFiles reads a certificate, followed by those of its issuers, and its key, both in
// PEM.
func OpenFiles(certPath, keyPath string, log *slog.Logger) (*Files, error) {
	f := &Files{certPath: certPath, keyPath: keyPath, log: log, now: time.Now}
	f.looked, f.modified = f.now(), f.times()
	if err := f.load(); err != nil {
		return nil, err
	}
	if end := f.cert.Leaf.NotAfter; end.Before(f.now()) {
		log.Warn("the certificate of the API has expired: clients refuse it", "file", certPath, "expired", end)
	}
	return f, nil
}

func (f *Files) load() error {
	cert, err := tls.LoadX509KeyPair(f.certPath, f.keyPath)
	if err != nil {
		return fmt.Errorf("read the certificate %s and its key %s: %w: give a certificate and its own key, both PEM", f.certPath, f.keyPath, err)
	}
	if cert.Leaf == nil {
		if cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
			return fmt.Errorf("read the certificate %s: %w", f.certPath, err)
		}
	}
	f.cert = &cert
	return nil
}

// times returns the modification times of the files; zero for a missing one.
func (f *Files) times() (at [2]time.Time) {
	for i, path := range []string{f.certPath, f.keyPath} {
		if info, err := os.Stat(path); err == nil {
			at[i] = info.ModTime()
		}
	}
	return at
}

// Certificate implements tls.Config.GetCertificate. If a new certificate cannot be read,
// the old one stays in use.
func (f *Files) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if now.Sub(f.looked) < reloadInterval {
		return f.cert, nil
	}
	f.looked = now
	if at := f.times(); at != f.modified {
		if err := f.load(); err != nil {
			// Between the two files of a renewal they do not fit: the next look may find better.
			f.log.Warn("the new certificate of the API is not used", "err", err)
			return f.cert, nil
		}
		f.modified = at
		f.log.Info("the API has a new certificate", "file", f.certPath, "expires", f.cert.Leaf.NotAfter)
	}
	return f.cert, nil
}
