package manifest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bomb is an alias bomb: ten levels of nine.
func bomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 10; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), ","))
	}
	return b.String()
}

func keys(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// hostileFactor bounds the processor time of a refusal, as a multiple of referenceTime.
// The most expensive one measured takes 0.8 times as much, 1.4 times under the race detector.
const hostileFactor = 6

// referenceTime measures the processor time of decoding a harmless JSON file of 4 MiB
// four times, on this machine and in this build.
func referenceTime(t *testing.T) time.Duration {
	t.Helper()
	data := []byte(`{"a":[` + strings.Repeat("0,", 100_000) + strings.Repeat(" ", 4<<20) + "0]}")
	start := cpuTime(t)
	for range 4 {
		if f := Decode("a.json", data, Limits{}); f.Err != nil {
			t.Fatal(f.Err)
		}
	}
	return cpuTime(t) - start
}

// TestHostileFiles decodes files that must be refused at a bounded cost: at most 72 MiB
// of memory (a file may have 64 MiB), and processor time in proportion to a harmless file.
func TestHostileFiles(t *testing.T) {
	bound := hostileFactor * referenceTime(t)
	t.Logf("reference %v", bound/hostileFactor)
	for name, c := range map[string]struct {
		path, text, reason string
	}{
		"too large":            {"a.yaml", strings.Repeat("a", 64<<20+1), ReasonLimit},
		"large text":           {"a.yaml", "a: " + strings.Repeat("x", 60<<20), ReasonLimit},
		"many nodes":           {"a.yaml", strings.Repeat("- a\n", 15<<20), ReasonLimit},
		"many flow nodes":      {"a.yaml", "{" + strings.Repeat("a,", 16<<20) + "}", ReasonLimit},
		"many compact pairs":   {"a.yaml", "[" + strings.Repeat("a: b,", 8<<20) + "]", ReasonLimit},
		"many dashes":          {"a.yaml", strings.Repeat("- ", 16<<20), ReasonLimit},
		"many empty keys":      {"a.yaml", strings.Repeat("? \n", 16<<20), ReasonLimit},
		"many comments":        {"a.yaml", strings.Repeat("- #\n", 8<<20), ReasonLimit},
		"many documents":       {"a.yaml", strings.Repeat("---\n", 16<<20), ReasonLimit},
		"many document ends":   {"a.yaml", strings.Repeat("a\n...\n---\n", 6<<20), ReasonLimit},
		"deep flow":            {"a.yaml", strings.Repeat("[", 9000) + strings.Repeat("]", 9000), ReasonLimit},
		"deeper flow":          {"a.yaml", strings.Repeat("[", 20000), ReasonLimit},
		"deep block":           {"a.yaml", strings.Repeat("- ", 9000) + "a", ReasonLimit},
		"deeper block":         {"a.yaml", strings.Repeat("- ", 50000) + "a", ReasonLimit},
		"deep json":            {"a.json", strings.Repeat("[", 10000) + strings.Repeat("]", 10000), ReasonLimit},
		"deep json object":     {"a.json", strings.Repeat(`{"a":`, 10<<20), ReasonLimit},
		"many keys":            {"a.yaml", keys(90_000, "k%d: v\n"), ReasonLimit},
		"too many keys":        {"a.yaml", keys(100_000, "k%d: v\n"), ReasonLimit},
		"many json keys":       {"a.json", "{" + keys(100_000, `"k%d":0,`) + `"x":0}`, ReasonLimit},
		"many json nodes":      {"a.json", "[" + strings.Repeat("0,", 4<<20) + "0]", ReasonLimit},
		"many json items":      {"a.json", `{"kind":"List","apiVersion":"v1","items":[` + strings.Repeat("0,", 16<<20) + "0]}", ReasonLimit},
		"large json list":      {"a.json", `{"kind":"List","apiVersion":"v1","metadata":{"a":[` + strings.Repeat("0,", 16<<20) + "0]}}", ReasonLimit},
		"large json item":      {"a.json", `{"kind":"List","apiVersion":"v1","items":["` + strings.Repeat("a", 60<<20) + `"]}`, ReasonLimit},
		"alias bomb":           {"a.yaml", bomb(), ReasonLimit},
		"merge bomb":           {"a.yaml", "a: &a {" + keys(9000, "k%d: v, ") + "}\nb:\n" + strings.Repeat("- <<: *a\n", 10000), ReasonLimit},
		"alias of itself":      {"a.yaml", "a: &a [*a]\n", ReasonSyntax},
		"merge of itself":      {"a.yaml", "a: &a {<<: *a}\n", ReasonSyntax},
		"alias raises depth":   {"a.yaml", "a: &a " + strings.Repeat("[", 60) + strings.Repeat("]", 60) + "\nb: [[[[[*a]]]]]\n", ReasonLimit},
		"NUL":                  {"a.yaml", "a: b\x00\n", ReasonEncoding},
		"NUL in json":          {"a.json", "{\"a\x00\":1}", ReasonSyntax},
		"escape":               {"a.yaml", "a: \x1b[1m\n", ReasonEncoding},
		"invalid UTF-8":        {"a.yaml", "a: b\nc: \xff\n", ReasonEncoding},
		"invalid UTF-8 in key": {"a.json", "{\"\xc3\x28\":1}", ReasonEncoding},
		"UTF-16":               {"a.yaml", "\xff\xfea\x00:\x00", ReasonEncoding},
	} {
		t.Run(name, func(t *testing.T) {
			data := []byte(c.text)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			start := cpuTime(t)
			f := Decode(c.path, data, Limits{})
			took := cpuTime(t) - start
			runtime.ReadMemStats(&after)
			if f.Err == nil || f.Err.Reason != c.reason {
				t.Fatalf("got %v, want reason %s", f.Err, c.reason)
			}
			if len(f.Documents) != 0 {
				t.Errorf("%d documents", len(f.Documents))
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 72<<20 {
				t.Errorf("allocated %d MiB", got>>20)
			}
			t.Logf("%v, %d KiB: %v", took.Round(time.Microsecond), (after.TotalAlloc-before.TotalAlloc)>>10, f.Err)
			if took > bound {
				t.Errorf("took %v of processor time, more than %v", took, bound)
			}
		})
	}
}

// cpuTime is the processor time of this goroutine's thread so far, which a busy machine
// does not stretch. The goroutine stays on the thread.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// TestEveryLimit sees that each limit lets through what it allows, and not one more.
func TestEveryLimit(t *testing.T) {
	const object = "{apiVersion: v1, kind: Service, metadata: {name: a%d}}\n---\n"
	for name, c := range map[string]struct {
		limits Limits
		text   func(n int) string
		most   int
	}{
		"bytes":     {Limits{Bytes: 100}, func(n int) string { return strings.Repeat("#", n) }, 100},
		"documents": {Limits{Documents: 5}, func(n int) string { return strings.TrimSuffix(keys(n, object), "\n---\n") }, 5},
		"depth":     {Limits{Depth: 9}, func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }, 10},
		"keys":      {Limits{Keys: 7}, func(n int) string { return keys(n, "k%d: v\n") }, 7},
		"nodes":     {Limits{Nodes: 20}, func(n int) string { return strings.Repeat("- a\n", n) }, 8},
		"aliases":   {Limits{Aliases: 6}, func(n int) string { return "a: &a x\nb: [" + strings.Repeat("*a, ", n) + "]\n" }, 6},
	} {
		t.Run(name, func(t *testing.T) {
			if f := Decode("a.yaml", []byte(c.text(c.most)), c.limits); f.Err != nil {
				t.Errorf("the most that is allowed: %v", f.Err)
			}
			if f := Decode("a.yaml", []byte(c.text(c.most+1)), c.limits); f.Err == nil || f.Err.Reason != ReasonLimit {
				t.Errorf("one more: %v", f.Err)
			}
		})
	}
}

// TestLargeFile sees that 50,000 objects in one file are within the limits, also as a
// List in JSON.
func TestLargeFile(t *testing.T) {
	if testing.Short() {
		t.Skip("large")
	}
	const n = 50_000
	text := keys(n, "---\n"+webYAML+"  # %d\n")
	if f := Decode("a.yaml", []byte(text), Limits{}); f.Err != nil || len(f.Documents) != n || len(f.Problems) > 0 {
		t.Errorf("yaml: %v, %d documents", f.Err, len(f.Documents))
	}
	text = `{"apiVersion":"v1","kind":"List","items":[` + strings.TrimSuffix(keys(n, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a%d"},"spec":{"ports":[{"port":80}]}},`), ",") + "]}"
	if f := Decode("a.json", []byte(text), Limits{}); f.Err != nil || len(f.Documents) != n || len(f.Problems) > 0 {
		t.Errorf("json: %v, %d documents", f.Err, len(f.Documents))
	}
}
