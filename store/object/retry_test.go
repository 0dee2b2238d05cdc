package object

import (
	"strings"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"1s": time.Second, "2": 2 * time.Second, " 1500ms ": 1500 * time.Millisecond, "30s": 30 * time.Second,
		"": 0, "0": 0, "999ms": 0, "31s": 0, "300": 0, "-1s": 0, "soon": 0,
	} {
		got, err := ParseRetryAfter(value)
		if got != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %v, %v, want %v", value, got, err, want)
		}
	}
	svc := &Service{}
	svc.Metadata.Annotations = map[string]string{AnnotationRetryAfter: "31s"}
	errs := checkServiceAnnotations(svc, nil)
	const want = `metadata.annotations[svcctl.io/retry-after]: Invalid value: "31s": must be a time from 1s to 30s, as "2s"`
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), want) {
		t.Errorf("%v, want %s", errs, want)
	}
	if errs := checkServiceAnnotations(svc, svc); len(errs) > 0 {
		t.Errorf("a value that stands already is asked again: %v", errs)
	}
}

func TestEjectValue(t *testing.T) {
	for value, refused := range map[string]bool{"true": false, "false": false, "": true, "yes": true, "True": true} {
		svc := &Service{}
		svc.Metadata.Annotations = map[string]string{AnnotationEject: value}
		errs := checkServiceAnnotations(svc, nil)
		if (len(errs) == 1) != refused || refused && !strings.Contains(errs[0].Error(), `metadata.annotations[svcctl.io/eject]: Invalid value: "`+value+`": must be "true" or "false"`) {
			t.Errorf("%q: %v, refused %t", value, errs, refused)
		}
	}
}

func TestSlowStart(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"1s": time.Second, "30": 30 * time.Second, "15m": 15 * time.Minute,
		"": 0, "0": 0, "999ms": 0, "901s": 0, "-1s": 0, "slow": 0,
	} {
		if got, err := ParseSlowStart(value); got != want || (err != nil) != (want == 0) {
			t.Errorf("%q: %v, %v, want %v", value, got, err, want)
		}
	}
	svc := &Service{}
	svc.Metadata.Annotations = map[string]string{AnnotationSlowStart: "1h"}
	const want = `metadata.annotations[svcctl.io/slow-start]: Invalid value: "1h": must be a time from 1s to 15m, as "30s"`
	if errs := checkServiceAnnotations(svc, nil); len(errs) != 1 || !strings.Contains(errs[0].Error(), want) {
		t.Errorf("%v, want %s", errs, want)
	}
}
