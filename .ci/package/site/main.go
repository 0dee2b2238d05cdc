package main

import (
	"archive/zip"
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// The parts of the site that are no pages.
var (
	//go:embed page.html
	layout string
	//go:embed style.css
	style []byte
	//go:embed search.js
	script []byte
	//go:embed icon.svg
	icon []byte
)

// contents is the page whose lists of pages are the menu of all pages.
const contents = "docs/svcctl.md"

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: site REPOSITORY DIRECTORY|FILE.zip")
		os.Exit(2)
	}
	s := &site{root: os.Args[1], pages: map[string]*page{}}
	if err := s.read("README.md"); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
	if err := s.write(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
	fmt.Printf("%d pages, %d sections in the index\n", len(s.pages), len(s.index))
}

type site struct {
	root  string
	pages map[string]*page // by the path of the source in the repository
	menu  []group
	index []section
}

// page is a source file, and its page.
type page struct {
	source string
	title  string
	body   string // HTML with links to sources
	links  []string
}

// group is a part of the menu.
type group struct {
	Title string
	Items []item
}

type item struct {
	Title, URL string
	Here       bool
}

// section is an entry of the index for the search: the text below a heading.
type section struct {
	Page    string `json:"p"`
	Heading string `json:"h"`
	URL     string `json:"u"`
	Text    string `json:"t"`
}

// target returns the path of the page of a source: README.md is the index of its directory, and a directory without one, which
// ends in a slash, has a list of its files.
func target(source string) string {
	switch dir, base := path.Split(source); {
	case base == "README.md" || base == "":
		return dir + "index.html"
	case path.Ext(base) == ".md":
		return strings.TrimSuffix(source, ".md") + ".html"
	}
	return source + ".html"
}

var external = regexp.MustCompile(`^(https?|mailto):`)

// read reads a source and all that its links lead to.
func (s *site) read(source string) error {
	if s.pages[source] != nil {
		return nil
	}
	content, err := s.content(source)
	if err != nil {
		return err
	}
	p := &page{source: source, title: source}
	s.pages[source] = p
	if path.Ext(source) != ".md" && !strings.HasSuffix(source, "/") {
		p.body = "<h1>" + template.HTMLEscapeString(source) + "</h1>\n<pre tabindex=\"0\"><code>" + template.HTMLEscapeString(string(content)) + "</code></pre>\n"
		return nil
	}
	if err := s.render(p, content); err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	if source == contents {
		s.menu = menuOf(content)
	}
	for _, link := range p.links {
		if err := s.read(link); err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
	}
	return nil
}

// content returns the text of a source; of a directory a list of its files, in Markdown.
func (s *site) content(source string) ([]byte, error) {
	if !strings.HasSuffix(source, "/") {
		return os.ReadFile(filepath.Join(s.root, source))
	}
	entries, err := os.ReadDir(filepath.Join(s.root, source))
	list := fmt.Appendf(nil, "# %s\n\n", source)
	for _, entry := range entries {
		list = fmt.Appendf(list, "- [%s](%s)\n", entry.Name(), entry.Name())
	}
	return list, err
}

// manualTitle is the title of a page of the manual: the name of the page in the site is shorter.
var manualTitle = regexp.MustCompile(`^svcctl-?([\w-]*)\(\d\)$`)

// render makes HTML of a Markdown source, with its links and sections.
func (s *site) render(p *page, content []byte) error {
	markdown := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	document := markdown.Parser().Parse(text.NewReader(content), parser.WithContext(parser.NewContext(parser.WithIDs(ids{}))))
	url := target(p.source)
	at := section{URL: url}
	end := func() {
		if at.Text = strings.Join(strings.Fields(at.Text), " "); at.Text != "" || at.Heading != "" {
			s.index = append(s.index, at)
		}
	}
	err := ast.Walk(document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			id, _ := n.AttributeString("id")
			name := string(n.Lines().Value(content))
			if n.Level == 1 {
				if m := manualTitle.FindStringSubmatch(name); m != nil {
					name = cmp.Or(m[1], "svcctl")
				}
				p.title = name
				at = section{Page: name, Heading: name, URL: url}
				return ast.WalkSkipChildren, nil
			}
			end()
			at = section{Page: p.title, Heading: heading(strings.ReplaceAll(name, "`", "")), URL: fmt.Sprintf("%s#%s", url, id)}
			return ast.WalkSkipChildren, nil
		case *ast.Link:
			to, err := s.link(p, string(n.Destination))
			if err != nil {
				return ast.WalkStop, err
			}
			n.Destination = []byte(to)
		case *ast.Text:
			at.Text += string(n.Segment.Value(content))
			if n.SoftLineBreak() {
				at.Text += " "
			}
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			at.Text += " " + string(n.Lines().Value(content))
		}
		if n.Type() == ast.TypeBlock {
			at.Text += " "
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return err
	}
	end()
	var b bytes.Buffer
	if err := markdown.Renderer().Render(&b, content, document); err != nil {
		return err
	}
	p.body = wide(b.String())
	if strings.HasPrefix(p.source, "docs/") {
		p.body = plain(p.body, p.title)
	}
	return nil
}

// The form of a manual page, in HTML.
var (
	manualHeading = regexp.MustCompile(`<h1 id="([^"]*)">.*</h1>`)
	manualName    = regexp.MustCompile(`(?s)<h2 id="name">NAME</h2>\n<p>(?:[^<]*? - )?(.*?)</p>`)
	manualPart    = regexp.MustCompile(`(<h2 id="[^"]*">)([A-Z ]+)</h2>`)
)

// heading returns a heading of a manual page without its capitals: "SEE ALSO" is "See also".
func heading(name string) string {
	if name != "" && strings.ToUpper(name) == name {
		return name[:1] + strings.ToLower(name[1:])
	}
	return name
}

