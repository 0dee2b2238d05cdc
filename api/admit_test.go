package api

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestIsWatch(t *testing.T) {
	for target, want := range map[string]bool{
		"/api/v1/services":                                    false,
		"/api/v1/services?watch=true":                         true,
		"/api/v1/services?watch=True":                         true,
		"/api/v1/services?watch=1":                            true,
		"/api/v1/services?watch":                              true,
		"/api/v1/services?watch=false":                        false,
		"/api/v1/services?watch=0":                            false,
		"/api/v1/services?watchful=1":                         false,
		"/api/v1/watch/services":                              true,
		"/api/v1/watch/namespaces/default/services/x":         true,
		"/apis/discovery.k8s.io/v1/watch/endpointslices":      true,
		"/apis/discovery.k8s.io/v1/namespaces/watch/x":        false,
		"/api/v1/namespaces/watch/services":                   false,
		"/api/v1/namespaces/watch":                            false,
		"/api/v1/watch":                                       false,
		"/api":                                                false,
		"/apis/watch":                                         false,
		"/healthz?watch=true":                                 true,
		"/api/v1/namespaces/default/configmaps/watch/x/y/z/w": false,
	} {
		if got := isWatch(httptest.NewRequest(http.MethodGet, target, nil)); got != want {
			t.Errorf("GET %s: %v", target, got)
		}
		if isWatch(httptest.NewRequest(http.MethodDelete, target, nil)) {
			t.Errorf("DELETE %s", target)
		}
	}
}
