package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

func TestK01_culpritIsNamed(t *testing.T) {
	b := web(t, nil, l1)
	b.GW1.Nft("flush", "ruleset")
	eventually(t, syncTimeout, func() error {
		for line := range strings.Lines(b.svcctl.Log()) {
			if strings.Contains(line, "changed by another program") && strings.Contains(line, "comm=nft") && strings.Contains(line, "pid=") {
				if strings.Contains(b.svcctl.Log(), "our tables are put right") {
					return nil
				}
			}
		}
		return fmt.Errorf("no line that names the culprit in\n%s", b.svcctl.Log())
	})
	b.serves(t, "after a flush")
}

func TestK02_foreignEditIsUndone(t *testing.T) {
	b := web(t, nil, l1)
	for _, edit := range []string{
		"flush map ip svcctl services",
		"delete element ip6 svcctl backends { fd00:172:30::41 . tcp . 80 . 0 }",
		"add element ip svcctl services { 172.30.0.99 . tcp . 80 : drop }",
		"flush chain ip svcctl prerouting",
		"insert rule ip6 svcctl prerouting drop",
		"add chain ip svcctl intruder",
		"add table ip svcctl { flags dormant; }",
		"flush table ip svcctl\nflush table ip6 svcctl",
	} {
		t.Run(edit, func(t *testing.T) {
			before := b.GW1.Nft("-s", "list", "table", "ip", "svcctl") + b.GW1.Nft("-s", "list", "table", "ip6", "svcctl")
			b.GW1.LoadNft(edit)
			eventually(t, syncTimeout, func() error {
				after := b.GW1.Nft("-s", "list", "table", "ip", "svcctl") + b.GW1.Nft("-s", "list", "table", "ip6", "svcctl")
				if sortedLines(after) != sortedLines(before) {
					return fmt.Errorf("the tables are\n%s\nwere\n%s", after, before)
				}
				return nil
			})
			b.serves(t, edit)
			time.Sleep(2100 * time.Millisecond) // real time: five in ten seconds are no fight yet
		})
	}
}

// sortedLines makes listings equal that differ in the order of their elements.
func sortedLines(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.Trim(line, " \t\n,{}=")
		lines = append(lines, strings.TrimPrefix(strings.TrimSpace(line), "elements = { "))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestK02_fightIsCalledOne(t *testing.T) {
	b := web(t, nil, l1)
	m := b.GW1.Monitor()
	end := b.flushAgainAndAgain(t)
	eventually(t, syncTimeout, func() error {
		_, stderr, _ := b.svcctl.Svcctl("status")
		if !strings.Contains(stderr, "not synced: the rules are not in force: nft (process ") {
			return fmt.Errorf("svcctl status does not say that the rules are not in force: %s", stderr)
		}
		return nil
	})
	b.hasReason(t, syncTimeout, "ForeignInterference", "nft (process ")
	flushes := end()
	heals := 0
	for _, tr := range m.Transactions() {
		if tr.Process == "svcctl" && tr.Count("add table") > 0 {
			heals++
		}
	}
	if heals < 6 || heals > 20 {
		t.Errorf("%d heals against %d flushes, want a few", heals, flushes)
	}
	if n := strings.Count(b.svcctl.Log(), "changed by another program"); n > 20 {
		t.Errorf("the log has %d lines about one fight", n)
	}
	eventually(t, time.Minute, func() error { // the pauses so far were 1, 2 and, where all is slow, 16 s
		_, err := b.IN.Ask("tcp", ipv4.at(ipv4.vip(41), 80), netlab.Within(time.Second))
		return err
	})
	eventually(t, syncTimeout, func() error {
		if s := b.status(); !s.Synced {
			return fmt.Errorf("the rules are back, and it is not synced: %s", s.Reason)
		}
		return nil
	})
}

// flushAgainAndAgain flushes the ruleset until end is called, for 4 s at least; end gives how
// often.
func (b *box) flushAgainAndAgain(t *testing.T) (end func() (flushes int)) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done, least, n := make(chan struct{}), time.After(4*time.Second), 0 // real time: the fight lasts as long at least
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, _, err := b.GW1.Run("nft", "flush", "ruleset"); err != nil {
				t.Errorf("flush the ruleset: %v", err)
				return
			}
			n++
			time.Sleep(20 * time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return func() int {
		<-least
		stop()
		<-done
		return n
	}
}
