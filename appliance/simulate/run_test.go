package simulate

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(800) // much is made and forgotten at each start
	os.Exit(m.Run())
}

// simulate runs a script in a bubble of its own.
func simulate(t *testing.T, s Script) (stats Stats, wrong error) {
	t.Helper()
	dir, err := makeQuickDir()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // not when the test ends: a night has thousands
	log := logOf(t)
	synctest.Test(t, func(*testing.T) { stats, wrong = Run(s, dir, log) })
	return stats, wrong
}

// makeQuickDir makes a directory in memory, if it can: the data file syncs each commit.
func makeQuickDir() (string, error) {
	if dir, err := os.MkdirTemp("/dev/shm", "svcctl-simulate-"); err == nil {
		return dir, nil
	}
	return os.MkdirTemp("", "svcctl-simulate-")
}

// quickDir makes such a directory, which goes with the test.
func quickDir(t *testing.T) string {
	t.Helper()
	dir, err := makeQuickDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Bounds of the work of a smoke, about two seconds of a processor: a busy machine does as much.
const (
	smokeSeeds = 20
	smokeRests = 4
)

// TestSmoke runs the first rounds of the first seeds of boxes, and of three of fleets. With SEED it runs that one, with SCRIPT a
// file, with FOR new seeds for that time, with SEEDS the first N but those in SKIP. FLEET=1 has these be of fleets; with FOR each fourth is.
func TestSmoke(t *testing.T) {
	fleets := os.Getenv("FLEET") != ""
	if path := os.Getenv("SCRIPT"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Parse(string(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, wrong := simulate(t, s); wrong != nil {
			t.Fatal(wrong)
		}
		return
	}
	if seed, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		if wrong := try(t, scriptOf(seed, fleets), &Stats{}); wrong != "" {
			t.Fatal(wrong)
		}
		return
	}
	var all Stats
	seeds, began := 0, time.Now()
	run := func(s Script) {
		seeds++
		if wrong := try(t, s, &all); wrong != "" {
			t.Fatal(wrong)
		}
	}
	if d, err := time.ParseDuration(os.Getenv("FOR")); err == nil {
		var first, last held
		failed := 0
		for seed := rand.Uint64() >> 16; time.Since(began) < d && failed < mostFailures; seed++ {
			if wrong := try(t, scriptOf(seed, fleets || seed%4 == 0), &all); wrong != "" {
				failed++
				t.Error(wrong)
			}
			if seeds++; seeds%100 == 0 {
				last = measure()
				t.Logf("%s: %d failures, %v", all.text(seeds), failed, last)
			}
			if seeds == 100 {
				first = last
			}
		}
		if seeds > 200 && failed == 0 && !last.isFlat(first) {
			t.Errorf("after 100 seeds %v, after %d seeds %v", first, seeds, last)
		}
	} else if n, err := strconv.Atoi(os.Getenv("SEEDS")); err == nil {
		for seed := range uint64(n) {
			if !slices.Contains(strings.Split(os.Getenv("SKIP"), ","), fmt.Sprint(seed+1)) {
				run(scriptOf(seed+1, fleets))
			}
		}
	} else {
		for seed := range uint64(smokeSeeds) {
			run(scriptOf(seed+1, false).begin(smokeRests))
			if seed%8 == 0 {
				run(scriptOf(seed/8+1, true).begin(smokeRests))
			}
		}
	}
	t.Log(all.text(seeds))
}

// mostFailures end a run of new seeds.
const mostFailures = 100

// held is what a process holds between two seeds, after a collection of garbage.
type held struct {
	goroutines, descriptors int
	bytes                   uint64
}

func measure() held {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	descriptors, _ := os.ReadDir("/proc/self/fd")
	return held{runtime.NumGoroutine(), len(descriptors), m.HeapAlloc}
}

// isFlat reports whether nothing was kept since. The heap of a Go program varies by what its pools and tables hold.
func (h held) isFlat(since held) bool {
	return h.goroutines <= since.goroutines && h.descriptors <= since.descriptors && h.bytes <= since.bytes+4<<20
}

func (h held) String() string {
	return fmt.Sprintf("%d goroutines, %d descriptors, %d KiB of memory", h.goroutines, h.descriptors, h.bytes>>10)
}

func (s *Stats) text(seeds int) string {
	return fmt.Sprintf("%d seeds, %v simulated, %v of them nights: %d events, %d rests, %d packets %v, %d starts, %d torn commits, %d writes refused, %d frontends contested, %d Gateways, %d packets left with a VIP, %d flowtables; in fleets %d acknowledged, %d open, %d cuts",
		seeds, s.Simulated.Round(time.Minute), s.Nights, s.Events, s.Rests, s.Packets, s.Kinds, s.Starts, s.Tears, s.Refused, s.Contested, s.Gateways, s.Left, s.Flowtables, s.Acknowledged, s.Open, s.Cuts)
}

// scriptOf is the script of a seed, with NIGHTS=0 up to its first night.
func scriptOf(seed uint64, fleet bool) Script {
	if fleet {
		return GenerateFleet(seed)
	}
	s := Generate(seed)
	if i := slices.IndexFunc(s.Events, func(e Event) bool { return e.Verb == doNight }); i >= 0 && os.Getenv("NIGHTS") == "0" {
		s.Events = s.Events[:i]
	}
	return s
}

// begin returns the script up to one of its rests.
func (s Script) begin(rests int) Script {
	for i, e := range s.Events {
		if e.Verb == doRest {
			rests--
		}
		if rests == 0 {
			s.Events = s.Events[:i+1]
			break
		}
	}
	return s
}

// try runs a script, and shrinks it when it fails: the text has what failed, and both.
func try(t *testing.T, s Script, all *Stats) string {
	t.Helper()
	stats, wrong := simulate(t, s)
	all.add(stats)
	if wrong == nil {
		return ""
	}
	if os.Getenv("SEEDS") != "" {
		return fmt.Sprintf("seed %d: %v", s.Seed, wrong)
	}
	shrinking := time.Minute
	if d, err := time.ParseDuration(os.Getenv("SHRINK")); err == nil {
		shrinking = d
	}
	again := 0
	for range 3 {
		if _, err := simulate(t, s); err != nil {
			again++
		}
	}
	if stats.Events < len(s.Events) {
		s.Events = s.Events[:stats.Events]
	}
	small := Shrink(s, func(c Script) bool {
		for range 2 {
			if _, err := simulate(t, c); err != nil {
				return true
			}
		}
		return false
	}, shrinking)
	_, last := simulate(t, small)
	return fmt.Sprintf("seed %d: %v\nfailed in %d of 3 replays; shrunk from %d to %d events, which fail with %v:\n%s", s.Seed, wrong, again, len(s.Events), len(small.Events), last, small)
}

// add sums.
func (s *Stats) add(o Stats) {
	s.Events, s.Rests, s.Packets, s.Starts, s.Refused = s.Events+o.Events, s.Rests+o.Rests, s.Packets+o.Packets, s.Starts+o.Starts, s.Refused+o.Refused
	s.Contested += o.Contested
	s.Gateways, s.Left, s.Flowtables = s.Gateways+o.Gateways, s.Left+o.Left, s.Flowtables+o.Flowtables
	s.Acknowledged, s.Open, s.Cuts, s.Tears, s.Simulated = s.Acknowledged+o.Acknowledged, s.Open+o.Open, s.Cuts+o.Cuts, s.Tears+o.Tears, s.Simulated+o.Simulated
	s.Nights += o.Nights
	if s.Kinds == nil {
		s.Kinds = map[string]int{}
	}
	for k, n := range o.Kinds {
		s.Kinds[k] += n
	}
}

func TestScriptIsText(t *testing.T) {
	for seed := range uint64(20) {
		s := Generate(seed)
		if seed%2 == 0 {
			s = GenerateFleet(seed)
		}
		parsed, err := Parse(s.String())
		if err != nil || parsed.String() != s.String() || fmt.Sprint(parsed) != fmt.Sprint(s) {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// logOf returns where runs log: LOG names a file.
func logOf(t *testing.T) io.Writer {
	path := os.Getenv("LOG")
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// The scripts of failures that were found and mended, shrunk, pass.
func Test1039_scripts_of_failures_pass(t *testing.T) {
	scripts, err := filepath.Glob("testdata/found/*.txt")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%d scripts: %v", len(scripts), err)
	}
	for _, path := range scripts {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Parse(string(text))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if _, wrong := simulate(t, s); wrong != nil {
			t.Errorf("%s: %v", path, wrong)
		}
	}
}
