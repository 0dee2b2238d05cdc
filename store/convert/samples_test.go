package convert

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A directive is a statement of a sample, with what the import says when it is taken out of the file.
type directive struct {
	line    int
	text    string
	within  []int // the lines of the blocks around it
	without string
}

// Directives that say what holds without them; of two timeouts that are alike each does.
var (
	keepalivedDefaults = []string{"weight 1", "protocol TCP", "lb_algo wlc", "lb_kind NAT", "path /"}
	haproxyDefaults    = []string{"mode tcp", "option tcp-check", "timeout client 50000", "timeout server 50000"}
)

// TestSamplesOfPackages: every configuration that the packages keepalived and haproxy bring as an example is imported, or
// is an error with its line; so are those of testdata. Nothing of it is dropped without a word: without any one of its directives the
// manifests or the losses are others, or a loss has told that the block around it is left out.
func TestSamplesOfPackages(t *testing.T) {
	for _, of := range []struct {
		files      string
		source     Source
		directives func(text string) []directive
		same       []string
	}{
		{"testdata/*.keepalived.conf", Keepalived, keepalivedDirectives, keepalivedDefaults},
		{"testdata/*.haproxy.cfg", HAProxy, haproxyDirectives, haproxyDefaults},
		{"/usr/share/doc/keepalived/samples/keepalived.conf*", Keepalived, keepalivedDirectives, keepalivedDefaults},
		{"/usr/share/doc/haproxy/examples/*.cfg", HAProxy, haproxyDirectives, haproxyDefaults},
	} {
		files, err := filepath.Glob(of.files)
		if err != nil {
			t.Fatal(err)
		}
		if files = slices.DeleteFunc(files, func(name string) bool { return strings.HasSuffix(name, ".gz") }); len(files) == 0 {
			t.Logf("there is no %s: the package, or its documentation, is not installed", of.files)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			imported, err := of.source(string(text), Options{})
			if err != nil {
				if !strings.HasPrefix(err.Error(), "line ") || !strings.Contains(err.Error(), "conditions") {
					t.Errorf("%s: %v", file, err)
				}
				continue
			}
			all := saying(imported, nil)
			if got, err := imported.YAML(); err != nil {
				t.Errorf("%s: %v", file, err)
			} else if len(imported.Virtuals) > 0 {
				wellFormed(t, file, got)
			}
			lost := map[int]bool{} // the lines of blocks that are left out as a whole
			for _, loss := range imported.AllLosses() {
				lost[loss.Line] = lost[loss.Line] || strings.Contains(loss.Text, "left out") || strings.Contains(loss.Text, "has no counterpart")
			}
			directives := of.directives(string(text))
			if len(directives) == 0 {
				t.Errorf("%s: no directives", file)
			}
			for _, d := range directives {
				if of.same != nil && haproxyIsQuiet(haproxyLine{0, strings.Fields(d.text)}) {
					continue // about the process
				}
				if d.without == all && !slices.Contains(of.same, d.text) && !slices.ContainsFunc(d.within, func(line int) bool { return lost[line] }) {
					t.Errorf("%s:%d: %s is dropped without a word", file, d.line, d.text)
				}
			}
		}
	}
}

// saying is all that an import says.
func saying(imported *Imported, err error) string {
	if err != nil {
		return err.Error()
	}
	text, err := imported.YAML()
	return fmt.Sprint(text, imported.AllLosses(), err)
}

// keepalivedDirectives are those of a keepalived.conf.
func keepalivedDirectives(text string) (list []directive) {
	parsed := (&keepalived{}).parse(text)
	// without copies the tree but for one statement.
	var without func(block []statement, path []int) []statement
	without = func(block []statement, path []int) []statement {
		block = slices.Clone(block)
		if len(path) == 1 {
			return slices.Delete(block, path[0], path[0]+1)
		}
		block[path[0]].block = without(block[path[0]].block, path[1:])
		return block
	}
	var walk func(block []statement, path, within []int)
	walk = func(block []statement, path, within []int) {
		for i, s := range block {
			at := append(slices.Clone(path), i)
			r := &keepalived{groups: map[string]statement{}, used: map[string]bool{}}
			r.read(without(parsed, at))
			list = append(list, directive{s.line, strings.Join(s.words, " "), within, saying(r.result())})
			walk(s.block, at, append(slices.Clone(within), s.line))
		}
	}
	walk(parsed, nil, nil)
	return list
}

// haproxyDirectives are those of a haproxy.cfg.
func haproxyDirectives(text string) (list []directive) {
	parsed := func() *haproxy {
		r := &haproxy{named: map[string]*proxy{}, defaults: map[string]*proxy{}}
		r.parse(text)
		return r
	}
	for i, p := range parsed().proxies {
		for j, l := range p.lines {
			r := parsed()
			r.proxies[i].lines = slices.Delete(r.proxies[i].lines, j, j+1)
			r.read()
			list = append(list, directive{l.line, l.String(), []int{p.line}, saying(r.result())})
		}
	}
	return list
}
