package rest

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/kube/table"
)

const (
	typeJSON = "application/json"
	typeYAML = "application/yaml"
)

// shape selects the parts of objects in an answer.
type shape int

const (
	whole    shape = iota
	tabular        // meta.k8s.io Table
	metadata       // meta.k8s.io PartialObjectMetadata
)

// form is the encoding of objects in an answer.
type form struct {
	shape shape
	// metaVersion is the version of meta.k8s.io that a Table or PartialObjectMetadata is
	// written in: v1 or v1beta1, which differ in name only.
	metaVersion string
	include     table.Include // in a row of a Table
	yaml        bool
	pretty      bool // JSON for people
}

// metaAPIVersion is the apiVersion of a Table or PartialObjectMetadata.
func (f form) metaAPIVersion() string { return "meta.k8s.io/" + f.metaVersion }

// negotiate is the form that an answer to a request has: the first one that the client
// accepts and there is. Who accepts nothing that there is meets a 406.
func negotiate(r *http.Request, query url.Values, verb string) (form, error) {
	f, ok := form{}, len(r.Header.Values("Accept")) == 0
	if !ok {
		for _, c := range parseAccept(r.Header.Values("Accept")) {
			if f, ok = formOf(c, verb); ok {
				break
			}
		}
	}
	switch {
	case !ok && verb == "watch":
		return form{}, notAcceptable(typeJSON + ";stream=watch")
	case !ok:
		return form{}, notAcceptable(typeJSON, typeYAML)
	}
	f.pretty = f.pretty || wantsPretty(r, query)
	if f.shape == tabular {
		var err error
		if f.include, err = table.ParseInclude(query.Get("includeObject")); err != nil {
			return form{}, badRequest("Unable to convert to Table as requested: %v", err)
		}
	}
	return f, nil
}

// formOf is the form that a clause of an Accept header means; false when there is no
// such one.
func formOf(c clause, verb string) (form, bool) {
	var f form
	switch {
	case c.takes(typeJSON):
	case c.takes(typeYAML) && verb != "watch": // documents are no stream
		f.yaml = true
	default:
		return f, false
	}
	if stream := c.params["stream"]; stream != "" && stream != "watch" {
		return f, false
	}
	if c.params["sv"] != "" {
		return f, false
	}
	f.pretty = c.params["pretty"] == "1"
	as, group, version := c.params["as"], c.params["g"], c.params["v"]
	if as == "" && group == "" && version == "" {
		return f, true
	}
	if group != "meta.k8s.io" || version != "v1" && version != "v1beta1" || f.yaml {
		return f, false
	}
	f.metaVersion = version
	list := verb == "list"
	switch {
	case as == table.KindTable:
		f.shape = tabular
	case as == table.KindMetadata && !list, as == table.KindMetadataList && list:
		f.shape = metadata
	default:
		return f, false
	}
	return f, true
}

// wantsPretty reports whether the answer is to be indented for people.
func wantsPretty(r *http.Request, query url.Values) bool {
	if text := query.Get("pretty"); text != "" {
		pretty, _ := strconv.ParseBool(text)
		return pretty
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}
