package apiserver

import (
	"fmt"
	"log/slog"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/checkup"
)

// renewBefore returns the remaining validity at which a certificate should have been renewed: a
// fifth of its life, at most 14 days; automatic renewal (RFC 8555 clients) happens at a third.
func renewBefore(v auth.Validity) time.Duration {
	return min(v.Expires.Sub(v.Begins)/5, 14*24*time.Hour)
}

// CertificateFinding judges the certificate that the operator gave.
func CertificateFinding(v auth.Validity, now time.Time) checkup.Finding {
	until := "the certificate in use is valid until " + v.Expires.UTC().Format(time.RFC3339)
	const renew = "put a renewed certificate and its key into the files of --tls-cert and --tls-key; they are read again within 10 s"
	switch {
	case !now.Before(v.Expires):
		f := checkup.Fault(checkup.Certificate, fmt.Sprintf("the certificate of the API, %s, expired at %s: clients refuse it", v.File, v.Expires.UTC().Format(time.RFC3339)), renew)
		if v.Refused != nil {
			f.Message += fmt.Sprintf("; its successor cannot be used: %v", v.Refused)
		}
		return f
	case v.Refused != nil:
		return checkup.Fault(checkup.Certificate, fmt.Sprintf("the new certificate of the API cannot be used, and the next start would fail: %v; %s", v.Refused, until), renew)
	case v.Expires.Sub(now) < renewBefore(v):
		return checkup.Doubt(checkup.Certificate, fmt.Sprintf("the certificate of the API, %s, expires soon: %s", v.File, until), renew)
	}
	return checkup.Well(checkup.Certificate, fmt.Sprintf("the certificate of the API, %s, is valid until %s", v.File, v.Expires.UTC().Format(time.RFC3339)))
}

// certificate is the same as the API tells it.
func certificate(v auth.Validity, now time.Time) *wire.Certificate {
	c := &wire.Certificate{File: v.File, Expires: v.Expires}
	if f := CertificateFinding(v, now); f.Level != checkup.OK {
		c.Problem, c.Advice, c.Bad = f.Message, f.Advice, f.Level == checkup.Error
	}
	return c
}

// CertificateOffline examines the files for the next start.
func CertificateOffline(cert, key string, now time.Time) checkup.Finding {
	files, err := auth.OpenFiles(cert, key, slog.New(slog.DiscardHandler))
	if err != nil {
		return checkup.Fault(checkup.Certificate, err.Error(), "replace it: `svcctl serve` does not start with it")
	}
	return CertificateFinding(files.Validity(), now)
}
