package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// lists asserts that a box lists so many connections of a family to the Service whose connections are kept, each with its client
// and a server of the Service, whichever side spoke first. It returns their IDs by client.
func (k *keeping) lists(t *testing.T, box, want int) map[string]uint32 {
	t.Helper()
	ids := map[string]uint32{}
	for _, f := range families {
		eventually(t, time.Minute, func() error {
			out, errOut, code := k.boxes[box].Svcctl("top", "--connections", "svc/"+f.name("kept"), "-o", "json")
			var all struct {
				Connections []struct {
					Client, To, Endpoint string
					ID                   uint32
				}
			}
			if err := json.Unmarshal([]byte(out), &all); err != nil || code != 0 {
				return fmt.Errorf("conns: exit code %d: %s%s (%v)", code, out, errOut, err)
			}
			if len(all.Connections) != want {
				return fmt.Errorf("%d connections are listed, want %d:\n%s", len(all.Connections), want, out)
			}
			for _, c := range all.Connections {
				client, _ := netip.ParseAddrPort(c.Client)
				isServer := slices.ContainsFunc(k.servers, func(h *netlab.Host) bool { return c.Endpoint == netip.AddrPortFrom(f.of(h), streamPort).String() })
				if client.Addr() != f.of(k.client) || c.To != f.keptVIP().String() || !isServer {
					t.Errorf("a connection is listed as %+v", c)
				}
				ids[c.Client] = c.ID
			}
			return nil
		})
	}
	return ids
}

// kills has a box end a stream, of which its client is told by a reset.
func (k *keeping) kills(t *testing.T, box int, ids map[string]uint32, s *stream) {
	t.Helper()
	out, errOut, code := k.boxes[box].Svcctl("top", "--kill", fmt.Sprint(ids[s.conn.LocalAddr().String()]))
	if code != 0 {
		t.Fatalf("conns --kill: exit code %d: %s%s", code, out, errOut)
	}
	if err := s.echo("over"); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
		t.Errorf("a stream that was ended hears %v", err)
	}
}
