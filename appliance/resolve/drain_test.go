package resolve

import (
	"testing"
	"time"
)

func TestDrain(t *testing.T) {
	tests := []struct {
		name        string
		annotations map[string]string
		want        Drain
		wrong       string // what the error is about
	}{
		{name: "none"},
		{name: "duration", annotations: map[string]string{AnnotationDrain: "1m30s"}, want: Drain{true, 90 * time.Second}},
		{name: "seconds", annotations: map[string]string{AnnotationDrain: " 60 "}, want: Drain{true, time.Minute}},
		{name: "at once", annotations: map[string]string{AnnotationDrain: "0"}, want: Drain{true, 0}},
		{name: "longest", annotations: map[string]string{AnnotationDrain: "168h"}, want: Drain{true, maxDrain}},
		{name: "too long", annotations: map[string]string{AnnotationDrain: "169h"}, wrong: AnnotationDrain},
		{name: "negative", annotations: map[string]string{AnnotationDrain: "-1s"}, wrong: AnnotationDrain},
		{name: "no time", annotations: map[string]string{AnnotationDrain: "soon"}, wrong: AnnotationDrain},
		{name: "empty", annotations: map[string]string{AnnotationDrain: ""}, wrong: AnnotationDrain},
		{name: "elb", annotations: map[string]string{AnnotationELBDrain: "true", AnnotationELBDrainTime: "60"}, want: Drain{true, time.Minute}},
		{name: "elb without a time", annotations: map[string]string{AnnotationELBDrain: "true"}, want: Drain{true, elbDrainTimeout}},
		{name: "elb off", annotations: map[string]string{AnnotationELBDrain: "false", AnnotationELBDrainTime: "60"}},
		{name: "elb time alone", annotations: map[string]string{AnnotationELBDrainTime: "60"}, wrong: AnnotationELBDrainTime},
		{name: "elb too long", annotations: map[string]string{AnnotationELBDrain: "true", AnnotationELBDrainTime: "99999"}, wrong: AnnotationELBDrainTime},
		{name: "elb too short", annotations: map[string]string{AnnotationELBDrain: "true", AnnotationELBDrainTime: "0"}, wrong: AnnotationELBDrainTime},
		{name: "elb neither", annotations: map[string]string{AnnotationELBDrain: "perhaps"}, wrong: AnnotationELBDrain},
		{name: "elb no time", annotations: map[string]string{AnnotationELBDrain: "true", AnnotationELBDrainTime: "x"}, wrong: AnnotationELBDrainTime},
		{
			name:        "ours wins",
			annotations: map[string]string{AnnotationDrain: "5s", AnnotationELBDrain: "true", AnnotationELBDrainTime: "60"},
			want:        Drain{true, 5 * time.Second},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out := Service(Input{Service: exposed("LoadBalancer", tt.annotations)}, &Facts{})
			if out.Drain != tt.want {
				t.Errorf("got %+v, want %+v", out.Drain, tt.want)
			}
			want := ""
			if tt.wrong != "" {
				want = "metadata.annotations[" + tt.wrong + "]"
			}
			sameProblem(t, out.Problems, want)
		})
	}
}
