package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	const closing = `{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}` + "\n" + `{"Action":"pass","Package":"p"}` + "\n"
	tests := []struct {
		name, in string
		ok       bool
		says     []string
		not      string
	}{
		{"nothing was tested", "", false, []string{"0 packages tested"}, ""},
		{"all passed", `{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"PASS\n"}
` + closing, true, []string{"ok  \tp\t0.1s\n", "1 tests passed"}, "chatter"},
		{"a package without tests", `{"Action":"output","Package":"q","Output":"?   \tq\t[no test files]\n"}
{"Action":"skip","Package":"q"}
` + closing, true, []string{"1 packages tested"}, "skipped without an excuse:"},
		{"a test failed", `{"Action":"output","Package":"p","Test":"TestA","Output":"why\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}
`, false, []string{"why\n", "FAIL\tp\t0.1s\n", "1 failed"}, ""},
		{"a test panicked", `{"Action":"output","Package":"p","Test":"TestA","Output":"panic: no\n"}
{"Action":"fail","Package":"p"}
`, false, []string{"panic: no\n"}, ""},
		{"a package does not build", `{"ImportPath":"p","Action":"build-output","Output":"undefined: x\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p"}
`, false, []string{"undefined: x\n", "[build failed]"}, ""},
		{"skipped without an excuse", `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: needs root\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
` + closing, false, []string{"p TestA: a_test.go:7: needs root"}, ""},
		{"skipped with an excuse", `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: this kernel has no wings\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
` + closing, true, nil, "wings"},
		{"an excuse in the middle", `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: only root may open sockets\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
` + closing, false, []string{"p TestA: a_test.go:7: only root may open sockets"}, ""},
		{"a feature of the Gateway API that is not claimed", `{"Action":"output","Package":"p","Test":"TestA/B","Output":"    conformance.go:56: Skipping B: suite does not support HTTPRoute\n"}
{"Action":"skip","Package":"p","Test":"TestA/B"}
` + closing, true, nil, "suite"},
		{"a claimed feature", `{"Action":"output","Package":"p","Test":"TestA/B","Output":"    conformance.go:56: Skipping B: suite does not support TLSRouteModeTerminate\n"}
{"Action":"skip","Package":"p","Test":"TestA/B"}
` + closing, false, []string{"p TestA/B: conformance.go:56: Skipping B: suite does not support TLSRouteModeTerminate"}, ""},
		{"the go command speaks", "go: no such tool\n" + closing, true, []string{"go: no such tool\n"}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			ok, err := report(strings.NewReader(test.in), &out)
			if err != nil {
				t.Fatal(err)
			}
			if ok != test.ok {
				t.Errorf("well: %t, want %t", ok, test.ok)
			}
			for _, text := range test.says {
				if !strings.Contains(out.String(), text) {
					t.Errorf("%q is not in\n%s", text, out.String())
				}
			}
			if test.not != "" && strings.Contains(out.String(), test.not) {
				t.Errorf("%q is in\n%s", test.not, out.String())
			}
		})
	}
}

// flakySource has a function that fails the first time.
const flakySource = `package p

import (
	"os"
	"testing"
)

func once(t *testing.T, name string) {
	if _, err := os.Stat(name); err == nil {
		return
	}
	_ = os.WriteFile(name, nil, 0o600)
	t.Fatal("it fails the first time: " + name)
}

func TestGood(t *testing.T) {}
`

