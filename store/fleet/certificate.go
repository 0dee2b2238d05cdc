package fleet

import (
	"bytes"
	"crypto/tls"
	"sync/atomic"
)

// shown is the certificate that this box has shown to etcd last, DER; nil: none.
type shown struct{ certificate atomic.Pointer[[]byte] }

// noting is a Config that notes which certificate is shown.
func (c Config) noting(s *shown) *Config {
	if c.TLS == nil || c.TLS.GetClientCertificate == nil {
		return &c
	}
	load := c.TLS.GetClientCertificate
	c.TLS = c.TLS.Clone()
	c.TLS.GetClientCertificate = func(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		loaded, err := load(asked)
		if err == nil && len(loaded.Certificate) > 0 {
			s.certificate.Store(&loaded.Certificate[0])
		}
		return loaded, err
	}
	return &c
}

// showAnother connects anew if the box has another certificate than the one that it has shown. etcd judges a connection by
// the certificate that it began with: one that is refused would stay so after the file was corrected.
func (e *Engine) showAnother() {
	last := e.shown.certificate.Load()
	if last == nil || e.client == nil {
		return
	}
	now, err := e.cfg.TLS.GetClientCertificate(&tls.CertificateRequestInfo{})
	if err != nil || len(now.Certificate) == 0 || bytes.Equal(now.Certificate[0], *last) {
		return
	}
	e.cfg.Log.Info("connects to etcd anew, with another certificate")
	e.client.SetEndpoints()
	e.client.SetEndpoints(e.cfg.Endpoints...)
}
