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

// lookAgain is how often files are looked at for a new certificate.
const lookAgain = 10 * time.Second

// Files shows the clients of a TLS listener a certificate that the operator gave, and its
// successor when the files are replaced. Its methods are safe for concurrent use.
type Files struct {
	certPath, keyPath string
	log               *slog.Logger
	now               func() time.Time

	mu       sync.Mutex
	cert     *tls.Certificate
	looked   time.Time
	modified [2]time.Time // of both files, as of the last look
}

// OpenFiles reads a certificate, with those of its issuers after it, and its key, both PEM.
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

// times are when the files were written last; zero for one that is not there.
func (f *Files) times() (at [2]time.Time) {
	for i, path := range []string{f.certPath, f.keyPath} {
		if info, err := os.Stat(path); err == nil {
			at[i] = info.ModTime()
		}
	}
	return at
}

// Certificate implements tls.Config.GetCertificate. A new certificate that cannot be read
// leaves the old one in use.
func (f *Files) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if now.Sub(f.looked) < lookAgain {
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
