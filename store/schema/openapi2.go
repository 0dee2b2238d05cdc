package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

// version2 is the version of the OpenAPI v2 documents.
const version2 = "2.0"

// OpenAPI v2 is sent to kubectl in protobuf, as the messages of package openapi.v2 of gnostic
// (github.com/google/gnostic-models, openapiv2/OpenAPIv2.proto). The numbers are those
// of their fields.
const (
	documentSwagger     protowire.Number = 1
	documentInfo        protowire.Number = 2
	documentPaths       protowire.Number = 8
	documentDefinitions protowire.Number = 9

	infoTitle   protowire.Number = 1
	infoVersion protowire.Number = 2

	pathsPath protowire.Number = 2

	namedName  protowire.Number = 1 // of every Named... message
	namedValue protowire.Number = 2

	itemParameters protowire.Number = 9

	operationConsumes   protowire.Number = 7
	operationParameters protowire.Number = 8
	operationResponses  protowire.Number = 9
	operationExtension  protowire.Number = 13

	parametersItem     protowire.Number = 1 // ParametersItem.parameter
	parameterBody      protowire.Number = 1
	parameterNonBody   protowire.Number = 2
	nonBodyQuery       protowire.Number = 3
	nonBodyPath        protowire.Number = 4
	bodyName           protowire.Number = 2
	bodyIn             protowire.Number = 3
	bodyRequired       protowire.Number = 4
	bodySchema         protowire.Number = 5
	nonBodyRequired    protowire.Number = 1
	nonBodyIn          protowire.Number = 2
	nonBodyDescription protowire.Number = 3
	nonBodyName        protowire.Number = 4
	queryType          protowire.Number = 6
	pathType           protowire.Number = 5

	responsesCode       protowire.Number = 1
	responseValue       protowire.Number = 1
	responseDescription protowire.Number = 1
	responseSchema      protowire.Number = 2
	schemaItemSchema    protowire.Number = 1

	definitionsSchema protowire.Number = 1

	schemaRef                  protowire.Number = 1
	schemaFormat               protowire.Number = 2
	schemaDescription          protowire.Number = 4
	schemaDefault              protowire.Number = 5
	schemaRequired             protowire.Number = 19
	schemaAdditionalProperties protowire.Number = 21
	schemaType                 protowire.Number = 22
	schemaItems                protowire.Number = 23
	schemaProperties           protowire.Number = 25
	schemaExtension            protowire.Number = 31

	// The only field of AdditionalPropertiesItem.schema, TypeItem, ItemsItem and
	// Properties that is used.
	itemOnly protowire.Number = 1

	anyYAML protowire.Number = 2
)

// itemMethods are the field numbers of the methods of a PathItem.
var itemMethods = map[string]protowire.Number{"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}

// title is the title of the documents.
const title = "svcctl"

// The media types of OpenAPI v2 in protobuf: clients ask for the one and get the other,
// because the first, with its @, is no media type by RFC 9110 section 8.3.1.
const (
	OpenAPI2Asked = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
	OpenAPI2Type  = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
)

// OpenAPI2 returns the OpenAPI v2 document of all kinds in protobuf.
var OpenAPI2 = sync.OnceValue(func() []byte {
	var b message
	b = b.text(documentSwagger, version2)
	b = b.message(documentInfo, message{}.text(infoTitle, title).text(infoVersion, "v1"))
	var paths message
	for _, r := range routes("") {
		paths = paths.message(pathsPath, named(r.path, pathItem2(r)))
	}
	b = b.message(documentPaths, paths)
	var definitions message
	all := dialect2.schemas(kindsOf(""))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		definitions = definitions.message(definitionsSchema, named(name, schema2(all[name].(node))))
	}
	return b.message(documentDefinitions, definitions)
})

// message is an encoded protobuf message.
type message []byte

func (m message) message(n protowire.Number, value message) message {
	return protowire.AppendBytes(protowire.AppendTag(m, n, protowire.BytesType), value)
}

func (m message) text(n protowire.Number, value string) message {
	return protowire.AppendString(protowire.AppendTag(m, n, protowire.BytesType), value)
}

// set writes true.
func (m message) set(n protowire.Number) message {
	return protowire.AppendVarint(protowire.AppendTag(m, n, protowire.VarintType), 1)
}

func named(name string, value message) message {
	return message{}.text(namedName, name).message(namedValue, value)
}

func pathItem2(r route) message {
	var item message
	for _, o := range r.operations {
		item = item.message(itemMethods[o.method], operation2(o))
	}
	for _, name := range r.names {
		p := message{}.set(nonBodyRequired).text(nonBodyIn, "path").text(nonBodyName, name).text(pathType, "string")
		item = item.message(itemParameters, parameter2(nonBodyPath, p))
	}
	return item
}

