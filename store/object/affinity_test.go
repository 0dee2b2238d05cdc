package object

import "testing"

func TestParseAffinityPrefix(t *testing.T) {
	for value, want := range map[string][3]uint8{
		"24": {24, 128, 1}, "24,64": {24, 64, 1}, " 32 , 128 ": {32, 128, 1}, "1,1": {1, 1, 1},
		"": {32, 128, 0}, "0": {32, 128, 0}, "33": {32, 128, 0}, "24,129": {32, 128, 0}, "64": {32, 128, 0}, "24,": {32, 128, 0}, "/24": {32, 128, 0}, "24,64,1": {32, 128, 0},
	} {
		v4, v6, err := ParseAffinityPrefix(value)
		if v4 != want[0] || v6 != want[1] || (err == nil) != (want[2] == 1) {
			t.Errorf("%q: %d, %d, %v; want %v", value, v4, v6, err, want)
		}
	}
}

func TestAffinityAnnotations(t *testing.T) {
	for key, c := range map[string]struct{ good, bad, want string }{
		AnnotationAffinityScope:   {"service", "all", `metadata.annotations[svcctl.io/affinity-scope]: Unsupported value: "all": supported values: "port", "service"`},
		AnnotationAffinityRefresh: {"packets", "often", `metadata.annotations[svcctl.io/affinity-refresh]: Unsupported value: "often": supported values: "connections", "packets"`},
		AnnotationAffinityPrefix:  {"24,64", "64", `metadata.annotations[svcctl.io/affinity-prefix]: Invalid value: "64": must be a prefix length of IPv4 from 1 to 32, or one of each family, as "24,64"`},
	} {
		svc := &Service{}
		svc.Metadata.Annotations = map[string]string{key: c.good}
		wantTexts(t, checkServiceAnnotations(svc, nil))
		svc.Metadata.Annotations[key] = c.bad
		wantTexts(t, checkServiceAnnotations(svc, nil), c.want)
		wantTexts(t, checkServiceAnnotations(svc, svc))
	}
}
