package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// healthPort is the health-check node port of the Service of these tests.
func (f family) healthPort() netip.AddrPort { return f.at(f.boxAddr(), f.number(31500)) }

// checked writes and serves a load balancer with policy Local and two ports.
func checked(t *testing.T, endpoints func(b *box, f family) []string) *box {
	t.Helper()
	b := newBox(t, nil)
	b.write("web.yaml", b.checkedDocuments(endpoints, etpLocal, "healthCheckNodePort: PORT"))
	b.svcctl.Start()
	return b
}

func (b *box) checkedDocuments(endpoints func(b *box, f family) []string, spec ...string) func(f family) []string {
	return func(f family) []string {
		lines := append([]string{
			"type: LoadBalancer", "loadBalancerIP: " + f.lb(4),
			"ports: [{name: p80, port: 80}, {name: p443, port: 443}, {name: udp, port: 53, protocol: UDP}]",
		}, spec...)
		for i := range lines {
			lines[i] = strings.ReplaceAll(lines[i], "PORT", fmt.Sprint(f.healthPort().Port()))
		}
		return []string{f.service("web", lines...), f.rawSlice("web", "web", "p80: 80, p443: 8443, udp: 53/UDP", endpoints(b, f)...)}
	}
}

// health asserts what the health-check node port answers.
func (b *box) health(t *testing.T, f family, status, local int) {
	t.Helper()
	eventually(t, syncTimeout, func() error { return b.tryHealth(f, status, local) })
}

func (b *box) tryHealth(f family, status, local int) error {
	answer, err := b.EXT.Get(f.healthPort(), "/")
	if err != nil {
		return err
	}
	var body struct {
		Service             struct{ Namespace, Name string }
		LocalEndpoints      int
		ServiceProxyHealthy bool
	}
	if err := json.Unmarshal([]byte(answer.Body), &body); err != nil {
		return fmt.Errorf("%s: %w: %s", f.healthPort(), err, answer.Body)
	}
	switch weight := answer.Header.Get("X-Load-Balancing-Endpoint-Weight"); {
	case answer.Status != status || body.LocalEndpoints != local || weight != fmt.Sprint(local):
		return fmt.Errorf("%s: status %d, weight %q, %s: want status %d and %d endpoints", f.healthPort(), answer.Status, weight, answer.Body, status, local)
	case body.Service.Namespace != "default" || body.Service.Name != f.name("web") || !body.ServiceProxyHealthy:
		return fmt.Errorf("%s: %s, want Service default/%s and a healthy proxy", f.healthPort(), answer.Body, f.name("web"))
	case answer.Header.Get("Content-Type") != "application/json":
		return fmt.Errorf("%s: content type %q", f.healthPort(), answer.Header.Get("Content-Type"))
	}
	return nil
}

func Test138_health_check_node_port(t *testing.T) {
	b := checked(t, func(b *box, f family) []string {
		return []string{f.having(b.L1, isReady), f.having(b.L2, isReady), f.having(b.R1, isReady)}
	})
	for _, f := range families {
		b.health(t, f, 200, 2) // addresses count, not their ports
		if answer, err := b.EXT.Get(f.healthPort(), "/any/path"); err != nil || answer.Status != 200 {
			t.Errorf("another path: %v, %v", answer, err)
		}
	}
	for _, change := range []struct {
		endpoints     func(b *box, f family) []string
		status, local int
	}{
		{func(b *box, f family) []string { return []string{f.having(b.L1, isReady)} }, 200, 1},
		{func(b *box, f family) []string { return []string{f.having(b.L1, draining), f.having(b.R1, isReady)} }, 503, 0},
		{func(b *box, f family) []string { return []string{f.having(b.R1, isReady)} }, 503, 0},
		{func(b *box, f family) []string { return nil }, 503, 0},
		{func(b *box, f family) []string { return []string{f.having(b.L2, isReady), f.having(b.L1, notReady)} }, 200, 1},
	} {
		b.rewrite("web.yaml", b.checkedDocuments(change.endpoints, etpLocal, "healthCheckNodePort: PORT"))
		for _, f := range families {
			b.health(t, f, change.status, change.local)
		}
	}
	// A Service that needs it no more has none.
	b.rewrite("web.yaml", b.checkedDocuments(func(b *box, f family) []string { return []string{f.having(b.L1, isReady)} }))
	for _, f := range families {
		eventually(t, syncTimeout, func() error {
			if answer, err := b.EXT.Get(f.healthPort(), "/"); !errors.Is(err, unix.ECONNREFUSED) {
				return fmt.Errorf("%s: %v, %v, want a reset", f.healthPort(), answer, err)
			}
			return nil
		})
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), masq, f.on(80, b.L1)...)
	}
}

func Test138_health_check_node_port_is_taken(t *testing.T) {
	b := newBox(t, nil)
	taken := map[family]*netlab.Server{}
	for _, f := range families {
		taken[f] = b.GW1.ServeAt("tcp", f.healthPort())
	}
	ready := func(b *box, f family) []string { return []string{f.having(b.L1, isReady)} }
	b.write("web.yaml", b.checkedDocuments(ready, etpLocal, "healthCheckNodePort: PORT"))
	b.write("other.yaml", func(f family) []string {
		return []string{
			f.service("other", "type: LoadBalancer", etpLocal, "healthCheckNodePort: "+f.port(31600), "ports: [{name: p80, port: 80}]"),
			f.rawSlice("other", "other", "p80: 80", ready(b, f)...),
		}
	})
	b.svcctl.Start()
	for _, f := range families {
		b.hasProblem(t, f.object("Service", "web"), "spec.healthCheckNodePort", fmt.Sprint(f.healthPort().Port()))
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), plain, f.on(80, b.L1)...) // the Service itself is served
		if answer, err := b.EXT.Get(f.at(f.boxAddr(), f.number(31600)), "/"); err != nil || answer.Status != 200 {
			t.Errorf("the port of another Service: %v, %v", answer, err)
		}
		taken[f].Close()
	}
	for _, f := range families {
		eventually(t, 3*syncTimeout, func() error { return b.tryHealth(f, 200, 1) })
		eventually(t, syncTimeout, func() error {
			for _, p := range b.status().Problems {
				if p.Object == f.object("Service", "web") {
					return errors.New(p.String())
				}
			}
			return nil
		})
	}
}

func Test138_health_check_node_port_over_a_restart(t *testing.T) {
	b := checked(t, func(b *box, f family) []string { return []string{f.having(b.L1, isReady)} })
	b.svcctl.Kill()
	b.svcctl.Start()
	for _, f := range families {
		b.health(t, f, 200, 1)
	}
}
