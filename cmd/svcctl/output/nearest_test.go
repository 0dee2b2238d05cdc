package output

import (
	"testing"
)

func TestNearest(t *testing.T) {
	words := []string{"manifests", "dataDir", "serviceClusterIPRange", "snat", "zone"}
	for word, want := range map[string]string{
		"manifest": "manifests", "data-dir": "dataDir", "service_cluster_ip_range": "serviceClusterIPRange",
		"zoen": "zone", "zon": "zone", "mainfests": "manifests", "listen": "", "": "", "frobnicate": "",
	} {
		if got := Nearest(word, words); got != want {
			t.Errorf("Nearest(%q) is %q, want %q", word, got, want)
		}
	}
}
