package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestExampleOfTheAPI runs the commands of examples/api/README.md, which stand behind a $,
// and compares what they print with what stands below them.
func TestExampleOfTheAPI(t *testing.T) {
	const dir = "../../examples"
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	readme, shop, web := read("api/README.md"), read("api/shop.yaml"), read("quickstart/web.yaml")
	b := newBox(t)
	b.file("examples/api/shop.yaml", shop)
	b.declares("/etc/svcctl/manifests/web.yaml", web)
	const prompt, indent = "    $ svcctl ", "    "
	commands := 0
	for block := range strings.SplitSeq(readme, "\n\n") {
		command, is := strings.CutPrefix(block, prompt)
		if !is {
			continue
		}
		commands++
		command, want, _ := strings.Cut(command, "\n")
		b.run(shellWords(command)...)
		got := ""
		for line := range strings.Lines(b.out.String() + b.err.String()) {
			got += indent + strings.TrimRight(line, " \n") + "\n"
		}
		if diff := cmp.Diff(want, strings.TrimSuffix(got, "\n")); diff != "" {
			t.Errorf("svcctl %s (-README +now):\n%s", command, diff)
		}
	}
	if commands < 5 {
		t.Errorf("the README has %d commands: are they not as `%s...` any more?", commands, prompt)
	}
}
