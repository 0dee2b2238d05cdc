package soak

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// resources are those that a process uses.
type resources struct{ goroutines, descriptors, residentKiB int }

func (r resources) String() string {
	return fmt.Sprintf("%d goroutines, %d descriptors, %d MiB", r.goroutines, r.descriptors, r.residentKiB>>10)
}

const metricsPort = "9155"

var (
	goroutineLine = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)
	residentLine  = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`)
)

// resources reads what svcctl holds now.
func (b *bench) resources(t *testing.T) (r resources) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", b.svcctl.PID())
	descriptors, err := os.ReadDir(dir + "fd")
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		t.Fatal(err)
	}
	r.descriptors = len(descriptors)
	r.residentKiB = numberIn(t, residentLine, string(status))
	r.goroutines = numberIn(t, goroutineLine, b.metrics(t))
	return r
}

func numberIn(t *testing.T, line *regexp.Regexp, text string) int {
	t.Helper()
	m := line.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in\n%s", line, text)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// metrics asks for /metrics inside of the box.
func (b *bench) metrics(t *testing.T) string {
	t.Helper()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (conn net.Conn, err error) {
			err = b.GW1.Do(func() error {
				conn, err = net.Dial("tcp", "127.0.0.1:"+metricsPort)
				return err
			})
			return conn, err
		},
	}}
	resp, err := client.Get("http://svcctl/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestFlat has changes, ten a second, and a fault every five seconds, and looks at what the
// process holds: no more in the last third than in the one before.
func TestFlat(t *testing.T) {
	b := newBench(t)
	b.svcctl = b.GW1.Appliance(binary, "--node-name=gw1", "--cluster-cidr=10.0.0.0/8,fd00:10::/32",
		"--service-cluster-ip-range=172.30.0.0/16,fd00:172:30::/112", "--metrics-listen=127.0.0.1:"+metricsPort)
	for i := range lasting {
		b.writeLasting(i)
	}
	for i := range fresh {
		b.writeFresh(i)
	}
	b.svcctl.Start()
	long := time.Duration(seconds.value(t)) * time.Second
	began := time.Now()
	var most [3]resources // of each third
	for n := 0; time.Since(began) < long; n++ {
		b.update()
		if n%50 == 49 {
			b.fault(t, n/50)
		}
		time.Sleep(100 * time.Millisecond)
		if n%10 == 0 {
			r, third := b.resources(t), int(3*time.Since(began)/long)
			m := &most[min(third, 2)]
			*m = resources{max(m.goroutines, r.goroutines), max(m.descriptors, r.descriptors), max(m.residentKiB, r.residentKiB)}
		}
	}
	b.svcctl.Manifests.Write("broken.yaml", "# mended\n")
	b.converged(t)
	t.Logf("%s of changes and faults; in the first third at most %s, in the second %s, in the last %s; in the end %s",
		long, most[0], most[1], most[2], b.resources(t))
	const spare = 4 // goroutines and descriptors that happen to be in use
	if a, z := most[1], most[2]; z.goroutines > a.goroutines+spare || z.descriptors > a.descriptors+spare || z.residentKiB > a.residentKiB*5/4+4<<10 {
		t.Errorf("it grows: from %s to %s", a, z)
	}
}

// fault does something bad, another thing each time.
func (b *bench) fault(t *testing.T, n int) {
	t.Helper()
	switch n % 5 {
	case 0:
		b.GW1.Nft("flush", "ruleset")
	case 1:
		b.svcctl.Manifests.WriteInPlace("broken.yaml", "kind: Service\nmetadata: {name: [\n")
	case 2:
		b.svcctl.Manifests.WriteInPlace("broken.yaml", strings.Repeat("# mended\n", 100))
	case 3: // clients of the API that say nothing
		for range 20 {
			if conn, err := net.Dial("unix", b.svcctl.Socket); err == nil {
				defer conn.Close()
			}
		}
	case 4:
		b.GW1.SetMTU("alt0", 1400+n%7)
	}
}
