package resolve

import (
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store/object"
)

func TestRetryAfter(t *testing.T) {
	for _, tt := range []struct {
		value  string
		change func(*object.Service)
		want   time.Duration
		text   string // of the problem; "" for none
	}{
		{"1s", nil, time.Second, ""},
		{"30", nil, 30 * time.Second, ""},
		{"1m", nil, 0, "UnknownValue must be a time from 1s to 30s"},
		{"2s", func(s *object.Service) { s.Metadata.Annotations[object.AnnotationBalance] = "rr" }, 2 * time.Second, ""},
		{"2s", func(s *object.Service) { s.Metadata.Annotations[object.AnnotationBalance] = "mh" }, 2 * time.Second, "RetrySame with maglev"},
		{"2s", func(s *object.Service) { s.Spec.SessionAffinity = object.AffinityClientIP }, 2 * time.Second, "RetrySame with session affinity"},
		{"2s", func(s *object.Service) { s.Spec.Ports[0].Protocol = object.ProtocolUDP }, 0, "no port of TCP"},
		{"2s", func(s *object.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }, 0, "the annotation has no effect"},
	} {
		svc := exposed("NodePort", map[string]string{object.AnnotationRetryAfter: tt.value})
		if tt.change != nil {
			tt.change(svc)
		}
		out := Service(Input{Service: svc}, &Facts{})
		text := problemText(&out, object.AnnotationRetryAfter)
		if out.RetryAfter != tt.want || !strings.Contains(text, tt.text) || (text == "") != (tt.text == "") {
			t.Errorf("%q: %v, problem %q; want %v, %q", tt.value, out.RetryAfter, text, tt.want, tt.text)
		}
	}
}
