package fleet

import (
	"encoding/json"
	"slices"
	"testing"
)

func TestDifferences(t *testing.T) {
	flags := map[string]string{"ports": "port-range", "pinned": "allocate never"}
	for _, test := range []struct{ here, there, want string }{
		{`{"ports":"1-2","ranges":["10.0.0.0/8","fd00::/8"]}`, `{"ports":"1-3","ranges":["10.0.0.0/8","fd00::/8"]}`, "--port-range is 1-2 here and 1-3 in the fleet"},
		{`{"ranges":["10.0.0.0/8"]}`, `{"ranges":["10.0.0.0/8","fd00::/8"],"pinned":true}`,
			"--allocate never is not set here and set in the fleet; ranges is 10.0.0.0/8 here and 10.0.0.0/8,fd00::/8 in the fleet"},
		{`{}`, `nonsense`, "they have another form"},
	} {
		if got := differences(json.RawMessage(test.here), json.RawMessage(test.there), flags); got != test.want {
			t.Errorf("%s and %s: %s", test.here, test.there, got)
		}
		if agree(json.RawMessage(test.here), json.RawMessage(test.there)) {
			t.Errorf("%s and %s agree", test.here, test.there)
		}
	}
	if !agree(json.RawMessage(`{"a":"1","b":["2"]}`), json.RawMessage(`{"b": ["2"], "a": "1"}`)) {
		t.Error("the order of fields counts")
	}
	lines := SettingLines(json.RawMessage(`{"ports":"1-2","pinned":true,"ranges":["a","b"]}`), flags)
	if want := []string{"--allocate never", "--port-range 1-2", "ranges a,b"}; !slices.Equal(lines, want) {
		t.Errorf("the settings are %q", lines)
	}
}