// plain makes a page for a browser of one in the form of a manual page: its short name, what it is about below that, and headings
// without capitals.
func plain(html, title string) string {
	html = manualHeading.ReplaceAllString(html, `<h1 id="$1">`+title+`</h1>`)
	html = manualName.ReplaceAllString(html, `<p class="lead" id="name">$1</p>`)
	return manualPart.ReplaceAllStringFunc(html, func(text string) string {
		m := manualPart.FindStringSubmatch(text)
		return m[1] + heading(m[2]) + "</h2>"
	})
}

// wide lets tables and code blocks scroll, also with the keyboard. A table without a header has no cells for one.
func wide(html string) string {
	return strings.NewReplacer("<pre>", `<pre tabindex="0">`, "<table>", `<div class="wide" tabindex="0"><table>`, "</table>", "</table></div>",
		"<th></th>", "<td></td>").Replace(html)
}

// link returns the link to the page of a link's target, and notes the target. Directories are their README.md.
func (s *site) link(p *page, destination string) (string, error) {
	name, part, hasPart := strings.Cut(destination, "#")
	if external.MatchString(destination) || name == "" {
		return destination, nil
	}
	source := path.Join(path.Dir(p.source), name)
	info, err := os.Stat(filepath.Join(s.root, source))
	if err != nil || strings.HasPrefix(source, "..") {
		return "", errors.Join(fmt.Errorf("a link to %s", destination), err)
	}
	if info.IsDir() {
		source += "/"
		if _, err := os.Stat(filepath.Join(s.root, source, "README.md")); err == nil {
			source += "README.md"
		}
	}
	p.links = append(p.links, source)
	to, err := filepath.Rel(filepath.Dir(target(p.source)), target(source))
	if hasPart {
		to += "#" + part
	}
	return to, err
}

// ids makes the anchors of headings as the forges do.
type ids map[string]bool

func (used ids) Generate(value []byte, _ ast.NodeKind) []byte {
	id := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(string(value)), "")
	id = strings.ReplaceAll(strings.TrimSpace(id), " ", "-")
	unique := id
	for n := 1; used[unique]; n++ {
		unique = fmt.Sprintf("%s-%d", id, n)
	}
	used[unique] = true
	return []byte(unique)
}

func (used ids) Put(value []byte) { used[string(value)] = true }

// listed is an item of a list of pages: "- [install](install.md): packages".
var (
	kind   = regexp.MustCompile(`(?m)^### (Tutorials|How-to|Reference|Explanation)\n((?:[^#\n].*\n|\n)*)`)
	listed = regexp.MustCompile(`(?m)^- \[([^\]]+)\]\(([^)#]+)\)`)
)

// menuOf reads the menu from the page of contents: its lists of pages, by kind.
func menuOf(content []byte) (menu []group) {
	for _, m := range kind.FindAllSubmatch(content, -1) {
		g := group{Title: string(m[1])}
		if g.Title == "Reference" {
			g.Items = append(g.Items, item{Title: "verbs", URL: target(contents)})
		}
		for _, entry := range listed.FindAllSubmatch(m[2], -1) {
			g.Items = append(g.Items, item{Title: string(entry[1]), URL: target(path.Join(path.Dir(contents), string(entry[2])))})
		}
		menu = append(menu, g)
	}
	return append(menu, group{"Project", []item{
		{Title: "examples", URL: "examples/index.html"}, {Title: "architecture", URL: "ARCHITECTURE.html"},
		{Title: "contributing", URL: "CONTRIBUTING.html"}, {Title: "security", URL: "SECURITY.html"},
	}})
}

// write writes the site to a directory, which must be absent or empty, or to an archive, NAME.zip.
func (s *site) write(out string) error {
	files, err := s.files()
	if err != nil {
		return err
	}
	put := func(name string, content []byte) error {
		name = filepath.Join(out, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		return os.WriteFile(name, content, 0o644)
	}
	var archive bytes.Buffer
	zipped := zip.NewWriter(&archive)
	isArchive := filepath.Ext(out) == ".zip"
	if isArchive {
		put = func(name string, content []byte) error {
			w, err := zipped.Create(name) // without a time
			if err == nil {
				_, err = w.Write(content)
			}
			return err
		}
	} else if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty", out)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := put(name, files[name]); err != nil {
			return err
		}
	}
	if !isArchive {
		return nil
	}
	if err := zipped.Close(); err != nil {
		return err
	}
	return os.WriteFile(out, archive.Bytes(), 0o644)
}

// files are those of the site by their names.
func (s *site) files() (map[string][]byte, error) {
	page := template.Must(template.New("page").Parse(layout))
	files := map[string][]byte{"site/style.css": style, "site/search.js": script, "site/icon.svg": icon}
	for source, p := range s.pages {
		url := target(source)
		var menu []group // a file of an example has none
		for _, g := range s.menu {
			if path.Ext(source) != ".md" {
				break
			}
			g.Items = slices.Clone(g.Items)
			for i := range g.Items {
				g.Items[i].Here = g.Items[i].URL == url
			}
			menu = append(menu, g)
		}
		var b bytes.Buffer
		err := page.Execute(&b, struct {
			Title, Up string
			Menu      []group
			Body      template.HTML
		}{p.title, strings.Repeat("../", strings.Count(url, "/")), menu, template.HTML(p.body)})
		if err != nil {
			return nil, err
		}
		files[url] = b.Bytes()
	}
	slices.SortStableFunc(s.index, func(a, b section) int { return cmp.Compare(a.URL, b.URL) })
	index, err := json.Marshal(s.index)
	files["site/index.js"] = slices.Concat([]byte("window.sections="), index, []byte(";\n"))
	return files, err
}
