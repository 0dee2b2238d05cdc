package reconcile

import (
	"fmt"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// selecting is a Service with a selector, port 80 to 8080.
func selecting(name, ip string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: %s, selector: {app: %s}, ports: [{port: 80, targetPort: 8080}]}\n", name, ip, name)
}

// server is a Pod as an operator writes one.
func server(name, app, ip, more string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, labels: {app: %s}}\nstatus: {podIP: %s%s}\n", name, app, ip, more)
}

const notReady = `, conditions: [{type: Ready, status: "False"}]`

func TestPodsBecomeEndpoints(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", selecting("web", "10.96.0.10"))
	r.write("pods.yaml", server("a", "web", "10.1.0.1", "")+server("b", "web", "10.1.0.2", "")+server("c", "dns", "10.1.0.3", ""))
	stored := r.engine.Commits()
	r.step()
	r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.1 . 8080", "10.96.0.10 . tcp . 80 . 1 : 10.1.0.2 . 8080", "!10.1.0.3")
	if n := r.engine.Commits() - stored; n != 6 {
		t.Errorf("%d commits to the store, want one for the files, one for what is made of them, and one each for Namespaces, Node, ServiceCIDR and GatewayClass", n)
	}

	// A Pod that becomes unready leaves within the step, for one commit each.
	stored = r.engine.Commits()
	r.write("pods.yaml", server("a", "web", "10.1.0.1", notReady)+server("b", "web", "10.1.0.2", ""))
	r.step()
	r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.2 . 8080", "!10.1.0.1")
	if n := r.engine.Commits() - stored; n != 2 {
		t.Errorf("%d commits to the store, want 2", n)
	}

	// Hearing of its own writes, a restart, and a comment write nothing.
	commits := r.kernel.Commits()
	revision := r.store.Revision()
	r.step()
	r.write("pods.yaml", "# a comment\n"+server("a", "web", "10.1.0.1", notReady)+server("b", "web", "10.1.0.2", ""))
	r.step()
	r.start()
	r.host()
	r.write("pods.yaml", server("a", "web", "10.1.0.1", notReady)+server("b", "web", "10.1.0.2", ""))
	r.step()
	if r.kernel.Commits() != commits || r.engine.Commits() != 0 || r.store.Revision() != revision {
		t.Errorf("nothing changed: %d commits to the kernel, %d to the store", r.kernel.Commits()-commits, r.engine.Commits())
	}

	r.write("web.yaml", "")
	r.step()
	if keys := r.store.ServiceKeys(); len(keys) > 0 {
		t.Errorf("left of a Service that is gone: %s", keys)
	}
	r.want("!10.96.0.10")
}

// A Service that goes while the process is down takes with it what was made for it.
func TestServicesThatWentUnseen(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", selecting("web", "10.96.0.10"))
	r.write("pods.yaml", server("a", "web", "10.1.0.1", ""))
	r.step()
	r.start()
	r.host()
	r.write("web.yaml", "")
	r.step()
	if keys := r.store.ServiceKeys(); len(keys) > 0 {
		t.Errorf("left: %s", keys)
	}
}

