package rest

import (
	"net/http"
	"strings"

	"svcctl.io/svcctl/store/schema"
)

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
	asked := strings.Join(header, ",")
	switch {
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
