package bench

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/store/manifest/styles"
)

// fileSizes are the numbers of files with a Service each, and how often a start from them is
// measured at most.
var fileSizes = []struct{ files, rounds int }{{1_000, 7}, {10_000, 5}}

// BenchmarkFiles measures boxes as in practice: a file for each Service with its slice, as
// kubectl and kustomize write them, and as people do. It measures starts, memory, and how long
// each of 1,000 changes takes that come within 10 seconds.
func BenchmarkFiles(b *testing.B) {
	for _, style := range styles.All {
		for _, size := range fileSizes {
			x := newBoxOf(b, netlab.New(b), func(d netlab.Dir) {
				for i := range size.files {
					writeFile(d, style, i, 0)
				}
			})
			name := fmt.Sprintf("%s files of a Service each, %s", number(size.files), style.Name)
			x.starts(b, name, size.rounds)
			x.Stop()
			x.restart(b)
			now, peak := x.memory(b)
			results.add("Memory", "after a cold start, "+name, fmt.Sprintf("%d MiB", now), fmt.Sprintf("at most %d MiB", peak))
			x.watch(b)
			took, cpu := x.changesInTurn(b, style, size.files)
			results.add("Change: from the file to the kernel", "1,000 in 10 s, "+name, fmt.Sprintf("p50 %s, p99 %s", ms(median(took)), ms(quantile(took, 0.99))),
				fmt.Sprintf("CPU of the process %s", ms(cpu)))
			x.Stop()
		}
	}
}

// BenchmarkExports measures boxes with a file for each Service, as kubectl exports them: starts, memory after them, and a lone change.
func BenchmarkExports(b *testing.B) {
	for _, services := range populations {
		x := newBoxOf(b, netlab.New(b), func(d netlab.Dir) {
			for i := range services {
				writeFile(d, styles.Kubectl, i, 0)
			}
		})
		name := number(services) + " exported files"
		x.starts(b, name, 3)
		x.restart(b)
		now, peak := x.memory(b)
		results.add("Memory", "after a cold start, "+name, fmt.Sprintf("%d MiB", now), fmt.Sprintf("at most %d MiB", peak))
		x.Stop()
		x.Start()
		x.steady(b)
		now, peak = x.memory(b)
		results.add("Memory", "after a start over the same, "+name, fmt.Sprintf("%d MiB", now), fmt.Sprintf("at most %d MiB", peak))
		x.settle(b)
		x.Manifests.Write("probe.yaml", probeAt(vip, 5, 0))
		x.settle(b)
		x.cost(b, services)
		x.Stop()
	}
}

// writeFile writes the file of the i-th Service, in versions that differ in an endpoint. Each
// tenth one has managed fields.
func writeFile(d netlab.Dir, style styles.Style, i, version int) {
	s := styles.Service{Name: fmt.Sprintf("s%05d", i), ClusterIP: serviceAddr(i), Protocol: "UDP", Version: version, ManagedFields: i%10 == 0}
	for e := range endpointsEach {
		s.Endpoints = append(s.Endpoints, endpointAddr(i, e))
	}
	if version%2 == 1 {
		s.Endpoints[2] = netip.AddrFrom4([4]byte{10, 129, byte(i >> 8), byte(i)})
	}
	d.Write(s.Name+".yaml", style.File(s))
}

// changesInTurn changes one file after the other, 1,000 in 10 seconds, and gives how long each
// took until the transaction that has it, and the CPU time of all.
func (x *box) changesInTurn(b *testing.B, style styles.Style, files int) (took []time.Duration, cpu time.Duration) {
	const (
		changes = 1_000
		// least is the minimum latency of a change: a transaction within it is of an earlier change.
		least = time.Millisecond
	)
	done := make(chan []time.Time)
	stop := make(chan struct{})
	go func() {
		var commits []time.Time
		for {
			select {
			case c := <-x.changes:
				if c.Ours {
					commits = append(commits, time.Now())
				}
			case <-stop:
				done <- commits
				return
			}
		}
	}()
	before := x.cpu(b)
	tick := time.NewTicker(10 * time.Second / changes)
	defer tick.Stop()
	var written []time.Time
	for n := range changes {
		<-tick.C
		i := n % min(files, 500)
		written = append(written, time.Now())
		writeFile(x.Manifests, style, i, n/min(files, 500)+1)
	}
	x.settle(b)
	cpu = x.cpu(b) - before
	time.Sleep(pause)
	close(stop)
	commits := <-done
	for _, at := range written {
		for len(commits) > 0 && commits[0].Before(at.Add(least)) {
			commits = commits[1:]
		}
		if len(commits) == 0 {
			b.Fatalf("a change is in no transaction\n%s", x.Log())
		}
		took = append(took, commits[0].Sub(at))
	}
	return took, cpu
}

