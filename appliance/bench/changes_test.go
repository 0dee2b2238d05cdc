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
			latencies("Change: from the file to the kernel", op.name, sizes[i], samples, took[0])
		}
		for _, x := range boxes {
			x.Manifests.Write("probe.yaml", probeAt(vip, 5, 0))
			x.settle(b)
		}
	}
	packets(b, boxes)
	beside(b, boxes[2])
	overAPI(b, boxes)
	for i, x := range boxes {
		x.burst(b, sizes[i])
		x.host.forgetFlows(b) // a look through an empty table is none
		x.cost(b, sizes[i])
	}
	boxes[2].host.forgetFlows(b)
	boxes[2].stream(b, "")
	boxes[2].track(b)
	boxes[2].stream(b, ", beside tracked connections")
}

// track opens connections.
func (x *box) track(b *testing.B) {
	b.Helper()
	packets := make([][]byte, 1_000)
	for i := range packets {
		packets[i] = flow{netip.AddrPortFrom(netip.MustParseAddr("100.68.0.1"), uint16(1024+i)), single}.packet()
	}
	x.host.inject(b, x.host.in, packets)
}

// single is a Service with one endpoint, which packets are sent to.
var (
	single   = netip.MustParseAddrPort("10.96.0.11:80")
	singleAt = [2]netip.Addr{netip.MustParseAddr("10.129.2.1"), netip.MustParseAddr("10.129.2.2")}
)

// packets measures the whole way, from the change to the first packet that goes where it
// says: from a file, and over the API.
func packets(b *testing.B, boxes []*box) {
	const section = "Change: to the first packet that goes there"
	files, api := make([][]time.Duration, len(boxes)), make([][]time.Duration, len(boxes))
	for _, x := range boxes {
		x.writeSingle(singleAt[0])
		x.createProbe(b)
		x.settle(b)
	}
	for step := range *rounds {
		at := singleAt[(step+1)%2]
		for i, x := range boxes {
			files[i] = append(files[i], x.packet(b, single, at, func() { x.writeSingle(at) }))
			api[i] = append(api[i], x.packet(b, apiProbe, at, func() { x.replaceProbe(b, at) }))
		}
	}
	for i := range boxes {
		latencies(section, "file that replaces an endpoint", sizes[i], files[i], files[0])
	}
	for i := range boxes {
		latencies(section, "PATCH that replaces an endpoint", sizes[i], api[i], api[0])
	}
}

// writeSingle gives the single Service an endpoint.
func (x *box) writeSingle(at netip.Addr) {
	x.Manifests.Write("single.yaml", service("single", "clusterIP: "+single.Addr().String(), "UDP")+slice("single", "UDP", []netip.Addr{at}))
}

// beside measures a change in turns with and without others under way: a file that is
// written to without pause, and a thousand files that are rewritten within a second.
func beside(b *testing.B, x *box) {
	const section = "Change: to the first packet that goes there"
	others := []struct {
		name string
		gap  time.Duration
		one  func(n int)
	}{
		{"alone", 0, nil},
		{"beside a file that is written without pause", time.Millisecond, func(n int) {
			x.Manifests.WriteInPlace("noise.yaml", strings.ReplaceAll(probeAt(netip.MustParseAddrPort("10.96.0.13:80"), 5, n%2), "probe", "noise"))
		}},
		{"beside 1,000 files a second", time.Millisecond, func(n int) {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 230 + byte(n%1000>>8), byte(n % 1000)}), 80)
			x.Manifests.Write(fmt.Sprintf("noise%03d.yaml", n%1000), strings.ReplaceAll(probeAt(at, 5, n/1000%2), "probe", fmt.Sprintf("noise%03d", n%1000)))
		}},
	}
	took := make([][]time.Duration, len(others))
	for step := range *rounds {
		at := singleAt[(step+*rounds)%2]
		for i, other := range others {
			x.writeSingle(singleAt[(step+*rounds+1)%2])
			x.settle(b)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for n := step * 1000; other.one != nil; n++ {
					other.one(n)
					select {
					case <-stop:
						return
					case <-time.After(other.gap):
					}
				}
			}()
			time.Sleep(100 * time.Millisecond)
			took[i] = append(took[i], x.packet(b, single, at, func() { x.writeSingle(at) }))
			close(stop)
			<-stopped
			x.settle(b)
		}
	}
	for i, other := range others[1:] {
		results.add(section, "file that replaces an endpoint, "+other.name+", 10,000 Services",
			fmt.Sprintf("p50 %s, p99 %s", ms(median(took[i+1])), ms(quantile(took[i+1], 0.99))),
			fmt.Sprintf("%.2fx of alone", median(ratios(took[i+1], took[0]))))
	}
}

// latencies is the row of a latency at a number of Services, compared with the smallest.
func latencies(section, what string, services int, samples, smallest []time.Duration) {
	results.add(section, what+", "+number(services)+" Services",
		fmt.Sprintf("p50 %s, p99 %s", ms(median(samples)), ms(quantile(samples, 0.99))),
		fmt.Sprintf("%.2fx of %s Services", median(ratios(samples, smallest)), number(sizes[0])))
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

// services returns the number of Services in the status of the appliance.
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
	cpu := x.cpu(b)
	size, count := x.allocated(b)
	// Both are requests, whose own cost grows with the number of files: it is taken off.
	again := x.cpu(b)
	x.settle(b)
	cpu = (cpu - before - (x.cpu(b) - again)) / changes
	ownSize, ownCount := x.allocated(b)
	size, count = 2*size-ownSize, 2*count-ownCount
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
func (x *box) stream(b *testing.B, beside string) {
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
	results.add("Cost of replacing an endpoint", "1,000 changes in 10 s, 10,000 Services"+beside, ms(cpu), fmt.Sprintf("%.1f %% of a core", 100*cpu.Seconds()/took.Seconds()))
}
