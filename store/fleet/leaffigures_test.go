package fleet_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/fleet"
	"svcctl.io/svcctl/store/object"
)

// What BenchmarkLeaves asks of a process of its own, by a variable of the environment: so many readers of the stream that only
// count its bytes, or a box with a store, a leaf or one that follows etcd.
const (
	readersVariable = "SVCCTL_BENCH_READERS"
	leafVariable    = "SVCCTL_BENCH_LEAF"
)

// typical is a Service as people write them, of about 0.9 KB: what is said of its newest version is not like that of others.
func typical(name string) *object.Service {
	text := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "0123456789abcdef"[rand.IntN(16)]
		}
		return string(b)
	}
	o := service(name)
	o.Metadata.Labels = map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "shop", "app.kubernetes.io/version": "1." + text(2)}
	o.Metadata.Annotations = map[string]string{
		"example.com/config-hash": text(64), "example.com/commit": text(40), "example.com/owner": "team-" + text(4) + "@example.com",
		"example.com/description": "serves the requests of " + name + " for everything that is sold there, and of those who sell it",
	}
	return o
}

// steadily writes commits of objects each, so many a second for so many seconds, and calls each after every one.
func steadily(b *testing.B, by *box, names []string, commits, each, seconds int, after func(k int)) (took time.Duration) {
	b.Helper()
	tick := time.NewTicker(time.Second / time.Duration(commits))
	defer tick.Stop()
	began := time.Now()
	for k := range commits * seconds {
		<-tick.C
		var writes []store.Write
		for i := range each {
			o := typical(names[(k*each+i)%len(names)])
			writes = append(writes, store.Write{Ref: object.RefOf(o), Object: o, By: store.Caller{User: "test"}})
		}
		if _, err := by.Write(writes...); err != nil {
			b.Fatal(err)
		}
		after(k)
	}
	return time.Since(began)
}

// serveTLS is serve as the API does: HTTP/2 over TLS.
func (b *box) serveTLS(t testing.TB) *httptest.Server {
	s := httptest.NewUnstartedServer(b.engine.Commits(func(*http.Request) string { return "" }))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(func() { cutOff(s) })
	return s
}

// child runs this program for one of the variables. It says when it is ready; end has it say what it has counted.
func child(b *testing.B, variable string, values ...string) (end func() (counted float64, cpu time.Duration)) {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestChildOfBenchmark$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+strings.Join(values, " "))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	said := func(what string) string {
		for lines.Scan() {
			if rest, is := strings.CutPrefix(lines.Text(), what+" "); is {
				return rest
			}
		}
		b.Fatalf("the child did not say %q", what)
		return ""
	}
	said("ready")
	return func() (float64, time.Duration) {
		in.Close()
		var counted float64
		var used int64
		if _, err := fmt.Sscan(said("counted"), &counted, &used); err != nil {
			b.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}
		return counted, time.Duration(used)
	}
}

// TestChildOfBenchmark runs in a process of BenchmarkLeaves, which child starts. In any other it does nothing.
func TestChildOfBenchmark(t *testing.T) {
	switch {
	case os.Getenv(readersVariable) != "":
		readStreams(t, strings.Fields(os.Getenv(readersVariable)))
	case os.Getenv(leafVariable) != "":
		runLeaf(t, strings.Fields(os.Getenv(leafVariable)))
	}
}

func cpuOfChild() int64 {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return used.Utime.Nano() + used.Stime.Nano()
}

// readStreams counts the bytes of streams of commits, each over a connection of its own.
func readStreams(t *testing.T, args []string) {
	n, _ := strconv.Atoi(args[1])
	var counted atomic.Int64
	var ready, ended sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range n {
		ready.Add(1)
		ended.Go(func() {
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, DisableCompression: true}}
			get := func(path string) *http.Response {
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, args[0]+fleet.CommitsPath+path, nil)
				resp, err := client.Do(req)
				if err != nil || resp.StatusCode != http.StatusOK {
					panic(fmt.Sprint(path, err, resp))
				}
				return resp
			}
			var at struct {
				Mod  int64
				Head struct{ ID string }
			}
			head := get("/head")
			err := json.NewDecoder(head.Body).Decode(&at)
			head.Body.Close()
			if err != nil {
				panic(err)
			}
			resp := get(fmt.Sprintf("?after=%d&id=%s", at.Mod, at.Head.ID))
			defer resp.Body.Close()
			ready.Done()
			for piece := make([]byte, 64<<10); ; {
				k, err := resp.Body.Read(piece)
				counted.Add(int64(k))
				if err != nil {
					return
				}
			}
		})
	}
	ready.Wait()
	before := cpuOfChild()
	fmt.Println("ready now")
	io.Copy(io.Discard, os.Stdin)
	fmt.Println("counted", counted.Load(), cpuOfChild()-before)
	cancel()
	ended.Wait()
}

