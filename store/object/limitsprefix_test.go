package object

import "testing"

// Limits of clients may name the prefix whose clients count as one.
func TestLimitsOfPrefixes(t *testing.T) {
	for value, want := range map[string]bool{
		"600/m": true, "600/m per 32,64": true, "600/m per 24": true, "5/s per 1,1": true,
		"600/m per": false, "600/m per 0,64": false, "600/m per 33": false, "600/m per 32,129": false, "per 32,64": false, "600 per 32,64": false,
	} {
		s := goodService(func(s *Service) { s.Metadata.Annotations = map[string]string{AnnotationClientRateLimit: value} })
		if errs := checkServiceAnnotations(s, nil); (len(errs) == 0) != want {
			t.Errorf("%q is valid: %t, want %t: %v", value, !want, want, errs)
		}
	}
	for key, value := range map[string]string{AnnotationRateLimit: "600/m per 32,64", AnnotationEndpointConnections: "20 per 32,64"} {
		if errs := checkServiceAnnotations(goodService(func(s *Service) { s.Metadata.Annotations = map[string]string{key: value} }), nil); len(errs) != 1 {
			t.Errorf("%s: %q, which is of no client, has errors %v", key, value, errs)
		}
	}
}
