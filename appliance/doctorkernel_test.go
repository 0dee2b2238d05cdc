package appliance

import (
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/checkup"
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
