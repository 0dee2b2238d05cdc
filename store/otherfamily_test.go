package store

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// A write is answered with a warning when the endpoints of a Service are all of a family in which it has no address,
// as they are after all writes of the call.
func TestWarningOfTheOtherFamily(t *testing.T) {
	const warning = "Service default/web: its addresses are IPv4 and "
	service := func() Write { return write(made(t, object.KindService, "default", "web")) }
	slice := func(name, family, address string) Write {
		s := made(t, object.KindEndpointSlice, "default", name).(*object.EndpointSlice)
		s.Metadata.Labels = map[string]string{object.LabelServiceName: "web"}
		s.AddressType, s.Endpoints[0].Addresses = family, []string{address}
		return write(s)
	}
	six, four := slice("web-6", object.IPv6, "2001:db8::1"), slice("web-4", object.IPv4, "192.0.2.1")
	dry := func(w Write) Write { w.DryRun = true; return w }
	for name, tc := range map[string]struct {
		before, call []Write
		want         []string // of each write of the call, the end of the warning; "": none
	}{
		"the Service comes first":         {[]Write{service()}, []Write{six}, []string{"the 1 endpoint is IPv6"}},
		"the slice comes first":           {[]Write{six}, []Write{service()}, []string{"the 1 endpoint is IPv6"}},
		"together":                        {nil, []Write{service(), six}, []string{"the 1 endpoint is IPv6", "the 1 endpoint is IPv6"}},
		"two endpoints":                   {[]Write{service(), six}, []Write{slice("web-7", object.IPv6, "2001:db8::2")}, []string{"all 2 endpoints are IPv6"}},
		"a dry run":                       {[]Write{service()}, []Write{dry(six)}, []string{"the 1 endpoint is IPv6"}},
		"its own family as well":          {[]Write{service()}, []Write{six, four}, []string{"", ""}},
		"its own family, stored":          {[]Write{service(), four}, []Write{six}, []string{""}},
		"a slice that moves to no family": {[]Write{service(), six}, []Write{{Ref: six.Ref, Delete: true}}, []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			for _, w := range tc.before {
				b.must(w)
			}
			results, err := b.s.Write(tc.call...)
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range tc.want {
				got := strings.Join(results[i].Warnings, "\n")
				if results[i].Err != nil || want == "" && got != "" || want != "" && !strings.Contains(got, warning+want+", so every client is refused") {
					t.Errorf("write %d: %v, warnings %q, want %q", i, results[i].Err, got, want)
				}
			}
		})
	}
}
