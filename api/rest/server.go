package rest

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/kube/discovery"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/schema"
)

// Config configures a Server.
type Config struct {
	Objects *store.Store
	// Log gets internal errors; nil is slog.Default().
	Log *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Look refreshes the store's snapshot of the host (store.SetHost) for a Service that is about to be written. It is called without a lock. nil
	// means no refresh.
	Look func(*object.Service)
	// Computed maps the name of a kind that is not stored to a function that returns its objects, in any order. Callers may modify the returned
	// objects.
	Computed map[string]func() []object.Object
	// Conditions computes the conditions of Services; nil means that Services are shown with their stored conditions.
	Conditions Conditions
	// MaxWatches bounds concurrent watches; 0 means 1,500.
	MaxWatches int
}

// defaultMaxWatches is enough for 150 clients that watch ten kinds each.
const defaultMaxWatches = 1500

// maxViews bounds the concurrent lists and watches of Endpoints and IPAddresses. With ten thousand Services each holds some megabytes until it ends.
const maxViews = 64

// maxBatches bounds the concurrent batches; others wait.
const maxBatches = 2

// Server answers requests for objects.
type Server struct {
	store    *store.Store
	log      *slog.Logger
	now      func() time.Time
	computed map[string]func() []object.Object
	// conditions is nil if Services are shown with their stored conditions.
	conditions Conditions
	look       func(*object.Service)
	watches    chan struct{} // semaphore for watches
	views      chan struct{} // semaphore for lists and watches of computed objects
	encoded    *encodings
	guards     guards // coordinates concurrent writes
	bodies     bodies
}

// New returns a Server.
func New(cfg Config) *Server {
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Look == nil {
		cfg.Look = func(*object.Service) {}
	}
	cfg.MaxWatches = cmp.Or(cfg.MaxWatches, defaultMaxWatches)
	return &Server{
		store: cfg.Objects, computed: cfg.Computed, conditions: cfg.Conditions, log: cfg.Log, now: cfg.Now, look: cfg.Look,
		watches: make(chan struct{}, cfg.MaxWatches), views: make(chan struct{}, min(cfg.MaxWatches, maxViews)), encoded: newEncodings(),
		guards: guards{batches: make(chan struct{}, maxBatches)},
	}
}

// guards coordinates concurrent writes.
type guards struct {
	// namespaces is locked for reading by a creation, from the check that the namespace exists until the object is created. The removal of a
	// namespace locks it for writing.
	namespaces sync.RWMutex
	// events counts the Events created since the last sweep.
	events atomic.Int64
	// batches is a semaphore for the batches in progress.
	batches chan struct{}
}

// serve answers one request.
func (s *Server) serve(w http.ResponseWriter, req *http.Request) {
	r := &request{http: req, user: auth.From(req.Context())}
	defer func() { s.bodies.held.Add(-r.held) }()
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if err := s.route(w, r); err != nil {
		s.fail(w, r, err)
	}
}

// route answers a request by its path.
func (s *Server) route(w http.ResponseWriter, r *request) error {
	parts, err := partsOf(r.http.URL)
	if err != nil {
		return err
	}
	if r.query, err = url.ParseQuery(r.http.URL.RawQuery); err != nil {
		return badRequest("the query of the request cannot be read: %v", err)
	}
	r.form.pretty = wantsPretty(r.http, r.query) // of errors, until more is known
	switch {
	case r.user.Name == "":
		return refusal(wire.ReasonUnauthorized, nil, "Unauthorized")
	case r.user.Role == auth.Nobody:
		return refusal(wire.ReasonForbidden, &wire.FailureDetails{}, "forbidden: User %q cannot %s path %q", r.user.Name, strings.ToLower(r.http.Method), r.http.URL.Path)
	}
	switch {
	case len(parts) == 1 && parts[0] == "":
		return s.root(w, r)
	case parts[0] == "svcctl":
		return s.batch(w, r)
	case parts[0] == "openapi":
		return s.openapi(w, r, parts)
	case isDiscovery(parts):
		return s.discover(w, r, parts)
	case slices.Equal(parts, customKindsPath):
		return s.customKinds(w, r)
	}
	return s.objects(w, r, parts)
}

// partsOf splits a path at its slashes, without a trailing one. It returns at least one part.
func partsOf(u *url.URL) ([]string, error) {
	parts := strings.Split(strings.TrimSuffix(strings.TrimPrefix(u.EscapedPath(), "/"), "/"), "/")
	for i, part := range parts {
		text, err := url.PathUnescape(part)
		if err != nil {
			return nil, badRequest("the path of the request cannot be read: %v", err)
		}
		parts[i] = text
	}
	return parts, nil
}

