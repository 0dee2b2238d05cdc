package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man"
)

// Pages for those that work on the program, not for its operators.
var left = map[string]bool{"behaviors.md": true, "performance.md": true}

// rule is the end of each page: the order in which to ask.
const rule = "\n**svcctl-status**(1) finds it, **svcctl-explain**(1) gives the reason, **svcctl-trace**(1) proves it.\n"

// title is the first line of a page: "# svcctl-apply(1)".
var title = regexp.MustCompile(`\A# ([\w.-]+)\((\d)\)\n`)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: man DOCS OUT DATE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func run(docs, out, date string) error {
	names, err := filepath.Glob(filepath.Join(docs, "*.md"))
	if err != nil {
		return err
	}
	generated, err := filepath.Glob(filepath.Join(docs, "reference", "*.md"))
	if err != nil {
		return err
	}
	names = append(names, generated...)
	text, page := map[string]string{}, map[string]string{} // by file; page is "svcctl-apply(1)"
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		m := title.FindStringSubmatch(string(content))
		if m == nil {
			return fmt.Errorf("%s does not begin with \"# NAME(SECTION)\"", name)
		}
		text[filepath.Base(name)] = string(content)
		page[filepath.Base(name)] = m[1] + "(" + m[2] + ")"
	}
	for name, content := range text {
		if left[name] {
			continue
		}
		m := title.FindStringSubmatch(content)
		body := links(content[len(m[0]):], page) + rule
		roff := md2man.Render([]byte(fmt.Sprintf("%% %s %s\n%s", strings.ToUpper(m[1]), m[2], body)))
		// Tables have columns that are too narrow for even edges.
		plain := fmt.Appendf(nil, ".TH %s %s\n", strings.ToUpper(m[1]), m[2])
		dated := fmt.Appendf(nil, ".TH %s %s %s svcctl \"svcctl manual\"\n.ad l\n", strings.ToUpper(m[1]), m[2], date)
		if !bytes.Contains(roff, plain) {
			return fmt.Errorf("%s: the page has no %q", name, plain)
		}
		roff = bytes.Replace(roff, plain, dated, 1)
		dir := filepath.Join(out, "man"+m[2])
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		var packed bytes.Buffer
		z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		if _, err := z.Write(roff); err != nil {
			return err
		}
		if err := z.Close(); err != nil {
			return err
		}
		// A verb without a page of its own has that of the verb beside it: a copy, as lint reads no .so across directories.
		for _, as := range append(verbs(text["svcctl.md"], name), m[1]) {
			if err := os.WriteFile(filepath.Join(dir, as+"."+m[2]+".gz"), packed.Bytes(), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// verbRow is a row of the tables of verbs in svcctl.md: "| [announce drain](announcing.md) |".
var verbRow = regexp.MustCompile(`(?m)^\| \[([a-z ]+)\]\((?:reference/)?([a-z-]+\.md)(?:#[^)]*)?\)`)

// verbs are the names of the pages of the verbs that a page is about, its own name among them or not.
func verbs(table, page string) (names []string) {
	for _, m := range verbRow.FindAllStringSubmatch(table, -1) {
		if m[2] == page {
			names = append(names, "svcctl-"+strings.ReplaceAll(m[1], " ", "-"))
		}
	}
	return names
}

// link is a link of Markdown to a page of ours, or to any file.
var link = regexp.MustCompile(`\[([^\]]+)\]\(([^)\s#]*)(#[^)]*)?\)`)

// links makes names of manual pages of links to pages, and words of any other.
func links(body string, page map[string]string) string {
	return link.ReplaceAllStringFunc(body, func(text string) string {
		m := link.FindStringSubmatch(text)
		if to := page[filepath.Base(m[2])]; to != "" {
			return "**" + strings.TrimSuffix(to, to[strings.IndexByte(to, '('):]) + "**" + to[strings.IndexByte(to, '('):]
		}
		return m[1]
	})
}
