package schema

import "sync"

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
