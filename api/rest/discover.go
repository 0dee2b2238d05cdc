package rest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/kube/discovery"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// discover answers what there is: /api, /api/v1, /apis, /apis/GROUP, /apis/GROUP/VERSION.
func (s *Server) discover(w http.ResponseWriter, r *request, parts []string) error {
	if err := readOnly(w, r); err != nil {
		return err
	}
	if len(parts) == 1 {
		return s.discoverAll(w, r, parts[0] == "api")
	}
	var document any
	var ok bool
	if parts[0] == "apis" && len(parts) == 2 {
		document, ok = discovery.GroupOf(parts[1])
	} else {
		document, ok = discovery.ResourcesOf(strings.Join(parts[1:], "/"))
	}
	// A version of no group is at /api, and one of a group at /apis.
	if !ok || parts[0] == "apis" && len(parts) == 3 && parts[1] == "" {
		return noResource()
	}
	return s.respondDocument(w, r, document)
}

// root answers /: which paths there are.
func (s *Server) root(w http.ResponseWriter, r *request) error {
	if err := readOnly(w, r); err != nil {
		return err
	}
	paths := []string{"/api", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"}
	for _, k := range kind.All() {
		paths = append(paths, k.GroupPath())
		if k.Group != "" {
			paths = append(paths, "/apis/"+k.Group)
		}
	}
	slices.Sort(paths)
	return s.respondDocument(w, r, struct {
		Paths []string `json:"paths"`
	}{slices.Compact(paths)})
}

// discoverAll answers /api and /apis: all kinds at once for clients that accept that, or else
// the paths of the groups.
func (s *Server) discoverAll(w http.ResponseWriter, r *request, core bool) error {
	w.Header().Set("Vary", "Accept")
	for _, c := range parseAccept(r.http.Header.Values("Accept")) {
		switch version := c.params["v"]; {
		case !c.takes(typeJSON):
			continue
		case c.params["as"] == "":
			return s.respondVersions(w, r, core)
		case c.params["as"] == "APIGroupDiscoveryList" && c.params["g"] == "apidiscovery.k8s.io" && slices.Contains(discovery.AggregatedVersions, version):
			text, err := encode(discovery.Aggregated(version, core), false)
			if err != nil {
				return err
			}
			w.Header().Set("Cache-Control", "public")
			sendTagged(w, r.http, discovery.AggregatedType(version), text)
			return nil
		}
	}
	return s.respondVersions(w, r, core)
}

func (s *Server) respondVersions(w http.ResponseWriter, r *request, core bool) error {
	if core {
		return s.respondDocument(w, r, discovery.Versions(r.http.Host))
	}
	return s.respondDocument(w, r, discovery.Groups())
}

// respondDocument answers with a document that is no object, to clients that accept JSON.
func (s *Server) respondDocument(w http.ResponseWriter, r *request, document any) error {
	if !accepts(r.http.Header.Values("Accept"), typeJSON) {
		return notAcceptable(typeJSON)
	}
	return respondJSON(w, r.http, http.StatusOK, wantsPretty(r.http, r.query), document)
}

// customKindsPath is the path of the list of CustomResourceDefinitions.
var customKindsPath = []string{"apis", "apiextensions.k8s.io", "v1", "customresourcedefinitions"}

// customKinds answers with an empty list of CustomResourceDefinitions. kubectl asks before it takes
// a document of a kind that cannot be patched, as a ServiceList, and refuses it when there is no
// answer. Discovery does not list the path.
func (s *Server) customKinds(w http.ResponseWriter, r *request) error {
	if err := readOnly(w, r); err != nil {
		return err
	}
	return s.respondDocument(w, r, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinitionList",
		"metadata": map[string]any{"resourceVersion": "1"}, "items": []any{},
	})
}

// readOnly refuses all methods but those that read.
func readOnly(w http.ResponseWriter, r *request) error {
	if r.http.Method == http.MethodGet || r.http.Method == http.MethodHead {
		return nil
	}
	w.Header().Set("Allow", "GET, HEAD")
	return methodNotAllowed(r.http.Method)
}

