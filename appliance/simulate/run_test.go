package simulate

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// simulate runs a script in a bubble of its own.
func simulate(t *testing.T, s Script) (stats Stats, wrong error) {
	t.Helper()
	dir := quickDir(t)
	log := logOf(t)
	synctest.Test(t, func(*testing.T) { stats, wrong = Run(s, dir, log) })
	return stats, wrong
}

// quickDir returns a directory in memory, if there is one: the data file syncs each commit.
func quickDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "svcctl-simulate-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestSmoke runs seeds for some seconds of real time, at least 20. With SEED it runs that one, with SCRIPT a file, with FOR new seeds
// for that time, with SEEDS the first N.
func TestSmoke(t *testing.T) {
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
		runSeed(t, seed, &Stats{})
		return
	}
	first, least, most := uint64(1), 20, 8*time.Second
	if d, err := time.ParseDuration(os.Getenv("FOR")); err == nil {
		first, most = uint64(time.Now().Unix())*1000, d
	}
	if n, err := strconv.Atoi(os.Getenv("SEEDS")); err == nil {
		least, most = n, 0
	}
	var all Stats
	seeds := 0
	for began := time.Now(); seeds < least || time.Since(began) < most; seeds++ {
		runSeed(t, first+uint64(seeds), &all)
	}
	t.Logf("%d seeds, %v simulated: %d events, %d rests, %d packets, %d starts, %d writes refused, %v", seeds, all.Simulated, all.Events, all.Rests, all.Packets, all.Starts, all.Refused, all.Kinds)
}

// runSeed runs the script of a seed, and shrinks it when it fails.
func runSeed(t *testing.T, seed uint64, all *Stats) {
	t.Helper()
	s := Generate(seed)
	stats, wrong := simulate(t, s)
	all.add(stats)
	if wrong == nil {
		return
	}
	if os.Getenv("SEEDS") != "" {
		t.Fatalf("seed %d: %v", seed, wrong)
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
	}, time.Minute)
	_, last := simulate(t, small)
	t.Fatalf("seed %d: %v\nfailed in %d of 3 replays; shrunk from %d to %d events, which fail with %v:\n%s", seed, wrong, again, len(s.Events), len(small.Events), last, small)
}

// add sums.
func (s *Stats) add(o Stats) {
	s.Events, s.Rests, s.Packets, s.Starts, s.Refused = s.Events+o.Events, s.Rests+o.Rests, s.Packets+o.Packets, s.Starts+o.Starts, s.Refused+o.Refused
	s.Simulated += o.Simulated
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
