package object

import (
	"net/netip"
	"reflect"
	"testing"
)

func TestParseBalance(t *testing.T) {
	for value, want := range map[string]string{
		"random": "random", "maglev": "maglev", "mh": "maglev", "sh": "source-hash", "rr": "round-robin", "wrr": "round-robin", "destination-hash": "destination-hash", "dh": "destination-hash",
		"least-connection": "least-connection", "lc": "least-connection", "wlc": "least-connection", "sed": "least-connection", "nq": "least-connection", "twos": "least-connection",
	} {
		if got, err := ParseBalance(value); got != want || err != nil {
			t.Errorf("%q is %q, %v; want %q", value, got, err, want)
		}
	}
	const known = `: supported values: "destination-hash", "least-connection", "maglev", "random", "round-robin", "source-hash", "dh", "lc", "mh", "nq", "rr", "sed", "sh", "twos", "wlc", "wrr"`
	for value, want := range map[string]string{
		"rond-robin": `Unsupported value: "rond-robin"` + known, "": `Unsupported value: ""` + known, "Maglev": `Unsupported value: "Maglev"` + known,
	} {
		if _, err := ParseBalance(value); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", value, err, want)
		}
	}
}

func TestParseWeights(t *testing.T) {
	got, err := ParseWeights("10.1.2.3=5, 10.1.2.4=0,fd00::1 = 65535")
	want := []AddressWeight{{netip.MustParseAddr("10.1.2.3"), 5}, {netip.MustParseAddr("10.1.2.4"), 0}, {netip.MustParseAddr("fd00::1"), 65535}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	const form = ": must be ADDRESS=WEIGHT, separated by commas"
	for value, want := range map[string]string{
		"": `""` + form, "10.1.2.3": `"10.1.2.3"` + form, "10.1.2.3=5,": `""` + form, "a=5": `"a=5"` + form, "fe80::1%eth0=1": `"fe80::1%eth0=1"` + form,
		"10.1.2.3=65536":         `"10.1.2.3=65536": the weight must be an integer from 0 to 65535`,
		"10.1.2.3=-1":            `"10.1.2.3=-1": the weight must be an integer from 0 to 65535`,
		"10.1.2.3=1, 10.1.2.3=2": `"10.1.2.3=2": names an address a second time`,
	} {
		if _, err := ParseWeights(value); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", value, err, want)
		}
	}
}

// A value that stands there already, from before it was checked, does not prevent an update.
func TestBalanceIsCheckedWhenItChanges(t *testing.T) {
	slice := func(weight string) *EndpointSlice {
		s := &EndpointSlice{TypeMeta: TypeMeta{Kind: KindEndpointSlice, APIVersion: APIVersionDiscovery}, AddressType: IPv4}
		s.Metadata = ObjectMeta{Name: "web-1", Namespace: "default", Annotations: map[string]string{AnnotationWeight: weight}}
		return s
	}
	const want = `metadata.annotations[svcctl.io/weight]: Invalid value: "-1": must be an integer from 0 to 65535`
	wantTexts(t, Validate(slice("-1"), Options{}), want)
	wantTexts(t, ValidateUpdate(slice("-1"), slice("3"), Options{}), want)
	wantTexts(t, ValidateUpdate(slice("-1"), slice("-1"), Options{}))
	wantTexts(t, ValidateUpdate(slice("3"), slice("-1"), Options{}))
}

func TestParseShare(t *testing.T) {
	for value, want := range map[string]BackendShare{
		"0": {"", 0}, "9": {"", 9}, "1000000": {"", 1000000}, "green=10": {"green", 10}, "shop/green:80=1": {"shop/green:80", 1}, "a=b=2": {"a=b", 2},
	} {
		if got, err := ParseShare(value); got != want || err != nil {
			t.Errorf("%q is %v, %v; want %v", value, got, err, want)
		}
	}
	for _, value := range []string{"", "-1", "10%", "1.5", "1000001", "=5", "green=", "green", "the green=5", "green= 5", "0x10", "4294967297"} {
		s := &EndpointSlice{TypeMeta: TypeMeta{Kind: KindEndpointSlice, APIVersion: APIVersionDiscovery}, AddressType: IPv4}
		s.Metadata = ObjectMeta{Name: "web-1", Namespace: "default", Annotations: map[string]string{AnnotationShare: value}}
		wantTexts(t, Validate(s, Options{}), `metadata.annotations[svcctl.io/share]: Invalid value: "`+value+`": must be an integer from 0 to 1000000, or BACKEND=INTEGER`)
	}
}

// An annotation that is there and empty is not passed over: validation refuses it, and it has no weight.
func TestWeightThatIsEmpty(t *testing.T) {
	for want, annotations := range map[uint16]map[string]string{
		1: {AnnotationWeight: "", AnnotationCiliumWeight: "7"},
		7: {AnnotationCiliumWeight: "7"},
		3: {AnnotationWeight: "3", AnnotationCiliumWeight: "7"},
	} {
		if got := (&ObjectMeta{Annotations: annotations}).WeightOf(); got != want {
			t.Errorf("%v: %d, want %d", annotations, got, want)
		}
	}
}
