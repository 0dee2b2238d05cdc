package schema

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

// version2 is the OpenAPI version in the v2 documents.
const version2 = "2.0"

// field is a field of a protobuf message. Its value is text, a flag or a message.
type field struct {
	numbers []protowire.Number // number of the field, then of the fields of nested one-field messages around the value
	of      string             // name of the message in gnostic; "" for a string or a bool
}

func text(numbers ...protowire.Number) field               { return field{numbers, ""} }
func message(of string, numbers ...protowire.Number) field { return field{numbers, of} }

// gnostic maps each message of OpenAPI v2, and each JSON key in it, to its protobuf field (github.com/google/gnostic-models,
// openapiv2/OpenAPIv2.proto). For a parameter, the key is the value of its "in", such as "query". "*" stands for all other keys; such an entry is
// encoded as a message that holds the key and the value.
var gnostic = sync.OnceValue(func() map[string]map[string]field {
	return map[string]map[string]field{
		"document":    {"swagger": text(1), "info": message("info", 2), "paths": message("paths", 8), "definitions": message("definitions", 9)},
		"info":        {"title": text(1), "version": text(2)},
		"paths":       {"*": message("item", 2)},
		"definitions": {"*": message("schema", 1)},
		"item": {
			"get": message("operation", 2), "put": message("operation", 3), "post": message("operation", 4), "delete": message("operation", 5),
			"patch": message("operation", 8), "path": message("parameter in path", 9, 1, 2, 4),
		},
		"operation": {
			"consumes": text(7), "body": message("body", 8, 1, 1), "query": message("parameter in query", 8, 1, 2, 3),
			"responses": message("responses", 9), "*": message("any", 13),
		},
		"body":               {"name": text(2), "in": text(3), "required": text(4), "schema": message("schema", 5)},
		"parameter in query": {"in": text(2), "description": text(3), "name": text(4), "type": text(6)},
		"parameter in path":  {"required": text(1), "in": text(2), "name": text(4), "type": text(5)},
		"responses":          {"*": message("response", 1, 1)},
		"response":           {"description": text(1), "schema": message("schema", 2, 1)},
		"schema": {
			"$ref": text(1), "format": text(2), "description": text(4), "default": message("any", 5), "required": text(19),
			"additionalProperties": message("schema", 21, 1), "type": text(22, 1), "items": message("schema", 23, 1),
			"properties": message("properties", 25), "*": message("any", 31),
		},
		"properties": {"*": message("schema", 1)},
	}
})

// title is the info.title of the OpenAPI documents.
const title = "svcctl"

// The media types of OpenAPI v2 in protobuf. Clients send OpenAPI2Asked in the Accept header, although its @ is invalid in a media type (RFC 9110
// section 8.3.1). OpenAPI2Type is the media type of the response.
const (
	OpenAPI2Asked = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
	OpenAPI2Type  = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
)

// OpenAPI2 returns the OpenAPI v2 document of all kinds in protobuf, which kubectl asks for.
var OpenAPI2 = sync.OnceValue(func() []byte { return encodeMessage("document", document2()) })

// OpenAPI2JSON returns the OpenAPI v2 document of all kinds in JSON, for clients other
// than kubectl, such as Terraform and documentation viewers.
var OpenAPI2JSON = sync.OnceValue(func() []byte { return encode(document2()) })

func document2() node {
	return node{
		"swagger":     version2,
		"info":        node{"title": title, "version": "v1"},
		"paths":       dialect2.paths(""),
		"definitions": dialect2.schemas(kindsOf("")),
	}
}

// encodeMessage encodes a part of a document as a message of gnostic.
func encodeMessage(of string, n node) (b []byte) {
	fields := gnostic()[of]
	byNumber := func(a, b string) int {
		return cmp.Or(slices.Compare(fields[a].numbers, fields[b].numbers), strings.Compare(a, b))
	}
	for _, key := range slices.SortedFunc(maps.Keys(n), byNumber) {
		f, isField := fields[key]
		switch value := n[key]; {
		case key == "parameters":
			for _, p := range value.([]node) {
				b = fields[p["in"].(string)].append(b, p)
			}
		case isField:
			b = f.append(b, value)
		default:
			any, has := fields["*"]
			if !has {
				panic(fmt.Sprintf("schema: no field for %s of %s in OpenAPI v2", key, of))
			}
			named := appendBytes(appendBytes(nil, 1, []byte(key)), 2, any.content(value))
			b = appendBytes(b, any.numbers[0], named)
		}
	}
	return b
}

