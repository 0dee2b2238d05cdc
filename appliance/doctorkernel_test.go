package appliance

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

// A disk is judged by what can be stored on it.
func TestDoctorJudgesTheDisk(t *testing.T) {
	for _, c := range []struct {
		free     int64
		readOnly bool
		level    checkup.Level
		text     string
	}{
		{scarce, false, checkup.OK, "has 4 MiB left"},
		{scarce - 1, false, checkup.Warning, "the file system of /data has 4095 KiB left"},
		{0, false, checkup.Warning, "has 0 KiB left"},
		{scarce, true, checkup.Error, "the file system of /data is read-only"},
	} {
		if f := diskFinding("/data", c.free, c.readOnly); f.Check != "disk" || f.Level != c.level || !strings.Contains(f.Message, c.text) || (f.Advice == "") != (f.Level == checkup.OK) {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}

// What a kernel lacks is named with what follows from it and what brings it; nothing follows on 5.15.
func TestDoctorNamesWhatAKernelLacks(t *testing.T) {
	all := kernel.Features{Release: "5.15.0", Destroy: true, Owner: true, Persist: true, Timeout: true, Hash: true, Counters: true, Limit: true, ConnLimit: true}
	v510, v515 := all, all
	v515.Destroy, v515.Persist = false, false
	v510.Destroy, v510.Persist, v510.Owner = false, false, false
	for _, c := range []struct {
		name     string
		features kernel.Features
		level    checkup.Level
		message  []string
		advice   string
	}{
		{"all", all, checkup.OK, []string{"Linux 5.15.0 has all that is needed"}, ""},
		{"5.15", v515, checkup.OK, []string{"lacks: destroy element (Linux 6.3), table flag persist (Linux 6.9)"}, ""},
		{"5.10", v510, checkup.Warning, []string{"table flag owner (Linux 5.12)", "resets established connections"}, "Linux 5.12"},
		{"nothing", kernel.Features{}, checkup.Warning, []string{"idle-timeout has no effect", "client-connections has no effect", "no counts of Services"}, "CONFIG_NFT_HASH"},
	} {
		got := kernelFinding(c.features.Release, c.features.Missing())
		for _, part := range c.message {
			if !strings.Contains(got.Message, part) {
				t.Errorf("%s: %q is not in %q", c.name, part, got.Message)
			}
		}
		if got.Check != "kernel" || got.Level != c.level || (got.Advice == "") != (c.advice == "") || !strings.Contains(got.Advice, c.advice) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	if missing := all.Missing(); len(missing) != 0 {
		t.Errorf("a kernel with everything lacks %q", missing)
	}
	names := kernel.Features{}.Missing()
	for name, w := range without {
		if !slices.Contains(names, name) || w.brings == "" {
			t.Errorf("%s is no feature, or nothing brings it", name)
		}
	}
	for _, name := range names {
		if _, known := without[name]; !known {
			t.Errorf("nothing is said of a kernel without %s", name)
		}
	}
}

// Flowtables of other programs are a doubt, ours are none.
func Test1110_doctor_has_the_flowtables(t *testing.T) {
	theirs := []kernel.ForeignFlowtable{{Family: "ip", Table: "firewall", Name: "f", Devices: []string{"eth0", "eth1"}}, {Family: "ip6", Table: "other", Name: "g"}}
	ours := nft.Ruleset{}
	for _, f := range nft.Families {
		ours[f] = &nft.Table{Flowtables: map[string]nft.Flowtable{"fast": {Devices: []nft.Device{{Name: "eth1"}, {Name: "eth0"}}}}}
	}
	for _, c := range []struct {
		foreign []kernel.ForeignFlowtable
		err     error
		have    nft.Ruleset
		level   checkup.Level
		text    string // "" for no finding
	}{
		{nil, nil, nft.Ruleset{}, checkup.OK, ""},
		{nil, nil, ours, checkup.OK, "connections are fast between eth0, eth1"},
		{theirs, nil, ours, checkup.Warning, "also of Services: table ip firewall, flowtable f of eth0, eth1; table ip6 other, flowtable g of no interface"},
		{nil, errors.New("list the flowtables: no answer"), ours, checkup.Warning, "no answer"},
	} {
		findings := fastFinding(c.foreign, c.err, c.have)
		if len(findings) == 0 && c.text == "" {
			continue
		}
		if len(findings) != 1 || findings[0].Check != "fast-path" || findings[0].Level != c.level || c.text == "" || !strings.Contains(findings[0].Message, c.text) {
			t.Errorf("of %+v, %v doctor finds %+v, want %q", c.foreign, c.err, findings, c.text)
		}
	}
}

// A kernel that lacks the fast path, or breaks it, is a problem of the box, with the next step; no Service is fast there.
func Test1110_problems_of_the_fast_path(t *testing.T) {
	f := fastPath{kernel.FastPath{Lacks: "kernel 5.10 has none: use Linux 6.1"}}
	host := reconcile.Host{Box: nft.Box{Fast: &nft.Flowtable{}}}
	f.limit(&host)
	if host.Box.Fast != nil || host.Resolve.FastPath.Lacks != f.Lacks {
		t.Errorf("the box has %+v", host)
	}
	if list := f.problems(); len(list) != 1 || list[0].Reason != "FastPath" || list[0].Warning || !strings.HasPrefix(list[0].Message, f.Lacks) || !strings.Contains(list[0].Message, "everything else works") {
		t.Errorf("the problems are %+v", list)
	}
	f = fastPath{kernel.FastPath{Doubt: "may break"}}
	host = reconcile.Host{Box: nft.Box{Fast: &nft.Flowtable{}}}
	if f.limit(&host); host.Box.Fast == nil {
		t.Error("a doubt ends the fast path")
	}
	if list := f.problems(); len(list) != 1 || list[0].Reason != "FastPathKernel" || !list[0].Warning || list[0].Message != "may break" {
		t.Errorf("the problems are %+v", list)
	}
}
