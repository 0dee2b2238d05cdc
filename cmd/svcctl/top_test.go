package main

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// What is wrong on the command line is said before anybody is asked.
func TestTopUsage(t *testing.T) {
	b := newBench()
	for line, says := range map[string]string{
		"top --by beauty": "want one of open, rate, unanswered, refused, name",
		"top --limit 0":   "want a number from 1 to 10000",
		"top --filter " + strings.Repeat("x", 513): "512 is the most",
		"top --clients":                  "name it, as in `svcctl top svc/web --clients`",
		"top pod/web":                    "takes one Service",
		"top svc/web -A":                 "give -n NAMESPACE, not -A",
		"top --kill seven":               "want the ID",
		"top svc/web --kill 7":           "leave out svc/web",
		"top --kill 7 --client 10.0.0.1": "leave out --endpoint and --client",
	} {
		if code := b.run(strings.Fields(line)...); code != cli.ExitUsage || !strings.Contains(b.err.String(), says) {
			t.Errorf("%s: exit %d, %q; want %q", line, code, b.err.String(), says)
		}
	}
}

// Connections that are closing are left out unless they are asked for, and the limit counts those that are listed: the appliance is
// asked for more when closing ones took the places of others.
func Test892_closing_connections_are_left_out(t *testing.T) {
	states := []string{"TIME_WAIT", "FIN_WAIT", "ESTABLISHED", "CLOSE", "LAST_ACK", "SYN_RECV", "", "CLOSE_WAIT", "ESTABLISHED"}
	var limits []string
	mux := http.NewServeMux()
	mux.HandleFunc("/svcctl/v1/conns", func(w http.ResponseWriter, r *http.Request) {
		limits = append(limits, r.URL.Query().Get("limit"))
		limit, _ := strconv.Atoi(limits[len(limits)-1])
		list := wire.Connections{Connections: []wire.Connection{}}
		for i, state := range states[:min(limit, len(states))] {
			list.Connections = append(list.Connections, wire.Connection{ID: uint32(i), State: state, Answered: true, Protocol: "TCP"})
		}
		list.More = len(states) - len(list.Connections)
		_ = json.NewEncoder(w).Encode(list)
	})
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(func() { _ = server.Close() })
	for _, tt := range []struct {
		args, limits string
		rows         int
		err          string
	}{
		{"", "1000", 4, "5 connections are closing, not listed: --closing lists them\n"},
		{"--closing", "1000", 9, ""},
		{"--limit 3", "3 100000", 3, "5 connections are closing, not listed: --closing lists them\n1 connection more: raise --limit, or narrow it by --endpoint or --client\n"},
		{"--limit 3 --closing", "3", 3, "6 connections more: raise --limit, or narrow it by --endpoint or --client\n"},
	} {
		b := newBench()
		limits = nil
		code := b.run(append([]string{"top", "--connections", "-A", "--socket", socket}, strings.Fields(tt.args)...)...)
		rows := strings.Count(b.out.String(), "\n") - 1
		if code != cli.ExitDone || rows != tt.rows || b.err.String() != tt.err || strings.Join(limits, " ") != tt.limits {
			t.Errorf("%s: exit %d, %d rows, asked for %v, stderr %q\n%s", tt.args, code, rows, limits, b.err.String(), b.out.String())
		}
	}
}
