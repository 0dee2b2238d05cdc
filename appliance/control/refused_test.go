package control

import (
	"slices"
	"strings"
	"testing"
)

// Test1216_endpoints_of_a_Gateway_whose_Service_is_refused: while a change of a Gateway is refused, as its annotations contradict each other, it is
// served as before, and its endpoints follow those of the backends.
func Test1216_endpoints_of_a_Gateway_whose_Service_is_refused(t *testing.T) {
	wrong := strings.Replace(gatewayText, "  listeners:", "  infrastructure: {annotations: {svcctl.io/proxy-protocol: v1, svcctl.io/proxy-mode: kernel}}\n  listeners:", 1)
	r := newGatewayRig(t)
	r.files(gatewayText)
	r.settle()
	r.files(wrong)
	r.settle()
	for _, restart := range []bool{false, true} {
		text := strings.ReplaceAll(wrong, "10.1.0.", map[bool]string{false: "10.7.0.", true: "10.8.0."}[restart])
		if restart {
			r.restart()
		}
		r.files(text)
		r.settle()
		want := []string{"default/blue:5432=9 10.7.0.1 10.7.0.2", "default/green:5432=1"}
		if restart {
			want[0] = strings.ReplaceAll(want[0], "10.7.0.", "10.8.0.")
		}
		if got := r.shares("edge-svcctl"); !slices.Equal(got, want) {
			t.Errorf("restart %t: endpoints %q, want %q", restart, got, want)
		}
	}
	r.files(strings.ReplaceAll(wrong, "blue-1", "blue-2"))
	r.settle()
	if got, want := r.shares("edge-svcctl"), []string{"default/blue:5432=9 10.1.0.1 10.1.0.2", "default/green:5432=1"}; !slices.Equal(got, want) {
		t.Errorf("another slice: endpoints %q, want %q", got, want)
	}
	r.files(strings.Replace(wrong, "[{addresses: [10.1.0.1]}, {addresses: [10.1.0.2]}]", "[]", 1))
	r.settle()
	if got, want := r.shares("edge-svcctl"), []string{"default/blue:5432=9", "default/green:5432=1"}; !slices.Equal(got, want) {
		t.Errorf("the last endpoints go: endpoints %q, want %q", got, want)
	}
	r.files(strings.Replace(wrong, "name: db, port: 5432", "name: db, port: 5433", 1))
	r.settle()
	if got, want := r.shares("edge-svcctl"), []string{"default/blue:5432=9", "default/green:5432=1"}; !slices.Contains(got, want[0]) || !slices.Contains(got, want[1]) {
		t.Errorf("a port that is not stored: slices %q, and %q go", got, want)
	}
	if n := r.settle(); n != 0 {
		t.Errorf("%d changes without a cause", n)
	}
	r.files(gatewayText)
	r.settle()
	if got, want := r.shares("edge-svcctl"), []string{"default/blue:5432=9 10.1.0.1 10.1.0.2", "default/green:5432=1"}; !slices.Equal(got, want) {
		t.Errorf("corrected: endpoints %q, want %q", got, want)
	}
	if n := r.settle(); n != 0 {
		t.Errorf("%d changes after the correction without a cause", n)
	}
}