func TestMirroredEndpointsAreServed(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80, targetPort: 9376}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: web}
subsets: [{addresses: [{ip: 1.2.3.4}], notReadyAddresses: [{ip: 1.2.3.5}], ports: [{port: 9376}]}]
`)
	r.step()
	r.want("10.96.0.10 . tcp . 80 . 0 : 1.2.3.4 . 9376", "!1.2.3.5")
	_, slices, _ := r.store.Service("default/web")
	if len(slices) != 1 || slices[0].Metadata.Labels["endpointslice.kubernetes.io/managed-by"] != "endpointslicemirroring-controller.k8s.io" {
		t.Errorf("slices %v", slices)
	}
}

func TestGeneratedSlicesGiveWayToFiles(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", selecting("web", "10.96.0.10"))
	r.write("pods.yaml", server("a", "web", "10.1.0.1", ""))
	r.step()
	_, slices, _ := r.store.Service("default/web")
	name := slices[0].Metadata.Name
	r.write("mine.yaml", strings.Replace(web("web", "10.96.0.99", "10.1.0.9"), "web-1", name, 1)[strings.Index(web("web", "10.96.0.99"), "---"):])
	r.step()
	r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.1 . 8080", "10.96.0.10 . tcp . 80 . 1 : 10.1.0.9 . 8080")
	if _, slices, _ := r.store.Service("default/web"); len(slices) != 2 {
		t.Errorf("slices %v", slices)
	}
	found := false
	for _, p := range r.board.Status().Problems {
		found = found || p.File == "mine.yaml" && strings.Contains(p.Message, "the endpoints controller had made an object of this name")
	}
	if !found {
		t.Errorf("nobody is told: %v", r.board.Status().Problems)
	}
}

func TestEndpointsThatCannotBeWritten(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", selecting("web", "10.96.0.10"))
	r.write("pods.yaml", server("a", "web", "10.1.0.1", ""))
	r.step()
	commits := 0
	r.engine.Inject(func(engine.Transaction) faulty.Fault {
		if commits++; commits == 1 {
			return faulty.NoFault // the files are
		}
		return faulty.Refuse
	})
	r.write("pods.yaml", server("a", "web", "10.1.0.2", ""))
	r.step()
	r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.1 . 8080")
	if r.wait == 0 || r.board.Status().Synced {
		t.Error("a change that could not be stored counts as done")
	}
	r.engine.Inject(nil)
	r.step()
	r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.2 . 8080", "!10.1.0.1 ")
	if !r.board.Status().Synced {
		t.Error("it is not synced")
	}
}

// What is not read yet must not look like Pods that are gone.
func TestNoEndpointIsRemovedBeforeEverySourceWasRead(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("all.yaml", selecting("web", "10.96.0.10")+server("a", "web", "10.1.0.1", ""))
	r.step()
	r.start()
	r.step()
	r.host()
	r.step()
	ref := object.Ref{Kind: object.KindPod, Namespace: "default", Name: "a"}
	if o, _ := r.store.Get(ref); o == nil || r.engine.Commits() > 0 {
		t.Errorf("the Pod is %v after %d commits", o, r.engine.Commits())
	}
	r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.1 . 8080")
}

func TestProblemsOfPodsAreReported(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", selecting("web", "10.96.0.10"))
	r.write("pods.yaml", server("a", "web", "10.96.0.77", "")+server("b", "web", "127.0.0.1", ""))
	r.step()
	r.clock = r.clock.Add(newFor) // until then it may wait for them
	r.step()
	var lines []string
	for _, p := range r.board.Status().Problems {
		lines = append(lines, p.String())
	}
	for _, want := range []string{
		"pods.yaml:2:",
		"Pod default/a: status.podIP: endpoint 10.96.0.77 is left out: it lies in the service range 10.96.0.0/16",
		"Pod default/b: status.podIP: Invalid value: \"127.0.0.1\": may not be in the loopback range",
		"Service default/web: spec.selector: no",
	} {
		if !strings.Contains(strings.Join(lines, "\n"), want) {
			t.Errorf("no %q in\n%s", want, strings.Join(lines, "\n"))
		}
	}
}

// BenchmarkOnePodFlips is a whole step for one Pod of 50 of one of 1,000 Services, with a
// kernel and a disk that cost nothing.
func BenchmarkOnePodFlips(b *testing.B) {
	for _, services := range []int{10, 1000} {
		b.Run(fmt.Sprint(services*50, "Pods"), func(b *testing.B) {
			r := newRig(b)
			r.host()
			for i := range services {
				name := fmt.Sprint("s", i)
				var text strings.Builder
				text.WriteString(selecting(name, fmt.Sprintf("10.96.%d.%d", i/250+1, i%250+1)))
				for j := range 50 {
					text.WriteString(server(fmt.Sprintf("%s-%d", name, j), name, fmt.Sprintf("10.%d.%d.%d", i/250+1, i%250, j+1), ""))
				}
				r.files[name+".yaml"] = manifest.Decode(name+".yaml", []byte(text.String()), manifest.DefaultLimits())
			}
			flips := []string{"", notReady}
			pod := func(i int) string { return server("flip", "s0", "10.200.0.1", flips[i%2]) }
			r.write("flip.yaml", pod(0))
			r.step()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				r.write("flip.yaml", pod(i))
				r.step()
				if r.opts.Publisher.Status.Counts.Endpoints != services*50+(i+1)%2 {
					b.Fatal(r.opts.Publisher.Status.Counts)
				}
			}
		})
	}
}
