package rest

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestNameOf(t *testing.T) {
	for request, want := range map[string]string{
		"GET /api/v1/services":                                                     "list services",
		"GET /api/v1/services?watch=1":                                             "watch services",
		"GET /api/v1/watch/services":                                               "watch services",
		"GET /api/v1/namespaces/default/services/web":                              "get services",
		"PATCH /api/v1/namespaces/default/services/web/status":                     "patch services/status",
		"POST /apis/discovery.k8s.io/v1/namespaces/default/endpointslices":         "create endpointslices",
		"DELETE /apis/discovery.k8s.io/v1/namespaces/default/endpointslices":       "deletecollection endpointslices",
		"DELETE /apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-1": "delete endpointslices",
		"GET /api":                              " ",
		"GET /api/v1":                           " ",
		"GET /openapi/v3":                       " ",
		"POST /svcctl/v1/apply":                 " ",
		"GET /api/v1/somethings":                " ",
		"BREW /api/v1/services":                 " ",
		"DELETE /api/v1/services":               " ",
		"GET /api/v1/namespaces/a/services/b/c": " ",
	} {
		method, path, _ := strings.Cut(request, " ")
		verb, resource := NameOf(httptest.NewRequest(method, path, nil))
		if got := verb + " " + resource; got != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
}
