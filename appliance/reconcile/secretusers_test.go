package reconcile

import (
	"errors"
	"fmt"
	"testing"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

func TestSecretUsers(t *testing.T) {
	u := newSecretUsers()
	u.set("default/a", []string{"default/x", "default/y"})
	u.set("default/b", []string{"default/y"})
	u.set("default/c", nil)
	for _, tt := range []struct {
		secrets []string
		want    string
	}{{nil, "[]"}, {[]string{"default/x"}, "[default/a]"}, {[]string{"default/x", "default/y"}, "[default/a default/b]"}, {[]string{"default/z"}, "[]"}} {
		if got := fmt.Sprint(u.affected(tt.secrets)); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.secrets, got, tt.want)
		}
	}
	u.set("default/a", []string{"default/x"})
	u.set("default/b", nil)
	if got := u.affected([]string{"default/y"}); len(got) != 0 || len(u.by) != 1 || len(u.of) != 1 {
		t.Errorf("%v, %v, %v", got, u.by, u.of)
	}
}

// nothing is a store without objects.
type nothing struct{}

func (nothing) Service(string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	return nil, nil, nil
}
func (nothing) Since(string) store.Since                     { return store.Since{} }
func (nothing) Pod(string) *object.Pod                       { return nil }
func (nothing) Secret(string) *object.Secret                 { return nil }
func (nothing) Selecting(string, map[string]string) []string { return nil }

// A Service that the kernel refuses is relayed as before: without that, what asks for TLS would be passed on
// in the clear.
func TestRefusedServicesStayRelayed(t *testing.T) {
	p := newPlanner()
	how := &resolve.Relay{ProxyProtocol: 2}
	p.quarantine.left["default/web"] = leftOut{Service{Key: "default/web", Ports: []nft.ServicePort{{ID: "default/web"}}, Relay: how}, errors.New("refused")}
	if out := p.resolveOne(nothing{}, "default/web"); out.Relay != how || len(out.Ports) != 1 {
		t.Errorf("%+v", out)
	}
}
