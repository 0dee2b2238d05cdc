package nft

import "testing"

func TestSplitID(t *testing.T) {
	for id, want := range map[string][2]string{
		"default/web": {"default/web", ""}, "default/web/http": {"default/web", "http"}, "default/web/http/tcp-1-9": {"default/web", "http/tcp-1-9"}, "": {},
	} {
		if service, port := SplitID(id); service != want[0] || port != want[1] {
			t.Errorf("%s is port %q of %q, want %q", id, port, service, want)
		}
	}
}