// isDiscovery reports whether a path is one of discovery: /api, /apis, a group or a group version.
func isDiscovery(parts []string) bool {
	return parts[0] == "api" && len(parts) <= 2 || parts[0] == "apis" && len(parts) <= 3
}

// objects answers a request for objects.
func (s *Server) objects(w http.ResponseWriter, r *request, parts []string) error {
	watching, err := r.read(parts)
	if err != nil {
		return err
	}
	if r.verb, err = r.verbOf(watching); err != nil {
		w.Header().Set("Allow", strings.Join(r.methods(watching), ", "))
		return err
	}
	if !may(r.user.Role, r.verb, r.kind) {
		return forbidden(r)
	}
	if r.form, err = negotiate(r.http, r.query, r.verb); err != nil {
		return err
	}
	if !r.kind.Stored() {
		return s.review(w, r)
	}
	return verbs[r.verb](s, w, r)
}

var verbs = map[string]func(*Server, http.ResponseWriter, *request) error{
	"get": (*Server).get, "list": (*Server).list, "watch": (*Server).watch, "create": (*Server).create, "update": (*Server).update,
	"patch": (*Server).patch, "delete": (*Server).delete, "deletecollection": (*Server).deleteCollection,
}

// read parses the path of a request for objects, and reports whether it is a path of the deprecated watch API, with /watch before the resource:
//
//	/api/v1/services
//	/apis/discovery.k8s.io/v1/namespaces/NS/endpointslices/NAME
//	/api/v1/watch/namespaces/NS/services
func (r *request) read(parts []string) (watching bool, err error) {
	group, version := "", ""
	switch parts[0] {
	case "api":
		version, parts = parts[1], parts[2:]
	case "apis":
		group, version, parts = parts[1], parts[2], parts[3:]
		if group == "" {
			return false, noResource()
		}
	default:
		return false, noResource()
	}
	if watching = parts[0] == "watch"; watching {
		parts = parts[1:]
	}
	// /namespaces/NS/services is about services, /namespaces/NS/status about a namespace.
	if len(parts) > 2 && parts[0] == "namespaces" && parts[2] != statusSubresource {
		r.namespace, parts = parts[1], parts[2:]
		if err := checkSegment(r.namespace); err != nil {
			return false, err
		}
	}
	if len(parts) == 0 || len(parts) > 3 {
		return false, noResource()
	}
	k, ok := kind.ByResource(group, version, parts[0])
	if !ok || r.namespace != "" && !k.Namespaced || watching && !k.Stored() {
		return false, noResource()
	}
	r.kind = k
	if len(parts) > 1 {
		r.name = parts[1]
		if err := checkSegment(r.name); err != nil {
			return false, err
		}
	}
	if len(parts) > 2 {
		r.subresource = parts[2]
	}
	unknown := r.subresource != "" && (r.subresource != statusSubresource || !k.HasStatus || watching)
	if nowhere := r.name != "" && k.Namespaced && r.namespace == ""; unknown || nowhere || r.name != "" && !k.Stored() {
		return false, noResource()
	}
	return watching, nil
}

// verbOf returns the verb of a request, by its method and path.
func (r *request) verbOf(watching bool) (string, error) {
	verb := ""
	everywhere := r.kind.Namespaced && r.namespace == ""
	switch method := r.http.Method; {
	case method == http.MethodGet || method == http.MethodHead:
		verb = "get"
		if watching || r.name == "" && boolIn(r, "watch") {
			verb = "watch"
		} else if r.name == "" {
			verb = "list"
		}
	case watching:
	case r.name == "" && !everywhere:
		verb = map[string]string{http.MethodPost: "create", http.MethodDelete: "deletecollection"}[method]
	case r.name != "":
		verb = map[string]string{http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[method]
	}
	verbs := r.kind.Verbs
	if r.subresource != "" {
		verbs = kind.StatusVerbs
	}
	switch {
	case verb == "":
		return "", methodNotAllowed(r.http.Method)
	case slices.Contains(verbs, verb):
		return verb, nil
	}
	r.verb = verb
	if err := mayWriteKind(r); err != nil { // with what to do instead
		return "", err
	}
	return "", notSupported(r.kind, verb)
}

// NameOf returns the verb of a request for objects, such as list, and its resource, such as services or services/status. Both are "" for other
// requests.
func NameOf(req *http.Request) (verb, resource string) {
	parts, err := partsOf(req.URL)
	if err != nil || parts[0] != "api" && parts[0] != "apis" || isDiscovery(parts) {
		return "", ""
	}
	r := &request{http: req, query: req.URL.Query()}
	watching, err := r.read(parts)
	if err != nil {
		return "", ""
	}
	if verb, err = r.verbOf(watching); err != nil {
		return "", ""
	}
	resource = r.kind.Plural
	if r.subresource != "" {
		resource += "/" + r.subresource
	}
	return verb, resource
}

// methods returns the HTTP methods that can be used on the path of a request.
func (r *request) methods(watching bool) []string {
	var all []string
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodPatch, http.MethodPost, http.MethodPut} {
		other := *r
		other.http = &http.Request{Method: method}
		if _, err := other.verbOf(watching); err == nil {
			all = append(all, method)
		}
	}
	return all
}

