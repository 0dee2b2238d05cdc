package object

import (
	"strings"
	"testing"
)

// What asks for something that does not happen here is told, and what asks for nothing is not.
func TestForeigners(t *testing.T) {
	annotated := func(key, value string) *Service {
		s := goodService()
		s.Metadata.Annotations = map[string]string{key: value, "example.com/team": "blue"}
		return s
	}
	labeled := func(o Object, key string) Object {
		o.GetMeta().Labels = map[string]string{key: "x"}
		return o
	}
	for name, tt := range map[string]struct {
		o    Object
		want string // "" for none
	}{
		"nothing":      {goodService(), ""},
		"topology":     {annotated("service.kubernetes.io/topology-mode", "Auto"), "metadata.annotations[service.kubernetes.io/topology-mode]: has no effect here"},
		"no topology":  {annotated("service.kubernetes.io/topology-mode", "Disabled"), ""},
		"hints":        {annotated("service.kubernetes.io/topology-aware-hints", "auto"), "has no effect here"},
		"unready":      {annotated("service.alpha.kubernetes.io/tolerate-unready-endpoints", "true"), "spec.publishNotReadyAddresses"},
		"other proxy":  {labeled(goodService(), "service.kubernetes.io/service-proxy-name"), "metadata.labels[service.kubernetes.io/service-proxy-name]: leaves"},
		"managed":      {labeled(goodSlice(), "endpointslice.kubernetes.io/managed-by"), "names a controller that does not run here"},
		"of a Service": {labeled(goodService(), "endpointslice.kubernetes.io/managed-by"), ""},
	} {
		list := Foreigners(tt.o)
		switch {
		case tt.want == "" && len(list) > 0, tt.want != "" && (len(list) != 1 || !strings.Contains(list[0].String(), tt.want)):
			t.Errorf("%s: %v, want %q", name, list, tt.want)
		}
	}
}
