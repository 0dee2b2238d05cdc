package bench

import (
	"bytes"
	"fmt"
	"math"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// scale is one thing that there may be many of. Where a cost grows as the number does, the exponent is 1.
type scale struct {
	what   string
	sizes  [2]int
	write  func(d netlab.Dir, n int)
	change func(d netlab.Dir, n, step int) // of one of them
	asked  []string                        // verbs, and pages of the dashboard, that are about it
}

// sliceSize is how many endpoints a slice of a large Service has, as in a cluster.
const sliceSize = 100

// largeSlice is a file with one slice of a Service of many endpoints.
func largeSlice(first, version int) string {
	endpoints := make([]netip.Addr, sliceSize)
	for e := range endpoints {
		endpoints[e] = netip.AddrFrom4([4]byte{10, 140, byte((first + e) >> 8), byte(first + e)})
	}
	if version%2 == 1 {
		endpoints[0] = netip.AddrFrom4([4]byte{10, 141, byte(first >> 8), byte(first)})
	}
	text := slice("large", "UDP", endpoints)
	return strings.Replace(text, "name: large-1\n", fmt.Sprintf("name: large-%d\n", first), 1)
}

// manyPorts is a Service with so many ports.
func manyPorts(ports, version int) string {
	var servicePorts, slicePorts strings.Builder
	for i := range ports {
		fmt.Fprintf(&servicePorts, "    - {name: p%d, port: %d, protocol: UDP}\n", i, 1000+i)
		fmt.Fprintf(&slicePorts, "  - {name: p%d, port: %d, protocol: UDP}\n", i, 1000+i)
	}
	endpoints := "endpoints:\n"
	for e := range endpointsEach {
		endpoints += fmt.Sprintf("  - addresses: [10.142.%d.%d]\n", version%2*(e/4), e)
	}
	return "apiVersion: v1\nkind: Service\nmetadata: {name: ports}\nspec:\n  clusterIP: 10.96.0.20\n  ports:\n" + servicePorts.String() +
		"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: ports-1, labels: {kubernetes.io/service-name: ports}}\naddressType: IPv4\nports:\n" +
		slicePorts.String() + endpoints
}

// pool is a pool of four addresses, with its advertisement.
func pool(i int) string {
	return fmt.Sprintf("apiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: p%04d, namespace: metallb-system}\nspec: {addresses: [198.18.%d.%d/30]}\n"+
		"---\napiVersion: metallb.io/v1beta1\nkind: L2Advertisement\nmetadata: {name: p%04d, namespace: metallb-system}\nspec: {ipAddressPools: [p%04d]}\n", i, i/64, i%64*4, i, i)
}

// balancer is a Service with an address of a pool.
func balancer(i, version int) string {
	name := fmt.Sprintf("b%04d", i)
	return service(name, "type: LoadBalancer\n  allocateLoadBalancerNodePorts: false", "UDP") + slice(name, "UDP", []netip.Addr{endpointAddr(i, version%2)})
}

var scales = []scale{
	{"endpoints in a Service", [2]int{500, 5_000}, func(d netlab.Dir, n int) {
		d.Write("large.yaml", service("large", "clusterIP: 10.96.0.20", "UDP"))
		for first := 0; first < n; first += sliceSize {
			d.Write(fmt.Sprintf("large-%d.yaml", first), largeSlice(first, 0))
		}
	}, func(d netlab.Dir, n, step int) { d.Write("large-0.yaml", largeSlice(0, step)) },
		[]string{"explain svc/large", "explain 10.140.0.7", "describe svc large", "get endpointslices", "plan --against running -f {dir}", "/services/default/large"}},
	{"ports in a Service", [2]int{10, 100}, func(d netlab.Dir, n int) { d.Write("ports.yaml", manyPorts(n, 0)) },
		func(d netlab.Dir, n, step int) { d.Write("ports.yaml", manyPorts(n, step)) },
		[]string{"explain svc/ports", "explain 10.96.0.20:1007", "describe svc ports", "/services/default/ports"}},
	{"pools with a Service each that nothing announces", [2]int{100, 1_000}, func(d netlab.Dir, n int) {
		for i := range n {
			d.Write(fmt.Sprintf("pool%04d.yaml", i), pool(i)+"---\n"+balancer(i, 0))
		}
	}, func(d netlab.Dir, n, step int) { d.Write("pool0007.yaml", pool(7)+"---\n"+balancer(7, step)) },
		[]string{"status", "admin alloc", "explain svc/b0007", "describe ipaddresspools.metallb.io p0007 -n metallb-system", "/addresses"}},
	{"checked endpoints", [2]int{1_000, 10_000}, func(d netlab.Dir, n int) {
		for i := range n / endpointsEach {
			d.Write(fmt.Sprintf("s%05d.yaml", i), checked(standby(i)))
		}
	}, func(d netlab.Dir, n, step int) { d.Write("s00007.yaml", checked(standby(7+step%2*50_000))) },
		[]string{"status", "health", "explain svc/s00007", "doctor", "journal", "/", "/services"}},
	{"Services of 200 endpoints", [2]int{100, 1_000}, func(d netlab.Dir, n int) {
		for i := range n {
			d.Write(fmt.Sprintf("s%04d.yaml", i), wide(i, 0))
		}
	}, func(d netlab.Dir, n, step int) { d.Write("s0007.yaml", wide(7, step)) },
		[]string{"status", "explain svc/s0007", "explain 10.143.0.7", "top -A --once"}},
	{"namespaces with long names, of 10 Services", [2]int{20, 200}, func(d netlab.Dir, n int) {
		for i := range n {
			d.Write(fmt.Sprintf("n%03d.yaml", i), inNamespace(i, 0))
		}
	}, func(d netlab.Dir, n, step int) { d.Write("n007.yaml", inNamespace(7, step)) }, []string{"status", "get svc -A", "/services"}},
}

// wide is a Service with two slices of a hundred endpoints.
func wide(i, version int) string {
	name := fmt.Sprintf("s%04d", i)
	text := service(name, "clusterIP: "+serviceAddr(i).String(), "UDP")
	for half := range 2 {
		endpoints := make([]netip.Addr, sliceSize)
		for e := range endpoints {
			n := i*2*sliceSize + half*sliceSize + e
			endpoints[e] = netip.AddrFrom4([4]byte{10, 143 + byte(n>>16), byte(n >> 8), byte(n)})
		}
		if half == 0 && version%2 == 1 {
			endpoints[0] = netip.AddrFrom4([4]byte{10, 150, byte(i >> 8), byte(i)})
		}
		text += strings.Replace(slice(name, "UDP", endpoints), "name: "+name+"-1", fmt.Sprintf("name: %s-%d", name, half), 1)
	}
	return text
}

// inNamespace is ten Services with names as long as they may be, in a namespace of such a name.
func inNamespace(i, version int) string {
	namespace := fmt.Sprintf("n%03d%s", i, strings.Repeat("x", 59))
	var docs []string
	for s := range 10 {
		name := fmt.Sprintf("s%d%s", s, strings.Repeat("y", 59))
		text := service(name, "clusterIP: "+serviceAddr(i*10+s).String(), "UDP") + slice(name, "UDP", []netip.Addr{endpointAddr(i*10+s, version%2)})
		docs = append(docs, strings.ReplaceAll(text, "metadata:\n", "metadata:\n  namespace: "+namespace+"\n"))
	}
	return strings.Join(docs, "---\n")
}

// checked has the endpoints of a Service asked once an hour.
func checked(text string) string {
	return strings.Replace(text, "metadata:\n", "metadata:\n  annotations: {svcctl.io/health-check: tcp:8080, svcctl.io/health-check-interval: 1h}\n", 1)
}

// rest waits until what follows a start is done, which is no part of a change.
func (x *box) rest(b *testing.B) {
	b.Helper()
	for range 30 {
		before := x.cpu(b)
		time.Sleep(2 * time.Second)
		if x.cpu(b)-before < 20*time.Millisecond {
			return
		}
	}
}

// askAbout measures a verb or a page.
func (x *box) askAbout(b *testing.B, about, what string) {
	b.Helper()
	before, began := x.cpu(b), time.Now()
	if strings.HasPrefix(what, "/") {
		size := len(x.get(b, "/dashboard"+what))
		results.add("Scales: verbs and pages", about+": "+what, ms(time.Since(began)), fmt.Sprintf("%d KB; CPU of the appliance %s", size/1000, ms(x.cpu(b)-before)))
		return
	}
	cmd := exec.Command(*program, append(strings.Fields(strings.ReplaceAll(what, "{dir}", x.Manifests.Path)), "--socket", x.Socket)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := x.host.Do(cmd.Start); err != nil {
		b.Fatal(err)
	}
	if cmd.Wait(); cmd.ProcessState.ExitCode() == 2 {
		b.Fatalf("svcctl %s: %s", what, stderr.String())
	}
	results.add("Scales: verbs and pages", about+": "+what, ms(time.Since(began)), fmt.Sprintf("CPU %s; of the appliance %s",
		ms(cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()), ms(x.cpu(b)-before)))
}

// BenchmarkScales measures starts with few and many of a thing, and changes of one of them, in CPU time of the process.
func BenchmarkScales(b *testing.B) {
	none, floor := newBox(b, netlab.New(b), 0), time.Hour
	for range 5 {
		none.Start()
		floor = min(floor, none.cpu(b))
		none.Stop()
		none.empty(b)
	}
	none.Start()
	none.applyMany(b, 1_000) // manyObjects of them are in BenchmarkObjects
	none.Stop()
	for _, s := range scales {
		var starts, changes [2]time.Duration
		for i, n := range s.sizes {
			x := newBoxOf(b, netlab.New(b), func(d netlab.Dir) { s.write(d, n) })
			x.Start()
			starts[i] = max(x.cpu(b)-floor, time.Millisecond)
			x.rest(b)
			var took []time.Duration
			for step := range min(*rounds, 9) {
				before := x.cpu(b)
				s.change(x.Manifests, n, step+1)
				x.settle(b)
				time.Sleep(time.Second)
				took = append(took, x.cpu(b)-before)
			}
			changes[i] = median(took)
			now, peak := x.memory(b)
			results.add("Scales: CPU of the process", fmt.Sprintf("%s %s, start", number(n), s.what), ms(starts[i]), fmt.Sprintf("%d MiB, at most %d MiB", now, peak))
			results.add("Scales: CPU of the process", fmt.Sprintf("%s %s, change", number(n), s.what), ms(changes[i]), "")
			for _, what := range s.asked {
				x.askAbout(b, fmt.Sprintf("%s %s", number(n), s.what), what)
			}
			x.Stop()
		}
		exponent := func(took [2]time.Duration) float64 {
			return math.Log(float64(took[1])/float64(took[0])) / math.Log(float64(s.sizes[1])/float64(s.sizes[0]))
		}
		results.add("Scales: CPU of the process", s.what+", exponents", fmt.Sprintf("start %.2f, change %.2f", exponent(starts), exponent(changes)), "1 or less")
	}
}
