package soak

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

// These tests kill the program at moments of a change and look at what it allocated: a
// value that was in force stays with its Service, and no two Services have one.

// The Services whose allocations are watched exist from first to last; others come and go.
const (
	permanent = 20
	passing   = 15
)

// allocated are the values that were seen in force, by the endpoint of their Service.
type allocated struct {
	vips  map[string]string
	ports map[string]string
}

// allocating is a manifest of a Service that asks for a cluster IP and a node port, and
// that its only endpoint tells from the others.
func allocating(i, port int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: alloc%[1]d}
spec: {type: NodePort, ipFamilies: [IPv4], ports: [{port: 80, targetPort: %[2]d}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: alloc%[1]d, labels: {kubernetes.io/service-name: alloc%[1]d}}
addressType: IPv4
ports: [{port: %[2]d}]
endpoints: [{addresses: [10.180.1.%[1]d]}]
`, i, port)
}

// churn changes some of the Services whose allocations are watched.
func (b *bench) churn() {
	for range 1 + b.random.IntN(5) {
		i := 1 + b.random.IntN(permanent+passing)
		name, text := fmt.Sprintf("alloc%d.yaml", i), allocating(i, 1+b.random.IntN(60000))
		if i > permanent && b.random.IntN(2) == 0 {
			text = "# away for now\n"
		}
		b.svcctl.Manifests.Write(name, text)
	}
}

func newKillBench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	for i := 1; i <= permanent; i++ {
		b.svcctl.Manifests.Write(fmt.Sprintf("alloc%d.yaml", i), allocating(i, 80))
	}
	var err error
	if b.kernel, err = kernel.Open(kernel.Options{NetNS: b.GW1.Namespace()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.kernel.Close() })
	return b
}

// The elements of the Services whose allocations are watched, as nft writes them.
var (
	vipElement  = regexp.MustCompile(`^(172\.30\.[\d.]+) \. tcp \. 80 \. 0 : (10\.180\.1\.\d+) \. \d+$`)
	portElement = regexp.MustCompile(`^tcp \. (\d+) \. 0 : (10\.180\.1\.\d+) \. \d+$`)
)

// inForce reads the allocations from the kernel; nil when there is nothing of svcctl yet.
func (b *bench) inForce(t *testing.T) *allocated {
	t.Helper()
	ruleset, _, err := b.kernel.Read()
	if err != nil {
		t.Fatal(err)
	}
	table := ruleset[nft.IPv4]
	if table == nil {
		return nil
	}
	read := func(set string, element *regexp.Regexp) map[string]string {
		content := table.Sets[set]
		if content == nil {
			return nil // no Service has an endpoint yet
		}
		byEndpoint, owner := map[string]string{}, map[string]string{}
		for key, data := range content.Elements {
			m := element.FindStringSubmatch(nft.Printer{}.Element(content.Set, nft.IPv4, nft.Element{Key: key, Data: data}))
			if m == nil {
				continue
			}
			value, endpoint := m[1], m[2]
			if before := byEndpoint[endpoint]; before != "" && before != value {
				t.Errorf("%s has %s and %s", endpoint, before, value)
			}
			if before := owner[value]; before != "" && before != endpoint {
				t.Errorf("%s belongs to %s and to %s", value, before, endpoint)
			}
			byEndpoint[endpoint], owner[value] = value, endpoint
		}
		return byEndpoint
	}
	return &allocated{vips: read("backends", vipElement), ports: read("nodeport-backends", portElement)}
}

// remember takes in what is in force now and tells what was lost since before.
func (a *allocated) remember(t *testing.T, when string, now *allocated) {
	t.Helper()
	if now == nil {
		return
	}
	for i := 1; i <= permanent; i++ {
		endpoint := fmt.Sprintf("10.180.1.%d", i)
		for what, kinds := range map[string][2]map[string]string{"cluster IP": {a.vips, now.vips}, "node port": {a.ports, now.ports}} {
			before, value := kinds[0][endpoint], kinds[1][endpoint]
			if before != "" && value != before {
				t.Errorf("%s: the %s of Service %d was %s and is %q", when, what, i, before, value)
			}
			if value != "" {
				kinds[0][endpoint] = value
			}
		}
	}
}

// recovers starts the program and asserts that it gets everything in force.
func (b *bench) recovers(t *testing.T, when string, known *allocated) {
	t.Helper()
	known.remember(t, when, b.inForce(t))
	b.svcctl.Wrapper = nil
	b.svcctl.Start()
	b.converged(t)
	now := b.inForce(t)
	known.remember(t, when+", started again", now)
	if now == nil || len(now.vips) < permanent || len(now.ports) < permanent {
		t.Errorf("%s: %+v are in force, want a cluster IP and a node port of at least %d Services", when, now, permanent)
	}
}

func TestS01_randomKills(t *testing.T) {
	t.Parallel()
	const boxes = 2 // at the same time: much of it is waiting
	n := (randomKills.value(t) + boxes - 1) / boxes
	for box := range boxes {
		t.Run(fmt.Sprint("box ", box), func(t *testing.T) {
			t.Parallel()
			b := newKillBench(t)
			b.random = rand.New(rand.NewPCG(uint64(box), 3))
			b.killAtRandom(t, n)
		})
	}
}

func (b *bench) killAtRandom(t *testing.T, n int) {
	t.Helper()
	known := &allocated{map[string]string{}, map[string]string{}}
	for i := range n {
		b.churn()
		b.svcctl.Launch()
		b.pause(120 * time.Millisecond)
		if b.random.IntN(2) == 0 { // a change under way as well
			b.churn()
			b.pause(150 * time.Millisecond)
		}
		b.svcctl.Kill()
		when := fmt.Sprintf("kill %d", i+1)
		if i%10 == 9 || i == n-1 {
			b.recovers(t, when, known)
			b.svcctl.Kill()
		} else {
			known.remember(t, when, b.inForce(t))
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d kills: no allocation of %d Services lost or doubled", n, len(known.vips))
}

// calls are the system calls by which something is stored or committed.
var calls = []string{"pwrite64", "fdatasync", "fsync", "ftruncate", "renameat", "sendto"}

// TestS01_killAtEveryCall kills the program when it makes the first of these calls, then
// when it makes the second, and so on, until it has made all that a start and a change
// take, or until the count is reached.
func TestS01_killAtEveryCall(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("strace"); err != nil {
		t.Fatalf("this test needs the program strace: install the package strace (%v)", err)
	}
	most := callKills.value(t)
	for _, call := range calls {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			b := newKillBench(t)
			known := &allocated{map[string]string{}, map[string]string{}}
			n := 1
			for ; n <= most; n++ {
				b.churn()
				b.svcctl.Wrapper = []string{"strace", "-D", "-f", "-o", "/dev/null", "-e", "trace=" + call,
					"-e", fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", call, n)}
				if b.survives() {
					b.svcctl.Kill()
					b.recovers(t, "in the end", known)
					b.svcctl.Kill()
					break
				}
				b.recovers(t, fmt.Sprintf("killed at %s number %d", call, n), known)
				b.svcctl.Kill()
				if t.Failed() {
					return
				}
			}
			t.Logf("killed at %d calls of %s", n-1, call)
			if n == 1 {
				t.Errorf("it is never killed at %s: the call is not one that it makes", call)
			}
		})
	}
}

// survives starts the program and changes something; false: it was killed meanwhile.
func (b *bench) survives() bool {
	b.svcctl.Launch()
	deadline := time.Now().Add(time.Minute)
	for changed := false; time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		switch {
		case !b.svcctl.Running():
			return false
		case b.svcctl.Ready() && !changed:
			b.churn()
			changed = true
			deadline = time.Now().Add(time.Second) // real time: in which the change is in force
		}
	}
	return true
}
