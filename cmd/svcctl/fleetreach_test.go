package main

import (
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"
)

// A server whose certificate is not trusted, as etcd's is without --etcd-cacert.
func Test665_fleet_without_etcd(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	b := newBench()
	code := b.run("fleet", "init", "--fleet", "pop1", "--etcd", server.URL)
	if said := b.err.String(); code != exitNo || !strings.Contains(said, "no etcd answers at "+server.URL) || !strings.Contains(said, "--etcd-cacert") {
		t.Errorf("exit %d, %s", code, said)
	}
}
