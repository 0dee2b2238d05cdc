package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// kernelPlan has the fields of `svcctl plan --against running -o json` that the tests read.
type kernelPlan struct {
	Objects []struct {
		Object, Did, Message string
		Values               []string
	}
	Services []struct {
		Service string
		Changes []struct{ Did, Of, Port, Family, Name, What, From, To string }
	}
	Tables []struct {
		Family, Did string
		Sets        []struct {
			Name, Did      string
			Added, Removed []string
			Changed        []struct{ From, To string }
		}
		Chains, Others []struct {
			Name, Did string
			Rules     []string
		}
	}
}

// planned runs plan, which has to end with an exit code.
func (v *verbs) planned(code int, args ...string) (p kernelPlan) {
	v.t.Helper()
	out := v.does(code, "plan", append(args, "--against", "running", "-o", "json")...)
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&p); err != nil {
		v.t.Fatalf("plan %v: %v in %s", args, err, out)
	}
	return p
}

// lines returns the changes of a plan, a line for each element, set, chain and other thing: "+ ip backends: ELEMENT".
func (p *kernelPlan) lines() (lines []string) {
	whole := func(did, what string) {
		if sign := map[string]string{"added": "+ ", "deleted": "- ", "changed": "~ "}[did]; sign != "" {
			lines = append(lines, sign+what)
		}
	}
	for _, t := range p.Tables {
		whole(t.Did, t.Family)
		for _, s := range t.Sets {
			whole(s.Did, t.Family+" "+s.Name)
			for _, e := range s.Added {
				lines = append(lines, "+ "+t.Family+" "+s.Name+": "+e)
			}
			for _, e := range s.Removed {
				lines = append(lines, "- "+t.Family+" "+s.Name+": "+e)
			}
			for _, e := range s.Changed {
				lines = append(lines, "- "+t.Family+" "+s.Name+": "+e.From, "+ "+t.Family+" "+s.Name+": "+e.To)
			}
		}
		for _, c := range t.Chains {
			whole(c.Did, t.Family+" chain "+c.Name)
		}
		for _, c := range t.Others {
			whole(c.Did, t.Family+" "+c.Name)
		}
	}
	slices.Sort(lines)
	return lines
}

// listed is our part of `nft list ruleset`: the rules of chains by "ip NAME", which are nil for sets and maps, and
// elements by "ip SET: ELEMENT".
func (b *box) listed(t *testing.T) map[string][]string {
	t.Helper()
	return listedIn(b.GW1.Nft("list", "ruleset"))
}

// listedIn is box.listed for a ruleset.
func listedIn(ruleset string) map[string][]string {
	all := map[string][]string{}
	table, kind, name, elements := "", "", "", ""
	counter := regexp.MustCompile(` counter packets \d+ bytes \d+`)
	for line := range strings.Lines(ruleset) {
		words := strings.Fields(line)
		switch depth := len(line) - len(strings.TrimLeft(line, "\t")); {
		case len(words) == 0:
		case depth == 0 && words[0] == "table":
			if table = ""; words[2] == "svcctl" {
				table = words[1]
				all[table] = nil
			}
		case depth == 1 && table != "" && words[len(words)-1] == "{":
			if kind, name = words[0], words[len(words)-2]; kind != "set" && kind != "map" {
				name = strings.Join(words[:len(words)-1], " ")
			}
			all[table+" "+name] = nil
		case depth <= 1 || table == "":
		case kind == "chain" && words[0] != "type":
			key := table + " " + name
			all[key] = append(all[key], strings.Join(words, " "))
		case words[0] == "elements" || elements != "":
			if elements += " " + strings.Join(words, " "); words[len(words)-1] != "}" {
				continue
			}
			_, list, _ := strings.Cut(strings.TrimSuffix(elements, "}"), "{")
			for _, e := range strings.Split(list, ", ") {
				all[table+" "+name+": "+counter.ReplaceAllString(strings.TrimSpace(e), "")] = nil
			}
			elements = ""
		}
	}
	return all
}

// changed returns the difference of two rulesets in the form of kernelPlan.lines.
func changed(before, after map[string][]string) (lines []string) {
	for what, rules := range before {
		now, still := after[what]
		switch {
		case !still:
			lines = append(lines, "- "+what)
		case !slices.Equal(rules, now):
			lines = append(lines, "~ "+what)
		}
	}
	for what := range after {
		if _, was := before[what]; !was {
			lines = append(lines, "+ "+what)
		}
	}
	slices.Sort(lines)
	return lines
}

