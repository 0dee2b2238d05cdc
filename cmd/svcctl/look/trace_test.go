package look

import (
	"testing"
)

// TestUnbracketed: a client may be written as in an address with a port.
func TestUnbracketed(t *testing.T) {
	for text, want := range map[string]string{"[2001:db8::1]": "2001:db8::1", "[2001:db8::]/64": "2001:db8::/64", "192.0.2.1": "192.0.2.1", "[2001:db8::1]:80": "[2001:db8::1]:80", "[x": "[x"} {
		if got := unbracketed(text); got != want {
			t.Errorf("%s is read as %s, want %s", text, got, want)
		}
	}
}
