package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// quiet is how long nothing must happen for a test to believe that nothing does: files
// settle after 0.1 s and are looked at again, whatever happens, within a second or so.
const quiet = 2 * time.Second

// commitsNothing asserts that something leads to no transaction of the box's rules.
func (b *box) commitsNothing(t *testing.T, what string, do func()) {
	t.Helper()
	for _, transaction := range b.transactions(do) {
		t.Errorf("%s: %s", what, transaction)
	}
}

// transactions are those that something leads to.
func (b *box) transactions(do func()) []netlab.Transaction {
	b.t.Helper()
	m := b.GW1.Monitor()
	do()
	time.Sleep(quiet) // real time: no more transactions come meanwhile
	return m.Transactions()
}

func Test141_a_bad_file_disturbs_nobody(t *testing.T) {
	b := newBox(t, nil)
	serviceOn := func(name string, n int, hosts ...*netlab.Host) func(f family) []string {
		return func(f family) []string {
			return []string{f.service(name, "clusterIP: "+f.vip(n), "ports: [{name: p80, port: 80}]"), f.slice(name, "p80: 80", hosts...)}
		}
	}
	served := func(when string, n int, hosts ...*netlab.Host) {
		t.Helper()
		for _, f := range families {
			if err := b.tryReaches(b.IN, "tcp", f.at(f.vip(n), 80), plain, f.on(80, hosts...)...); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	b.write("a.yaml", serviceOn("a", 41, b.L1))
	b.write("b.yaml", serviceOn("b", 42, b.R1))
	b.svcctl.Manifests.Write("c.yaml", service("c", "ports: [{port: 0}]"))
	b.svcctl.Start()
	served("at first", 41, b.L1)
	served("at first", 42, b.R1)
	b.hasProblem(t, "Service default/c", "c.yaml", "spec.ports[0].port")

	b.svcctl.Manifests.WriteInPlace("b.yaml", "kind: Service\nmetadata: {name: b\nspec:\n")
	b.hasFileProblem(t, "b.yaml")
	b.rewrite("a.yaml", serviceOn("a", 41, b.L2))
	served("beside a syntax error", 41, b.L2)
	served("with a syntax error", 42, b.R1)
	b.svcctl.Kill()
	b.svcctl.Start()
	served("after a restart", 41, b.L2)
	served("after a restart with a syntax error", 42, b.R1)
	b.hasFileProblem(t, "b.yaml")

	b.rewrite("b.yaml", serviceOn("b", 42, b.R2))
	served("mended", 42, b.R2)
	b.change(func() { b.svcctl.Manifests.Remove("b.yaml") })
	served("beside a removed file", 41, b.L2)
	for _, f := range families {
		if err := b.notListed(t, f, f.at(f.vip(42), 0).Addr()); err != nil {
			t.Errorf("after its file was removed: %v", err)
		}
	}
}

// hasFileProblem waits until the status lists a problem with a file and a line of it.
func (b *box) hasFileProblem(t *testing.T, file string) {
	t.Helper()
	eventually(t, syncTimeout, func() error {
		problems := b.status().Problems
		for _, p := range problems {
			if strings.HasSuffix(p.File, file) && p.Line > 0 {
				return nil
			}
		}
		return fmt.Errorf("no problem with a line of %s in:\n%s", file, list(problems))
	})
}

func Test141_edits_that_change_nothing_commit_nothing(t *testing.T) {
	b := web(t, nil, l1r1)
	dir := b.svcctl.Manifests
	content := both(b.webDocuments(b.L1, b.R1))
	b.commitsNothing(t, "the same content, by rename and in place", func() {
		dir.Write("web.yaml", content)
		dir.WriteInPlace("web.yaml", content)
	})
	b.commitsNothing(t, "a comment and blank lines", func() { dir.Write("web.yaml", "# edited\n\n"+content+"\n\n") })
	b.commitsNothing(t, "an editor's temporary files", func() {
		for _, name := range []string{".web.yaml.swp", "web.yaml~", "#web.yaml#", "4913"} {
			dir.WriteInPlace(name, both(b.webDocuments(b.R2)))
			dir.Remove(name)
		}
	})
	b.commitsNothing(t, "a file of the same objects beside, then instead", func() {
		if err := os.Rename(filepath.Join(dir.Path, "web.yaml"), filepath.Join(dir.Path, "renamed.yaml")); err != nil {
			t.Fatal(err)
		}
	})
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1, b.R1)...)
	}
}

