package object

import "testing"

// Defaults are in what is stored, as those of the CustomResourceDefinitions are.
func TestDefaultsOfGatewayKinds(t *testing.T) {
	const head = `{"apiVersion":"gateway.networking.k8s.io/v1","metadata":{"name":"a","namespace":"default"},"kind":`
	for _, test := range []struct{ before, after string }{
		{`"Gateway","spec":{"gatewayClassName":"svcctl","listeners":[{"name":"a","port":1,"protocol":"TLS","tls":{"certificateRefs":[{"name":"s"}]},"allowedRoutes":{"kinds":[{"kind":"TLSRoute"}]}},{"name":"b","port":2,"protocol":"TCP"}],"addresses":[{}],"allowedListeners":{}}}`,
			`"Gateway","spec":{"gatewayClassName":"svcctl","listeners":[{"name":"a","port":1,"protocol":"TLS","tls":{"mode":"Terminate","certificateRefs":[{"group":"","kind":"Secret","name":"s"}]},"allowedRoutes":{"namespaces":{"from":"Same"},"kinds":[{"group":"gateway.networking.k8s.io","kind":"TLSRoute"}]}},{"name":"b","port":2,"protocol":"TCP","allowedRoutes":{"namespaces":{"from":"Same"}}}],"addresses":[{"type":"IPAddress"}],"allowedListeners":{"namespaces":{"from":"None"}}}}`},
		{`"TCPRoute","spec":{"parentRefs":[{"name":"g"}],"rules":[{"backendRefs":[{"name":"s","port":1}]}]}}`,
			`"TCPRoute","spec":{"parentRefs":[{"group":"gateway.networking.k8s.io","kind":"Gateway","name":"g"}],"rules":[{"backendRefs":[{"group":"","kind":"Service","name":"s","port":1,"weight":1}]}]}}`},
		{`"HTTPRoute","spec":{}}`, `"HTTPRoute","spec":{"rules":[{"matches":[{"path":{"type":"PathPrefix","value":"/"}}]}]}}`},
		{`"HTTPRoute","spec":{"hostnames":["a"],"rules":[{"matches":[{"method":"GET"}]}]}}`,
			`"HTTPRoute","spec":{"hostnames":["a"],"rules":[{"matches":[{"path":{"type":"PathPrefix","value":"/"},"method":"GET"}]}]}}`},
		{`"ListenerSet","spec":{"listeners":[]}}`, `"ListenerSet","spec":{"listeners":[]}}`},
	} {
		o := decodeDocument(t, head+test.before)
		Default(o)
		Default(o)
		if got, want := toJSON(t, o), toJSON(t, decodeDocument(t, head+test.after)); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// The texts are those of the CustomResourceDefinitions; api/conformance/gateway compares them all.
func TestValidateGatewayKinds(t *testing.T) {
	const head = `{"apiVersion":"gateway.networking.k8s.io/v1","metadata":{"name":"a","namespace":"default"},"kind":`
	const sound = `{"name":"s","port":1}`
	for _, test := range []struct {
		document string
		want     []string
	}{
		{`"TCPRoute","spec":{"rules":[{"backendRefs":[` + sound + `]}]}}`, nil},
		{`"TCPRoute","spec":{"rules":[]}}`, []string{`spec.rules: Invalid value: 0: spec.rules in body should have at least 1 items`}},
		{`"TCPRoute","spec":{"parentRefs":[{"name":"a"},{"name":"a","sectionName":"b"}],"rules":[{"backendRefs":[{"name":"s"},{"port":70000}]}]}}`, []string{
			`spec.rules[0].backendRefs[0]: Invalid value: Must have port for Service reference`, `spec.rules[0].backendRefs[1].name: Required value`,
			`spec.rules[0].backendRefs[1].port: Invalid value: 70000: spec.rules[0].backendRefs[1].port in body should be less than or equal to 65535`,
			`spec.parentRefs: Invalid value: sectionName must be specified when parentRefs includes 2 or more references to the same parent`}},
		{`"Gateway","spec":{"gatewayClassName":"c","listeners":[{"name":"A","port":1,"protocol":"TLS"},{"name":"a","port":2,"protocol":"TCP","hostname":""}]}}`, []string{
			`spec.listeners[0].name: Invalid value: "A": spec.listeners[0].name in body should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'`,
			`spec.listeners[1].hostname: Invalid value: "": spec.listeners[1].hostname in body should be at least 1 chars long`,
			`spec.listeners[1].hostname: Invalid value: "": spec.listeners[1].hostname in body should match '^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'`,
			`spec.listeners: Invalid value: tls mode must be set for protocol TLS`}},
		{`"Gateway","spec":{"gatewayClassName":"c","listeners":[{"name":"a","port":1,"protocol":"TCP"},{"name":"a","port":1,"protocol":"TCP"}]}}`, []string{
			`spec.listeners[1]: Duplicate value: {"name":"a"}`, `spec.listeners: Invalid value: Listener name must be unique within the Gateway`,
			`spec.listeners: Invalid value: Combination of port, protocol and hostname must be unique for each listener`}},
		{`"TLSRoute","spec":{"hostnames":["192.0.2.1"],"rules":[{"backendRefs":[` + sound + `]}]}}`, []string{`spec.hostnames: Invalid value: Hostnames cannot contain an IP`}},
		{`"HTTPRoute","spec":{"rules":[{"matches":[{"method":"GIT"}],"filters":[{"type":"CORS"}]}]}}`, []string{
			`spec.rules[0].matches[0].method: Unsupported value: "GIT": supported values: "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"`,
			`spec.rules[0].filters[0]: Invalid value: filter.cors must be specified for CORS filter.type`}},
		{`"ReferenceGrant","spec":{"from":[{"group":"g","kind":"K","namespace":"n"}],"to":[{"kind":"Service"}]}}`, []string{`spec.to[0].group: Required value`}},
		{`"UDPRoute","spec":{"rules":[{"backendRefs":[` + sound + `]}]},"status":{"parents":[{"controllerName":"x","parentRef":{"name":"a"},"conditions":[{"type":"T","status":"Maybe","reason":"","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}]}}`, []string{
			`status.parents[0].controllerName: Invalid value: "x": status.parents[0].controllerName in body should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/[A-Za-z0-9\/\-._~%!$&'()*+,;=:]+$'`,
			`status.parents[0].conditions[0].status: Unsupported value: "Maybe": supported values: "True", "False", "Unknown"`, `status.parents[0].conditions[0].reason: Required value`}},
	} {
		o := decodeDocument(t, head+test.document)
		Default(o)
		t.Run(test.document, func(t *testing.T) { wantTexts(t, Validate(o, Options{}), test.want...) })
	}
}
