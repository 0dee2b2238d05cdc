package apiserver

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/config"
)

// nobodyAsks has no Services.
type nobodyAsks struct{}

func (nobodyAsks) State(string, string, netip.AddrPort) wire.ServiceState { return wire.ServiceState{} }
func (nobodyAsks) Unanswered(int) ([]wire.Unanswered, int)                { return nil, 0 }

// TestSetupIsForOtherDirectories starts with paths relative to where it runs: svcctl doctor, which is told of them,
// runs elsewhere.
func TestSetupIsForOtherDirectories(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	c := config.Default()
	c.DataDir, c.Manifests = "data", []string{"m", "/etc/svcctl/manifests"}
	got := (&answers{cfg: &c, views: Views{Grants: nobodyAsks{}}}).setup()
	if want := []string{filepath.Join(here, "m"), "/etc/svcctl/manifests"}; got.DataDir != filepath.Join(here, "data") || !slices.Equal(got.Manifests, want) {
		t.Errorf("data directory %s and manifests %v, want them below %s", got.DataDir, got.Manifests, here)
	}
}

func (nobodyAsks) Addresses() []wire.BoxAddress {
	return []wire.BoxAddress{{Address: "192.0.2.1", NodePorts: true}}
}
