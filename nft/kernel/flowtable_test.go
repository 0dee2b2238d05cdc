package kernel

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"svcctl.io/svcctl/nft"
)

// fastKernel is an open Conn on a kernel with flowtables, in a namespace with veth pairs, of which the first ends have
// these names.
func fastKernel(t *testing.T, devices ...string) (*namespace, *Conn) {
	t.Helper()
	n := newNamespace(t)
	c := n.open()
	if fast := c.FastPath(); fast.Lacks != "" {
		t.Skip("SKIPPED: this kernel has no flowtables that serve: " + fast.Lacks)
	}
	for _, name := range devices {
		n.link(name, true)
	}
	return n, c
}

// link adds or deletes a veth pair.
func (n *namespace) link(name string, add bool) {
	n.Helper()
	n.inside(func() {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}
		change := netlink.LinkDel
		if add {
			change = netlink.LinkAdd
		}
		if err := change(link); err != nil {
			n.Errorf("%s: %v", name, err)
		}
	})
}

// fastState has every kind of fast frontend in both families.
func fastState(devices ...string) nft.State {
	s := state(0)
	s.Box.Fast = &nft.Flowtable{}
	for i, name := range devices {
		s.Box.Fast.Devices = append(s.Box.Fast.Devices, nft.Device{Name: name, Index: uint32(i + 1)})
	}
	for _, ports := range s.Services {
		for i := range ports {
			ports[i].Fast = ports[i].Protocol != nft.SCTP
		}
	}
	return s
}