// append appends the field to a message, once for each value of a list.
func (f field) append(b []byte, value any) []byte {
	switch value := value.(type) {
	case []string:
		for _, one := range value {
			b = f.append(b, one)
		}
		return b
	case bool:
		return protowire.AppendVarint(protowire.AppendTag(b, f.numbers[0], protowire.VarintType), protowire.EncodeBool(value))
	}
	return appendBytes(b, f.numbers[0], f.content(value))
}

// content returns the encoded value, wrapped in one nested message for each of f.numbers[1:].
func (f field) content(value any) []byte {
	var b []byte
	switch f.of {
	case "":
		b = []byte(value.(string))
	case "any": // its second field is YAML, which JSON is
		b = appendBytes(nil, 2, append(encode(value), '\n'))
	default:
		b = encodeMessage(f.of, value.(node))
	}
	for _, n := range slices.Backward(f.numbers[1:]) {
		b = appendBytes(nil, n, b)
	}
	return b
}

func appendBytes(b []byte, n protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), value)
}

// version3 is the OpenAPI version in the v3 documents.
const version3 = "3.0.0"

// Document is an OpenAPI v3 document.
type Document struct {
	// Path is the path of the document in the index: "api/v1" or "apis/discovery.k8s.io/v1".
	Path string
	JSON []byte
	// Hash changes with the content. A client may cache the document under this hash
	// forever.
	Hash string
}

// documents3 returns the OpenAPI v3 documents of all group versions.
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

// OpenAPI3 returns the OpenAPI v3 document with a path such as "api/v1" or "apis/discovery.k8s.io/v1"; false if there is none.
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

// document3 builds the OpenAPI v3 document of one group version.
func document3(apiVersion string) node {
	return node{
		"openapi":    version3,
		"info":       node{"title": title, "version": "v1"},
		"paths":      dialect3.paths(apiVersion),
		"components": node{"schemas": dialect3.schemas(kindsOf(apiVersion))},
	}
}

// paths returns the paths object for a group version, or for all group versions if apiVersion is "".
func (d dialect) paths(apiVersion string) node {
	paths := node{}
	for _, r := range routes(apiVersion) {
		item := node{}
		var parameters []node
		for _, name := range r.names {
			parameters = append(parameters, d.parameter(node{"name": name, "in": "path", "required": true}, "string"))
		}
		if parameters != nil {
			item["parameters"] = parameters
		}
		for _, o := range r.operations {
			item[o.method] = d.operation(o)
		}
		paths[r.path] = item
	}
	return paths
}

// parameter completes a parameter with the type of its values.
func (d dialect) parameter(p node, form string) node {
	if d == dialect2 {
		p["type"] = form
	} else {
		p["schema"] = node{"type": form}
	}
	return p
}

func (d dialect) operation(o operation) node {
	content := func(name string, types ...string) node {
		all := node{}
		for _, mediaType := range types {
			all[mediaType] = node{"schema": d.ref(name)}
		}
		return all
	}
	n := node{extensionAction: o.action, extensionGVK: gvkOf(o.kind, o.kind.Name)}
	response := node{"description": "OK"}
	n["responses"] = node{"200": response}
	var parameters []node
	if d == dialect2 {
		response["schema"] = d.ref(o.answer)
		if o.method == "patch" {
			n["consumes"] = patchTypes
		}
		if o.body != "" {
			parameters = append(parameters, node{"name": "body", "in": "body", "required": true, "schema": d.ref(o.body)})
		}
	} else {
		response["content"] = content(o.answer, "application/json")
		if o.method == "patch" {
			n["requestBody"] = node{"required": true, "content": content(o.body, patchTypes...)}
		} else if o.body != "" {
			n["requestBody"] = node{"content": content(o.body, "application/json", "application/vnd.kubernetes.protobuf")}
		}
	}
	for _, p := range parametersOf(o.method) {
		parameters = append(parameters, d.parameter(node{"name": p.name, "in": "query", "description": p.doc}, p.form))
	}
	if parameters != nil {
		n["parameters"] = parameters
	}
	return n
}
