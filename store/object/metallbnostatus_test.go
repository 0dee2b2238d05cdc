package object

import (
	"encoding/json"
	"strings"
	"testing"
)

func Test667_empty_status_of_MetalLB(t *testing.T) {
	for _, o := range []Object{new(BGPPeer), new(BGPAdvertisement), new(L2Advertisement), new(Community), new(BFDProfile)} {
		if err := json.Unmarshal([]byte(`{"metadata": {"name": "p"}, "status": {}}`), o); err != nil {
			t.Errorf("%T: %v", o, err)
		}
		before, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		Default(o)
		after, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(before), `"status":{}`) || strings.Contains(string(after), "status") {
			t.Errorf("%T: read as %s, kept as %s", o, before, after)
		}
	}
}