// heldBy are the addresses and ports that a Service has, as a plan names them.
func (v *verbs) heldBy(name string) []string {
	v.t.Helper()
	var svc struct {
		Spec struct {
			ClusterIPs []string
			Ports      []struct {
				NodePort int
				Protocol string
			}
		}
		Status struct {
			LoadBalancer struct{ Ingress []struct{ IP string } }
		}
	}
	if err := json.Unmarshal([]byte(v.does(0, "get", "svc", name, "-o", "json")), &svc); err != nil {
		v.t.Fatal(err)
	}
	var values []string
	for _, ip := range svc.Spec.ClusterIPs {
		values = append(values, "cluster IP "+ip)
	}
	for _, p := range svc.Spec.Ports {
		if p.NodePort != 0 {
			values = append(values, "node port "+strconv.Itoa(p.NodePort)+"/"+p.Protocol)
		}
	}
	for _, at := range svc.Status.LoadBalancer.Ingress {
		values = append(values, "load balancer IP "+at.IP)
	}
	return values
}

// isForeseen asserts that a plan told exactly what nft lists differently after a change, and the values that were given. It returns
// what nft lists.
func (v *verbs) isForeseen(t *testing.T, what string, p *kernelPlan, before map[string][]string) (after map[string][]string) {
	t.Helper()
	after = v.listed(t)
	if got, want := strings.Join(p.lines(), "\n"), strings.Join(changed(before, after), "\n"); got != want {
		t.Errorf("%s: the plan has\n%s\nand nft lists as changed\n%s", what, got, want)
	}
	for _, table := range p.Tables {
		for _, c := range table.Chains {
			if rules := after[table.Family+" chain "+c.Name]; c.Did != "deleted" && !slices.Equal(rules, c.Rules) {
				t.Errorf("%s: chain %s is planned as\n%s\nand is\n%s", what, c.Name, strings.Join(c.Rules, "\n"), strings.Join(rules, "\n"))
			}
		}
	}
	for _, o := range p.Objects {
		kind, key, _ := strings.Cut(o.Object, " ")
		if kind != "Service" || o.Did != "created" {
			continue
		}
		if got, want := strings.Join(o.Values, ", "), strings.Join(v.heldBy(strings.TrimPrefix(key, "default/")), ", "); got != want {
			t.Errorf("%s: %s was planned with %q, and has %q", what, key, got, want)
		}
	}
	return after
}

// has asserts that a plan tells a change of a Service in words.
func (p *kernelPlan) has(t *testing.T, service, did, of, name, what string) {
	t.Helper()
	for _, s := range p.Services {
		for _, c := range s.Changes {
			if s.Service == service && c.Did == did && c.Of == of && c.Name == name && c.What == what {
				return
			}
		}
	}
	t.Errorf("the plan does not say that %s %s of %s %s (%s): %+v", of, name, service, did, what, p.Services)
}

