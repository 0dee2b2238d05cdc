package rest

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/auth"
)

func TestDiscovery(t *testing.T) {
	w := newWorld(t)
	const v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	const v2beta1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
	for _, test := range []struct{ path, accept, contentType, beginning string }{
		{"/api", "", "application/json", `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"example.com"}]}`},
		{"/", "", "application/json", `{"paths":["/api","/api/v1","/apis","/apis/authentication.k8s.io","/apis/authentication.k8s.io/v1",`},
		{"/api/", "application/json", "application/json", `{"kind":"APIVersions"`},
		{"/apis", "application/json", "application/json", `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"authentication.k8s.io"`},
		{"/apis/discovery.k8s.io", "", "application/json", `{"kind":"APIGroup","apiVersion":"v1","name":"discovery.k8s.io"`},
		{"/api/v1", "", "application/json", `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[{"name":"configmaps"`},
		{"/apis/events.k8s.io/v1", "application/json", "application/json", `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"events.k8s.io/v1"`},
		{"/api", v2 + "," + v2beta1 + ",application/json", v2, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{},`},
		{"/apis", v2 + "," + v2beta1 + ",application/json", v2, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{"name":"authentication.k8s.io"}`},
		{"/apis", v2beta1 + ",application/json", v2beta1, `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2beta1"`},
		{"/apis", "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList," + v2 + ";q=0.9,application/json;q=0.8", v2, `{"kind":"APIGroupDiscoveryList"`},
		{"/apis", strings.ReplaceAll(v2, "v2", "v3") + ",application/json", "application/json", `{"kind":"APIGroupList"`},
	} {
		headers := []string{}
		if test.accept != "" {
			headers = append(headers, "Accept: "+test.accept)
		}
		answer := w.ask("GET", test.path, headers...)
		if answer.Code != http.StatusOK || answer.Header().Get("Content-Type") != test.contentType || !strings.HasPrefix(answer.Body.String(), test.beginning) {
			t.Errorf("%s as %s: %d %s\n%.200s", test.path, test.accept, answer.Code, answer.Header().Get("Content-Type"), answer.Body)
		}
	}
	first := w.ask("GET", "/apis", "Accept: "+v2)
	tag := first.Header().Get("ETag")
	if len(tag) != 66 || first.Header().Get("Vary") != "Accept" {
		t.Errorf("%v", first.Header())
	}
	for _, known := range []string{tag, `"other", ` + tag, "W/" + tag} {
		again := w.ask("GET", "/apis", "Accept: "+v2, "If-None-Match: "+known)
		if again.Code != http.StatusNotModified || again.Body.Len() != 0 || again.Header().Get("ETag") != tag {
			t.Errorf("%s: %d %v", known, again.Code, again.Header())
		}
	}
	if changed := w.ask("GET", "/apis", "Accept: "+v2, `If-None-Match: "other"`); changed.Code != http.StatusOK {
		t.Errorf("%d", changed.Code)
	}
	if binary := w.ask("GET", "/apis/discovery.k8s.io", "Accept: application/vnd.kubernetes.protobuf"); binary.Code != http.StatusNotAcceptable {
		t.Errorf("%d", binary.Code)
	}
}

func TestOpenAPI(t *testing.T) {
	w := newWorld(t)
	index := w.get("/openapi/v3")
	url, _ := at(index, "paths", "apis/discovery.k8s.io/v1", "serverRelativeURL").(string)
	if !strings.HasPrefix(url, "/openapi/v3/apis/discovery.k8s.io/v1?hash=") {
		t.Fatalf("%v", index)
	}
	document := w.ask("GET", url)
	if document.Code != http.StatusOK || !strings.Contains(document.Header().Get("Cache-Control"), "immutable") || document.Header().Get("ETag") == "" {
		t.Errorf("%d %v", document.Code, document.Header())
	}
	if o := decoded(t, document.Body.Bytes()); at(o, "paths", "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{name}", "patch") == nil {
		t.Errorf("%.300s", document.Body)
	}
	if again := w.ask("GET", url, "If-None-Match: "+document.Header().Get("ETag")); again.Code != http.StatusNotModified {
		t.Errorf("%d", again.Code)
	}
	plain, _, _ := strings.Cut(url, "?")
	if without := w.ask("GET", plain); without.Code != http.StatusOK || strings.Contains(without.Header().Get("Cache-Control"), "immutable") {
		t.Errorf("%d %v", without.Code, without.Header())
	}
	if old := w.ask("GET", plain+"?hash=OLD"); old.Code != http.StatusMovedPermanently || old.Header().Get("Location") != url {
		t.Errorf("%d %v", old.Code, old.Header())
	}
	if binary := w.ask("GET", plain, "Accept: application/com.github.proto-openapi.spec.v3.v1.0+protobuf"); binary.Code != http.StatusNotAcceptable {
		t.Errorf("%d", binary.Code)
	}
	const binary, text = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf", "application/json"
	for accept, want := range map[string]struct {
		code            int
		mediaType, body string
	}{
		"application/com.github.proto-openapi.spec.v2@v1.0+protobuf": {200, binary, "\x0a\x032.0"},
		binary:                  {200, binary, "\x0a\x032.0"},
		"*/*":                   {200, text, `{"definitions":`},
		text:                    {200, text, `{"definitions":`},
		"application/json, */*": {200, text, `{"definitions":`},
		"text/html":             {406, text, ""},
	} {
		answer := w.ask("GET", "/openapi/v2", "Accept: "+accept)
		if answer.Code != want.code || answer.Header().Get("Content-Type") != want.mediaType || !strings.HasPrefix(answer.Body.String(), want.body) {
			t.Errorf("%s: %d %v %.20q", accept, answer.Code, answer.Header(), answer.Body)
		}
	}
}

