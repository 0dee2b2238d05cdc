package e2e

import (
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Many sockets, of the appliance and of other programs, make nothing of it look stuck. The
// watchdog would have ended the process after 30 s, on a quiet machine without the pauses, too.
func TestP10_manyDescriptors(t *testing.T) {
	b := newBox(t, flags{"nodeport-addresses": {"127.0.0.0/8"}})
	b.write("web.yaml", func(f family) []string {
		return append(b.webDocuments(b.L1)(f), f.service("np", "type: NodePort", nodePorts(f, 30090)), f.slice("np", "p80: 80", b.L1))
	})
	b.svcctl.Env = []string{"GOMAXPROCS=1"}
	b.svcctl.Start()
	var open []interface{ Close() error }
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	err := b.GW1.Do(func() error {
		for range 3300 {
			c, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			open = append(open, c)
		}
		for range 700 { // connections that the appliance relays: two descriptors each; a port may have a third of the room
			c, err := net.Dial("tcp", "127.0.0.1:30090")
			if err != nil {
				return err
			}
			open = append(open, c)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Timers of one period come due together after a pause, whatever their phases, and the first of them finds the others under way.
	for range 10 {
		b.svcctl.Signal(unix.SIGSTOP)
		time.Sleep(4900 * time.Millisecond) // real time: timers of 5 s come due meanwhile
		b.svcctl.Signal(unix.SIGCONT)
		// real time: it does not end meanwhile
		if time.Sleep(100 * time.Millisecond); !b.svcctl.Running() {
			t.Fatal("it ended")
		}
	}
	b.write("web.yaml", b.webDocuments(b.R1))
	eventually(t, syncTimeout, func() error {
		for _, f := range families {
			if reply, err := b.IN.Ask("tcp", f.at(f.vip(41), 80)); err != nil || reply.Server != "R1" {
				return fmt.Errorf("%s: answered by %q, %v", f, reply.Server, err)
			}
		}
		return nil
	})
}
