package main

import (
	"bytes"
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
