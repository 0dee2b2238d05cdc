package apiserver

import (
	"errors"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/appliance/checkup"
)

// A certificate is told of when it ends soon, when it has ended, and when its successor cannot
// be used, with the end of the one in use.
func TestCertificateFinding(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	days := func(n int) time.Time { return now.AddDate(0, 0, n) }
	for name, tt := range map[string]struct {
		begins, ends time.Time
		refused      error
		level        checkup.Level
		want         string
	}{
		"fresh":            {days(-1), days(89), nil, checkup.OK, "is valid until 2026-05-29T12:00:00Z"},
		"renewal is due":   {days(-65), days(25), nil, checkup.OK, "is valid until"},
		"ends soon":        {days(-80), days(10), nil, checkup.Warning, "expires soon: the certificate in use is valid until 2026-03-11T12:00:00Z"},
		"of many years":    {days(-3000), days(20), nil, checkup.OK, ""},
		"of six days":      {days(-3), days(3), nil, checkup.OK, ""},
		"of six, near":     {days(-5), days(1), nil, checkup.Warning, "expires soon"},
		"ended":            {days(-90), days(0), nil, checkup.Error, "expired at 2026-03-01T12:00:00Z: clients refuse it"},
		"junk":             {days(-1), days(89), errors.New("no PEM"), checkup.Error, "cannot be used, and the next start would fail: no PEM; the certificate in use is valid until 2026-05-29T12:00:00Z"},
		"ended, then junk": {days(-90), days(-1), errors.New("no PEM"), checkup.Error, "its successor cannot be used: no PEM"},
	} {
		f := CertificateFinding(auth.Validity{File: "c.pem", Begins: tt.begins, Expires: tt.ends, Refused: tt.refused}, now)
		if f.Level != tt.level || !strings.Contains(f.Message, tt.want) || f.Level != checkup.OK && f.Advice == "" {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