// BenchmarkAddition compares the CPU time, with that of the kernel for the process, of new Services and of new endpoints between two programs
// in turns, with what is left to do after the last of them and without what they take when nothing changes.
func BenchmarkAddition(b *testing.B) {
	const apart, pause = 50 * time.Millisecond, 25 * time.Second // the latter is until all have settled
	programs := []string{*program}
	if *against != "" {
		programs = append(programs, *against)
	}
	for _, services := range populations {
		boxes := make([]*box, len(programs))
		for i, p := range programs {
			*program = p
			boxes[i] = newBoxOf(b, netlab.New(b), func(d netlab.Dir) { writeServices(d, services) })
			boxes[i].Start()
		}
		*program = programs[0]
		for _, x := range boxes {
			x.rest(b)
		}
		for _, change := range []struct {
			name  string
			write func(d netlab.Dir, n int)
		}{
			{"add a Service", func(d netlab.Dir, n int) { d.Write(fmt.Sprintf("added%03d.yaml", n), added(n, 2)) }},
			{"add an endpoint", func(d netlab.Dir, n int) { d.Write(fmt.Sprintf("added%03d.yaml", n), added(n, 3)) }},
		} {
			took := make([]time.Duration, len(programs))
			idle := make([]time.Duration, len(programs))
			for i, x := range boxes {
				idle[i] = -x.cpu(b)
			}
			time.Sleep(pause)
			for i, x := range boxes {
				took[i] = -x.cpu(b)
				idle[i] -= took[i]
			}
			began := time.Now()
			for n := range *rounds {
				for _, x := range boxes {
					change.write(x.Manifests, n)
					time.Sleep(apart / time.Duration(len(boxes)))
				}
			}
			time.Sleep(pause)
			for i, x := range boxes {
				took[i] += x.cpu(b) - time.Duration(idle[i].Seconds()/pause.Seconds()*float64(time.Since(began)))
				name, compared := "", ""
				if i > 0 {
					name, compared = ", the other program", fmt.Sprintf("%.2fx of it", took[0].Seconds()/took[i].Seconds())
				}
				results.add("An addition: CPU of the process", fmt.Sprintf("%s, %s Services%s", change.name, number(services), name), ms(took[i]/time.Duration(*rounds)), compared)
			}
		}
		for _, x := range boxes {
			x.Stop()
		}
	}
}

// added is a file of one more Service.
func added(n, endpoints int) string {
	name := fmt.Sprintf("added%03d", n)
	all := make([]netip.Addr, endpoints)
	for i := range all {
		all[i] = endpointAddr(61_000+n, i)
	}
	return service(name, "clusterIP: "+netip.AddrFrom4([4]byte{10, 96, 220 + byte(n>>8), byte(n)}).String(), "UDP") + slice(name, "UDP", all)
}

// BenchmarkLoneChange compares the CPU time of changes that are alone, 50 ms apart, between two programs in turns: with a file for
// each Service, and with a hundred Services in a file.
func BenchmarkLoneChange(b *testing.B) {
	const changes, apart = 300, 50 * time.Millisecond
	programs := []string{*program}
	if *against != "" {
		programs = append(programs, *against)
	}
	for _, services := range populations {
		for _, way := range []struct {
			name  string
			write func(d netlab.Dir)
		}{
			{"a file each", func(d netlab.Dir) {
				for i := range services {
					writeFile(d, styles.Kubectl, i, 0)
				}
			}},
			{"100 in a file", func(d netlab.Dir) { writeServices(d, services) }},
		} {
			boxes, took, allocated, switches := make([]*box, len(programs)), make([]time.Duration, len(programs)), make([]int64, len(programs)), make([]int, len(programs))
			for i, p := range programs {
				*program = p
				boxes[i] = newBoxOf(b, netlab.New(b), way.write)
				boxes[i].Start()
			}
			*program = programs[0]
			for i, x := range boxes {
				x.Manifests.Write("probe.yaml", probeAt(vip, 5, 0))
				x.settle(b)
				x.rest(b)
				_, allocated[i] = x.allocated(b)
				switches[i] = x.field(b, "task/*/status", "voluntary_ctxt_switches")
			}
			for i, x := range boxes {
				took[i] = -x.cpu(b)
			}
			for step := range changes {
				for _, x := range boxes {
					x.Manifests.Write("probe.yaml", probeAt(vip, 5, (step+1)%2))
					time.Sleep(apart / time.Duration(len(boxes)))
				}
			}
			for i, x := range boxes {
				took[i] += x.cpu(b)
				switches[i] = x.field(b, "task/*/status", "voluntary_ctxt_switches") - switches[i]
			}
			for i, x := range boxes {
				x.settle(b)
				_, after := x.allocated(b)
				x.settle(b)
				_, own := x.allocated(b) // of both requests, which grows with the number of files
				after = 2*after - own
				name, compared := "", ""
				if i > 0 {
					name, compared = ", the other program", fmt.Sprintf("%.2fx of it", took[0].Seconds()/took[i].Seconds())
				}
				results.add("A lone change: CPU of the process", fmt.Sprintf("%s Services, %s%s", number(services), way.name, name), ms(took[i]/changes),
					fmt.Sprintf("%s objects, %d switches %s", number(int((after-allocated[i])/changes)), switches[i]/changes, compared))
				x.Stop()
			}
		}
	}
}
