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