// sendTagged answers with a text that changes with the program only, or that it is still
// the one that the client has (RFC 9110, 13.1.2).
func sendTagged(w http.ResponseWriter, r *http.Request, contentType string, text []byte) {
	sum := sha256.Sum256(text)
	tag := `"` + strings.ToUpper(hex.EncodeToString(sum[:])) + `"`
	w.Header().Set("ETag", tag)
	for _, known := range strings.Split(strings.Join(r.Header.Values("If-None-Match"), ","), ",") {
		if known = strings.TrimPrefix(strings.TrimSpace(known), "W/"); known == tag || known == "*" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	send(w, r, http.StatusOK, contentType, text)
}

// openapi answers with the OpenAPI documents: /openapi/v2, /openapi/v3, and below it one
// for each group version.
func (s *Server) openapi(w http.ResponseWriter, r *request, parts []string) error {
	if err := readOnly(w, r); err != nil {
		return err
	}
	w.Header().Set("Vary", "Accept")
	switch {
	case len(parts) == 2 && parts[1] == "v2":
		return s.openapi2(w, r)
	case len(parts) < 2 || parts[1] != "v3":
		return noResource()
	case !accepts(r.http.Header.Values("Accept"), typeJSON):
		return notAcceptable(typeJSON)
	case len(parts) == 2:
		sendTagged(w, r.http, typeJSON, schema.OpenAPI3Index())
		return nil
	}
	document, ok := schema.OpenAPI3(strings.Join(parts[2:], "/"))
	if !ok {
		return noResource()
	}
	switch asked := r.query.Get("hash"); asked {
	case "":
	case document.Hash:
		w.Header().Set("Cache-Control", "public, immutable, max-age=31536000") // a year, the longest (RFC 9111, 5.2)
	default:
		// The client has an old index: what it gets may not be kept under that hash.
		http.Redirect(w, r.http, r.http.URL.EscapedPath()+"?hash="+document.Hash, http.StatusMovedPermanently)
		return nil
	}
	sendTagged(w, r.http, typeJSON, document.JSON)
	return nil
}

// openapi2 answers with the document of OpenAPI v2, in protobuf for those that ask for it by
// name, as kubectl does, else in JSON.
func (s *Server) openapi2(w http.ResponseWriter, r *request) error {
	header := r.http.Header.Values("Accept")
	switch asked := strings.Join(header, ","); {
	// The type that clients ask for is none by the rules of RFC 9110, for its @.
	case strings.Contains(asked, schema.OpenAPI2Asked), strings.Contains(asked, schema.OpenAPI2Type):
		sendTagged(w, r.http, schema.OpenAPI2Type, schema.OpenAPI2())
	case accepts(header, typeJSON):
		sendTagged(w, r.http, typeJSON, schema.OpenAPI2JSON())
	default:
		return notAcceptable(typeJSON, schema.OpenAPI2Asked)
	}
	return nil
}

// A version is an object that is to be changed, as clients see it. Nothing of it may be
// changed.
type version struct {
	object  object.Object
	content map[string]any
	file    fileDeclaration
}

// before is the version that a live object is.
func (s *Server) before(r *request, live object.Object, owner store.Owner) (version, error) {
	v := version{object: live, content: untyped(live, r.kind)}
	var err error
	if v.file, err = s.fileOf(r, owner, live); err == nil && v.file.addEntries(v.content) {
		v.object, err = typed(v.content, r.kind)
	}
	return v, err
}

// storable refuses an object that could not be changed any more once it is stored.
func storable(o object.Object, k kind.Kind) error {
	text, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode %s: %w", object.RefOf(o), err)
	}
	// A shorter text cannot exceed the number of values of a body.
	const checkFrom = schema.MaxBytes / 8
	if len(text) > checkFrom {
		if _, _, err := schema.Decode(text, schema.Of(k)); err != nil {
			return tooLarge(fmt.Sprintf("%s cannot be written as a whole: %v", object.RefOf(o), err))
		}
	}
	return nil
}
