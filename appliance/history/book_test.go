package history

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	discard = slog.New(slog.DiscardHandler)
	noon    = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	web     = Key{KindProblem, "Service shop/web", "EndpointDown warning spec.ports[0] 10.1.2.12:8080"}
	api     = Key{KindEndpoint, "Service shop/api", "10.1.2.13:8080 tcp"}
)

func start(t *testing.T, dir, box string, now time.Time) *Book {
	t.Helper()
	b := Open(dir, box, now, slog.New(slog.DiscardHandler))
	b.flush() // as Run does first
	return b
}

func stop(t *testing.T, b *Book) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

func is(t *testing.T, what string, got, want time.Time) {
	t.Helper()
	if !got.Equal(want) {
		t.Errorf("%s: since %s, want %s", what, got, want)
	}
}

// What is wrong over a restart is wrong since before it; what is over, or comes again, begins anew.
func TestBeginSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir, "gw1", noon)
	is(t, "new", b.Note(web, "warning", "", noon), noon)
	is(t, "the same again", b.Note(web, "warning", "", noon.Add(time.Minute)), noon)
	b.Note(api, "down", "connection refused", noon)
	is(t, "over", b.Note(api, "", "", noon.Add(2*time.Minute)), noon.Add(2*time.Minute))
	b.flush() // and killed

	later := noon.Add(time.Hour)
	b = start(t, dir, "gw1", later)
	if up, known := b.Last(api); !known || up.State != "" || !up.At.Equal(noon.Add(2*time.Minute)) {
		t.Errorf("what was over: %+v, %t", up, known)
	}
	is(t, "still wrong", b.Note(web, "warning", "", later), noon)
	is(t, "wrong again", b.Note(api, "down", "", later), later)
	is(t, "known from", b.From(later), noon)
	stop(t, b)

	b = start(t, dir, "gw1", later)
	b.Settle(later, func(k Key) bool { return k.Kind == KindEndpoint })
	is(t, "found to be over", b.Note(api, "down", "", later.Add(time.Minute)), later.Add(time.Minute))
	is(t, "kept", b.Note(web, "warning", "", later.Add(time.Minute)), noon)
	is(t, "worse", b.Note(web, "error", "", later.Add(time.Minute)), later.Add(time.Minute))
	stop(t, b)
}

// What nobody finds wrong any more is over a while after the start.
func TestSettlesAfterAWhile(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir, "gw1", noon)
	b.Note(web, "warning", "", noon)
	b.Note(api, "down", "", noon)
	stop(t, b)
	synctest.Test(t, func(t *testing.T) {
		b := start(t, dir, "gw1", time.Now())
		ctx, end := context.WithCancel(t.Context())
		go func() { _ = b.Run(ctx) }()
		b.Note(web, "warning", "", time.Now())
		time.Sleep(claimFor + time.Second)
		synctest.Wait()
		end()
		synctest.Wait()
		if at := b.Note(api, "down", "", time.Now()); time.Since(at) != 0 {
			t.Errorf("what was over is since %s", at)
		}
		is(t, "what is there", b.Note(web, "warning", "", time.Now()), noon)
		stop(t, b)
	})
}

// Nothing is written when nothing changes, and a restart with the same writes nothing.
func TestNothingIsWrittenForNothing(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir, "gw1", noon)
	b.Note(web, "warning", "", noon)
	stop(t, b)
	before := content(t, dir, fileName)
	for range 3 {
		b = start(t, dir, "gw1", noon.Add(time.Hour))
		for range 100 {
			b.Note(web, "warning", "", noon.Add(time.Hour))
			b.Note(api, "", "", noon.Add(time.Hour))
		}
		stop(t, b)
	}
	if after := content(t, dir, fileName); after != before || strings.Count(after, "\n") != 2 {
		t.Errorf("before:\n%safter:\n%s", before, after)
	}
}

func content(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A line that was written in part is left out, with nothing of those before and after it.
func TestTornLine(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir, "gw1", noon)
	b.Note(web, "warning", "", noon)
	b.Note(api, "down", "", noon)
	stop(t, b)
	if err := os.Truncate(filepath.Join(dir, fileName), int64(len(content(t, dir, fileName))-9)); err != nil {
		t.Fatal(err)
	}
	later := noon.Add(time.Hour)
	b = start(t, dir, "gw1", later)
	is(t, "torn", b.Note(api, "down", "", later), later)
	stop(t, b)
	b = start(t, dir, "gw1", later)
	is(t, "before it", b.Note(web, "warning", "", later), noon)
	is(t, "after it", b.Note(api, "down", "", later.Add(time.Hour)), later)
	stop(t, b)
	if err := os.WriteFile(filepath.Join(dir, fileName), []byte("\x00\x00 nonsense\n{}\n[1]"), 0o600); err != nil {
		t.Fatal(err)
	}
	b = start(t, dir, "gw1", later)
	is(t, "after nonsense", b.Note(api, "down", "", later), later)
	stop(t, b)
	b = start(t, dir, "gw1", later)
	is(t, "written anew", b.Note(api, "down", "", later.Add(time.Hour)), later)
}