func TestCompression(t *testing.T) {
	w := newWorld(t)
	var texts []string
	for i := range 300 {
		texts = append(texts, service(fmt.Sprintf("web-%03d", i), ""))
	}
	w.put(texts...)
	path := "/api/v1/services"
	plain := w.ask("GET", path)
	if plain.Header().Get("Content-Encoding") != "" || plain.Body.Len() < gzipFrom {
		t.Fatalf("%v, %d bytes", plain.Header(), plain.Body.Len())
	}
	zipped := w.ask("GET", path, "Accept-Encoding: br, gzip")
	if zipped.Header().Get("Content-Encoding") != "gzip" || zipped.Header().Get("Vary") != "Accept-Encoding" || zipped.Header().Get("Content-Length") != "" {
		t.Fatalf("%v", zipped.Header())
	}
	reader, err := gzip.NewReader(zipped.Body)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(reader)
	if err != nil || !bytes.Equal(text, plain.Body.Bytes()) {
		t.Errorf("%v, %d bytes of %d", err, len(text), plain.Body.Len())
	}
	for _, header := range []string{"Accept-Encoding: gzip;q=0", "Accept-Encoding: deflate"} {
		if answer := w.ask("GET", path, header); answer.Header().Get("Content-Encoding") != "" {
			t.Errorf("%s: %v", header, answer.Header())
		}
	}
	if short := w.ask("GET", path+"?limit=10", "Accept-Encoding: gzip"); short.Header().Get("Content-Encoding") != "" || short.Header().Get("Content-Length") == "" {
		t.Errorf("%v", short.Header())
	}
}

func TestReviews(t *testing.T) {
	w := newWorld(t)
	post := func(path, body string) map[string]any {
		t.Helper()
		r := w.send("POST", path, body)
		if r.Code != http.StatusCreated {
			t.Fatalf("%s %s: %d %s", path, body, r.Code, r.Body)
		}
		return decoded(t, r.Body.Bytes())
	}
	const access = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	for _, test := range []struct {
		spec          string
		admin, reader bool
	}{
		{`"resourceAttributes":{"verb":"list","resource":"services"}`, true, true},
		{`"resourceAttributes":{"verb":"list","resource":"services","version":"v1","namespace":"default"}`, true, true},
		{`"resourceAttributes":{"verb":"delete","resource":"services","namespace":"default"}`, true, false},
		{`"resourceAttributes":{"verb":"get","resource":"secrets"}`, true, false},
		{`"resourceAttributes":{"verb":"*","resource":"services"}`, true, false},
		{`"resourceAttributes":{"verb":"*","resource":"*","group":"*"}`, true, false},
		{`"resourceAttributes":{"verb":"get","resource":"endpointslices","group":"discovery.k8s.io"}`, true, true},
		{`"resourceAttributes":{"verb":"get","resource":"endpointslices"}`, true, false},
		{`"resourceAttributes":{"verb":"get","resource":"deployments","group":"apps"}`, true, false},
		{`"nonResourceAttributes":{"verb":"get","path":"/version"}`, true, true},
		{`"nonResourceAttributes":{"verb":"post","path":"/svcctl/v1/release"}`, true, false},
	} {
		body := `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{` + test.spec + `}}`
		for role, want := range map[auth.Role]bool{auth.Admin: test.admin, auth.Reader: test.reader} {
			w.user = auth.User{Name: "somebody", Role: role}
			if got := at(post(access, body), "status", "allowed"); got != want {
				t.Errorf("%s: %v for role %d", test.spec, got, role)
			}
		}
	}
	w.user = auth.User{Name: "uid:1000", Groups: []string{"ops"}, Role: auth.Reader}
	whoami := post("/apis/authentication.k8s.io/v1/selfsubjectreviews", `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`)
	if at(whoami, "status", "userInfo", "username") != "uid:1000" || at(whoami, "status", "userInfo", "groups", 0) != "ops" {
		t.Errorf("%v", whoami)
	}
	rules := post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", `{"kind":"SelfSubjectRulesReview","apiVersion":"authorization.k8s.io/v1","spec":{"namespace":"default"}}`)
	if text := fmt.Sprint(at(rules, "status", "resourceRules")); !strings.Contains(text, "services") || strings.Contains(text, "secrets") || strings.Contains(text, "delete") {
		t.Errorf("%s", text)
	}
	w.user = admin
	rules = post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", `{"kind":"SelfSubjectRulesReview","apiVersion":"authorization.k8s.io/v1","spec":{"namespace":"default"}}`)
	if fmt.Sprint(at(rules, "status", "resourceRules")) != "[map[apiGroups:[*] resources:[*] verbs:[*]]]" {
		t.Errorf("%v", rules)
	}
	for body, code := range map[string]int{
		`{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{}}`: 422,
		`{`: 400, `[]`: 400,
	} {
		if r := w.send("POST", access, body); r.Code != code {
			t.Errorf("%s: %d %s", body, r.Code, r.Body)
		}
	}
}
