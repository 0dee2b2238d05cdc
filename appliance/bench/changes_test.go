package bench

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

// sizes are the numbers of Services among which one changes.
var sizes = []int{100, 1_000, 10_000, 50_000}

// operation is one way to change the manifests; even and odd steps undo each other.
type operation struct {
	name string
	step func(d netlab.Dir, step int)
}

// operations change a file that was renamed into place.
var operations = []operation{
	{"replace an endpoint", func(d netlab.Dir, step int) { d.Write("probe.yaml", probeAt(vip, 5, step%2)) }},
	{"add or remove an endpoint", func(d netlab.Dir, step int) { d.Write("probe.yaml", probeAt(vip, 5+step%2, 0)) }},
	{"add a Service", func(d netlab.Dir, step int) { d.Write("more.yaml", more(step+1)) }},
	{"delete a Service", func(d netlab.Dir, step int) { d.Write("more.yaml", more(*rounds-step)) }},
}

// probeAt is the measured Service in one of two versions, which differ in one endpoint.
func probeAt(at netip.AddrPort, endpoints, version int) string {
	text := probe(at, endpoints, "")
	if version == 1 {
		text = strings.Replace(text, "[10.129.0.2]", "[10.129.1.2]", 1)
	}
	return text
}

// more is a file of so many Services.
func more(services int) string {
	docs := []string{"# more\n"}
	for i := range services {
		name := fmt.Sprintf("more%03d", i)
		docs = append(docs, service(name, "clusterIP: "+netip.AddrFrom4([4]byte{10, 96, 200, byte(i)}).String(), "UDP")+
			slice(name, "UDP", []netip.Addr{endpointAddr(61_000+i, 0), endpointAddr(61_000+i, 1)}))
	}
	return strings.Join(docs, "---\n")
}

// BenchmarkChange is the time from a manifest that is renamed into place to the kernel,
// at boxes of all sizes in turns.
func BenchmarkChange(b *testing.B) {
	lab := netlab.New(b)
	var boxes []*box
	for _, services := range sizes {
		x := newBox(b, lab, services)
		x.Manifests.Write("probe.yaml", probeAt(vip, 5, 0))
		x.Manifests.Write("more.yaml", more(1))
		x.Start()
		x.watch(b)
		boxes = append(boxes, x)
	}
	for _, op := range operations {
		took := make([][]time.Duration, len(boxes))
		for step := range *rounds {
			for i, x := range boxes {
				took[i] = append(took[i], x.latency(b, func() { op.step(x.Manifests, step+1) }))
			}
		}
		for i, samples := range took {
			results.add("Change: from the file to the kernel", op.name+", "+number(sizes[i])+" Services",
				fmt.Sprintf("p50 %s, p99 %s", ms(median(samples)), ms(quantile(samples, 0.99))),
				fmt.Sprintf("%.2fx of 100 Services", median(ratios(samples, took[0]))))
		}
		for _, x := range boxes {
			x.Manifests.Write("probe.yaml", probeAt(vip, 5, 0))
			x.settle(b)
		}
	}
	for i, x := range boxes {
		x.burst(b, sizes[i])
		x.cost(b, sizes[i])
	}
	boxes[2].stream(b)
}

// burst changes an endpoint of each of up to 1,000 Services at once.
func (x *box) burst(b *testing.B, services int) {
	services = min(services, 1_000)
	var took []time.Duration
	for step := range 5 {
		contents := map[string]string{}
		for first := 0; first < services; first += perFile {
			name := fmt.Sprintf("many%05d.yaml", first)
			content, err := os.ReadFile(filepath.Join(x.Manifests.Path, name))
			if err != nil {
				b.Fatal(err)
			}
			from, to := "\n  - addresses: [10.", "\n  - addresses: [11."
			if step%2 == 1 {
				from, to = to, from
			}
			docs := strings.Split(string(content), "---\n")
			for i := range docs {
				docs[i] = strings.Replace(docs[i], from, to, 1)
			}
			contents[name] = strings.Join(docs, "---\n")
		}
		began := time.Now()
		for name, content := range contents {
			x.Manifests.Write(name, content)
		}
		x.settle(b)
		took = append(took, time.Since(began))
	}
	results.add("Change: from the file to the kernel", fmt.Sprintf("%s changes at once, %s Services", number(services), number(x.services(b))),
		ms(median(took)), "")
}

