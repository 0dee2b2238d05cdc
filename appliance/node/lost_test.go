package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// inside is set for the process that TestCallsOfNetlinkEnd runs under strace.
const inside = "SVCCTL_TEST_NETLINK_INSIDE"

// TestCallsOfNetlinkEnd: calls of the process fail under strace with EAGAIN, which neither sends
// nor reads anything. The runtime's poller gives no notice then, because nothing changes: without a limit the call never ends.
func TestCallsOfNetlinkEnd(t *testing.T) {
	if os.Getenv(inside) == "1" {
		readInside(t)
		return
	}
	if _, err := exec.LookPath("strace"); err != nil {
		if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
			t.Fatalf("this test needs the program strace: install the package strace (%v)", err)
		}
		t.Skip("this test needs the program strace")
	}
	for call, when := range map[string]string{"sendto": "3+7", "recvfrom": "5+40"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			c := exec.CommandContext(ctx, "strace", "-f", "-o", "/dev/null", "-e", "trace="+call, "-e", fmt.Sprintf("inject=%s:error=EAGAIN:when=%s", call, when),
				os.Args[0], "-test.run=^TestCallsOfNetlinkEnd$", "-test.timeout=1m")
			c.Env = append(os.Environ(), inside+"=1")
			if text, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v\n%.3000s", err, text)
			}
		})
	}
}

func readInside(t *testing.T) {
	want, err := Read()
	if err != nil || len(want.Interfaces) == 0 {
		t.Fatalf("read: %+v, %v", want, err)
	}
	facts, err := Watch(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	if got := <-facts; !reflect.DeepEqual(got, want) {
		t.Errorf("watched is %+v, read was %+v", got, want)
	}
	if way, err := WayTo(netip.MustParseAddr("127.0.0.1")); err != nil || !way.Local {
		t.Errorf("the way to 127.0.0.1 is %+v, %v", way, err)
	}
	for range 4 {
		if !AnswersFor(netip.MustParseAddr("127.0.0.1"), 1) {
			t.Error("the kernel does not answer for 127.0.0.1")
		}
		if _, err := DeliversForOthers(false); err != nil {
			t.Error(err)
		}
		// A function of the library, with a socket of its own.
		if _, err := Try(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) }); err != nil {
			t.Error(err)
		}
	}
}