// While nothing can be written all is kept in memory, and nothing is tried until the next transition, which then writes
// what is open.
func TestHistoryWithoutADisk(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "data")
	var log strings.Builder
	b := Open(dir, "gw1", noon, slog.New(slog.NewTextHandler(&log, nil)))
	for i := range 10 {
		b.Note(web, []string{"warning", "error"}[i%2], "", noon.Add(time.Duration(i)*time.Minute))
		b.flush()
	}
	is(t, "in memory", b.Note(web, "error", "", noon.Add(time.Hour)), noon.Add(9*time.Minute))
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines in the log, want 1:\n%s", n, log.String())
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	b.Note(api, "down", "", noon)
	stop(t, b)
	b = start(t, dir, "gw1", noon.Add(2*time.Hour))
	is(t, "from memory", b.Note(web, "error", "", noon.Add(2*time.Hour)), noon.Add(9*time.Minute))
	is(t, "written since", b.Note(api, "down", "", noon.Add(2*time.Hour)), noon)
}

// A data directory that came from another box tells nothing. A clock that went back changes nothing.
func TestOtherBoxAndOtherClock(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir, "gw1", noon)
	b.Note(web, "warning", "", noon)
	stop(t, b)
	past := noon.Add(-24 * time.Hour)
	b = start(t, dir, "gw1", past)
	is(t, "before its begin", b.Note(web, "warning", "", past), noon)
	is(t, "known from", b.From(past), past)
	b.Note(api, "down", "", past)
	stop(t, b)
	b = start(t, dir, "gw1", noon.Add(time.Hour))
	is(t, "after the clock is right again", b.Note(web, "warning", "", noon.Add(time.Hour)), noon)
	is(t, "from meanwhile", b.Note(api, "down", "", noon.Add(time.Hour)), past)
	stop(t, b)
	other := noon.Add(2 * time.Hour)
	b = start(t, dir, "gw2", other)
	is(t, "another box", b.Note(web, "warning", "", other), other)
	is(t, "another box is known from", b.From(other), other)
	stop(t, b)
	b = start(t, dir, "gw2", other.Add(time.Hour))
	is(t, "the box after a restart", b.Note(web, "warning", "", other.Add(time.Hour)), other)
}

// The files are bounded, whatever happens, and what is open is kept.
func TestBounds(t *testing.T) {
	dir := t.TempDir()
	b := start(t, dir, "gw1", noon)
	b.Note(web, "warning", "", noon)
	for i := range 20_000 {
		k := api
		k.What = fmt.Sprintf("10.1.%d.%d:8080 tcp", i%3/2, i%200)
		b.Note(k, []string{"down", ""}[i/200%2], "connection refused", noon.Add(time.Duration(i)*time.Second))
		if i%50 == 0 {
			b.flush()
		}
	}
	stop(t, b)
	for _, name := range []string{fileName, oldName} {
		if n := len(content(t, dir, name)); n > mostLines+mostLines/8 {
			t.Errorf("%s has %d bytes", name, n)
		}
	}
	later := noon.Add(100 * time.Hour)
	b = start(t, dir, "gw1", later)
	is(t, "open through it all", b.Note(web, "warning", "", later), noon)

	open := func() int {
		for i := range 3 * mostOpen { // all at once, without a moment to write
			b.Note(Key{KindEndpoint, "", fmt.Sprintf("10.2.%d.%d:80", i/200, i%200)}, "dead", "", later)
		}
		b.flush()
		return len(b.open)
	}
	if n := open(); n > mostOpen || len(content(t, dir, fileName)) > 2<<20 {
		t.Errorf("%d open, %d bytes", n, len(content(t, dir, fileName)))
	}
	stop(t, b)
	b = start(t, dir, "gw1", later)
	is(t, "open as well", b.Note(web, "warning", "", later), noon)
}

// Callers take the time before they wait for the lock: what was recorded is the oldest first all the same, as after a restart.
func TestTransitionsAreByTime(t *testing.T) {
	b := start(t, t.TempDir(), "gw1", noon)
	b.Note(web, "down", "", noon.Add(2*time.Second))
	b.Note(api, "down", "", noon.Add(time.Second))
	list, _ := b.Transitions(noon)
	if len(list) != 2 || list[0].Key != api || list[1].Key != web {
		t.Errorf("%+v", list)
	}
	if list, _ = b.Transitions(noon.Add(2 * time.Second)); len(list) != 1 || list[0].Key != web {
		t.Errorf("since the later one: %+v", list)
	}
}
