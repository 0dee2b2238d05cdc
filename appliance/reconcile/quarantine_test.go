package reconcile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

// refuseEndpoints makes the kernel refuse elements that lead to endpoints of 10.66.0.0/16.
func refuseEndpoints(b *nft.Batch) error {
	for i, op := range b.Ops {
		add, ok := op.(nft.AddElements)
		if !ok {
			continue
		}
		for _, e := range add.Elements {
			if strings.HasPrefix(e.Data, "\x0a\x42") {
				return &kernel.OpError{Op: i, Text: "add element ip svcctl backends", Errno: syscall.EINVAL, Hint: "no such luck"}
			}
		}
	}
	return nil
}

func (r *rig) refusedObjects() []string {
	var objects []string
	for _, p := range r.board.Status().Problems {
		if p.Reason == reasonRefused {
			objects = append(objects, p.Object)
		}
	}
	return objects
}

func TestK08_refusedServiceKeepsItsLastVersion(t *testing.T) {
	r := newRig(t)
	r.host()
	for i := range 20 {
		r.write(fmt.Sprintf("%d.yaml", i), web(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.1.%d", i), "10.1.0.1"))
	}
	r.step()
	r.kernel.Inject(refuseEndpoints)
	r.write("3.yaml", web("s3", "10.96.1.3", "10.66.0.1"))
	r.write("4.yaml", web("s4", "10.96.1.4", "10.1.0.4"))
	r.write("new.yaml", web("new", "10.96.2.1", "10.66.0.2"))
	r.write("5.yaml", "")
	r.step()
	r.want("10.96.1.3 . tcp . 80 . 0 : 10.1.0.1 . 8080", "10.96.1.4 . tcp . 80 . 0 : 10.1.0.4 . 8080", "!10.66.0", "!10.96.2.1", "!10.96.1.5 ")
	if got := r.refusedObjects(); !slices.Equal(got, []string{"Service default/s3", "Service default/new"}) {
		t.Errorf("refused are %v\n%s", got, r.logged.String())
	}
	s := r.board.Status()
	if !s.Ready || s.Errors() != 2 {
		t.Errorf("ready %v with %d errors, want 2", s.Ready, s.Errors())
	}
	for _, p := range s.Problems {
		if p.File == "" || p.Line == 0 || !strings.Contains(p.Message, "no such luck") || !strings.Contains(p.Message, "invalid argument") {
			t.Errorf("the problem does not name the file or lacks the kernel's words: %v", p)
		}
	}

	// Others change meanwhile, and do not have to be looked for again.
	commits := r.kernel.Commits()
	r.write("7.yaml", web("s7", "10.96.1.7", "10.1.0.7"))
	r.step()
	if n := r.kernel.Commits() - commits; n != 1 || len(r.refusedObjects()) != 2 {
		t.Errorf("a change of another Service took %d commits, and refused are %v", n, r.refusedObjects())
	}

	// A changed one is tried at once, the other one later.
	r.write("3.yaml", web("s3", "10.96.1.3", "10.1.0.33"))
	r.step()
	r.want("10.96.1.3 . tcp . 80 . 0 : 10.1.0.33 . 8080", "10.96.1.7 . tcp . 80 . 0 : 10.1.0.7 . 8080", "!10.66.0")
	for range 10 {
		wait, needed := r.until()
		if !needed || wait > refusedLast {
			t.Fatalf("the next trial is in %v (%v), want one within %v", wait, needed, refusedLast)
		}
		r.clock = r.clock.Add(wait)
		r.step()
	}
	if got := r.refusedObjects(); !slices.Equal(got, []string{"Service default/new"}) {
		t.Errorf("refused are %v", got)
	}
	if n := strings.Count(r.logged.String(), `msg=problem `); n != 2 {
		t.Errorf("the refusals of two Services are logged %d times", n)
	}
	r.kernel.Inject(nil)
	r.clock = r.clock.Add(refusedLast)
	r.step()
	r.want("10.96.2.1 . tcp . 80 . 0 : 10.66.0.2 . 8080")
	if _, needed := r.until(); needed || len(r.board.Status().Problems) != 0 {
		t.Errorf("after all were taken there are %v", r.board.Status().Problems)
	}
}

// What a refused Service holds cannot be had by another one, and what it gave up can.
func TestK08_refusedServiceAndItsFrontends(t *testing.T) {
	r := newRig(t)
	r.host()
	external := func(name, ip, external, endpoint string) string {
		return strings.Replace(web(name, ip, endpoint), "spec: {", "spec: {externalIPs: ["+external+"], ", 1)
	}
	r.write("a.yaml", external("a", "10.96.0.10", "198.51.100.1", "10.1.0.1"))
	r.write("b.yaml", web("b", "10.96.0.11", "10.1.0.2"))
	r.step()
	r.kernel.Inject(refuseEndpoints)
	r.write("a.yaml", external("a", "10.96.0.10", "198.51.100.9", "10.66.0.1"))
	r.write("b.yaml", external("b", "10.96.0.11", "198.51.100.1", "10.1.0.2"))
	r.step()
	r.want("198.51.100.1 . tcp . 80 . 0 : 10.1.0.1 . 8080", "!198.51.100.9", "10.96.0.11 . tcp . 80 . 0 : 10.1.0.2 . 8080")
	r.write("a.yaml", external("a", "10.96.0.10", "198.51.100.9", "10.1.0.1"))
	r.step()
	r.want("198.51.100.1 . tcp . 80 . 0 : 10.1.0.2 . 8080", "198.51.100.9 . tcp . 80 . 0 : 10.1.0.1 . 8080")
}

// recorder is a Part that records what was planned.
type recorder struct {
	NopPart
	planned []Service
}

func (p *recorder) Name() string { return "recorder" }

func (p *recorder) Planned(_ *Host, services []Service) { p.planned = append(p.planned, services...) }

// What is being drained goes on to be drained while a newer version is refused.
func TestK08_refusedServiceKeepsItsDrain(t *testing.T) {
	r := newRig(t)
	rec := &recorder{}
	r.opts.Parts = []Part{rec}
	r.host()
	drained := func(endpoints ...string) string {
		return strings.Replace(web("a", "10.96.0.10", endpoints...), "{name: a}", "{name: a, annotations: {svcctl.io/drain-timeout: 60s}}", 1)
	}
	r.write("a.yaml", drained("10.1.0.1", "10.1.0.2"))
	r.step()
	r.write("a.yaml", drained("10.1.0.1"))
	r.step()
	r.kernel.Inject(refuseEndpoints)
	r.write("a.yaml", drained("10.1.0.1", "10.66.0.1"))
	r.step()
	if got := r.refusedObjects(); len(got) != 1 || len(rec.planned) < 3 {
		t.Fatalf("refused are %v, and parts were told %v", got, rec.planned)
	}
	for _, svc := range rec.planned {
		if svc.Drain != (resolve.Drain{On: true, Timeout: time.Minute}) {
			t.Errorf("connections of %s are not drained any more: %+v", svc.Key, svc)
		}
	}
	if last := rec.planned[len(rec.planned)-1]; strings.Contains(fmt.Sprint(last.Ports), "10.66.0.1") {
		t.Errorf("parts were told last of what the kernel refused: %v", last.Ports)
	}
}

// After a restart it is not known what the kernel took, so the refused one is left out.
func TestK08_refusedAtStart(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("a", "10.96.0.10", "10.1.0.1"))
	r.write("b.yaml", web("b", "10.96.0.11", "10.66.0.1"))
	r.kernel.Inject(refuseEndpoints)
	r.step()
	r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.1 . 8080", "!10.66.0")
	if r.ready != 1 || r.board.Ready() != nil {
		t.Error("one refused Service keeps the appliance from being ready")
	}
}

// What is not about Services is not blamed on one, and a kernel without memory is asked
// again later.
func TestK08_whatIsNobodysFault(t *testing.T) {
	for name, fault := range map[string]error{
		"no memory": &kernel.OpError{Text: "add element", Errno: syscall.ENOMEM},
		"no rights": &kernel.OpError{Text: "add element", Errno: syscall.EPERM},
		"other":     errors.New("the disk is on fire"),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.host()
			r.write("a.yaml", web("a", "10.96.0.10", "10.1.0.1"))
			r.step()
			asked := 0
			r.kernel.Inject(func(*nft.Batch) error { asked++; return fault })
			r.write("a.yaml", web("a", "10.96.0.10", "10.1.0.2"))
			r.step()
			if s := r.board.Status(); s.Synced || len(r.refusedObjects()) > 0 || r.wait == 0 || asked > maxAttempts {
				t.Errorf("synced %v, refused %v, retry in %v, asked %d times", s.Synced, r.refusedObjects(), r.wait, asked)
			}
			r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.1 . 8080")
			r.kernel.Inject(nil)
			r.step()
			r.want("10.96.0.10 . tcp . 80 . 0 : 10.1.0.2 . 8080")
		})
	}
}

