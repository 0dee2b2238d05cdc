package appliance

import (
	"fmt"
	"log/slog"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/checkup"
)

// checkCertificate is the check that findings about the certificate of the API have.
const checkCertificate = "certificate"

// renewBefore is how long before its end a certificate should have been renewed: a fifth of its
// life, as those who renew automatically do so at a third (RFC 8555 clients), at most 14 days.
func renewBefore(v auth.Validity) time.Duration {
	return min(v.Expires.Sub(v.Begins)/5, 14*24*time.Hour)
}

// certificateFinding judges the certificate that the operator gave.
func certificateFinding(v auth.Validity, now time.Time) Finding {
	until := "the certificate in use is valid until " + v.Expires.UTC().Format(time.RFC3339)
	const renew = "put a renewed certificate and its key into the files of --tls-cert and --tls-key; they are read again within 10 s"
	switch {
	case !now.Before(v.Expires):
		f := checkup.Fault(checkCertificate, fmt.Sprintf("the certificate of the API, %s, ended at %s: clients refuse it", v.File, v.Expires.UTC().Format(time.RFC3339)), renew)
		if v.Refused != nil {
			f.Message += fmt.Sprintf("; its successor cannot be used: %v", v.Refused)
		}
		return f
	case v.Refused != nil:
		return checkup.Fault(checkCertificate, fmt.Sprintf("the new certificate of the API cannot be used, and the next start would fail: %v; %s", v.Refused, until), renew)
	case v.Expires.Sub(now) < renewBefore(v):
		return checkup.Doubt(checkCertificate, fmt.Sprintf("the certificate of the API, %s, ends soon: %s", v.File, until), renew)
	}
	return checkup.Well(checkCertificate, fmt.Sprintf("the certificate of the API, %s, is valid until %s", v.File, v.Expires.UTC().Format(time.RFC3339)))
}

// certificate is the same as the API tells it.
func certificate(v auth.Validity, now time.Time) *wire.Certificate {
	c := &wire.Certificate{File: v.File, Expires: v.Expires}
	if f := certificateFinding(v, now); f.Level != checkup.OK {
		c.Problem, c.Advice, c.Bad = f.Message, f.Advice, f.Level == checkup.Error
	}
	return c
}

// certificateOffline examines the files for the next start.
func certificateOffline(cert, key string, now time.Time) Finding {
	files, err := auth.OpenFiles(cert, key, slog.New(slog.DiscardHandler))
	if err != nil {
		return checkup.Fault(checkCertificate, err.Error(), "mend it: `svcctl serve` does not start with it")
	}
	return certificateFinding(files.Validity(), now)
}
