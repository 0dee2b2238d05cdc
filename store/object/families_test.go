package object

import (
	"slices"
	"strings"
	"testing"
)

// familiesOf formats the fields of DefaultFamilies in one line.
func familiesOf(s *Service) string {
	return strings.Join([]string{
		s.Spec.ClusterIP, strings.Join(s.Spec.ClusterIPs, ","),
		Deref(s.Spec.IPFamilyPolicy), strings.Join(s.Spec.IPFamilies, ","),
	}, "|")
}

// families sets what familiesOf shows.
func families(line string) func(*Service) {
	fields := strings.Split(line, "|")
	list := func(text string) []string {
		if text == "" {
			return nil
		}
		return strings.Split(text, ",")
	}
	return func(s *Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = fields[0], list(fields[1]), list(fields[3])
		if fields[2] != "" {
			s.Spec.IPFamilyPolicy = new(fields[2])
		}
	}
}

var (
	only4 = []string{IPv4}
	only6 = []string{IPv6}
	dual  = []string{IPv4, IPv6}
	dual6 = []string{IPv6, IPv4}
)

func TestDefaultFamiliesOfNewServices(t *testing.T) {
	for _, tc := range []struct {
		name    string
		in      string // clusterIP|clusterIPs|ipFamilyPolicy|ipFamilies
		changes []func(*Service)
		box     []string
		want    string
		errs    []string
	}{
		{"nothing said", "|||", nil, only4, "||SingleStack|IPv4", nil},
		{"nothing said, primary IPv6", "|||", nil, dual6, "||SingleStack|IPv6", nil},
		{"clusterIP alone", "172.30.0.9|||", nil, dual, "172.30.0.9|172.30.0.9|SingleStack|IPv4", nil},
		{"the family follows the address", "fd00::9|||", nil, dual, "fd00::9|fd00::9|SingleStack|IPv6", nil},
		{"PreferDualStack on a dual box", "||PreferDualStack|", nil, dual, "||PreferDualStack|IPv4,IPv6", nil},
		{"PreferDualStack, primary IPv6", "||PreferDualStack|", nil, dual6, "||PreferDualStack|IPv6,IPv4", nil},
		{"PreferDualStack on a single box", "||PreferDualStack|", nil, only6, "||PreferDualStack|IPv6", nil},
		{"families in the other order", "||PreferDualStack|IPv6,IPv4", nil, dual, "||PreferDualStack|IPv6,IPv4", nil},
		{"one family decides the first", "||RequireDualStack|IPv6", nil, dual, "||RequireDualStack|IPv6,IPv4", nil},
		{"two addresses", "fd00::9|fd00::9,172.30.0.9|PreferDualStack|", nil, dual, "fd00::9|fd00::9,172.30.0.9|PreferDualStack|IPv6,IPv4", nil},
		{"two addresses and one family", "172.30.0.9|172.30.0.9,fd00::9|PreferDualStack|IPv4", nil, dual, "172.30.0.9|172.30.0.9,fd00::9|PreferDualStack|IPv4,IPv6", nil},
		{"one address of two", "172.30.0.9||RequireDualStack|", nil, dual, "172.30.0.9|172.30.0.9|RequireDualStack|IPv4,IPv6", nil},
		{"headless", "None|||", nil, dual, "None|None|SingleStack|IPv4", nil},
		{"headless, dual", "None||PreferDualStack|", nil, dual, "None|None|PreferDualStack|IPv4,IPv6", nil},
		{"headless without selector", "None|||", []func(*Service){selectorless}, dual, "None|None|RequireDualStack|IPv4,IPv6", nil},
		{"headless without selector on a single box", "None|||", []func(*Service){selectorless}, only6, "None|None|RequireDualStack|IPv6,IPv4", nil},
		{"headless without selector, single", "None||SingleStack|", []func(*Service){selectorless}, dual, "None|None|SingleStack|IPv4", nil},
		{"headless without selector, a family of its own", "None|||IPv6", []func(*Service){selectorless}, only4, "None|None|RequireDualStack|IPv6,IPv4", nil},
		{"ExternalName", "|||", []func(*Service){ofType(TypeExternalName)}, dual, "|||", nil},

		{"RequireDualStack on a single box", "||RequireDualStack|", nil, only4, "", []string{
			`spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services`}},
		{"a family the box has not", "|||IPv6", nil, only4, "", []string{
			`spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster`}},
		{"both", "||RequireDualStack|IPv4,IPv6", nil, only4, "", []string{
			`spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services`,
			`spec.ipFamilies[1]: Invalid value: "IPv6": not configured on this cluster`}},
		{"an address of a family the box has not", "fd00::9|||", nil, only4, "", []string{
			`spec.clusterIPs[0]: Invalid value: ["fd00::9"]: IPv6 is not configured on this cluster`}},
		{"SingleStack with two addresses", "172.30.0.9|172.30.0.9,fd00::9|SingleStack|", nil, dual, "", []string{
			`spec.ipFamilyPolicy: Invalid value: "SingleStack": must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified`}},
		{"two families and no policy", "|||IPv4,IPv6", nil, dual, "", []string{
			`spec.ipFamilyPolicy: Invalid value: "SingleStack": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified`}},
		{"two addresses of one family", "172.30.0.9|172.30.0.9,172.30.0.10|PreferDualStack|", nil, dual, "", []string{
			`spec.clusterIPs: Invalid value: ["172.30.0.9","172.30.0.10"]: may specify no more than one IP for each IP family`}},
		{"three addresses", "172.30.0.9|172.30.0.9,fd00::9,172.30.0.10|PreferDualStack|", nil, dual, "", []string{
			`spec.clusterIPs: Invalid value: ["172.30.0.9","fd00::9","172.30.0.10"]: may only hold up to 2 values`}},
		{"None and an address", "None|None,172.30.0.9||", nil, dual, "", []string{
			`spec.clusterIPs: Invalid value: ["None","172.30.0.9"]: 'None' must be the first and only value`}},
		{"an address and None", "172.30.0.9|172.30.0.9,None|PreferDualStack|", nil, dual, "", []string{
			`spec.clusterIPs[1]: Invalid value: "None": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`}},
		{"no address", "x|||", nil, dual, "", []string{
			`spec.clusterIPs[0]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`}},
		{"the list without clusterIP", "|172.30.0.9||", nil, dual, "", []string{
			"spec.clusterIPs: Invalid value: [\"172.30.0.9\"]: must be empty when `clusterIP` is not specified"}},
		{"the list says something else", "172.30.0.8|172.30.0.9||", nil, dual, "", []string{
			"spec.clusterIPs: Invalid value: [\"172.30.0.9\"]: first value must match `clusterIP`"}},
		{"addresses and families cross", "172.30.0.9|172.30.0.9,fd00::9|PreferDualStack|IPv6,IPv4", nil, dual, "", []string{
			"spec.clusterIPs[0]: Invalid value: \"172.30.0.9\": expected an IPv6 value as indicated by `ipFamilies[0]`",
			"spec.clusterIPs[1]: Invalid value: \"fd00::9\": expected an IPv4 value as indicated by `ipFamilies[1]`"}},
		{"unknown values", "||TripleStack|IPv4,IPv5,IPv4", nil, dual, "", []string{
			`spec.ipFamilies[1]: Unsupported value: "IPv5": supported values: "IPv4", "IPv6"`,
			`spec.ipFamilies[2]: Duplicate value: "IPv4"`,
			`spec.ipFamilyPolicy: Unsupported value: "TripleStack": supported values: "PreferDualStack", "RequireDualStack", "SingleStack"`}},
		{"a box without ranges", "|||", nil, nil, "", []string{
			"spec.ipFamilies: Forbidden: there is no range to take cluster IPs from: set service-cluster-ip-range"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := goodService(append([]func(*Service){families(tc.in)}, tc.changes...)...)
			Default(s)
			wantTexts(t, DefaultFamilies(s, nil, tc.box), tc.errs...)
			if tc.errs != nil {
				return
			}
			if got := familiesOf(s); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			wantTexts(t, Validate(s, Options{}))
			again := DeepCopy(s)
			wantTexts(t, DefaultFamilies(again, nil, tc.box))
			if familiesOf(again) != tc.want {
				t.Errorf("again: %s, want %s", familiesOf(again), tc.want)
			}
		})
	}
}

