package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// TestP03_otherLayout starts the appliance over tables of another version: one whose maps
// are defined in another way. They are replaced in one transaction, which connections do
// not notice.
func TestP03_otherLayout(t *testing.T) {
	b := web(t, nil, l1r1)
	open, err := b.EXT.Dial(ipv4.at(ipv4.vip(41), 80))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	for range 3 {
		b.svcctl.Stop()
		var other strings.Builder
		for _, f := range families {
			listing := b.GW1.Nft("list", "table", f.pick("ip", "ip6"), "svcctl")
			changed := strings.Replace(listing, "map services {", "map services {\n size 4096", 1)
			if changed == listing {
				t.Fatalf("no map services in\n%s", listing)
			}
			fmt.Fprintf(&other, "delete table %s\n%s", f.table(), changed)
		}
		b.GW1.LoadNft(other.String())
		stop := make(chan struct{})
		done := make(chan *netlab.Tally)
		go func() {
			total := &netlab.Tally{Failures: map[netlab.Refusal]int{}}
			for {
				select {
				case <-stop:
					done <- total
					return
				default:
				}
				tally := b.IN.AskMany(20, "tcp", ipv4.at(ipv4.vip(41), 80), patiently)
				total.Asked += tally.Asked
				for r, n := range tally.Failures {
					total.Failures[r] += n
					total.First = tally.First
				}
			}
		}()
		m := b.GW1.Monitor()
		b.svcctl.Start()
		replaced := 0
		for _, tr := range m.Transactions() {
			replaced += tr.Changes[netlab.Change{Kind: "delete table", Table: ipv4.table()}]
		}
		time.Sleep(100 * time.Millisecond)
		close(stop)
		if tally := <-done; len(tally.Failures) > 0 {
			t.Errorf("while the tables are replaced: %s", tally)
		}
		if listing := b.GW1.Nft("list", "table", "ip", "svcctl"); replaced != 1 || strings.Contains(listing, "size 4096") {
			t.Errorf("%d transactions replace the tables, want one; now they are\n%s", replaced, listing)
		}
		if err := open.Echo("still here"); err != nil {
			t.Errorf("a connection opened before: %v", err)
		}
	}
}

// TestK09_tableOfAnotherProcess: another program owns a table of our name. The appliance says
// so, does not give up, and goes on when it is over.
func TestK09_tableOfAnotherProcess(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.webDocuments(b.L1))
	// nft -i keeps what it owns until its input ends.
	release := b.GW1.HoldNft("add table ip svcctl { flags owner; }")
	b.svcctl.Launch()
	eventually(t, syncTimeout, func() error {
		if log := b.svcctl.Log(); !strings.Contains(log, "the table belongs to another process") {
			return fmt.Errorf("no line that says why in\n%s", log)
		}
		return nil
	})
	if _, stderr, code := b.svcctl.Svcctl("status"); code != 1 || !strings.Contains(stderr, "not ready") || !strings.Contains(stderr, "belongs to another process") {
		t.Errorf("svcctl status: exit code %d: %s", code, stderr)
	}
	if n := strings.Count(b.svcctl.Log(), "belongs to another process"); !b.svcctl.Running() || n > 6 {
		t.Errorf("running: %t, said %d times", b.svcctl.Running(), n)
	}
	release()
	eventually(t, time.Minute, func() error {
		_, err := b.IN.Ask("tcp", ipv4.at(ipv4.vip(41), 80), netlab.Within(time.Second))
		return err
	})
}

// TestK12_netlinkFails has the kernel fail single calls on netlink sockets, at different
// places of a start and of changes.
func TestK12_netlinkFails(t *testing.T) {
	// Which calls of each thread fail: a reading of the tables takes many more to receive
	// than to send.
	calls := map[string]string{"sendto": "12+61", "recvfrom": "30+300"}
	for _, errno := range []string{"ENOMEM", "ENOBUFS", "EINTR", "EAGAIN"} {
		for call, when := range calls {
			t.Run(call+" "+errno, func(t *testing.T) {
				b := newBox(t, nil)
				b.write("web.yaml", b.webDocuments(b.L1))
				b.svcctl.Wrapper = []string{"strace", "-D", "-f", "-o", "/dev/null", "-e", "trace=" + call,
					"-e", "inject=" + call + ":error=" + errno + ":when=" + when}
				b.svcctl.Start()
				sets := [][]*netlab.Host{{b.R1}, {b.L1, b.R2}, {b.R2}}
				for i := range 9 {
					hosts := sets[i%len(sets)]
					b.write("web.yaml", b.webDocuments(hosts...))
					eventually(t, time.Minute, func() error {
						for _, f := range families {
							if reply, err := b.IN.Ask("tcp", f.at(f.vip(41), 80), patiently); err != nil || !servedBy(reply.Server, hosts) {
								return fmt.Errorf("change %d: answered by %q, %v", i, reply.Server, err)
							}
						}
						return nil
					})
				}
			})
		}
	}
}
