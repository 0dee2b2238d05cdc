package sourceset

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
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
	r.Start(take)
	if len(taken) != 1 || r.Broken()["missing"] == nil || len(r.Broken()) != 1 {
		t.Fatalf("at first %d are taken, broken are %v", len(taken), r.Broken())
	}
	<-taken
	if changed, again := r.look(time.Now(), take); changed || again != 0 || len(taken) != 0 {
		t.Errorf("what did not change is read again: %t, %v, %d are taken", changed, again, len(taken))
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
	until := func(what string, broken bool) {
		t.Helper()
		for limit := time.After(time.Minute); (r.Broken()["office"] != nil) != broken; {
			select {
			case <-changed:
			case <-limit:
				t.Fatalf("%s: no change is reported, broken are %v", what, r.Broken())
			}
		}
	}
	write("nonsense")
	until("the file is broken", true)
	if len(taken) != 0 {
		t.Errorf("of the broken file %v is taken", <-taken)
	}
	write("203.0.113.0/24")
	expect("203.0.113.0/24")
	until("the file is mended", false)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The clock is the one of the test: a file that was just written is looked at as if time had passed.
func TestReaderLetsFilesSettle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scanners.txt")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var taken []string
	take := func(_ string, prefixes []netip.Prefix) { taken = append(taken, fmt.Sprint(prefixes)) }
	r := NewReader([]File{{"scanners", path}})
	now := time.Now()
	look := func(after time.Duration, want ...string) (again time.Duration) {
		t.Helper()
		taken, now = nil, now.Add(after)
		_, again = r.look(now, take)
		if !slices.Equal(taken, want) {
			t.Errorf("taken are %q, want %q; problems %v", taken, want, r.Broken())
		}
		return again
	}
	broken := func(want string) {
		t.Helper()
		if err := r.Broken()["scanners"]; (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("the problem is %v, want %q", err, want)
		}
	}
	const ms = time.Millisecond

	write("192.0.2.0/24\n")
	look(-time.Hour) // its time is ahead of this clock
	look(settle, "[192.0.2.0/24]")
	broken("")

	// Truncated, and written in two halves.
	write("")
	if again := look(10 * ms); again != settle {
		t.Errorf("the next look is after %v", again)
	}
	look(settle - ms)
	broken("")
	if again := look(ms); again <= settle || again > rescan {
		t.Errorf("the next look at an empty file is after %v", again)
	}
	broken("it is empty")
	write("198.51.100.0/24\n")
	look(10 * ms)
	write("198.51.100.0/24\n203.0.113.0/24\n")
	look(10 * ms)
	look(settle-10*ms, []string{}...)
	look(10*ms, "[198.51.100.0/24 203.0.113.0/24]")
	broken("")

	// Empty for good, and filled again.
	write("# none\n")
	look(10 * ms)
	look(rescan - ms)
	look(ms, "[]")
	broken("")
	write("192.0.2.0/25\n")
	look(10 * ms)
	look(settle, "[192.0.2.0/25]")

	// Written without a pause: it is not read, which is a problem, until it ends.
	for i := range 120 {
		write(strings.Repeat("192.0.2.0/26\n", i+1))
		look(100 * ms)
	}
	broken("changing for more than 10s")
	write("192.0.2.0/27\n")
	look(100 * ms)
	look(settle, "[192.0.2.0/27]")
	broken("")

	// Away for a moment, and for longer.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	look(10 * ms)
	broken("")
	look(settle)
	broken("no such file")
	write("192.0.2.0/28\n")
	look(10 * ms)
	look(settle, "[192.0.2.0/28]")
	broken("")
}

// The time is that of a bubble; the files are real.
func TestReaderInABusyDirectory(t *testing.T) {
	for name, noise := range map[string]func(path string, events chan<- fsnotify.Event, lost chan<- error){
		"others": func(path string, events chan<- fsnotify.Event, _ chan<- error) {
			events <- fsnotify.Event{Name: path, Op: fsnotify.Create}
			for range 50 {
				time.Sleep(100 * time.Millisecond)
				events <- fsnotify.Event{Name: path + ".log", Op: fsnotify.Write}
			}
		},
		"its own": func(path string, events chan<- fsnotify.Event, _ chan<- error) {
			for range 50 {
				time.Sleep(100 * time.Millisecond)
				events <- fsnotify.Event{Name: path, Op: fsnotify.Chmod}
			}
		},
		"after it was empty": func(path string, events chan<- fsnotify.Event, _ chan<- error) {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				panic(err)
			}
			events <- fsnotify.Event{Name: path, Op: fsnotify.Write}
			time.Sleep(time.Second)
			if err := os.WriteFile(path, []byte("192.0.2.0/26"), 0o600); err != nil {
				panic(err)
			}
			events <- fsnotify.Event{Name: path, Op: fsnotify.Write}
		},
		"lost": func(_ string, _ chan<- fsnotify.Event, lost chan<- error) { lost <- fsnotify.ErrEventOverflow },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "office.txt")
			if err := os.WriteFile(path, []byte("192.0.2.0/24"), 0o600); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				events, lost, taken := make(chan fsnotify.Event), make(chan error), make(chan time.Time, 10)
				r := NewReader([]File{{"office", path}})
				take := func(string, []netip.Prefix) { taken <- time.Now() }
				r.Start(take)
				<-taken
				ctx, cancel := context.WithCancel(t.Context())
				go r.follow(ctx, events, lost, take, func() {})
				time.Sleep(time.Second)
				if err := os.WriteFile(path, []byte("192.0.2.0/25"), 0o600); err != nil {
					t.Error(err)
				}
				changed := time.Now()
				noise(path, events, lost)
				time.Sleep(rescan)
				cancel()
				if after := (<-taken).Sub(changed); after > time.Second+2*settle+100*time.Millisecond {
					t.Errorf("taken after %v", after)
				}
			})
		})
	}
}