// Test582_a_plan_is_what_nft_lists_afterwards applies one change after the other, each after a plan of it: elements, sets
// and chains that come, go and change are exactly those that nft lists, with the addresses and ports that were given.
func Test582_a_plan_is_what_nft_lists_afterwards(t *testing.T) {
	b := newBox(t, nil)
	b.svcctl.Start()
	v := b.verbs(t)
	web := func(f family, annotations []string, spec ...string) string {
		return f.annotated("web", append(annotations, "example.com/any: thing"), append([]string{"type: LoadBalancer"}, spec...)...)
	}
	const one = "ports: [{name: p80, port: 80}]"
	steps := []struct {
		what      string
		documents func(f family) []string
		words     func(p *kernelPlan, f family)
	}{
		{"new Services", func(f family) []string {
			return []string{
				web(f, nil, one), f.slice("web", "p80: 80", b.L1, b.R1),
				f.service("other", "type: NodePort", "ports: [{name: p80, port: 80}, {name: p53, port: 53, protocol: UDP}]"), f.slice("other", "p80: 80", b.R1),
			}
		}, func(p *kernelPlan, f family) {
			p.has(t, "default/"+f.name("web"), "begins", "endpoint", f.at(f.of(b.L1).String(), 80).String(), "")
			p.has(t, "default/"+f.name("web"), "begins", "frontend", f.at(strings.TrimPrefix(v.heldBy(f.name("web"))[0], "cluster IP "), 80).String(), "")
		}},
		{"another endpoint", func(f family) []string { return []string{f.slice("web", "p80: 80", b.L2, b.R1)} }, func(p *kernelPlan, f family) {
			p.has(t, "default/"+f.name("web"), "begins", "endpoint", f.at(f.of(b.L2).String(), 80).String(), "")
			p.has(t, "default/"+f.name("web"), "ends", "endpoint", f.at(f.of(b.L1).String(), 80).String(), "")
		}},
		{"fewer endpoints", func(f family) []string { return []string{f.slice("web", "p80: 80", b.R1)} }, nil},
		{"a hash", func(f family) []string { return []string{web(f, []string{"svcctl.io/balance: maglev"}, one)} }, func(p *kernelPlan, f family) {
			p.has(t, "default/"+f.name("web"), "changes", "port", "", "balance")
		}},
		{"session affinity", func(f family) []string { return []string{web(f, nil, one, "sessionAffinity: ClientIP")} }, func(p *kernelPlan, f family) {
			p.has(t, "default/"+f.name("web"), "changes", "port", "", "session affinity")
		}},
		{"source ranges", func(f family) []string {
			return []string{web(f, nil, one, "sessionAffinity: ClientIP", "loadBalancerSourceRanges: ["+f.pick("192.0.2.0/25", "2001:db8::/65")+"]")}
		}, nil},
		{"another port", func(f family) []string {
			return []string{web(f, []string{"svcctl.io/client-connections: \"9\""}, "ports: [{name: p80, port: 80}, {name: p81, port: 81, targetPort: 80}]")}
		}, nil},
		{"relayed", func(f family) []string {
			return []string{web(f, []string{"svcctl.io/proxy-mode: userspace"}, one, "externalTrafficPolicy: Local")}
		}, func(p *kernelPlan, f family) { p.has(t, "default/"+f.name("web"), "changes", "port", "", "relay") }},
		{"no address of its own", func(f family) []string {
			return []string{f.service("other", "type: ClusterIP", "ports: [{name: p80, port: 80}]")}
		}, nil},
		{"no endpoint", func(f family) []string { return []string{f.slice("web", "p80: 80"), f.slice("other", "p80: 80")} }, nil},
	}
	before := b.listed(t)
	for i, step := range steps {
		file := v.file("step"+strconv.Itoa(i)+".yaml", both(step.documents))
		p := v.planned(1, "-f", file)
		if more := changed(before, b.listed(t)); len(more) > 0 { // also by the second plan of the step before
			t.Fatalf("%s: to plan has changed %v", step.what, more)
		}
		v.does(0, "apply", "-f", file)
		v.synced()
		before = v.isForeseen(t, step.what, &p, before)
		if step.words != nil {
			for _, f := range families {
				step.words(&p, f)
			}
		}
		if again := v.planned(0, "-f", file); len(again.Objects)+len(again.Services)+len(again.Tables) > 0 {
			t.Errorf("%s: once it is applied, there is still a plan: %+v", step.what, again)
		}
	}
	v.says(2, []string{"step.yaml:6:", "spec.ports"}, "plan", "--against", "running", "-f", v.file("step.yaml", service("bad", "ports: [{port: 0}]")))
}

