package store

import (
	"fmt"
	"strings"
	"testing"
)

// A file that asks for what a Service cannot become says how to get there.
func TestClusterIPsOfFilesThatChange(t *testing.T) {
	for name, test := range map[string]struct {
		before, after string
		problems      []string
	}{
		"headless no more": {"web {clusterIP: None}", "web {}", []string{"warning: Service default/web: spec.clusterIP: the file does not have `clusterIP: None` any more"}},
		"headless to load balancer": {"web {clusterIP: None}", "web {type: LoadBalancer}",
			[]string{"it was made headless by an earlier version of this file, and a headless Service cannot become a LoadBalancer: remove the file"}},
		"headless to an address": {"web {clusterIP: None}", "web {clusterIP: 172.30.0.7}", []string{"may not change once set; it has no cluster IP, as it is headless"}},
		"another address":        {"web {clusterIP: 172.30.0.6}", "web {clusterIP: 172.30.0.7}", []string{"may not change once set; it has 172.30.0.6, and keeps it: for the content of the file, remove the file"}},
		"swapped": {"a {clusterIP: 172.30.0.6}\nb {clusterIP: 172.30.0.7}", "a {clusterIP: 172.30.0.7}\nb {clusterIP: 172.30.0.6}",
			[]string{"it has 172.30.0.6, and keeps it", "it has 172.30.0.7, and keeps it"}},
		"headless again":   {"web {clusterIP: None}", "web {clusterIP: None}", nil},
		"an external name": {"web {clusterIP: None}", "web {type: ExternalName, externalName: x.example}", nil},
		"no word of it":    {"web {clusterIP: 172.30.0.6}", "web {}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			b.apply("a.yaml", test.before)
			b.wantProblems()
			for range 2 {
				b.apply("a.yaml", test.after)
				b.wantProblems(test.problems...)
				b.restart() // the problem is still there
			}
			for _, p := range b.s.Problems() {
				if !strings.Contains(p.Message, "svcctl wait svc/") {
					t.Errorf("there is no next step in %q", p.Message)
				}
			}
			// The next step leads there.
			if len(test.problems) > 0 {
				b.apply("a.yaml", "")
				b.apply("a.yaml", test.after)
				b.wantProblems(make([]string, len(b.s.Problems()))...)
				for _, p := range b.s.Problems() {
					if strings.Contains(p.Message, "remove the file") {
						t.Errorf("it does not lead there: %s", p.Message)
					}
				}
			}
		})
	}
}

// Kubernetes drops a field of its own accord; whoever wrote it in a file reads that.
func TestAffinityConfigOfAFileWithoutAffinity(t *testing.T) {
	const text = "web {clusterIP: 172.30.0.6, sessionAffinity: %s, sessionAffinityConfig: {clientIP: {timeoutSeconds: 10}}}"
	b := newBox(t)
	b.apply("a.yaml", fmt.Sprintf(text, "None"))
	b.wantProblems("warning: Service default/web: spec.sessionAffinityConfig: it is dropped")
	b.restart()
	b.apply("a.yaml", fmt.Sprintf(text, "ClientIP"))
	b.wantProblems()
}

// A client gets Kubernetes' words.
func TestClusterIPsOfClientsThatChange(t *testing.T) {
	b := newBox(t)
	if _, err := b.put(document(t, "web {clusterIP: 172.30.0.6}")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.put(document(t, "web {clusterIP: 172.30.0.7}")); err == nil || !strings.HasSuffix(err.Error(), "may not change once set") {
		t.Errorf("a client is told %v", err)
	}
}

// Who wants a value of a Service that vanished and is held is told so.
func TestValuesOfWhatIsHeld(t *testing.T) {
	b := newBox(t)
	b.guard = func(Removals) func(string) Decision { return func(string) Decision { return Keep } }
	b.apply("a.yaml", "web {clusterIP: 172.30.0.6}")
	b.apply("a.yaml", "")
	b.apply("b.yaml", "new {clusterIP: 172.30.0.6}")
	b.wantProblems("provided IP is already allocated to Service default/web, which vanished from the manifests and is held: see `svcctl confirm --removals`")
	if _, err := b.put(document(t, "other {clusterIP: 172.30.0.6}")); err == nil || !strings.Contains(err.Error(), "is held") {
		t.Errorf("a client is told %v", err)
	}
	b.apply("a.yaml", "web {clusterIP: 172.30.0.6}")
	b.wantProblems("allocated to Service default/web")
	if strings.Contains(b.problems(), "is held") {
		t.Error(b.problems())
	}
}