// devicesOf are the devices of the flowtables that nft lists, each once.
func devicesOf(have nft.Ruleset) (names []string) {
	for _, table := range have {
		for _, d := range table.Flowtables["fast"].Devices {
			names = append(names, d.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// The rules of the fast path read back as they were written, are what nft lists, and their text loads.
func Test1065_fast_path_reads_back(t *testing.T) {
	n, c := fastKernel(t, "a", "b")
	want := compiled(fastState("a", "b"))
	_, generation := read(t, c)
	commit(t, c, generation, want.From(nil).Apply.Ops...)
	have, _ := read(t, c)
	if tr := want.From(have); !tr.Empty() {
		t.Fatalf("a restart would change something: %+v", tr)
	}
	if part, err := c.ReadFrontends(); err != nil || !slices.Equal(devicesOf(part), []string{"a", "b"}) {
		t.Errorf("frontends were read with the devices %v, %v", devicesOf(part), err)
	}
	for _, f := range nft.Families {
		listing := n.nft("list", "flowtables", f.String())
		if !strings.Contains(listing, "flowtable fast {") || !strings.Contains(listing, "hook ingress priority filter") {
			t.Errorf("nft lists\n%s", listing)
		}
		chains := n.nft("list", "chain", f.String(), "svcctl", "fast-path") + n.nft("list", "chain", f.String(), "svcctl", "fast-add") + n.nft("list", "chain", f.String(), "svcctl", "fast-both")
		for _, rule := range slices.Concat(want.Ruleset()[f].Chains["fast-add"].Rules, want.Ruleset()[f].Chains["fast-both"].Rules) {
			if !strings.Contains(chains, rule.Text(f)) {
				t.Errorf("nft does not list %s, but\n%s", rule.Text(f), chains)
			}
		}
		if rule := want.Ruleset()[f].Chains["fast-path"].Rules[0].Text(f); !strings.Contains(chains, rule) || !strings.Contains(chains, "hook forward priority 100") {
			t.Errorf("nft does not list %s, but\n%s", rule, chains)
		}
	}
	// What nft lists loads again, and so does the text of the compiler.
	fast := nft.Ruleset{nft.IPv4: want.Ruleset()[nft.IPv4]}
	fast[nft.IPv4].Sets = map[string]*nft.SetContent{}
	for name, set := range want.Ruleset()[nft.IPv4].Sets {
		if strings.HasPrefix(name, "fast-") || name == "nodeport-addresses" {
			fast[nft.IPv4].Sets[name] = set
		}
	}
	chains := fast[nft.IPv4].Chains
	fast[nft.IPv4].Chains = map[string]*nft.Chain{"fast-add": chains["fast-add"], "fast-both": chains["fast-both"], "fast-path": chains["fast-path"]}
	var text strings.Builder
	if err := fast.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	n.nft("flush", "ruleset")
	n.nftScript(n.acceptable(text.String()))
	listed := n.nft("list", "ruleset")
	n.nft("flush", "ruleset")
	n.nftScript(listed)
	if again := n.nft("list", "ruleset"); again != listed {
		t.Errorf("nft lists\n%s\nand loaded again\n%s", listed, again)
	}
}

// Devices are made those of the box as far as they exist. One that went before the transaction is left out, and fails
// nothing else in it.
func Test1066_devices_that_are_gone(t *testing.T) {
	n, c := fastKernel(t, "a", "b", "c")
	compiler := compiled(fastState("a", "b", "gone"))
	commit(t, c, 0, compiler.From(nil).Apply.Ops...)
	have, _ := read(t, c)
	if got := fmt.Sprint(devicesOf(have)); got != "[a b]" && got != "[a b gone]" { // 6.16 keeps names
		t.Fatalf("the flowtable has devices %s", got)
	}
	n.link("b", false)
	s := fastState("a", "c")
	tr := compiler.Update(&s.Box, nil)
	_, generation := read(t, c)
	for _, op := range tr.Apply.Ops {
		if _, is := op.(nft.SetFlowtable); !is {
			t.Errorf("other devices are %+v", op)
		}
	}
	commit(t, c, generation, tr.Apply.Ops...)
	if have, _ = read(t, c); fmt.Sprint(devicesOf(have)) != "[a c]" {
		t.Fatalf("the flowtable has devices %v", devicesOf(have))
	}
	// Made again under its name, it is another one, and the kernel has dropped the first.
	n.link("c", false)
	n.link("c", true)
	s.Box.Fast = &nft.Flowtable{Devices: []nft.Device{{Name: "a", Index: 1}, {Name: "c", Index: 99}}}
	if tr = compiler.Update(&s.Box, nil); tr.Empty() {
		t.Fatal("a device of another index is no change")
	}
	commit(t, c, 0, tr.Apply.Ops...)
	have, generation = read(t, c)
	if fmt.Sprint(devicesOf(have)) != "[a c]" {
		t.Fatalf("the flowtable has devices %v", devicesOf(have))
	}
	renew := compiler.RenewFast()
	commit(t, c, generation, renew.Ops...)
	if have, _ = read(t, c); !fromIsEmpty(t, compiler, have) || fmt.Sprint(devicesOf(have)) != "[a c]" {
		t.Errorf("renewed, the flowtable has devices %v", devicesOf(have))
	}
	// Nothing is fast any more.
	_, generation = read(t, c)
	tr = compiled(state(0)).From(have)
	generation = commit(t, c, generation, tr.Apply.Ops...)
	commit(t, c, generation, tr.Cleanup.Ops...)
	if have, _ = read(t, c); len(have[nft.IPv4].Flowtables)+len(have[nft.IPv6].Flowtables) != 0 {
		t.Error("the flowtable stays when no Service is fast")
	}
	for f, table := range have {
		for name := range table.Chains {
			if strings.HasPrefix(name, "fast-") {
				t.Errorf("%s: chain %s stays when no Service is fast", f, name)
			}
		}
		for name := range table.Sets {
			if strings.HasPrefix(name, "fast-") {
				t.Errorf("%s: set %s stays when no Service is fast", f, name)
			}
		}
	}
}

func fromIsEmpty(t *testing.T, compiler *nft.Compiler, have nft.Ruleset) bool {
	t.Helper()
	tr := compiler.From(have)
	if !tr.Empty() {
		t.Errorf("From does %+v", tr)
	}
	return tr.Empty()
}

// What a trial cannot find is known by the version.
func Test1067_kernels_of_the_fast_path(t *testing.T) {
	for release, want := range map[string]FastPath{
		"5.10.0-30-amd64": {Lacks: "use Linux 6.1"}, "5.15.0": {Lacks: "use Linux 6.1"}, "6.0.12": {Lacks: "use Linux 6.1"}, "strange": {Lacks: "use Linux 6.1"},
		"6.1.0-50-amd64": {}, "6.12.117+deb12-amd64": {},
		"6.13.0": {Doubt: "after a day"}, "6.18.44-fc-v857": {Doubt: "after a day"},
		"6.19-rc1": {Lacks: "was not tried"}, "7.2.1": {Lacks: "was not tried"},
	} {
		got := kernelsWithFastPath(release)
		if !strings.Contains(got.Lacks, want.Lacks) || (got.Lacks == "") != (want.Lacks == "") || !strings.Contains(got.Doubt, want.Doubt) || (got.Doubt == "") != (want.Doubt == "") {
			t.Errorf("%s: %+v, want %+v", release, got, want)
		}
	}
}