// runLeaf is a leaf, or a box that follows etcd, with a store, which counts its changes.
func runLeaf(t *testing.T, args []string) {
	c := &cluster{t: t, urls: args[1:]}
	cfg := c.config("other")
	if args[0] == "leaf" {
		cfg = c.leafConfig("leaf", args[1])
		cfg.CoreTLS = &tls.Config{InsecureSkipVerify: true}
	}
	l := c.open(cfg, storeConfig)
	eventually(t, "it follows", func() bool { return l.engine.State().Kind == fleet.Following })
	from, before := l.Revision(), cpuOfChild()
	fmt.Println("ready now")
	io.Copy(io.Discard, os.Stdin)
	fmt.Println("counted", l.Revision()-from, cpuOfChild()-before)
}

// BenchmarkLeaves measures the cost of leaves, at 1,000 changed objects a second in commits of 20: bytes for each leaf, CPU time of a core box
// with 24 of them beside one without, CPU time of a leaf, and how late the last one is beside boxes that follow etcd. Leaves are other
// processes than the core box, except where times are compared.
func BenchmarkLeaves(b *testing.B) {
	const commits, together, seconds, objects = 50, 20, 10, 1_000
	var names []string
	for i := range objects {
		names = append(names, fmt.Sprintf("s%d", i))
	}
	begin := func(b *testing.B) (*cluster, *box) {
		c := startEtcd(b, 1)
		c.init()
		a := c.join("a")
		var writes []store.Write
		for _, name := range names {
			o := typical(name)
			writes = append(writes, store.Write{Ref: object.RefOf(o), Object: o, Create: true, By: store.Caller{User: "test"}})
		}
		if _, err := a.Write(writes...); err != nil {
			b.Fatal(err)
		}
		return c, a
	}
	nothing := func(int) {}
	b.Run("core", func(b *testing.B) {
		c, a := begin(b)
		var resp *clientv3.GetResponse
		client := c.client()
		eventually(b, "etcd has the Services", func() (all bool) {
			var err error
			resp, err = client.Get(b.Context(), c.key("object/Service/"), clientv3.WithPrefix())
			return err == nil && len(resp.Kvs) == objects
		})
		size := 0
		for _, kv := range resp.Kvs {
			size += len(kv.Key) + len(kv.Value)
		}
		b.ReportMetric(float64(size)/float64(len(resp.Kvs)), "bytes/object")
		server := a.serveTLS(b)
		for _, leaves := range []int{0, 1, 24, 0, 24} {
			var end func() (float64, time.Duration)
			if leaves > 0 {
				end = child(b, readersVariable, server.URL, fmt.Sprint(leaves))
			}
			cpu := cpuOfSelf(b)
			took := steadily(b, a, names, commits, together, seconds, nothing)
			cores := (cpuOfSelf(b) - cpu).Seconds() / took.Seconds()
			if leaves == 0 {
				b.Logf("no leaf: %.3f cores", cores)
				b.ReportMetric(cores, "cores-of-0")
				continue
			}
			counted, theirs := end()
			b.Logf("%d leaves: %.3f cores, %.0f bytes/s each, theirs %.3f cores", leaves, cores, counted/took.Seconds()/float64(leaves), theirs.Seconds()/took.Seconds())
			b.ReportMetric(cores, fmt.Sprintf("cores-of-%d", leaves))
			b.ReportMetric(counted/took.Seconds()/float64(leaves)/1000, fmt.Sprintf("KB/s-each-of-%d", leaves))
		}
	})
	b.Run("leaf", func(b *testing.B) {
		c, a := begin(b)
		for _, of := range [][]string{{"leaf", a.serveTLS(b).URL}, {"etcd", c.urls[0]}, {"leaf", a.serveTLS(b).URL}, {"etcd", c.urls[0]}} {
			end := child(b, leafVariable, of...)
			steadily(b, a, names, commits, together, seconds, nothing)
			time.Sleep(time.Second) // for the rest, and the replica
			counted, cpu := end()
			b.Logf("%s: %.1f µs of CPU an object, %.0f objects/s", of[0], cpu.Seconds()/counted*1e6, counted/seconds)
			b.ReportMetric(cpu.Seconds()/counted*1e6, "µs-CPU/object-"+of[0])
		}
	})
	b.Run("lag", func(b *testing.B) {
		c, a := begin(b)
		server := a.serve(b)
		var direct, leaves []*box
		for n := range 4 {
			direct = append(direct, c.join(fmt.Sprintf("d%d", n)))
			leaves = append(leaves, c.leaf(fmt.Sprintf("l%d", n), server.URL))
		}
		behind := func(of []*box, revision uint64) bool {
			return slices.ContainsFunc(of, func(o *box) bool { return o.Revision() < revision })
		}
		var lags [2][]time.Duration
		steadily(b, a, names, commits/5, together, seconds, func(int) {
			at, revision := time.Now(), a.Revision()
			for waits := [2]bool{true, true}; waits[0] || waits[1]; time.Sleep(50 * time.Microsecond) {
				for i, of := range [][]*box{direct, leaves} {
					if waits[i] && !behind(of, revision) {
						waits[i] = false
						lags[i] = append(lags[i], time.Since(at))
					}
				}
			}
		})
		for i, of := range []string{"direct", "leaf"} {
			slices.Sort(lags[i])
			b.ReportMetric(lags[i][len(lags[i])/2].Seconds()*1000, "last-"+of+"-p50-ms")
			b.ReportMetric(lags[i][len(lags[i])*99/100].Seconds()*1000, "last-"+of+"-p99-ms")
		}
	})
}