func Test141_symlink_swap_is_one_apply(t *testing.T) {
	b := newBox(t, nil)
	dir := b.svcctl.Manifests.Path
	// As a ConfigMap is mounted: files are links into ..data, which is a link itself.
	version := func(name string, hosts ...*netlab.Host) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		for i, f := range families {
			file := filepath.Join(dir, name, fmt.Sprintf("%d.yaml", i))
			if err := os.WriteFile(file, []byte(strings.Join(b.webDocuments(hosts...)(f), "---\n")), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	link := func(target, name string) {
		t.Helper()
		temporary := filepath.Join(dir, "..tmp")
		if err := os.Symlink(target, temporary); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temporary, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	version("..v1", b.L1)
	link("..v1", "..data")
	link("..data/0.yaml", "0.yaml")
	link("..data/1.yaml", "1.yaml")
	b.svcctl.Start()
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1)...)
	}
	m := b.GW1.Monitor()
	b.change(func() {
		version("..v2", b.R1)
		link("..v2", "..data")
		if err := os.RemoveAll(filepath.Join(dir, "..v1")); err != nil {
			t.Fatal(err)
		}
	})
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.R1)...)
	}
	time.Sleep(quiet) // real time: no more transactions come meanwhile
	if all := m.Transactions(); len(all) != 1 {
		t.Errorf("the swap of all files led to %v, want one transaction", all)
	}
}

func Test141_restart_with_unchanged_input_commits_nothing(t *testing.T) {
	b := sticky(t, 600, l1r1)
	b.write("more.yaml", func(f family) []string { return b.many(f, 1, 20) })
	b.change(func() { b.svcctl.Manifests.Write("empty.yaml", service("empty", "ports: [{port: 80}]")) })
	for _, f := range families {
		b.choose(t, f, "tcp", f.at(f.vip(41), 80))
	}
	for how, end := range map[string]func(){"stopped": b.svcctl.Stop, "killed": b.svcctl.Kill} {
		for _, transaction := range b.transactions(func() {
			end()
			b.svcctl.Start()
		}) {
			for change, n := range transaction.Changes {
				// The kernel knows the owner of a table by its socket, which is a new one.
				owner := change.Table == "ip svcctl-sentinel" || change.Table == "ip6 svcctl-sentinel" || change.Kind == "add table"
				if !owner {
					t.Errorf("%s and started: %d × %s in %s", how, n, change.Kind, change.Table)
				}
			}
		}
	}
}

func Test142_long_names(t *testing.T) {
	b := newBox(t, nil)
	name := strings.Repeat("n", 63)
	portName := strings.Repeat("p", 63)
	docs := strings.ReplaceAll(strings.ReplaceAll(
		service("NAME", "clusterIP: "+ipv4.vip(41), "sessionAffinity: ClientIP", "ports: [{name: "+portName+", port: 80}]")+"---\n"+
			ipv4.rawSlice("NAME", "NAME", portName+": 80", ipv4.endpoint(b.L1)), "NAME-4", "NAME"),
		"NAME", name)
	docs = strings.ReplaceAll(docs, "metadata:\n", "metadata:\n  namespace: "+strings.Repeat("m", 63)+"\n")
	b.svcctl.Manifests.Write("long.yaml", docs)
	b.svcctl.Start()
	if problems := b.status().Problems; len(problems) != 0 {
		t.Errorf("problems:\n%s", list(problems))
	}
	b.reaches(t, b.EXT, "tcp", ipv4.at(ipv4.vip(41), 80), masq, ipv4.on(80, b.L1)...)
	b.GW1.Nft("list", "ruleset")
	b.GW1.Nft("-j", "list", "ruleset")
}

func Test143_one_endpoint_of_many_services(t *testing.T) {
	const services, endpoints, perFile = 10000, 5, 500
	b := newBox(t, nil)
	for first := 0; first < services; first += perFile {
		var docs []string
		for i := first; i < first+perFile; i++ {
			name := fmt.Sprintf("s%05d", i)
			var list []string
			for e := range endpoints {
				list = append(list, fmt.Sprintf("{addresses: [10.181.%d.%d]}", 10+i%200, 10+e))
			}
			docs = append(docs, ipv4.service(name, "ports: [{name: p80, port: 80}]"), ipv4.rawSlice(name, name, "p80: 80", list...))
		}
		b.svcctl.Manifests.Write(fmt.Sprintf("many%05d.yaml", first), strings.Join(docs, "---\n"))
	}
	b.write("web.yaml", b.webDocuments(b.L1, b.R1))
	b.svcctl.Start()
	m := b.GW1.Monitor()
	b.rewrite("web.yaml", b.webDocuments(b.L1, b.R2))
	all := m.Transactions()
	if len(all) != 1 {
		t.Fatalf("a changed endpoint led to %v, want one transaction", all)
	}
	for _, f := range families {
		elements := 0
		for change, n := range all[0].Changes {
			switch {
			case change.Table != f.table():
			case strings.HasSuffix(change.Kind, " element"):
				elements += n
			default:
				t.Errorf("a changed endpoint of one of %d Services led to %s", services, all[0])
			}
		}
		if elements == 0 || elements > 8 {
			t.Errorf("%s: %d elements changed, want at most 8: %s", f, elements, all[0])
		}
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1, b.R2)...)
	}
}

