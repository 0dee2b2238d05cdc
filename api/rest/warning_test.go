package rest

import (
	"net/http"
	"strings"
	"testing"
)

// A status that is written where it has no effect, and labels and annotations that have none,
// are told of in a Warning header.
func TestWarningsOfWhatHasNoEffect(t *testing.T) {
	w := newWorld(t)
	w.does(http.StatusCreated, "POST", servicesPath, service("web", ""))
	for _, tt := range []struct{ path, header, body, want string }{
		{"/web", asMerge, `{"status":{"loadBalancer":{"ingress":[{"ip":"1.2.3.4"}]}}}`, "status: nothing of it is changed here"},
		{"/web", asStrategic, `{"status":{"loadBalancer":{"ingress":[{"ip":"1.2.3.4"}]}}}`, "status: nothing of it is changed here"},
		{"/web", asMerge, `{"metadata":{"labels":{"a":"b"}}}`, ""},
		{"/web", asMerge, `{"metadata":{"annotations":{"service.kubernetes.io/topology-mode":"Auto"}}}`,
			"metadata.annotations[service.kubernetes.io/topology-mode]: has no effect here"},
		{"/web", asMerge, `{"metadata":{"annotations":{"service.kubernetes.io/topology-mode":"Disabled"}}}`, ""},
		{"/web", asMerge, `{"metadata":{"annotations":{"service.beta.kubernetes.io/aws-load-balancer-name":"http"}}}`,
			"metadata.annotations[service.beta.kubernetes.io/aws-load-balancer-name]: has no effect: there is no load balancer of a cloud"},
		{"/web", asMerge, `{"spec":{"type":"LoadBalancer"},"metadata":{"annotations":{"service.beta.kubernetes.io/aws-load-balancer-ssl-cert":"arn:x"}}}`,
			"metadata.annotations[service.beta.kubernetes.io/aws-load-balancer-ssl-cert]: asks for TLS with a certificate that svcctl cannot read"},
	} {
		answer := w.sends("PATCH", servicesPath+tt.path, tt.body, tt.header)
		got := strings.Join(answer.Header().Values("Warning"), "\n")
		if answer.Code != http.StatusOK || tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %d, warnings %q, want %q", tt.body, answer.Code, got, tt.want)
		}
	}
}
