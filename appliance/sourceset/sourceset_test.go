package sourceset

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	got, err := Parse([]byte("# comment\n\n 192.0.2.0/24 # Berlin\r\n2001:db8::/32;x\n198.51.100.7\n::1"))
	want := []netip.Prefix{
		netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32"),
		netip.MustParsePrefix("198.51.100.7/32"), netip.MustParsePrefix("::1/128"),
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for text, problem := range map[string]string{
		"192.0.2.0/24\n192.0.2":          `line 2: "192.0.2" is no prefix`,
		"192.0.2.1/24":                   "line 1: 192.0.2.1/24 has bits behind its length: write 192.0.2.0/24, or 192.0.2.1/32",
		"192.0.2.0/33":                   "is no prefix",
		"fe80::1%eth0":                   "is no prefix",
		"::ffff:192.0.2.0/120":           "is no prefix",
		"192.0.2.0/24 198.51.100.0/24":   "is no prefix",
		"office.example":                 "is no prefix",
		strings.Repeat("x", 5000):        `xxxx" is no prefix`,
		"192.0.2.0/24\n\x00\x00\x00\x00": "line 2:",
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), problem) || len(err.Error()) > 200 {
			t.Errorf("%.40q: %v, want %q", text, err, problem)
		}
	}
}

// A Reader tells each content once, however the file is changed, and none that is broken.
func TestReaderFollowsFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "office.txt")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("192.0.2.0/24\n")
	r := NewReader([]File{{"office", path}, {"missing", filepath.Join(dir, "missing.txt")}})
	taken := make(chan []netip.Prefix, 100)
	take := func(name string, prefixes []netip.Prefix) {
		if name != "office" {
			t.Errorf("%s has %v", name, prefixes)
		}
		taken <- prefixes
	}
	changed := make(chan struct{}, 100)
	if !r.Scan(take) || len(taken) != 1 || r.Broken()["missing"] == nil || len(r.Broken()) != 1 {
		t.Fatalf("at first %d are taken, broken are %v", len(taken), r.Broken())
	}
	<-taken
	if r.Scan(take) || len(taken) != 0 {
		t.Error("what did not change is read again")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, take, func() { changed <- struct{}{} }) }()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-taken:
			if len(got) != 1 || got[0].String() != want {
				t.Errorf("taken is %v, want %s", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("nothing is taken, want %s", want)
		}
	}
	write("192.0.2.0/25\n")
	expect("192.0.2.0/25")
	next := filepath.Join(dir, "next")
	if err := os.WriteFile(next, []byte("198.51.100.0/24"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
	expect("198.51.100.0/24")
	write("nonsense")
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Fatal("nobody is told that the file is broken")
	}
	if err := r.Broken()["office"]; err == nil || len(taken) != 0 {
		t.Errorf("the broken file is %v, and %d are taken", err, len(taken))
	}
	write("203.0.113.0/24")
	expect("203.0.113.0/24")
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Fatal("nobody is told that the file is mended")
	}
	if r.Broken()["office"] != nil {
		t.Error("the mended file is broken")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
