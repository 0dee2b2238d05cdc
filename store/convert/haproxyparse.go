package convert

import (
	"slices"
	"strings"
)

// haproxySections lists the sections that hold no proxies.
var haproxySections = []string{
	"global", "peers", "resolvers", "userlist", "mailers", "cache", "program", "ring", "http-errors", "fcgi-app", "log-forward", "log-profile", "crt-store", "traces", "acme",
}

// parse splits the text into sections.
func (r *haproxy) parse(text string) {
	var section *proxy
	line := 0
	for l := range strings.Lines(text) {
		line++
		words, err := haproxyWords(l)
		if err != "" {
			r.fail(line, "%s", err)
			continue
		}
		if len(words) == 0 {
			continue
		}
		switch keyword := words[0]; {
		case strings.HasPrefix(keyword, "."):
			r.fail(line, "%s: conditions are not followed: write out the branch that holds", keyword)
		case slices.Contains([]string{"frontend", "backend", "listen", "defaults"}, keyword):
			section = r.open(line, words)
		case slices.Contains(haproxySections, keyword) && !r.isInside(section, keyword):
			section = &proxy{kind: keyword, line: line, name: strings.Join(words[1:], " ")}
			r.proxies = append(r.proxies, section)
		case section == nil:
			r.fail(line, "%q is not understood outside of a section", keyword)
		default:
			section.lines = append(section.lines, haproxyLine{line, words})
		}
	}
}

// isInside reports whether a word that names a section is a statement of the one that is open.
func (r *haproxy) isInside(section *proxy, keyword string) bool {
	return section != nil && keyword == "traces" && section.kind == "global"
}

// open begins a section of proxies.
func (r *haproxy) open(line int, words []string) *proxy {
	p := &proxy{kind: words[0], line: line, from: r.last}
	if len(words) > 1 {
		p.name = words[1]
	}
	rest := words[min(2, len(words)):]
	if i := slices.Index(rest, "from"); i >= 0 {
		if i+1 == len(rest) || r.defaults[rest[i+1]] == nil {
			r.fail(line, "%s from which defaults? There are none of this name above", p.kind)
			return p
		}
		p.from = r.defaults[rest[i+1]]
		rest = slices.Delete(slices.Clone(rest), i, i+2)
	}
	if p.kind == "defaults" {
		if !slices.Contains(words, "from") {
			p.from = nil
		}
		r.last = p
		if p.name != "" {
			r.defaults[p.name] = p
		}
	} else if p.name == "" {
		r.fail(line, "%s has no name", p.kind)
	}
	for _, address := range rest { // as old versions had it: listen NAME ADDRESS
		p.lines = append(p.lines, haproxyLine{line, []string{"bind", address}})
	}
	if p.kind == "backend" || p.kind == "listen" {
		if other := r.named[p.name]; other != nil {
			r.fail(line, "there is %s %s in line %d already", other.kind, p.name, other.line)
		}
		r.named[p.name] = p
	}
	r.proxies = append(r.proxies, p)
	return p
}

// haproxyEscapes are the control characters that haproxy writes with \.
var haproxyEscapes = map[byte]byte{'r': '\r', 'n': '\n', 't': '\t'}

// haproxyWords are the words of a line. # begins a comment, \ takes the meaning of what follows away.
func haproxyWords(l string) (words []string, err string) {
	var word strings.Builder
	started := false
	end := func() {
		if started {
			words = append(words, word.String())
			word.Reset()
			started = false
		}
	}
	var quote byte
	for i := 0; i < len(l); i++ {
		switch c := l[i]; {
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\' && quote != '\'' && i+1 < len(l) && l[i+1] != '\n':
			i++
			started = true
			if control, is := haproxyEscapes[l[i]]; is {
				word.WriteByte(control)
			} else {
				word.WriteByte(l[i])
			}
		case c == '\\' && quote != '\'':
			return nil, "a line continued in the next one is not supported: write it as one line"
		case quote != 0:
			word.WriteByte(c)
		case c == '"' || c == '\'':
			quote, started = c, true
		case c == '#':
			end()
			return words, ""
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			end()
		default:
			started = true
			word.WriteByte(c)
		}
	}
	if quote != 0 {
		return nil, "a quote is not closed"
	}
	end()
	return words, ""
}