func TestDefaultFamiliesOfUpdates(t *testing.T) {
	const (
		single   = "172.30.0.9|172.30.0.9|SingleStack|IPv4"
		prefers  = "172.30.0.9|172.30.0.9|PreferDualStack|IPv4"
		both     = "172.30.0.9|172.30.0.9,fd00::9|PreferDualStack|IPv4,IPv6"
		requires = "172.30.0.9|172.30.0.9,fd00::9|RequireDualStack|IPv4,IPv6"
	)
	for _, tc := range []struct {
		name, old, in, want string
		box                 []string
		errs                []string
	}{
		{"the same document again", single, "|||", single, dual, nil},
		{"the same document again, dual", both, "||PreferDualStack|", both, dual, nil},
		{"the same object again, dual", both, both, both, dual, nil},
		{"the box became dual", prefers, "||PreferDualStack|", prefers, dual, nil},
		{"the box became single", both, "||PreferDualStack|", both, only4, nil},
		{"the policy is left out", requires, "|||", requires, dual, nil},
		{"upgrade by policy", single, "||PreferDualStack|", "172.30.0.9|172.30.0.9|PreferDualStack|IPv4,IPv6", dual, nil},
		{"upgrade with the second address", single, "172.30.0.9|172.30.0.9,fd00::7|RequireDualStack|", "172.30.0.9|172.30.0.9,fd00::7|RequireDualStack|IPv4,IPv6", dual, nil},
		{"upgrade by family", prefers, "||PreferDualStack|IPv4,IPv6", "172.30.0.9|172.30.0.9|PreferDualStack|IPv4,IPv6", dual, nil},
		{"upgrade the box cannot do", single, "||RequireDualStack|", "", only4, []string{
			`spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services`}},
		{"downgrade", both, "||SingleStack|", single, dual, nil},
		{"downgrade of the whole object", requires, "172.30.0.9|172.30.0.9,fd00::9|SingleStack|IPv4,IPv6", single, dual, nil},
		{"downgrade without the policy", both, "172.30.0.9|172.30.0.9||IPv4", "", dual, []string{
			`spec.ipFamilyPolicy: Invalid value: "PreferDualStack": must be 'SingleStack' to release the secondary cluster IP`,
			`spec.ipFamilyPolicy: Invalid value: "PreferDualStack": must be 'SingleStack' to release the secondary IP family`}},
		{"SingleStack and another second address", both, "172.30.0.9|172.30.0.9,fd00::7|SingleStack|", "", dual, []string{
			`spec.ipFamilyPolicy: Invalid value: "SingleStack": must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			old := goodService(families(tc.old))
			Default(old)
			kept := DeepCopy(old)
			s := goodService(families(tc.in))
			Default(s)
			PatchFromOld(s, old)
			wantTexts(t, DefaultFamilies(s, old, tc.box), tc.errs...)
			if toJSON(t, old) != toJSON(t, kept) {
				t.Errorf("the stored Service changed to %s", familiesOf(old))
			}
			if tc.errs != nil {
				return
			}
			if got := familiesOf(s); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			wantTexts(t, ValidateUpdate(s, old, Options{}))
		})
	}
}

func TestDefaultFamiliesKeepsWhatItIsGiven(t *testing.T) {
	box := slices.Clone(dual)
	s := goodService(families("||RequireDualStack|"))
	Default(s)
	wantTexts(t, DefaultFamilies(s, nil, box))
	s.Spec.IPFamilies[0] = "changed"
	if !slices.Equal(box, dual) {
		t.Errorf("the families of the box became %v", box)
	}
}