func parameter2(where protowire.Number, p message) message {
	return message{}.message(parametersItem, message{}.message(parameterNonBody, message{}.message(where, p)))
}

func operation2(o operation) message {
	var m message
	if o.method == "patch" {
		for _, mediaType := range patchTypes {
			m = m.text(operationConsumes, mediaType)
		}
	}
	ref := func(name string) message { return message{}.text(schemaRef, dialect2.refs+name) }
	if o.body != "" {
		body := message{}.text(bodyName, "body").text(bodyIn, "body").set(bodyRequired).message(bodySchema, ref(o.body))
		m = m.message(operationParameters, message{}.message(parametersItem, message{}.message(parameterBody, body)))
	}
	for _, p := range parametersOf(o.method) {
		query := message{}.text(nonBodyIn, "query").text(nonBodyDescription, p.doc).text(nonBodyName, p.name).text(queryType, p.form)
		m = m.message(operationParameters, parameter2(nonBodyQuery, query))
	}
	response := message{}.text(responseDescription, "OK").message(responseSchema, message{}.message(schemaItemSchema, ref(o.answer)))
	m = m.message(operationResponses, message{}.message(responsesCode, named("200", message{}.message(responseValue, response))))
	m = m.message(operationExtension, extension2(extensionAction, o.action))
	return m.message(operationExtension, extension2(extensionGVK, gvkOf(o.kind, o.kind.Name)))
}

// extension2 is a NamedAny whose value is YAML. JSON is YAML.
func extension2(name string, value any) message { return named(name, any2(value)) }

func any2(value any) message {
	b, err := json.Marshal(value)
	if err != nil {
		panic("schema: " + err.Error())
	}
	return message{}.text(anyYAML, string(b)+"\n")
}

// schema2 is a Schema message.
func schema2(s node) message {
	var m message
	for _, key := range slices.Sorted(maps.Keys(s)) {
		switch value := s[key]; key {
		case "$ref":
			m = m.text(schemaRef, value.(string))
		case "format":
			m = m.text(schemaFormat, value.(string))
		case "description":
			m = m.text(schemaDescription, value.(string))
		case "default":
			m = m.message(schemaDefault, any2(value))
		case "required":
			for _, name := range value.([]string) {
				m = m.text(schemaRequired, name)
			}
		case "additionalProperties":
			m = m.message(schemaAdditionalProperties, message{}.message(itemOnly, schema2(value.(node))))
		case "type":
			m = m.message(schemaType, message{}.text(itemOnly, value.(string)))
		case "items":
			m = m.message(schemaItems, message{}.message(itemOnly, schema2(value.(node))))
		case "properties":
			m = m.message(schemaProperties, properties2(value.(node)))
		default:
			if !strings.HasPrefix(key, "x-") {
				panic(fmt.Sprintf("schema: no rule for %s in OpenAPI v2", key))
			}
			m = m.message(schemaExtension, extension2(key, value))
		}
	}
	return m
}

func properties2(all node) message {
	var m message
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m = m.message(itemOnly, named(name, schema2(all[name].(node))))
	}
	return m
}

// OpenAPI2JSON returns the OpenAPI v2 document of all kinds in JSON, for clients other
// than kubectl, such as Terraform and documentation viewers.
var OpenAPI2JSON = sync.OnceValue(func() []byte {
	paths := node{}
	for _, r := range routes("") {
		item := node{}
		var parameters []node
		for _, name := range r.names {
			parameters = append(parameters, node{"name": name, "in": "path", "required": true, "type": "string"})
		}
		if parameters != nil {
			item["parameters"] = parameters
		}
		for _, o := range r.operations {
			item[o.method] = operation2JSON(o)
		}
		paths[r.path] = item
	}
	return encode(node{
		"swagger":     version2,
		"info":        node{"title": title, "version": "v1"},
		"paths":       paths,
		"definitions": dialect2.schemas(kindsOf("")),
	})
})

func operation2JSON(o operation) node {
	ref := func(name string) node { return node{"$ref": dialect2.refs + name} }
	n := node{
		extensionAction: o.action,
		extensionGVK:    gvkOf(o.kind, o.kind.Name),
		"responses":     node{"200": node{"description": "OK", "schema": ref(o.answer)}},
	}
	if o.method == "patch" {
		n["consumes"] = patchTypes
	}
	var parameters []node
	if o.body != "" {
		parameters = append(parameters, node{"name": "body", "in": "body", "required": true, "schema": ref(o.body)})
	}
	for _, p := range parametersOf(o.method) {
		parameters = append(parameters, node{"name": p.name, "in": "query", "description": p.doc, "type": p.form})
	}
	if parameters != nil {
		n["parameters"] = parameters
	}
	return n
}

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
