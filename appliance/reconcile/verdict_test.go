package reconcile

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

// Each condition is made and repaired: the status, its verdict and groups, the metrics and the conditions of the object
// agree.
func TestDoorsAgree(t *testing.T) {
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: web%s}\nspec: {clusterIP: 10.96.0.10, ports: [{port: 80, name: http}]%s}\n"
	const slice = "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, labels: {kubernetes.io/service-name: %s}}\naddressType: IPv4\nports: [{port: 8080, name: %s}]\nendpoints: [%s]\n"
	one := "{addresses: [10.1.0.1]}"
	good := fmt.Sprintf(service, "", "") + fmt.Sprintf(slice, "web", "http", one)
	for _, c := range []struct{ reason, severity, text string }{
		{"NoEndpoints", "error", fmt.Sprintf(service, "", "")},
		{"NoEndpoints", "error", fmt.Sprintf(service, "", "") + fmt.Sprintf(slice, "wbe", "http", one)},
		{"NoEndpoints", "warning", fmt.Sprintf(service, "", "") + fmt.Sprintf(slice, "web", "http", "")},
		{"NoReadyEndpoint", "error", fmt.Sprintf(service, "", "") + fmt.Sprintf(slice, "web", "http", "{addresses: [10.1.0.1], conditions: {ready: false}}")},
		{"PortMismatch", "error", fmt.Sprintf(service, "", "") + fmt.Sprintf(slice, "web", "www", one)},
		{"NoLocalEndpoint", "error", fmt.Sprintf(service, "", ", type: NodePort, externalTrafficPolicy: Local") + fmt.Sprintf(slice, "web", "http", "{addresses: [10.1.0.1], nodeName: other}")},
		{"Pending", "error", fmt.Sprintf(service, "", ", type: LoadBalancer") + fmt.Sprintf(slice, "web", "http", one)},
		{"NoRelay", "error", fmt.Sprintf(service, ", annotations: {svcctl.io/tls-secret: nosuch}", "") + fmt.Sprintf(slice, "web", "http", one)},
		{"HostAddress", "error", fmt.Sprintf(service, "", ", externalIPs: [192.0.2.1]") + fmt.Sprintf(slice, "web", "http", one)},
		{"OtherFamily", "error", fmt.Sprintf(service, "", "") + strings.NewReplacer("IPv4", "IPv6", "web-1", "web-6").Replace(fmt.Sprintf(slice, "web", "http", "{addresses: ['fd00::1']}"))},
	} {
		t.Run(c.reason+" "+c.severity, func(t *testing.T) {
			r := newRig(t)
			r.host()
			r.write("web.yaml", good)
			r.step()
			r.agree(t, "", "")
			r.write("web.yaml", c.text)
			r.step()
			r.clock = r.clock.Add(newFor)
			r.step()
			r.agree(t, c.reason, c.severity)
			r.write("web.yaml", good)
			r.step()
			r.agree(t, "", "")
		})
	}
}

// agree compares what the doors show of the only Service; "" reasons: it is served.
func (r *rig) agree(t *testing.T, reason, severity string) {
	t.Helper()
	s := r.board.Status()
	o, _ := r.store.Get(object.ServiceRef("default/web"))
	conditions, settled := r.board.Conditions().Of(o.(*object.Service))
	ready := conditions[0]
	v := s.Verdict
	problem := ""
	for _, p := range s.Problems {
		if p.Reason == reason {
			problem = p.Severity
		}
	}
	text := scraped(t, r)
	if !settled || v.Services != 1 || problem != severity {
		t.Errorf("settled %v, %d Services, problem %q, want %q: %v", settled, v.Services, problem, severity, s.Problems)
	}
	if fails := severity == wire.SeverityError; fails != (s.Errors() > 0) || fails != (v.Fails == 1) || (severity != "") != strings.Contains(v.Text, "does not answer") ||
		fails != strings.Contains(text, `svcctl_service_states{state="fails"} 1`) {
		t.Errorf("want an error: %v; the status has %v, the verdict %+v", fails, s.Problems, v)
	}
	if reason == "" {
		if ready.Status != object.ConditionTrue || len(v.Groups) > 0 {
			t.Errorf("served: %+v, %+v", ready, v.Groups)
		}
		return
	}
	if ready.Status != "False" || ready.Reason != reason || ready.Message == "" || ready.Type != wire.ConditionReady {
		t.Errorf("the condition is %+v, want %s", ready, reason)
	}
	if !strings.Contains(text, fmt.Sprintf(`svcctl_problems{reason=%q,severity=%q}`, reason, severity)) {
		t.Errorf("the metrics do not have %s", reason)
	}
	named := false
	for _, g := range v.Groups {
		named = named || g.Reason == reason && g.Severity == severity && g.Text != ""
	}
	if !named {
		t.Errorf("no group has %s: %+v", reason, v.Groups)
	}
}

// A slice whose label is mistyped is named with the nearest Service; a dead server behind several Services is one
// problem.
func TestOrphanSliceNamesTheNearestService(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", strings.Replace(web("shop", "10.96.0.10", "10.1.0.1"), "service-name: shop", "service-name: shpo", 1))
	r.step()
	if len(r.board.Status().Problems) > 0 || len(r.board.Status().Verdict.Settling) != 1 {
		t.Errorf("new objects have problems at once: %+v", r.board.Status().Problems)
	}
	r.clock = r.clock.Add(newFor)
	r.step()
	found := ""
	for _, p := range r.board.Status().Problems {
		found += p.Message + "\n"
	}
	if !strings.Contains(found, "names Service shpo, which does not exist. Did you mean shop?") {
		t.Error(found)
	}
}

func scraped(t *testing.T, r *rig) string {
	t.Helper()
	w := httptest.NewRecorder()
	r.metrics.Handler(r.board, nil).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}