func TestFlaky(t *testing.T) {
	for name, c := range map[string]struct {
		source string
		ok     bool
		says   []string
		not    string
	}{
		"passes by itself": {`func TestA(t *testing.T) { once(t, "a") }`, true, []string{
			"it fails the first time: a", "FLAKY: example.org/p TestA failed", "1 packages tested, 0 failed; 2 tests passed, 0 skipped without an excuse; 1 FLAKY\n",
		}, ""},
		"a part of a test": {`func TestA(t *testing.T) { t.Run("b c", func(t *testing.T) { once(t, "a") }); t.Run("d", func(t *testing.T) {}) }`, true, []string{
			"FLAKY: example.org/p TestA failed", "1 packages tested, 0 failed",
		}, ""},
		"fails again": {`func TestA(t *testing.T) { t.Fatal("always") }`, false, []string{
			"once more, by itself: example.org/p TestA", "1 packages tested, 1 failed; 1 tests passed, 0 skipped without an excuse\n",
		}, "FLAKY"},
		"one of two": {"func TestA(t *testing.T) { once(t, \"a\") }\nfunc TestB(t *testing.T) { t.Fatal(\"always\") }", false, []string{
			"1 packages tested, 1 failed; 2 tests passed, 0 skipped without an excuse; 1 FLAKY\n",
		}, ""},
		"is skipped by itself": {"func TestA(t *testing.T) { if _, err := os.Stat(\"a\"); err == nil { t.Skip() }; once(t, \"a\") }", false, []string{"1 failed"}, "FLAKY"},
		"under load":           {`func TestA(t *testing.T) { t.Log("asked under load"); once(t, "a") }`, false, []string{"1 failed"}, "once more"},
		"part under load":      {`func TestA(t *testing.T) { t.Run("b", func(t *testing.T) { t.Log("asked under load"); once(t, "a") }) }`, false, []string{"1 failed"}, "once more"},
		"panics":               {"func TestA(t *testing.T) { if _, err := os.Stat(\"a\"); err == nil { return }; _ = os.WriteFile(\"a\", nil, 0o600); panic(\"no\") }", false, []string{"panic: no", "1 failed"}, "once more"},
		"fails and panics":     {"func TestA(t *testing.T) { once(t, \"a\") }\nfunc TestB(t *testing.T) { if _, err := os.Stat(\"b\"); err == nil { return }; _ = os.WriteFile(\"b\", nil, 0o600); panic(\"no\") }", false, []string{"1 failed"}, "once more"},
		"exits":                {"func TestA(t *testing.T) { os.Exit(0) }", false, []string{"1 failed"}, "once more"},
		"is not built":         {"func TestA(t *testing.T) { nothing() }", false, []string{"undefined: nothing"}, "once more"},
		"too many": {"func TestA(t *testing.T) { once(t, \"a\") }\nfunc TestB(t *testing.T) { once(t, \"b\") }\nfunc TestC(t *testing.T) { once(t, \"c\") }\n" +
			"func TestD(t *testing.T) { once(t, \"d\") }\nfunc TestE(t *testing.T) { once(t, \"e\") }\nfunc TestF(t *testing.T) { once(t, \"f\") }", false, []string{"1 failed"}, "once more"},
		"all is well": {"", true, []string{"1 packages tested, 0 failed; 1 tests passed, 0 skipped without an excuse\n"}, "FLAKY"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range map[string]string{"go.mod": "module example.org/p\n\ngo 1.26\n", "p_test.go": flakySource + c.source + "\n"} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			ok, err := run([]string{"go", "test", "-C", dir, "-json", "-vet=off", "-count=1"}, []string{"./..."}, &out)
			if err != nil {
				t.Fatal(err)
			}
			if ok != c.ok {
				t.Errorf("well: %t, want %t", ok, c.ok)
			}
			for _, text := range c.says {
				if !strings.Contains(out.String(), text) {
					t.Errorf("%q is not in the report", text)
				}
			}
			if c.not != "" && strings.Contains(out.String(), c.not) {
				t.Errorf("%q is in the report", c.not)
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}

// What the soak asks counts at once; nor is a command that ends in another way taken as failed tests.
func TestNeverAgain(t *testing.T) {
	r := newResults(&bytes.Buffer{})
	r.failed = []test{{"svcctl.io/svcctl/appliance/soak", "TestS01"}, {"svcctl.io/svcctl/appliance/e2e", "Test1"}}
	if again := r.again(); len(again) != 1 || again[0].name != "Test1" {
		t.Errorf("again: %v", again)
	}
	const passed = `{"Action":"pass","Package":"p","Test":"TestA"}{"Action":"pass","Package":"p"}`
	for _, code := range []string{"1", "2", "137"} {
		var out bytes.Buffer
		ok, err := run([]string{"sh", "-c"}, []string{"echo '" + strings.ReplaceAll(passed, "}{", "}'; echo '{") + "'; exit " + code}, &out)
		if ok || err != nil || !strings.Contains(out.String(), "go test ended with exit status "+code) {
			t.Errorf("%t, %v\n%s", ok, err, out.String())
		}
	}
}