// services is how many there are, as the appliance says.
func (x *box) services(b *testing.B) int {
	_, after, _ := strings.Cut(string(x.get(b, "/svcctl/v1/status")), `"services":`)
	var n int
	if _, err := fmt.Sscan(strings.FieldsFunc(after, func(r rune) bool { return r == ',' || r == '}' })[0], &n); err != nil {
		b.Fatal(err)
	}
	return n
}

// cost is the CPU time and the garbage of one replaced endpoint, and the CPU time that the
// kernel takes for its elements alone.
func (x *box) cost(b *testing.B, services int) {
	const changes = 100
	before := x.cpu(b)
	bytes, objects := x.allocated(b)
	for step := range changes {
		x.latency(b, func() { x.Manifests.Write("probe.yaml", probeAt(vip, 5, (step+1)%2)) })
	}
	x.settle(b)
	cpu := (x.cpu(b) - before) / changes
	size, count := x.allocated(b)
	kernel := x.bareReplace(b)
	results.add("Cost of replacing an endpoint", number(services)+" Services: CPU of the process", ms(cpu),
		fmt.Sprintf("the kernel's part is %s, the rest %s", ms(kernel), ms(cpu-kernel)))
	results.add("Cost of replacing an endpoint", number(services)+" Services: allocations",
		fmt.Sprintf("%d KiB in %s objects", (size-bytes)/changes>>10, number(int((count-objects)/changes))), "")
}

// bareReplace is the CPU time of a transaction that replaces a backend and an endpoint, on
// tables as large as the box's and with nothing else around it.
func (x *box) bareReplace(b *testing.B) time.Duration {
	var samples []time.Duration
	conn := x.copy(b, x.bare(b))
	defer conn.Close()
	have, _, err := conn.Read()
	if err != nil {
		b.Fatal(err)
	}
	var batch nft.Batch
	for _, name := range []string{"backends", "hairpin"} {
		set := have[nft.IPv4].Sets[name]
		for key, data := range set.Elements {
			one := []nft.Element{{Key: key, Data: data}}
			batch.Ops = append(batch.Ops, nft.DeleteElements{Family: nft.IPv4, Set: set.Set, Elements: one}, nft.AddElements{Family: nft.IPv4, Set: set.Set, Elements: one})
			break
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range 100 {
		before, err := threadTime()
		if err == nil {
			_, err = conn.Commit(&batch, 0)
		}
		after, err2 := threadTime()
		if err != nil || err2 != nil {
			b.Fatal(err, err2)
		}
		samples = append(samples, after-before)
	}
	return median(samples)
}

// copy makes the tables in a namespace of their own.
func (x *box) copy(b *testing.B, batch *nft.Batch) *kernel.Conn {
	b.Helper()
	h := netlab.New(b).Host("bare")
	conn, err := kernel.Open(kernel.Options{NetNS: h.Namespace()})
	if err == nil {
		_, err = conn.Commit(batch, 0)
	}
	if err != nil {
		b.Fatal(err)
	}
	return conn
}

// stream changes one endpoint after the other, 1,000 in 10 seconds.
func (x *box) stream(b *testing.B) {
	const changes, files = 1_000, 50
	one := func(i, version int) string {
		return strings.ReplaceAll(probeAt(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 210, byte(i)}), 80), 5, version), "probe", fmt.Sprintf("stream%02d", i))
	}
	for i := range files {
		x.Manifests.Write(fmt.Sprintf("stream%02d.yaml", i), one(i, 0))
	}
	x.settle(b)
	before, began := x.cpu(b), time.Now()
	tick := time.NewTicker(10 * time.Second / changes)
	defer tick.Stop()
	for n := range changes {
		<-tick.C
		x.Manifests.Write(fmt.Sprintf("stream%02d.yaml", n%files), one(n%files, (n/files+1)%2))
	}
	x.settle(b)
	cpu, took := x.cpu(b)-before, time.Since(began)
	results.add("Cost of replacing an endpoint", "1,000 changes in 10 s, 10,000 Services", ms(cpu), fmt.Sprintf("%.1f %% of a core", 100*cpu.Seconds()/took.Seconds()))
}
