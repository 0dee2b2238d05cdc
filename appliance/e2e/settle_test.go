package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// Test1142_new_services_among_many: among some thousands of Services a new one, and one that gets another endpoint, serve at once, and
// their elements get their `goto` later, in a transaction for all of them. Every first packet is answered meanwhile, and after each kill of
// the process, at every stage.
func Test1142_new_services_among_many(t *testing.T) {
	b := web(t, nil, l1)
	const many = 4_200 // more than the 4,096 frontends from which it is so
	docs := make([]string, many)
	for i := range docs {
		docs[i] = stormService(i, 1)
	}
	b.svcctl.Manifests.Write("storm.yaml", strings.Join(docs, "---\n"))
	b.stormed(t, many, 1)
	element := func(f family, n int, verdict string) func() error {
		find := regexp.MustCompile(`\b` + regexp.QuoteMeta(f.vip(n)) + ` \. tcp \. 80 [^,}]*: ` + verdict + `\b`)
		return func() error {
			if out := b.GW1.Nft("list", "map", "ip", "svcctl", "services"); !find.MatchString(out) {
				return fmt.Errorf("no element %v", find)
			}
			return nil
		}
	}
	answered := func(stage string, n int, hosts ...*netlab.Host) {
		t.Helper()
		met := map[string]bool{}
		for range 60 {
			met[answers(t, b.IN, "tcp", ipv4.at(ipv4.vip(n), 80)).Server] = true
		}
		if len(met) != len(hosts) {
			t.Errorf("%s: %v answer, want %d hosts", stage, met, len(hosts))
		}
	}
	stop, failed := make(chan struct{}), make(chan error, 1)
	go func() { // first packets without pause
		for {
			select {
			case <-stop:
				failed <- nil
				return
			default:
			}
			if _, err := b.EXT.Ask("tcp", ipv4.at(ipv4.vip(41), 80)); err != nil {
				failed <- err
				return
			}
		}
	}()
	// All of them get their `goto` 10 s after the first change: a listing that took longer has to begin with a change.
	eventually(t, syncTimeout, func() error {
		b.write("web.yaml", b.webDocuments(b.L1))
		b.svcctl.Manifests.Write("new.yaml", "")
		b.synced()
		b.write("web.yaml", b.webDocuments(b.L1, b.L2))
		b.write("new.yaml", func(f family) []string {
			return []string{f.service("new", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}]"), f.slice("new", "p80: 80", b.L1, b.L2, b.R1)}
		})
		b.synced()
		return errors.Join(element(ipv4, 41, "continue")(), element(ipv4, 42, "continue")())
	})
	both := func(stage string) {
		t.Helper()
		answered(stage, 41, b.L1, b.L2)
		answered(stage, 42, b.L1, b.L2, b.R1)
	}
	killed := func(stage string) {
		t.Helper()
		both(stage)
		b.svcctl.Kill()
		both(stage + ", killed")
		b.svcctl.Start()
		both(stage + ", started again")
	}
	killed("unsettled")
	eventually(t, syncTimeout, element(ipv4, 41, "goto pick-2"))
	eventually(t, syncTimeout, element(ipv4, 42, "goto pick-3"))
	killed("with goto")
	eventually(t, syncTimeout, func() error {
		if out := b.GW1.Nft("list", "set", "ip", "svcctl", "unsettled"); strings.Contains(out, "elements") {
			return fmt.Errorf("the set has elements: %s", out)
		}
		return nil
	})
	killed("settled")
	close(stop)
	if err := <-failed; err != nil {
		t.Errorf("a first packet: %v", err)
	}
}
