package resolve

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

func TestLogging(t *testing.T) {
	const aws = "service.beta.kubernetes.io/aws-load-balancer-access-log-"
	const file = "/var/log/connections.log"
	type values = map[string]string
	for _, tt := range []struct {
		kind        string
		annotations values
		place       string
		want        bool
		text        string // of the problems; "" for none
	}{
		{"ClusterIP", values{annotation.ConnectionLog: "true"}, file, true, ""},
		{"ClusterIP", values{annotation.ConnectionLog: "false"}, file, false, ""},
		{"ClusterIP", values{annotation.ConnectionLog: "yes"}, file, false, `"yes" is neither`},
		{"ClusterIP", values{annotation.ConnectionLog: "true"}, "", false, "the box has no --connection-log"},
		{"LoadBalancer", values{aws + "enabled": "true", aws + "emit-interval": "60"}, file, true, ""},
		{"LoadBalancer", values{aws + "enabled": "true", aws + "emit-interval": "5", aws + "s3-bucket-name": "my-bucket"}, file, true, "is written to " + file},
		{"LoadBalancer", values{aws + "enabled": "true", aws + "s3-bucket-prefix": "prod"}, "", false, "is written to nowhere"},
		{"LoadBalancer", values{aws + "enabled": "true", aws + "emit-interval": "61"}, file, true, `"61" is neither "5" nor "60"`},
		{"LoadBalancer", values{aws + "enabled": "true", annotation.ConnectionLog: "false"}, file, false, ""},
		{"NodePort", values{aws + "enabled": "true"}, file, false, ""}, // which annotation.Unserved names,
	} {
		svc := exposed(tt.kind, tt.annotations)
		out := Service(Input{Service: svc}, &Facts{ConnectionLog: tt.place})
		text := ""
		for _, p := range out.Problems {
			if strings.Contains(p.Field, "-log") {
				text += p.Message
				if !p.Warning || p.Object != object.RefOf(svc) {
					t.Errorf("%v: %+v", tt.annotations, p)
				}
			}
		}
		if out.Logged != tt.want || !strings.Contains(text, tt.text) || (text == "") != (tt.text == "") {
			t.Errorf("%v: %t, problem %q; want %t, %q", tt.annotations, out.Logged, text, tt.want, tt.text)
		}
	}
}
