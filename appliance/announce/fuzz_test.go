package announce

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"svcctl.io/svcctl/api/wire"
)

// FuzzLoadState: no content of the file keeps the announcer from starting or has it announce what is no address, and
// what was read is read again as it was.
func FuzzLoadState(f *testing.F) {
	dir := f.TempDir()
	s := state{Ranges: []string{"192.0.2.10-192.0.2.20"}, Wanted: []string{"192.0.2.11", "2001:db8::1"}, Announced: []string{"192.0.2.11"},
		Ads: map[string]ad{"2001:db8::1": {Via: []string{"lb/all"}}}, Config: &wire.AnnounceConfig{Interfaces: []string{"eth0"}}, Drained: true}
	if err := s.save(dir); err != nil {
		f.Fatal(err)
	}
	saved, err := os.ReadFile(filepath.Join(dir, stateName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(saved)
	f.Add(append(saved, `{"address":"192.0.2.12","wanted":true,"announced":true}`+"\n"+`{"address":"192.0.2.11"}`+"\n"+`{"address":"192.0`...))
	for _, text := range []string{"", "{}", "null", "[]", `{"wanted":["x"]}` + "\n" + `{"address":"y","wanted":true}`, `{"ranges":["1-2","-",""],"ads":null}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, stateName), content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := loadState(dir)
		if err != nil {
			if len(s.Wanted)+len(s.Announced)+len(s.Ranges) > 0 {
				t.Errorf("a file that is not understood is taken: %+v", s)
			}
			return
		}
		for _, text := range s.Ranges {
			if r, err := parseRange(text); err == nil && (!r.prefix().Contains(r.First) || !r.prefix().Contains(r.Last)) {
				t.Errorf("the range %q is not in its prefix %s", text, r.prefix())
			}
		}
		wanted := map[string]bool{}
		for _, text := range s.Wanted {
			if wanted[text] {
				t.Errorf("%q is wanted twice", text)
			}
			wanted[text] = true
			if _, has := s.Ads[text]; !has {
				t.Errorf("nothing says where %q is announced", text)
			}
		}
		if err := s.save(dir); err != nil {
			t.Fatal(err)
		}
		again, err := loadState(dir)
		if err != nil || len(again.Wanted) != len(s.Wanted) || len(again.Announced) != len(s.Announced) || again.Drained != s.Drained {
			t.Errorf("read again it is %+v (%v), before %+v", again, err, s)
		}
		for addr := range again.Ads {
			if a, err := netip.ParseAddr(addr); err == nil && !again.Ads[addr].equal(s.Ads[addr]) {
				t.Errorf("%s is announced %+v, before %+v", a, again.Ads[addr], s.Ads[addr])
			}
		}
	})
}
