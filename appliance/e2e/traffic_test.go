package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// connection is one that `svcctl top --connections` lists.
type connection struct {
	ID                            uint32
	Service, Client, Endpoint, As string
	State                         string
	Answered                      bool
}

// counts are those of `svcctl top`.
type counts struct {
	Open, Unanswered int
	Rate             *float64
}

// conns are the connections through a Service that `svcctl top --connections` lists.
func (v *verbs) conns(args ...string) []connection {
	v.t.Helper()
	var list struct{ Connections []connection }
	if err := json.Unmarshal([]byte(v.does(0, "top", append(args, "--connections", "-o", "json")...)), &list); err != nil {
		v.t.Fatal(err)
	}
	return list.Connections
}

// `svcctl top --connections` lists what is connected through a Service and ends one connection of many, and
// `svcctl top` counts them by endpoint, those without an answer apart.
func Test330_connections_are_listed_counted_and_ended(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{f.service("web", "type: NodePort", "clusterIP: "+f.vip(41), nodePorts(f, 30080)), f.slice("web", "p80: 80", b.L1)}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		v := b.verbs(t)
		service, endpoint := "svc/"+f.name("web"), f.on(80, b.L1)[0]
		if list := v.conns(service); len(list) != 0 {
			t.Fatalf("before there are any, %v", list)
		}
		dial := func(client *netlab.Host, to netip.AddrPort) *netlab.Conn {
			conn, err := client.Dial(to, patiently)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(conn.Close)
			return conn
		}
		stays, ends, nodePort := dial(b.IN, f.cluster()), dial(b.IN, f.cluster()), dial(b.EXT, f.at(f.pick(netlab.BoxAddr4, netlab.BoxAddr6), f.number(30080)))
		list := v.conns(service)
		if len(list) != 3 {
			t.Fatalf("%d connections are listed, want 3: %v", len(list), list)
		}
		var id uint32
		for _, c := range list {
			if c.Endpoint != endpoint.String() || c.State != "ESTABLISHED" || !c.Answered || c.Service != f.name("web") {
				t.Errorf("a connection is listed as %+v", c)
			}
			if c.Client == ends.Local.String() {
				id = c.ID
			}
			if masqueraded := c.Client == nodePort.Local.String(); masqueraded != (c.As != "") {
				t.Errorf("%s is seen as %q", c.Client, c.As)
			}
		}
		if list := v.conns(service, "--client", f.of(b.EXT).String()); len(list) != 1 || list[0].Client != nodePort.Local.String() {
			t.Errorf("of one client %v", list)
		}
		if list := v.conns(service, "--endpoint", f.on(80, b.R1)[0].Addr().String()); len(list) != 0 {
			t.Errorf("of an endpoint of somebody else %v", list)
		}

		v.says(0, []string{fmt.Sprintf("connection %d ended", id)}, "top", "--kill", strconv.FormatUint(uint64(id), 10))
		v.says(1, []string{"no Service has a connection"}, "top", "--kill", strconv.FormatUint(uint64(id), 10))
		if err := ends.Echo("anybody?", patiently); netlab.RefusalOf(err) != netlab.Reset {
			t.Errorf("the connection that was ended: %v, want a reset", err)
		}
		for _, conn := range []*netlab.Conn{stays, nodePort} {
			if err := conn.Echo("still here", patiently); err != nil {
				t.Errorf("a connection that was left alone: %v", err)
			}
		}

		b.L1.LoadNft("table " + f.pick("ip", "ip6") + " quiet { chain input { type filter hook input priority 0; tcp dport 80 tcp flags syn / syn,ack drop; }; }")
		begin(b.IN, f.of(b.IN), f.cluster(), 5)
		eventually(t, syncTimeout, func() error {
			var seen struct {
				Ports []struct {
					counts
					Endpoints []struct {
						counts
						Endpoint string
					}
				}
			}
			if err := json.Unmarshal([]byte(v.does(0, "top", service, "--once", "-o", "json")), &seen); err != nil {
				return err
			}
			if len(seen.Ports) != 1 || len(seen.Ports[0].Endpoints) != 1 {
				return fmt.Errorf("top tells %+v", seen)
			}
			p, e := seen.Ports[0], seen.Ports[0].Endpoints[0]
			if p.Open != 2 || p.Unanswered != 5 || e.Open != 2 || e.Unanswered != 5 || e.Endpoint != endpoint.String() || p.Rate == nil {
				return fmt.Errorf("top counts %+v, want 2 open and 5 unanswered of one endpoint", p)
			}
			return nil
		})
		v.showsClients(service, map[string][2]int{f.of(b.IN).String(): {1, 5}, f.of(b.EXT).String(): {1, 0}})
		b.L1.Nft("delete", "table", f.pick("ip", "ip6"), "quiet")
		v.says(0, []string{"UNANSWERED", "default/" + f.name("web")}, "top", "-A", "--once", "--by", "unanswered")
	})
}

