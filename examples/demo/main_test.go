package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/providertest"
)

// start runs a server of some name and gives its URL.
func start(t *testing.T, name string) string {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", providertest.FreePort(t))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, name, address) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	url := "http://" + address + "/"
	for range 100 {
		if response, err := http.Get(url); err == nil {
			response.Body.Close()
			return url
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the server does not answer")
	return ""
}

func TestAsk(t *testing.T) {
	url := start(t, "backend-1")
	tests := []struct {
		name    string
		args    []string
		want    string // in the output
		failure string // in the error
	}{
		{"counts", []string{"ask", "-n", "20", "-expect", "backend-1", url},
			"20 connections, 0 failed\n    the servers saw client 127.0.0.1", ""},
		{"holds a connection", []string{"ask", "-for", "100ms", url}, "held open throughout", ""},
		{"misses a server", []string{"ask", "-n", "1", "-expect", "backend-1,backend-2", url},
			"1 connections", "answers came from [backend-1], not from [backend-1 backend-2]"},
		{"nobody answers", []string{"ask", "-n", "1", "http://127.0.0.1:1/"}, "1 failed", "connection refused"},
		{"no such verb", []string{"sing"}, "", `there is no "sing"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(t.Context(), test.args, &out)
			if !strings.Contains(out.String(), test.want) {
				t.Errorf("output %q, want %q in it", out.String(), test.want)
			}
			switch {
			case test.failure == "" && err != nil:
				t.Error(err)
			case test.failure != "" && (err == nil || !strings.Contains(err.Error(), test.failure)):
				t.Errorf("error %v, want %q", err, test.failure)
			}
		})
	}
}

// Downloads that go on are counted, with the longest time without one; when they end for good, that is told.
func TestGap(t *testing.T) {
	var out strings.Builder
	err := run(t.Context(), []string{"gap", "-for", "200ms", start(t, "backend")}, &out)
	if err != nil || !strings.Contains(out.String(), " downloads, ") {
		t.Errorf("%v: %s", err, out.String())
	}
	if err := run(t.Context(), []string{"gap", "-for", "200ms", "http://127.0.0.1:1"}, &out); err == nil {
		t.Error("nothing came, and that is no error")
	}
}
