package resolve

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

func TestAnnotationsOfAffinity(t *testing.T) {
	const scope, prefix, refresh = object.AnnotationAffinityScope, object.AnnotationAffinityPrefix, object.AnnotationAffinityRefresh
	sticky := func(s *object.Service) { s.Spec.SessionAffinity = object.AffinityClientIP }
	plain := func(*object.Service) {}
	for _, tt := range []struct {
		name   string
		change func(*object.Service)
		pairs  []string
		want   nft.AffinityOptions // of IPv4
		text   string              // of the problem; "" for none
	}{
		{"none", sticky, nil, nft.AffinityOptions{}, ""},
		{"the whole Service", sticky, []string{scope, "service"}, nft.AffinityOptions{WholeService: true}, ""},
		{"the defaults", sticky, []string{scope, "port", refresh, "connections", prefix, "32"}, nft.AffinityOptions{}, ""},
		{"all", sticky, []string{scope, "service", refresh, "packets", prefix, "24,64"}, nft.AffinityOptions{WholeService: true, Refresh: true, PrefixLen: 24}, ""},
		{"prefixes of IPv6 alone", sticky, []string{prefix, "32,64"}, nft.AffinityOptions{}, ""},
		{"without affinity", plain, []string{scope, "service"}, nft.AffinityOptions{}, "NoEffect has no effect: the Service has no session affinity"},
		{"of an older object", sticky, []string{refresh, "often"}, nft.AffinityOptions{}, `UnknownValue "often" is not known`},
		{"a prefix of an older object", sticky, []string{prefix, "64"}, nft.AffinityOptions{}, "UnknownValue must be a prefix length"},
	} {
		svc := service(annotate(tt.pairs...), tt.change)
		out := Service(Input{Service: svc, Slices: []*object.EndpointSlice{slice(80, l1, l2)}}, facts())
		if got := out.Ports[0].AffinityOptions; got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
		text := problemText(&out, "")
		if !strings.HasPrefix(text, tt.text) || (text == "") != (tt.text == "") {
			t.Errorf("%s: problem %q, want %q", tt.name, text, tt.text)
		}
	}
}