func Test144_foreign_changes_are_repaired(t *testing.T) {
	foreign := "table inet foreign {\n\tchain c {\n\t\ttype filter hook input priority filter; policy accept;\n\t\tcounter packets 0 bytes 0\n\t}\n}\n"
	changes := map[string]string{
		"flush":  "flush ruleset",
		"delete": "delete table ip svcctl; delete table ip6 svcctl",
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			b := web(t, nil, l1r1)
			if name != "flush" {
				b.GW1.LoadNft(foreign)
			}
			open, err := b.EXT.Dial(ipv4.at(ipv4.vip(41), 80))
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close()
			for range 3 {
				// An owned table can not be deleted by others: that is as good.
				if _, _, err := b.GW1.RunInput(change, "nft", "-f", "-"); err != nil {
					t.Logf("%s: %v", change, err)
				}
				for _, f := range families {
					eventually(t, syncTimeout, func() error {
						_, err := b.EXT.Ask("tcp", f.at(f.vip(41), 80), netlab.Within(time.Second))
						return err
					})
				}
				if err := open.Echo("still here"); err != nil {
					t.Errorf("a connection opened before: %v", err)
				}
			}
			for _, f := range families {
				b.reaches(t, b.EXT, "tcp", f.at(f.vip(41), 80), masq, f.on(80, b.L1, b.R1)...)
			}
			if name != "flush" && !strings.Contains(b.GW1.Nft("list", "table", "inet", "foreign"), "policy accept") {
				t.Error("a table of somebody else was changed")
			}
		})
	}
}

func Test145_no_connection_fails_during_changes(t *testing.T) {
	b := web(t, nil, l1r1)
	stop := make(chan struct{})
	done := make(chan *netlab.Tally, len(families))
	for _, f := range families {
		go func() {
			total := &netlab.Tally{Failures: map[netlab.Refusal]int{}, Servers: map[string]int{}}
			for {
				select {
				case <-stop:
					done <- total
					return
				default:
				}
				tally := b.EXT.AskMany(50, "tcp", f.at(f.vip(41), 80), patiently)
				total.Asked += tally.Asked
				for r, n := range tally.Failures {
					total.Failures[r] += n
					total.First = tally.First
				}
				for name, n := range tally.Servers {
					total.Servers[name] += n
				}
			}
		}()
	}
	sets := [][]*netlab.Host{{b.L1}, {b.L1, b.R2}, {b.R2}, {b.R2, b.R1, b.L1}, {b.L1, b.R1}}
	for i := range 15 {
		b.rewrite("web.yaml", b.webDocuments(sets[i%len(sets)]...))
	}
	close(stop)
	for range families {
		tally := <-done
		t.Logf("%s", tally)
		if len(tally.Failures) != 0 || tally.Servers["L2"] != 0 {
			t.Errorf("during changes of the endpoints: %s", tally)
		}
	}
}

func Test145_ports_swap_at_once(t *testing.T) {
	b := newBox(t, nil)
	docs := func(one, two int) func(f family) []string {
		return func(f family) []string {
			return []string{
				f.service("one", "type: NodePort", "clusterIP: "+f.vip(41), nodePorts(f, one)), f.slice("one", "p80: 80", b.L1),
				f.service("two", "type: NodePort", "clusterIP: "+f.vip(42), nodePorts(f, two)), f.slice("two", "p80: 80", b.R1),
			}
		}
	}
	b.write("web.yaml", docs(30080, 30090))
	b.svcctl.Start()
	for _, f := range families {
		b.reaches(t, b.EXT, "tcp", f.at(f.boxAddr(), f.number(30080)), masq, f.on(80, b.L1)...)
	}
	m := b.GW1.Monitor()
	b.rewrite("web.yaml", docs(30090, 30080))
	if all := m.Transactions(); len(all) != 1 {
		t.Errorf("the swap led to %v, want one transaction", all)
	}
	for _, f := range families {
		b.reaches(t, b.EXT, "tcp", f.at(f.boxAddr(), f.number(30080)), masq, f.on(80, b.R1)...)
		b.reaches(t, b.EXT, "tcp", f.at(f.boxAddr(), f.number(30090)), masq, f.on(80, b.L1)...)
	}
}

func Test146_plan_changes_nothing_and_tells_what_comes(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.webDocuments(b.L1, b.R1))
	settings := maps.Clone(b.flags)
	delete(settings, "allow-mass-removal") // of serve alone
	plan, _, err := b.GW1.Run(binary, append([]string{"plan", "-f", b.svcctl.Manifests.Path}, settings.args()...)...)
	if err != nil {
		t.Fatal(err)
	}
	if out := b.GW1.Nft("list", "ruleset"); out != "" {
		t.Errorf("after svcctl plan there are rules:\n%s", out)
	}
	for _, f := range families {
		for _, text := range []string{f.vip(41), f.of(b.L1).String(), f.of(b.R1).String()} {
			if !strings.Contains(plan, text) {
				t.Errorf("no %s in the plan:\n%s", text, plan)
			}
		}
	}
	b.GW1.LoadNft(plan) // it is what nft reads
	for _, f := range families {
		b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1, b.R1)...)
	}
}