// showsClients asserts the clients of a Service that `svcctl top --clients` lists, the busiest first, with their open and unanswered connections.
func (v *verbs) showsClients(service string, want map[string][2]int) {
	v.t.Helper()
	var seen struct {
		Clients struct {
			Counted bool
			Items   []struct {
				Client           string
				Open, Unanswered int
			}
			More int
		}
	}
	ask := func(limit string) {
		v.t.Helper()
		out := v.does(0, "top", service, "--clients", "--once", "-o", "json", "--limit", limit)
		if err := json.Unmarshal([]byte(out), &seen); err != nil {
			v.t.Fatal(err)
		}
	}
	ask("100")
	got := map[string][2]int{}
	for i, c := range seen.Clients.Items {
		got[c.Client] = [2]int{c.Open, c.Unanswered}
		if i > 0 && c.Open+c.Unanswered > seen.Clients.Items[i-1].Open+seen.Clients.Items[i-1].Unanswered {
			v.t.Errorf("%+v are not the busiest first", seen.Clients.Items)
		}
	}
	if !seen.Clients.Counted || !maps.Equal(got, want) || seen.Clients.More != 0 {
		v.t.Errorf("the clients of %s are %+v, want %v", service, seen.Clients, want)
	}
	busiest := seen.Clients.Items[0].Client
	if ask("1"); len(seen.Clients.Items) != 1 || seen.Clients.Items[0].Client != busiest || seen.Clients.More != len(want)-1 {
		v.t.Errorf("the busiest client of %s is %+v, want %s and %d more", service, seen.Clients, busiest, len(want)-1)
	}
	v.says(0, []string{"CLIENT", busiest}, "top", service, "--clients")
}

// `svcctl top --filter` shows ports by a part of their names or a pattern, and what goes into a pipe is plain.
func Test346_top_filters(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: http, port: 80}]"), f.slice("web", "http: 80", b.L1),
			f.service("api", "clusterIP: "+f.vip(42), "ports: [{name: http, port: 80}]"), f.slice("api", "http: 80", b.L1),
		}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		v := b.verbs(t)
		conn, err := b.IN.Dial(f.at(f.vip(42), 80), patiently)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for filter, want := range map[string][]string{
			f.name("web"):               {f.name("web")},
			"default/" + f.name("a"):    nil,
			"*/" + f.name("api") + ":*": {f.name("api")},
			f.name("api") + "*":         nil,
		} {
			var seen struct {
				Ports []struct {
					Service string
					Open    int
				}
			}
			if err := json.Unmarshal([]byte(v.does(0, "top", "-A", "--once", "-o", "json", "--filter", filter)), &seen); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range seen.Ports {
				got = append(got, p.Service)
				if opened := p.Service == f.name("api"); opened != (p.Open == 1) {
					t.Errorf("%s has %d open connections", p.Service, p.Open)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("with %s: %q, want %q", filter, got, want)
			}
		}
		if text := v.does(0, "top", "-A", "--filter", f.name("api")); strings.Contains(text, "\x1b") || strings.Contains(text, f.name("web")) || !strings.Contains(text, "default/"+f.name("api")+":http") {
			t.Errorf("into a pipe goes %q", text)
		}
	})
}
