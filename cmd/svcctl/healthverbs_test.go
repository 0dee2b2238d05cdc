package main

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// health stands for the API of a box that tells of endpoints.
type health struct {
	mu    sync.Mutex
	all   []wire.EndpointHealth
	asked int
}

func (h *health) of(namespace, name string) []wire.EndpointHealth {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked++
	list := []wire.EndpointHealth{}
	for _, e := range h.all {
		in, of, _ := strings.Cut(e.Service, "/")
		if (namespace == "" || in == namespace) && (name == "" || of == name) {
			list = append(list, e)
		}
	}
	return list
}

// set changes what is told, and reports how often it had been asked for.
func (h *health) set(all ...wire.EndpointHealth) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = all
	return h.asked
}

// endpointIs is an endpoint of shop/web by its last number.
func endpointIs(state, number, check string) wire.EndpointHealth {
	return wire.EndpointHealth{Service: "default/web", Port: "http", Protocol: "TCP", Endpoint: "10.1.2." + number + ":8080", State: state, Check: check, Took: wire.Duration(1234567 * time.Nanosecond)}
}

func TestHealthVerb(t *testing.T) {
	b := newBox(t)
	b.file("web.yaml", webYAML)
	since := noon.Add(76 * time.Second)
	down := endpointIs(wire.HealthDown, "12", "http:8080/healthz")
	side := endpointIs(wire.HealthDown, "12", "tcp:8081") // another check of the same endpoint
	down.Since, down.Why, down.Failures, down.Took = &since, "no answer in 2s", 5, wire.Duration(2*time.Second)
	held := endpointIs(wire.HealthDown, "13", "http:8080/healthz")
	held.Since, held.Passes, held.Held = &since, 2, wire.Duration(90*time.Second)
	other := endpointIs(wire.HealthUp, "15", "tcp")
	other.Service = "shop/db"
	b.health.set(endpointIs(wire.HealthUp, "11", "http:8080/healthz"), down, side, held,
		wire.EndpointHealth{Service: "default/web", Protocol: "TCP", Endpoint: "10.1.2.14:8080", State: wire.HealthOut}, other)
	b.session("health",
		"apply -f web.yaml",
		"health",
		"health svc/web",
		"health -n shop",
		"health -o json -n shop",
		"health svc/nope",
		"health web",
		"health pods/web",
		"health svc/web svc/db",
		"health -w -o json",
		"health -n nowhere",
	)
}

// Each change of state is a line, and nothing else is.
func TestHealthWatch(t *testing.T) {
	b := newBox(t)
	const check, side = "http:8080/healthz", "tcp:8081"
	b.health.set(endpointIs(wire.HealthUp, "11", check), endpointIs(wire.HealthUp, "11", side), endpointIs(wire.HealthNew, "12", check))
	watcher := newBench()
	watcher.env, watcher.Now = b.env, b.Now
	var out lockedBuffer
	watcher.Out = &out
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan int, 1)
	go func() { done <- run(ctx, watcher.Env, []string{"health", "-w"}) }()
	shows := func(lines int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); strings.Count(out.String(), "\n") < lines; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d lines do not come:\n%s", lines, out.String())
			}
		}
	}
	shows(4)
	// looksAgain waits for two looks, which print nothing, as nothing changes.
	looksAgain := func(before int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			b.health.mu.Lock()
			enough := b.health.asked >= before+2
			b.health.mu.Unlock()
			if enough {
				return
			}
			if time.Now().After(end) {
				t.Fatal("it does not look again")
			}
		}
	}
	// The same again, but for how long it took.
	slow := endpointIs(wire.HealthUp, "11", check)
	slow.Took = wire.Duration(time.Second)
	looksAgain(b.health.set(slow, endpointIs(wire.HealthUp, "11", side), endpointIs(wire.HealthNew, "12", check)))
	asked := b.health.set(endpointIs(wire.HealthDown, "11", side), slow, endpointIs(wire.HealthUp, "12", check))
	shows(6)
	looksAgain(asked + 1)
	stop()
	if code := <-done; code != cli.ExitDone {
		t.Errorf("exit %d: %s", code, watcher.err.String())
	}
	var words []string
	for line := range strings.Lines(out.String()) {
		f := strings.Fields(line)
		words = append(words, f[2]+" "+f[3]+" "+f[5])
	}
	want := []string{
		"ENDPOINT STATE CHECK", "10.1.2.11:8080 up " + check, "10.1.2.11:8080 up " + side, "10.1.2.12:8080 new " + check,
		"10.1.2.11:8080 down " + side, "10.1.2.12:8080 up " + check,
	}
	if got := strings.Join(words, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("printed\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// lockedBuffer is a bytes.Buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestOutAndIn(t *testing.T) {
	b := newBox(t)
	b.file("web.yaml", webYAML)
	b.file("six.yaml", `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-6, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ["fd00::11"]}]
`)
	b.file("soon.yaml", strings.Replace(webYAML, "  name: web\n", "  name: web\n  annotations: {svcctl.io/out: soon}\n", 1))
	const annotation = `get svc web -o jsonpath='{.metadata.annotations.svcctl\.io/out}'`
	b.session("out",
		"apply -f web.yaml",
		"apply -f six.yaml",
		"out svc/web 10.1.2.12 fd00:0::11",
		annotation,
		"out svc/web 10.1.2.11",
		"out svc/web 10.1.2.11",
		annotation,
		"in svc/web fd00::11 10.1.2.11",
		annotation,
		"in svc/web 10.1.2.11",
		"in svc/web",
		"get svc web -o jsonpath='{.metadata.annotations}'",
		"in svc/web",
		"out svc/web 10.9.9.9",
		"out svc/web 10.1.2.11:8080",
		"out svc/web",
		"out svc/nope 10.1.2.11",
		"in",
		"apply -f soon.yaml",
		"out svc/web 10.1.2.11",
	)
}