// TestCulprits: refusedServices finds exactly those that are bad, whichever they are, with few questions.
func TestCulprits(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 300 {
		all := make([]string, random.IntN(200))
		bad := map[string]bool{}
		for i := range all {
			all[i] = fmt.Sprintf("s%03d", i)
			if random.IntN(40) == 0 {
				bad[all[i]] = true
			}
		}
		asked := 0
		found, err := refusedServices(all, func(included []string) error {
			asked++
			if slices.ContainsFunc(included, func(key string) bool { return bad[key] }) {
				return &kernel.OpError{Errno: syscall.EINVAL}
			}
			return nil
		})
		if err != nil || len(found) != len(bad) {
			t.Fatalf("round %d: found %v, want %v: %v", round, found, bad, err)
		}
		for key := range bad {
			if found[key] == nil {
				t.Fatalf("round %d: %s is not found", round, key)
			}
		}
		if most := 2 + len(bad)*2*9; asked > most {
			t.Errorf("round %d: %d questions for %d of %d, want at most %d", round, asked, len(bad), len(all), most)
		}
	}
}

// Two that do not go together: one of them stays.
func TestCulpritsThatDoNotGoTogether(t *testing.T) {
	found, err := refusedServices([]string{"a", "b", "c", "d"}, func(included []string) error {
		if slices.Contains(included, "a") && slices.Contains(included, "d") {
			return &kernel.OpError{Errno: syscall.EEXIST}
		}
		return nil
	})
	if err != nil || len(found) != 1 || found["d"] == nil {
		t.Errorf("found %v, %v; want d", found, err)
	}
}

func TestCulpritsAreBounded(t *testing.T) {
	all := make([]string, 10_000)
	for i := range all {
		all[i] = fmt.Sprint(i)
	}
	asked := 0
	found, err := refusedServices(all, func(included []string) error {
		asked++
		if len(included) > 0 {
			return &kernel.OpError{Errno: syscall.EINVAL}
		}
		return nil
	})
	if err != nil || len(found) != len(all) || asked > maxTrials+40 {
		t.Errorf("%d of %d found with %d questions: %v", len(found), len(all), asked, err)
	}
}