// Test583_a_plan_of_files plans a directory in the place of the one that is watched: what it adds, changes and leaves
// out, with what would be refused and what would be held, is what comes of it.
func Test583_a_plan_of_files(t *testing.T) {
	b := newBox(t, flags{"allow-mass-removal": nil})
	for name, documents := range map[string]func(f family) []string{
		"a.yaml": func(f family) []string {
			return []string{f.service("a", "ports: [{name: p80, port: 80}]"), f.slice("a", "p80: 80", b.L1, b.R1)}
		},
		"b.yaml": func(f family) []string {
			return []string{f.service("b", "type: LoadBalancer", "ports: [{name: p80, port: 80}]"), f.slice("b", "p80: 80", b.R1)}
		},
		"c.yaml": func(f family) []string {
			return []string{f.service("c", "type: NodePort", "ports: [{name: p80, port: 80}]"), f.slice("c", "p80: 80", b.L1)}
		},
	} {
		b.write(name, documents)
	}
	b.svcctl.Start()
	v := b.verbs(t)
	watched := b.svcctl.Manifests.Path
	next := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(next, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	copied := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(watched, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	// a has one endpoint less, b goes, c stays, d comes, and of bad there is nothing.
	a := both(func(f family) []string {
		return []string{f.service("a", "ports: [{name: p80, port: 80}]"), f.slice("a", "p80: 80", b.R1)}
	})
	d := both(func(f family) []string {
		return []string{f.service("d", "type: LoadBalancer", "ports: [{name: p80, port: 80}, {name: p443, port: 443}]"), f.slice("d", "p80: 80", b.L2)}
	})
	write("a.yaml", a)
	write("c.yaml", copied("c.yaml"))
	write("d.yaml", d)
	before := b.listed(t)
	p := v.planned(1, "-f", next, "--in-place-of", watched)
	for _, f := range families {
		for what, did := range map[string]string{f.object("Service", "b"): "removed", f.object("Service", "d"): "created", f.object("EndpointSlice", "a"): "configured"} {
			if !slices.ContainsFunc(p.Objects, func(o struct {
				Object, Did, Message string
				Values               []string
			}) bool {
				return o.Object == what && o.Did == did
			}) {
				t.Errorf("the plan does not say that %s is %s: %+v", what, did, p.Objects)
			}
		}
		p.has(t, "default/"+f.name("a"), "ends", "endpoint", f.at(f.of(b.L1).String(), 80).String(), "")
	}
	write("bad.yaml", service("bad", "ports: [{port: 0}]"))
	refused := v.planned(2, "-f", next, "--in-place-of", watched)
	if got, want := strings.Join(refused.lines(), "\n"), strings.Join(p.lines(), "\n"); got != want {
		t.Errorf("beside a document that is refused the plan is\n%s\nand without it\n%s", got, want)
	}
	v.says(2, []string{filepath.Join(watched, "bad.yaml") + ":", "spec.ports[0].port"}, "plan", "--against", "running", "-f", next, "--in-place-of", watched)
	b.svcctl.Stop() // so that all is one change
	b.svcctl.Manifests.Write("d.yaml", d)
	b.svcctl.Manifests.Write("a.yaml", a)
	b.svcctl.Manifests.Remove("b.yaml")
	b.svcctl.Start()
	v.synced()
	v.isForeseen(t, "the directory", &p, before)

	// Nearly everything goes: the appliance would hold it.
	empty := t.TempDir()
	if err := os.WriteFile(filepath.Join(empty, "none.yaml"), []byte("# nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	held := v.planned(0, "-f", empty, "--in-place-of", watched)
	if len(held.Tables) > 0 || len(held.Objects) == 0 || held.Objects[0].Did != "held" {
		t.Errorf("without most Services the plan is %+v", held)
	}
	v.says(2, []string{"is not a directory that is watched here", watched}, "plan", "--against", "running", "-f", next, "--in-place-of", next)
}

// Test628_a_plan_with_prune tells what nft lists differently after `apply --prune`: objects of the set that the files do not have go,
// with all that goes with them; what others brought stays.
func Test628_a_plan_with_prune(t *testing.T) {
	b := newBox(t, nil)
	b.svcctl.Start()
	v := b.verbs(t)
	with := func(names ...string) string {
		return v.file(strings.Join(names, "-")+".yaml", both(func(f family) (documents []string) {
			for _, name := range names {
				documents = append(documents, f.service(name, "type: NodePort", "ports: [{name: p80, port: 80}]"), f.slice(name, "p80: 80", b.L1))
			}
			return documents
		}))
	}
	one, two := with("kept", "goes"), with("kept", "comes")
	v.does(0, "apply", "-f", one, "--applyset", "shop", "--wait")
	v.does(0, "apply", "-f", with("other"), "--wait") // of no set
	set := []string{"-f", two, "--prune", "--applyset", "shop"}
	before := v.listed(t)
	p := v.planned(1, set...)
	became := map[string]string{}
	for _, o := range p.Objects {
		became[o.Object] = o.Did
	}
	for _, f := range families {
		for _, kind := range []string{"Service", "EndpointSlice"} {
			for name, want := range map[string]string{"goes": "removed", "comes": "created", "kept": "", "other": ""} {
				if got := became[f.object(kind, name)]; got != want {
					t.Errorf("%s is %q, want %q", f.object(kind, name), got, want)
				}
			}
		}
	}
	// A refusal has nothing pruned, as it has with apply.
	bad := v.file("bad.yaml", service("bad", "ports: [{port: 0}]"))
	v.says(2, []string{"nothing is pruned while an object is refused"}, "plan", append(set, "-f", bad, "--against", "running")...)
	for _, o := range v.planned(2, append(set, "-f", bad)...).Objects {
		if o.Did == "removed" {
			t.Errorf("beside a refusal %s is removed", o.Object)
		}
	}
	v.does(0, "apply", append(set, "--wait")...)
	v.synced()
	v.isForeseen(t, "apply --prune", &p, before)
	v.does(0, "plan", append(set, "--against", "running")...) // nothing would change
}