// Handler answers everything below /api, /apis and /openapi. The user is in the context of
// a request (auth.With).
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// request is a request for objects of a kind, its path taken apart.
type request struct {
	http        *http.Request
	kind        kind.Kind
	verb        string // get, list, watch, create, update, patch, delete, deletecollection
	namespace   string // "" for all namespaces, or a cluster-scoped kind
	name        string // "": the collection
	subresource string // "status", or ""
	query       url.Values
	user        auth.User
	form        form  // form of the response
	held        int64 // bytes that count in Server.bodies until the answer is out
}

// ref returns the Ref of the object at the request's path.
func (r *request) ref() object.Ref {
	return object.Ref{Kind: r.kind.Name, Namespace: r.namespace, Name: r.name}
}

// checkSegment refuses a path segment that cannot be a name, since it has a meaning in paths.
func checkSegment(name string) error {
	if name == "" {
		return noResource()
	}
	if name == "." || name == ".." || strings.ContainsAny(name, "/%") {
		return badRequest("invalid name %q in the path: it may not be '.' or '..', nor contain '/' or '%%'", name)
	}
	return nil
}

// statusSubresource is the path below an object where its status is written.
const statusSubresource = "status"

// discover answers the paths of discovery: /api, /api/v1, /apis, /apis/GROUP, /apis/GROUP/VERSION.
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

// root answers / with the list of paths.
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
	if !acceptsJSON(r.http) {
		return notAcceptable(typeJSON)
	}
	return respondJSON(w, r.http, http.StatusOK, r.form.pretty, document)
}

// customKindsPath is the path of the list of CustomResourceDefinitions.
var customKindsPath = []string{"apis", "apiextensions.k8s.io", "v1", "customresourcedefinitions"}

// customKinds answers with an empty list of CustomResourceDefinitions. kubectl reads this list before it sends a document of a kind that cannot be
// patched, such as ServiceList, and otherwise refuses to send it. API discovery does not list the path.
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

// sendTagged answers with a text that only changes with the version of the program, or with 304 if the client has it (RFC 9110, section 13.1.2).
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
	case !acceptsJSON(r.http):
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

// openapi2 answers with the OpenAPI v2 document: in protobuf if the client names its media type, as kubectl does, or else in JSON.
func (s *Server) openapi2(w http.ResponseWriter, r *request) error {
	switch asked := strings.Join(r.http.Header.Values("Accept"), ","); {
	// The type that clients ask for is none by the rules of RFC 9110, for its @.
	case strings.Contains(asked, schema.OpenAPI2Asked), strings.Contains(asked, schema.OpenAPI2Type):
		sendTagged(w, r.http, schema.OpenAPI2Type, schema.OpenAPI2())
	case acceptsJSON(r.http):
		sendTagged(w, r.http, typeJSON, schema.OpenAPI2JSON())
	default:
		return notAcceptable(typeJSON, schema.OpenAPI2Asked)
	}
	return nil
}

// A version is a stored object as clients see it, before a change. It may not be modified.
type version struct {
	object  object.Object
	content map[string]any
	file    fileDeclaration
}

// before returns the stored object as a version: with its content as JSON, and the file that declares it.
func (s *Server) before(r *request, live object.Object, owner store.Owner) (version, error) {
	v := version{object: live, content: untyped(live, r.kind)}
	var err error
	if v.file, err = s.fileOf(r, owner, live); err == nil && v.file.addEntries(v.content) {
		v.object, err = typed(v.content, r.kind)
	}
	return v, err
}

// storable refuses an object so large that a later request with it would be refused.
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
