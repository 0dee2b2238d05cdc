package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
)

// version3 is the version of the OpenAPI v3 documents.
const version3 = "3.0.0"

// Document is an OpenAPI v3 document.
type Document struct {
	// Path is its path in the index: "api/v1", "apis/discovery.k8s.io/v1".
	Path string
	JSON []byte
	// Hash changes with the content. A client may cache the document under this hash
	// forever.
	Hash string
}

// documents3 are the OpenAPI v3 documents by path.
var documents3 = sync.OnceValue(func() []Document {
	var all []Document
	for _, k := range kindsOf("") {
		path := strings.TrimPrefix(k.GroupPath(), "/")
		if slices.ContainsFunc(all, func(d Document) bool { return d.Path == path }) {
			continue
		}
		content := encode(document3(k.APIVersion()))
		sum := sha256.Sum256(content)
		all = append(all, Document{path, content, strings.ToUpper(hex.EncodeToString(sum[:]))})
	}
	return all
})

// OpenAPI3 returns the OpenAPI v3 document of a path: "api/v1",
// "apis/discovery.k8s.io/v1".
func OpenAPI3(path string) (Document, bool) {
	all := documents3()
	i := slices.IndexFunc(all, func(d Document) bool { return d.Path == path })
	if i < 0 {
		return Document{}, false
	}
	return all[i], true
}

// OpenAPI3Index returns the answer to /openapi/v3: the paths of the documents.
func OpenAPI3Index() []byte {
	paths := node{}
	for _, d := range documents3() {
		paths[d.Path] = node{"serverRelativeURL": "/openapi/v3/" + d.Path + "?hash=" + d.Hash}
	}
	return encode(node{"paths": paths})
}

// document3 makes the document of one group version.
func document3(apiVersion string) node {
	paths := node{}
	for _, r := range routes(apiVersion) {
		item := node{}
		var parameters []node
		for _, name := range r.names {
			parameters = append(parameters, node{"name": name, "in": "path", "required": true, "schema": node{"type": "string"}})
		}
		if parameters != nil {
			item["parameters"] = parameters
		}
		for _, o := range r.operations {
			item[o.method] = operation3(o)
		}
		paths[r.path] = item
	}
	return node{
		"openapi":    version3,
		"info":       node{"title": title, "version": "v1"},
		"paths":      paths,
		"components": node{"schemas": dialect3.schemas(kindsOf(apiVersion))},
	}
}

func operation3(o operation) node {
	content := func(name string, types ...string) node {
		all := node{}
		for _, mediaType := range types {
			all[mediaType] = node{"schema": node{"$ref": dialect3.refs + name}}
		}
		return all
	}
	n := node{
		extensionAction: o.action,
		extensionGVK:    gvkOf(o.kind, o.kind.Name),
		"responses":     node{"200": node{"description": "OK", "content": content(o.answer, "application/json")}},
	}
	var parameters []node
	for _, p := range parametersOf(o.method) {
		parameters = append(parameters, node{"name": p.name, "in": "query", "description": p.doc, "schema": node{"type": p.form}})
	}
	if parameters != nil {
		n["parameters"] = parameters
	}
	switch {
	case o.method == "patch":
		n["requestBody"] = node{"required": true, "content": content(o.body, patchTypes...)}
	case o.body != "":
		n["requestBody"] = node{"content": content(o.body, "application/json", "application/vnd.kubernetes.protobuf")}
	}
	return n
}
