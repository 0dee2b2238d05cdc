package rest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/auth"
)

// What is asked of paths, methods and queries, and how it is answered when it is wrong.
func TestRefusals(t *testing.T) {
	w := newWorld(t)
	w.put(service("web", ""))
	for _, test := range []struct {
		request string
		code    int
		reason  string
		message string // its beginning
	}{
		{"GET /api/v1/namespaces/default/services/none", 404, "NotFound", `services "none" not found`},
		{"GET /apis/discovery.k8s.io/v1/namespaces/default/endpointslices/none", 404, "NotFound", `endpointslices.discovery.k8s.io "none" not found`},
		{"GET /api/v1/namespaces/other/services/web", 404, "NotFound", `services "web" not found`},
		{"GET /nothing", 404, "NotFound", "the server could not find the requested resource"},
		{"GET /api/v2", 404, "NotFound", "the server could not find"},
		{"GET /api/v1/pizzas", 404, "NotFound", "the server could not find"},
		{"GET /apis/v1", 404, "NotFound", "the server could not find"},
		{"GET /apis//v1/services", 404, "NotFound", "the server could not find"},
		{"GET /apis/apps", 404, "NotFound", "the server could not find"},
		{"GET /apis/apps/v1/deployments", 404, "NotFound", "the server could not find"},
		{"GET /apis/discovery.k8s.io/v1/services", 404, "NotFound", "the server could not find"},
		{"GET /api/v1/services/web", 404, "NotFound", "the server could not find"},
		{"GET /api/v1/namespaces/default/nodes", 404, "NotFound", "the server could not find"},
		{"GET /api/v1/namespaces/default/services/web/scale", 404, "NotFound", "the server could not find"},
		{"GET /api/v1/namespaces/default/endpoints/web/status", 404, "NotFound", "the server could not find"},
		{"GET /api/v1/namespaces/default/services/web/status/more", 404, "NotFound", "the server could not find"},
		{"GET /api/v1/namespaces//services", 404, "NotFound", "the server could not find"},
		{"GET /api/v1/watch", 404, "NotFound", "the server could not find"},
		{"GET /api/v1/watch/namespaces/default/services/web/status", 404, "NotFound", "the server could not find"},
		{"GET /openapi/v4", 404, "NotFound", "the server could not find"},
		{"GET /openapi/v3/apis/apps/v1", 404, "NotFound", "the server could not find"},
		{"GET /api/v1/namespaces/default/services/%2e%2e", 400, "BadRequest", `invalid name ".." in the path`},
		{"GET /api/v1/namespaces/default/services/a%2fb", 400, "BadRequest", `invalid name "a/b" in the path`},
		{"GET /api/v1/namespaces/a%25/services", 400, "BadRequest", `invalid name "a%" in the path`},
		{"PUT /api/v1/namespaces/default/services", 405, "MethodNotAllowed", "the server does not allow this method on the requested resource"},
		{"POST /api/v1/services", 405, "MethodNotAllowed", "the server does not allow this method"},
		{"DELETE /api/v1/services", 405, "MethodNotAllowed", "the server does not allow this method"},
		{"POST /api/v1/namespaces/default/services/web", 405, "MethodNotAllowed", "the server does not allow this method"},
		{"DELETE /api/v1/namespaces/default/services/web/status", 405, "MethodNotAllowed", `delete is not supported on resources of kind "services"`},
		{"TRACE /api/v1/services", 405, "MethodNotAllowed", "the server does not allow this method"},
		{"POST /api/v1/watch/services", 405, "MethodNotAllowed", "the server does not allow this method"},
		{"DELETE /api/v1/namespaces", 405, "MethodNotAllowed", `deletecollection is not supported on resources of kind "namespaces"`},
		{"POST /apis/networking.k8s.io/v1/ipaddresses", 405, "MethodNotAllowed", "ipaddresses.networking.k8s.io show which"},
		{"DELETE /apis/networking.k8s.io/v1/ipaddresses/10.96.0.1", 405, "MethodNotAllowed", "ipaddresses.networking.k8s.io show which"},
		{"POST /apis", 405, "MethodNotAllowed", "the server does not allow this method"},
		{"POST /openapi/v3", 405, "MethodNotAllowed", "the server does not allow this method"},
		{"GET /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", 405, "MethodNotAllowed", `list is not supported on resources of kind "selfsubjectaccessreviews.authorization.k8s.io"`},
		{"GET /api/v1/services?labelSelector=,", 400, "BadRequest", `unable to parse "," as a label selector: `},
		{"GET /api/v1/services?fieldSelector=spec.bogus=1", 400, "BadRequest", `unable to parse "spec.bogus=1" as a field selector: field label not supported: spec.bogus`},
		{"GET /api/v1/services?limit=x", 400, "BadRequest", "limit=x: want a number"},
		{"GET /api/v1/services?timeoutSeconds=1s&watch=1", 400, "BadRequest", "timeoutSeconds=1s: want a number"},
		{"GET /api/v1/services?limit=%zz", 400, "BadRequest", "the query of the request cannot be read"},
		{"GET /api/v1/services?resourceVersion=x", 400, "BadRequest", "invalid resource version"},
		{"GET /api/v1/services?resourceVersion=-1", 400, "BadRequest", "invalid resource version"},
		{"GET /api/v1/namespaces/default/services/web?resourceVersion=x", 400, "BadRequest", "invalid resource version"},
		{"GET /api/v1/services?continue=x", 400, "BadRequest", "invalid continue token"},
		{"GET /api/v1/services?continue=e30", 400, "BadRequest", "invalid continue token"},
		{"GET /api/v1/services?includeObject=All", 200, "", ""},
		{"GET /api/v1/services?resourceVersionMatch=Exact", 422, "Invalid", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided`},
		{"GET /api/v1/services?resourceVersion=0&resourceVersionMatch=Exact", 422, "Invalid", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"`},
		{"GET /api/v1/services?resourceVersion=1&resourceVersionMatch=x", 422, "Invalid", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Unsupported value: "x": supported values: "Exact", "NotOlderThan", ""`},
		{"GET /api/v1/services?sendInitialEvents=true", 422, "Invalid", `ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list`},
		{"GET /api/v1/services?watch=1&sendInitialEvents=true", 422, "Invalid", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan`},
		{"GET /api/v1/services?watch=1&resourceVersionMatch=NotOlderThan", 422, "Invalid", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided`},
		{"GET /api/v1/watch/namespaces/default/services/web?fieldSelector=metadata.name=db", 400, "BadRequest", "fieldSelector metadata.name doesn't match requested name"},
		{"GET /api/v1/services?resourceVersion=99999999999999999", 504, "Timeout", "Timeout: Too large resource version: 99999999999999999, current: "},
		{"GET /api/v1/namespaces/default/services/web?resourceVersion=99999999999999999", 504, "Timeout", "Timeout: Too large resource version"},
		{"GET /api/v1/services?watch=1&resourceVersion=99999999999999999", 410, "Expired", "too large resource version: 99999999999999999, and the newest is "},
		{"GET /api/v1/services?watch=1&resourceVersion=1", 410, "Expired", "too old resource version: 1 ("},
		{"GET /api/v1/services?resourceVersion=1&resourceVersionMatch=Exact", 410, "Expired", "The resourceVersion for the provided list is too old."},
		{"GET /api/v1/services?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=99999999999999999", 504, "Timeout", "Timeout: Too large resource version"},
	} {
		method, path, _ := strings.Cut(test.request, " ")
		answer := w.ask(method, path)
		if answer.Code != test.code {
			t.Errorf("%s: %d %s", test.request, answer.Code, answer.Body)
			continue
		}
		if test.code == http.StatusOK {
			continue
		}
		s := decoded(t, answer.Body.Bytes())
		message, _ := s["message"].(string)
		if s["kind"] != "Status" || s["apiVersion"] != "v1" || s["status"] != "Failure" || s["code"] != float64(test.code) || s["reason"] != test.reason || !strings.HasPrefix(message, test.message) {
			t.Errorf("%s: %s", test.request, answer.Body)
		}
		if test.code == http.StatusMethodNotAllowed && answer.Header().Get("Allow") == "" && method != http.MethodTrace {
			t.Errorf("%s: no Allow", test.request)
		}
	}
}

func TestStatusDetails(t *testing.T) {
	w := newWorld(t)
	missing := w.ask("GET", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/none")
	if got := fmt.Sprint(decoded(t, missing.Body.Bytes())["details"]); got != "map[group:discovery.k8s.io kind:endpointslices name:none]" {
		t.Errorf("%s", got)
	}
	future := w.ask("GET", "/api/v1/services?resourceVersion=99999999999999999")
	details := decoded(t, future.Body.Bytes())["details"]
	if at(details, "causes", 0, "reason") != "ResourceVersionTooLarge" || at(details, "retryAfterSeconds") != 1.0 || future.Header().Get("Retry-After") != "1" {
		t.Errorf("%v", details)
	}
	options := w.ask("GET", "/api/v1/services?sendInitialEvents=1")
	details = decoded(t, options.Body.Bytes())["details"]
	if at(details, "kind") != "ListOptions" || at(details, "causes", 0, "field") != "sendInitialEvents" || at(details, "causes", 0, "reason") != "FieldValueForbidden" {
		t.Errorf("%v", details)
	}
}

func TestPermissions(t *testing.T) {
	w := newWorld(t)
	w.put(service("web", ""))
	for _, test := range []struct {
		role    auth.Role
		request string
		code    int
		message string
	}{
		{auth.Nobody, "GET /api/v1/services", 403, `forbidden: User "uid:1000" cannot get path "/api/v1/services"`},
		{auth.Nobody, "GET /api", 403, "forbidden: "},
		{auth.Reader, "GET /api", 200, ""},
		{auth.Reader, "GET /openapi/v3", 200, ""},
		{auth.Reader, "GET /api/v1/services", 200, ""},
		{auth.Reader, "GET /api/v1/namespaces/default/services/web/status", 200, ""},
		{auth.Reader, "GET /api/v1/secrets", 403, `secrets is forbidden: User "uid:1000" cannot list resource "secrets" in API group "" at the cluster scope: this needs root, a member of the group that --socket-group names, or a token that one of these made`},
		{auth.Reader, "GET /api/v1/secrets?watch=1", 403, `secrets is forbidden: User "uid:1000" cannot watch resource "secrets"`},
		{auth.Reader, "POST /api/v1/namespaces/default/services", 403, `services is forbidden: User "uid:1000" cannot create resource "services" in API group "" in the namespace "default"`},
		{auth.Reader, "DELETE /api/v1/namespaces/default/services/web", 403, `services "web" is forbidden: User "uid:1000" cannot delete resource "services" in API group "" in the namespace "default"`},
		{auth.Reader, "PATCH /api/v1/namespaces/default/services/web/status", 403, `services "web" is forbidden: User "uid:1000" cannot patch resource "services/status"`},
		{auth.Reader, "DELETE /apis/discovery.k8s.io/v1/namespaces/default/endpointslices", 403, `endpointslices.discovery.k8s.io is forbidden: User "uid:1000" cannot deletecollection resource`},
		{auth.Admin, "GET /api/v1/secrets", 200, ""},
	} {
		w.user = auth.User{Name: "uid:1000", Role: test.role}
		method, path, _ := strings.Cut(test.request, " ")
		answer := w.ask(method, path)
		message, _ := decoded(t, answer.Body.Bytes())["message"].(string)
		if answer.Code != test.code || !strings.HasPrefix(message, test.message) {
			t.Errorf("%d %s: %d %s", test.role, test.request, answer.Code, answer.Body)
		}
	}
	w.user = auth.User{}
	if answer := w.ask("GET", "/api"); answer.Code != http.StatusUnauthorized || decoded(t, answer.Body.Bytes())["reason"] != "Unauthorized" {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
}

func TestForms(t *testing.T) {
	w := newWorld(t)
	w.put(service("web", ""))
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	for _, test := range []struct {
		path, accept string
		contentType  string
		beginning    string // of the body
	}{
		{"/web", "", "application/json", `{"kind":"Service","apiVersion":"v1","metadata":{"name":"web"`},
		{"/web", "application/json", "application/json", `{"kind":"Service",`},
		{"/web", "*/*", "application/json", `{"kind":"Service",`},
		{"/web", "application/*;q=0.5", "application/json", `{"kind":"Service",`},
		{"/web", "application/vnd.kubernetes.protobuf,application/json", "application/json", `{"kind":"Service",`},
		{"/web", "application/vnd.kubernetes.protobuf;q=0.5, application/json;charset=utf-8;q=0.1", "application/json", `{"kind":"Service",`},
		{"/web", "text/html, application/xhtml+xml, */*;q=0.8", "application/json", `{"kind":"Service",`},
		{"/web", "application/yaml", "application/yaml", "apiVersion: v1\nkind: Service\nmetadata:\n"},
		{"/web", "application/yaml;q=0.5,application/json", "application/json", `{"kind":"Service",`},
		{"/web", table + ",application/json", "application/json", `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"`},
		{"/web", "application/json;as=Table;v=v1beta1;g=meta.k8s.io", "application/json", `{"kind":"Table","apiVersion":"meta.k8s.io/v1beta1",`},
		{"/web", "application/json;as=Table;v=v2;g=meta.k8s.io," + table, "application/json", `{"kind":"Table","apiVersion":"meta.k8s.io/v1",`},
		{"/web", "application/json;as=Sofa;v=v1;g=meta.k8s.io,application/json", "application/json", `{"kind":"Service",`},
		{"/web", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/json", `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"web"`},
		{"/web?pretty=true", "", "application/json", "{\n  \"kind\": \"Service\",\n"},
		{"/web", "application/json;pretty=1", "application/json", "{\n  \"kind\": \"Service\",\n"},
		{"", "", "application/json", `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"`},
		{"", "application/yaml", "application/yaml", "apiVersion: v1\nkind: ServiceList\nmetadata:\n  resourceVersion: \""},
		{"", table, "application/json", `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"`},
		{"", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json", "application/json", `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1",`},
		{"?pretty=1", "", "application/json", "{\n  \"kind\": \"ServiceList\",\n"},
	} {
		headers := []string{}
		if test.accept != "" {
			headers = append(headers, "Accept: "+test.accept)
		}
		answer := w.ask("GET", "/api/v1/namespaces/default/services"+test.path, headers...)
		if answer.Code != http.StatusOK || answer.Header().Get("Content-Type") != test.contentType || !strings.HasPrefix(answer.Body.String(), test.beginning) {
			t.Errorf("%s as %s: %d %s\n%.300s", test.path, test.accept, answer.Code, answer.Header().Get("Content-Type"), answer.Body)
		}
		if test.contentType == "application/json" {
			decoded(t, answer.Body.Bytes())
		}
	}
	for _, test := range []struct{ path, accept string }{
		{"/web", "application/vnd.kubernetes.protobuf"},
		{"/web", "text/html"},
		{"/web", "application/json;q=0"},
		{"/web", "application/json;as=Sofa;v=v1;g=meta.k8s.io"},
		{"/web", "application/json;as=Table;v=v1;g=other"},
		{"/web", "application/json;stream=other"},
		{"/web", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"},
		{"", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"},
		{"?watch=1", "application/yaml"},
		{"", "nonsense"},
	} {
		answer := w.ask("GET", "/api/v1/namespaces/default/services"+test.path, "Accept: "+test.accept)
		if s := decoded(t, answer.Body.Bytes()); answer.Code != http.StatusNotAcceptable || s["reason"] != "NotAcceptable" {
			t.Errorf("%s as %s: %d %s", test.path, test.accept, answer.Code, answer.Body)
		}
	}
	if empty := w.ask("GET", "/api/v1/namespaces/default/services/web", "Accept: "); empty.Code != http.StatusOK {
		t.Errorf("an empty Accept, which is as none for Kubernetes: %d %s", empty.Code, empty.Body)
	}
	for _, path := range []string{"/api", "/api/v1", "/apis", "/openapi/v2", "/openapi/v3"} {
		if empty := w.ask("GET", path, "Accept: "); empty.Code != http.StatusOK {
			t.Errorf("%s with an empty Accept: %d %s", path, empty.Code, empty.Body)
		}
	}
	curl := w.ask("GET", "/api/v1/namespaces/default/services/web", "User-Agent: curl/8.0")
	if !strings.HasPrefix(curl.Body.String(), "{\n") {
		t.Errorf("curl got %s", curl.Body)
	}
	bad := w.ask("GET", "/api/v1/services?includeObject=All", "Accept: "+table)
	if bad.Code != http.StatusBadRequest || !strings.Contains(bad.Body.String(), "Unable to convert to Table as requested") {
		t.Errorf("%d %s", bad.Code, bad.Body)
	}
}

// What is written in pieces reads as what is written at once.
func TestListForms(t *testing.T) {
	w := newWorld(t)
	path := "/api/v1/namespaces/default/services"
	for _, query := range []string{"", "?pretty=true"} {
		empty := w.get(path + query)
		if items, ok := empty["items"].([]any); !ok || len(items) != 0 || empty["kind"] != "ServiceList" {
			t.Errorf("%v", empty)
		}
	}
	if text := w.ask("GET", path+"?pretty=true").Body.String(); !strings.HasSuffix(text, "},\n  \"items\": []\n}\n") {
		t.Errorf("%s", text)
	}
	if text := w.ask("GET", path, "Accept: application/yaml").Body.String(); !strings.HasSuffix(text, "items: []\n") {
		t.Errorf("%s", text)
	}
	w.put(service("b", ""), service("a", ""), service("c", ""))
	plain := w.get(path)
	if names(plain) != "a b c" {
		t.Errorf("%v", plain)
	}
	if fmt.Sprint(w.get(path+"?pretty=true")) != fmt.Sprint(plain) {
		t.Error("pretty is another list")
	}
	for i := range 3 {
		item := at(plain, "items", i).(map[string]any)
		if item["kind"] != nil || item["apiVersion"] != nil || at(item, "spec", "clusterIP") == nil {
			t.Errorf("%v", item)
		}
	}
	pretty := w.ask("GET", path+"?pretty=true").Body.String()
	if !strings.Contains(pretty, "\n  \"items\": [\n    {\n      \"metadata\": {\n        \"name\": \"a\",\n") || !strings.HasSuffix(pretty, "\n    }\n  ]\n}\n") {
		t.Errorf("%s", pretty)
	}
	yaml := w.ask("GET", path, "Accept: application/yaml").Body.String()
	if !strings.Contains(yaml, "\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata:\n    name: a\n") {
		t.Errorf("%s", yaml)
	}
	rows := w.get(path+"?limit=2", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
	if fmt.Sprint(at(rows, "rows", 1, "cells", 0), at(rows, "rows", 1, "object", "kind"), at(rows, "columnDefinitions", 0, "name")) != "bPartialObjectMetadataName" ||
		at(rows, "metadata", "continue") == nil || at(rows, "metadata", "remainingItemCount") != 1.0 || len(rows["rows"].([]any)) != 2 {
		t.Errorf("%v", rows)
	}
	if age := at(rows, "rows", 0, "cells", 5); age != "90s" {
		t.Errorf("age %v", age)
	}
	object := w.get(path+"?includeObject=Object", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
	if at(object, "rows", 0, "object", "kind") != "Service" {
		t.Errorf("%v", object)
	}
	none := w.get(path+"?includeObject=None", "Accept: application/json;as=Table;v=v1beta1;g=meta.k8s.io")
	if at(none, "rows", 0, "object") != nil {
		t.Errorf("%v", none)
	}
	partial := w.get(path, "Accept: application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io")
	if at(partial, "items", 0, "apiVersion") != "meta.k8s.io/v1beta1" || at(partial, "items", 0, "spec") != nil {
		t.Errorf("%v", partial)
	}
}
