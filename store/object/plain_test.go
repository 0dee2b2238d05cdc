package object

import (
	"strings"
	"testing"
)

// What is taken for plain matches every pattern, so that none has to be asked.
func TestIsPlain(t *testing.T) {
	patterns := []*pattern{dns1123LabelRE, dns1123SubdomainRE, dns1035LabelRE, labelKeyNameRE, labelValueRE, portNameRE, dataKeyRE}
	const letters = "a0z9-.A_ "
	plain := 0
	var every func(value string)
	every = func(value string) {
		if isPlain(value) {
			plain++
			for _, re := range patterns {
				if !re.MatchString(value) {
					t.Errorf("%q is plain, and does not match %s", value, re.text)
				}
			}
		}
		if len(value) < 4 {
			for _, b := range letters {
				every(value + string(b))
			}
		}
	}
	every("")
	if plain == 0 {
		t.Error("nothing is plain")
	}
}

// Zeros are taken away, or the value is as it was.
func TestWithoutLeadingZeros(t *testing.T) {
	for value, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "010.0.0.1": "10.0.0.1", "10.00.0.01": "10.0.0.1", "0.0.0.0": "0.0.0.0", "100.200.0.0": "100.200.0.0",
		"::ffff:192.0.02.1": "::ffff:192.0.2.1", "2001:0db8::1": "2001:0db8::1", "::0ff:1.2.3.4": "::0ff:1.2.3.4", "": "", ".": ".", "00.": "0.",
	} {
		if got := withoutLeadingZeros(value); got != want {
			t.Errorf("%q becomes %q, want %q", value, got, want)
		}
	}
	if _, ok := parseLegacyIP(strings.Repeat("0", 9) + "1.2.3.4"); !ok {
		t.Error("many zeros are not read")
	}
}
