package object

import (
	"testing"
	"time"
)

func TestParseRate(t *testing.T) {
	for value, want := range map[string]time.Duration{"1/m": time.Minute, "100/s": time.Second, " 1000000/s ": time.Second, "600/m": time.Minute} {
		if n, per, err := ParseRate(value); err != nil || per != want || n == 0 {
			t.Errorf("%q is %d each %s, %v", value, n, per, err)
		}
	}
	for _, value := range []string{"", "100", "100/h", "0/s", "-1/s", "1000001/s", "1.5/s", "/s", "100/s/s", "s"} {
		if n, per, err := ParseRate(value); err == nil || err.Error() != `must be a rate from 1/m to 1000000/s, as "100/s" or "600/m"` {
			t.Errorf("%q is %d each %s, %v", value, n, per, err)
		}
	}
}

func TestLimitsAreChecked(t *testing.T) {
	svc := func(rate, client, connections string) *Service {
		s := &Service{TypeMeta: TypeMeta{Kind: KindService, APIVersion: "v1"}}
		s.Metadata = ObjectMeta{Name: "web", Namespace: "default", Annotations: map[string]string{AnnotationRateLimit: rate, AnnotationClientRateLimit: client, AnnotationClientConnections: connections}}
		return s
	}
	wantTexts(t, checkServiceAnnotations(svc("1/s", "1/m", "65535"), nil))
	bad := svc("1/h", "x", "65536")
	wantTexts(t, checkServiceAnnotations(bad, nil),
		`metadata.annotations[svcctl.io/rate-limit]: Invalid value: "1/h": must be a rate from 1/m to 1000000/s, as "100/s" or "600/m"`,
		`metadata.annotations[svcctl.io/client-rate-limit]: Invalid value: "x": must be a rate from 1/m to 1000000/s, as "100/s" or "600/m"`,
		`metadata.annotations[svcctl.io/client-connections]: Invalid value: "65536": must be an integer from 1 to 65535`)
	wantTexts(t, checkServiceAnnotations(bad, bad))
}
