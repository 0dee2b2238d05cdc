package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"gopkg.in/yaml.v3"
)

// readYAML splits the text at the lines that start with --- and decodes each piece separately, because in YAML nothing, not even an anchor, extends
// over such a line. A text with a directive (%YAML) is not split.
func (r *reading) readYAML(data []byte) *refusal {
	if bytes.HasPrefix(data, []byte("%")) || bytes.Contains(data, []byte("\n%")) {
		// A directive (%YAML 1.2) stands before the line that it belongs to.
		return r.add(data, 1, 1, false, implied{})
	}
	if err := countDocuments(data, r.limits); err != nil {
		return err
	}
	for line := 1; len(data) > 0; {
		end := nextMarker(data)
		text := data[:end]
		if len(bytes.TrimSpace(text)) > 0 {
			if err := r.add(text, line, 1, false, implied{}); err != nil {
				return err
			}
		}
		line += bytes.Count(text, []byte("\n"))
		data = data[end:]
	}
	return nil
}

// parseYAML parses YAML documents with yamlReader, or with the YAML library if yamlReader cannot parse them.
func (r *reading) parseYAML(text []byte) (docs []parsed, err *refusal) {
	// A byte counts as commentCharge nodes at most, so a short text is within the limit.
	if commentCharge*len(text)+documentCharge <= r.limits.Nodes || countStructure(text, r.limits) == nil {
		if root, ok := r.yaml.read(text, r.limits); ok {
			return []parsed{{root: root}}, nil
		}
	}
	if err := countStructure(text, r.limits); err != nil {
		return nil, err
	}
	return parseAnyYAML(text, r.limits)
}

// parseAnyYAML parses YAML documents with the YAML library.
func parseAnyYAML(text []byte, limits Limits) (docs []parsed, err *refusal) {
	defer func() {
		// The YAML parser panics on what it calls internal errors. A file must not stop
		// the program that reads it.
		if cause := recover(); cause != nil {
			docs, err = nil, refuse(1, 1, ReasonSyntax, "could not be parsed: %v", cause)
		}
	}()
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for len(docs) <= limits.Documents {
		var doc yaml.Node
		if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, syntaxError(text, err)
		}
		c := converter{limits: limits, text: text}
		root, err := c.convert(&doc, 0)
		if err != nil {
			return nil, err
		}
		docs = append(docs, parsed{root, c.flaws})
	}
	return docs, nil
}

// A converter converts the tree of the YAML library for one document to nodes.
type converter struct {
	limits  Limits
	text    []byte
	path    path
	flaws   []flaw
	aliased int                   // nodes that aliases added
	anchors map[*yaml.Node]*node  // the anchored nodes that are converted
	open    map[*yaml.Node]string // anchored nodes that are being converted
}

func (c *converter) convert(n *yaml.Node, depth int) (*node, *refusal) {
	if depth > c.limits.Depth {
		return nil, refuse(n.Line, n.Column, ReasonLimit, "mappings and lists more than %d deep", c.limits.Depth)
	}
	if n.Kind == yaml.AliasNode {
		return c.alias(n, depth)
	}
	if n.Anchor != "" {
		if done := c.anchors[n]; done != nil {
			return done, nil
		}
		if c.open == nil {
			c.open, c.anchors = map[*yaml.Node]string{}, map[*yaml.Node]*node{}
		}
		c.open[n] = n.Anchor
	}
	out := &node{line: n.Line, column: n.Column, size: 1}
	var err *refusal
	switch n.Kind {
	case yaml.DocumentNode:
		return c.convert(n.Content[0], depth)
	case yaml.MappingNode:
		err = c.mapping(n, out, depth)
	case yaml.SequenceNode:
		err = c.sequence(n, out, depth)
	default:
		c.scalar(n, out)
	}
	if n.Anchor != "" {
		delete(c.open, n)
		c.anchors[n] = out
	}
	return out, err
}

// alias returns the node that an alias refers to. The nodes are shared with the anchored value, but count toward the limit each time they are used.
func (c *converter) alias(n *yaml.Node, depth int) (*node, *refusal) {
	if _, open := c.open[n.Alias]; open {
		return nil, refuse(n.Line, n.Column, ReasonSyntax, "could not be parsed: anchor %s contains itself", excerpt(n.Value))
	}
	target, err := c.convert(n.Alias, depth)
	if err != nil {
		return nil, err
	}
	c.aliased += target.size
	if c.aliased > c.limits.Aliases {
		return nil, refuse(n.Line, n.Column, ReasonLimit, "aliases add more than %d nodes", c.limits.Aliases)
	}
	if depth+target.height > c.limits.Depth {
		return nil, refuse(n.Line, n.Column, ReasonLimit, "mappings and lists more than %d deep", c.limits.Depth)
	}
	return target, nil
}

func (c *converter) sequence(n *yaml.Node, out *node, depth int) *refusal {
	c.collectionTag(n, "!!seq")
	out.kind = kindList
	out.items = make([]*node, 0, len(n.Content))
	for i, child := range n.Content {
		c.path.pushIndex(i)
		item, err := c.convert(child, depth+1)
		if err != nil {
			return err
		}
		c.path.pop()
		out.items = append(out.items, item)
		out.contain(item)
	}
	return nil
}

func (c *converter) mapping(n *yaml.Node, out *node, depth int) *refusal {
	c.collectionTag(n, "!!map")
	out.kind = kindMap
	if len(n.Content)/2 > c.limits.Keys {
		return refuse(n.Line, n.Column, ReasonLimit, "a mapping of more than %d keys", c.limits.Keys)
	}
	out.fields = make([]field, 0, len(n.Content)/2)
	var keys keySet
	var merges []*yaml.Node
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.ScalarNode && key.Tag == "!!merge" {
			merges = append(merges, value)
			continue
		}
		name, ok := c.key(key)
		if !ok {
			continue
		}
		c.path.pushKey(name)
		c.judgeKey(key)
		twice := keys.find(out.fields, name)
		if twice >= 0 {
			c.flaw(key, ReasonDuplicateKey, "duplicate key %s; remove one of them", excerpt(name))
		}
		child, err := c.convert(value, depth+1)
		if err != nil {
			return err
		}
		c.path.pop()
		if twice < 0 {
			out.fields = append(out.fields, field{name, key.Line, key.Column, child})
		} else {
			out.fields[twice] = field{name, key.Line, key.Column, child} // for callers that accept duplicates: the last one counts
		}
		out.contain(child)
	}
	for _, value := range merges {
		if err := c.merge(value, out, &keys, depth); err != nil {
			return err
		}
	}
	return nil
}

// key returns the text of a key. A key is always a string, even if it looks like a value of another type.
func (c *converter) key(n *yaml.Node) (string, bool) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.ScalarNode {
		c.flaw(n, ReasonWrongType, "a key must be text, not a mapping or a list%s", templateHint(lineAt(c.text, n.Line)))
		return "", false
	}
	return n.Value, true
}

// judgeKey adds a warning about an unquoted key that kubectl reads as another key.
func (c *converter) judgeKey(n *yaml.Node) {
	switch as, differs := keyToKubectl(n.Value); {
	case n.Kind != yaml.ScalarNode || isQuoted(n):
	case isOldBool(n):
		c.warn(n, ReasonAmbiguous, "kubectl reads the unquoted key %s as a bool; quote it", n.Value)
	case differs && as == "":
		c.flaw(n, ReasonWrongType, "a key must be text, not null; quote it")
	case differs:
		c.warn(n, ReasonAmbiguous, "kubectl reads the unquoted key %s as %s; quote it", n.Value, as)
	}
}

// keyToKubectl returns how kubectl reads an unquoted key that looks like a number, and whether that differs from text: 1.10 becomes "1.1", and 010
// becomes "8". For null, which kubectl refuses, it returns "".
func keyToKubectl(text string) (as string, differs bool) {
	switch kindOfPlain(text) {
	case kindNull:
		return "", true
	case kindInt:
		if whole, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 0, 64); err == nil {
			as = strconv.FormatInt(whole, 10)
		}
	case kindFloat:
		if float, err := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64); err == nil {
			as = strconv.FormatFloat(float, 'g', -1, 64)
		}
	}
	return as, as != "" && as != text
}

// merge adds to a mapping those keys of a merge key's value ("<<: *base", or a list of aliases) that the mapping lacks. Keys of the mapping itself
// take precedence, then those of earlier list items.
func (c *converter) merge(n *yaml.Node, out *node, keys *keySet, depth int) *refusal {
	value, err := c.convert(n, depth)
	if err != nil {
		return err
	}
	sources := []*node{value}
	if value.kind == kindList {
		sources = value.items
	}
	for _, source := range sources {
		if source.kind != kindMap {
			c.flaw(n, ReasonWrongType, "a merge key wants a mapping or a list of mappings, got %s", source.what())
			continue
		}
		c.aliased += len(source.fields)
		if c.aliased > c.limits.Aliases {
			return refuse(n.Line, n.Column, ReasonLimit, "aliases add more than %d nodes", c.limits.Aliases)
		}
		for _, f := range source.fields {
			if keys.find(out.fields, f.key) < 0 {
				out.fields = append(out.fields, f)
				out.contain(f.value)
			}
		}
	}
	if len(out.fields) > c.limits.Keys {
		return refuse(n.Line, n.Column, ReasonLimit, "a mapping of more than %d keys", c.limits.Keys)
	}
	return nil
}

func (c *converter) scalar(n *yaml.Node, out *node) {
	out.text = n.Value
	switch tag := n.ShortTag(); tag {
	case "!!null":
		out.kind = kindNull
		if kindOfPlain(n.Value) != kindNull {
			c.flaw(n, ReasonWrongType, "%s is tagged as null; remove the tag, or the value", excerpt(n.Value))
		}
	case "!!bool":
		out.kind = kindBool
	case "!!int":
		out.kind = kindInt
	case "!!float":
		out.kind = kindFloat
	case "!!str", "!!timestamp", "!!merge":
		// A date is text, as in JSON.
		out.kind = kindString
		out.oldBool = isOldBool(n)
	default:
		out.kind = kindString
		c.flaw(n, ReasonWrongType, "the tag %s has no meaning here; remove it", excerpt(tag))
	}
}

// collectionTag adds an error for a mapping or list that has the tag of another type.
func (c *converter) collectionTag(n *yaml.Node, want string) {
	if tag := n.ShortTag(); tag != want {
		c.flaw(n, ReasonWrongType, "the tag %s has no meaning here; remove it", excerpt(tag))
	}
}

// isOldBool reports whether a node is an unquoted word that YAML 1.1 reads as a bool and YAML 1.2
// as text (https://yaml.org/type/bool.html).
func isOldBool(n *yaml.Node) bool {
	if isQuoted(n) || len(n.Value) > len("false") {
		return false
	}
	_, ok := oldBoolValue(n.Value)
	return ok
}

// isQuoted reports whether the style of a scalar determines its type: quotes, a block or a tag.
func isQuoted(n *yaml.Node) bool {
	const quoted = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle | yaml.TaggedStyle
	return n.Style&quoted != 0
}

// oldBoolValue returns the bool that YAML 1.1 reads in an unquoted word; ok is false for any other word.
func oldBoolValue(text string) (value, ok bool) {
	switch text {
	case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
		return true, true
	case "n", "N", "no", "No", "NO", "off", "Off", "OFF":
		return false, true
	}
	return false, false
}

func (c *converter) flaw(n *yaml.Node, reason, format string, args ...any) {
	c.flaws = append(c.flaws, flaw{line: n.Line, column: n.Column, path: slices.Clone(c.path), reason: reason, message: fmt.Sprintf(format, args...)})
}

func (c *converter) warn(n *yaml.Node, reason, format string, args ...any) {
	c.flaw(n, reason, format, args...)
	c.flaws[len(c.flaws)-1].warning = true
}

// yamlLine matches the line number in errors of the YAML library.
var yamlLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^line (\d+): `) })

// syntaxError converts an error of the YAML library to a problem with a useful position. For an unfinished construct the library reports the line
// where the construct began, or no line. In these cases syntaxError uses the position at which the library stopped reading. A git conflict marker, or
// a line of a template that was not rendered, takes precedence.
func syntaxError(text []byte, err error) *refusal {
	if line := conflictMarker(text); line > 0 {
		return &refusal{line: line, column: 1, reason: ReasonSyntax, message: conflictMessage}
	}
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	line, column := 0, 0
	if m := yamlLine().FindStringSubmatch(message); m != nil {
		line, _ = strconv.Atoi(m[1])
		message = message[len(m[0]):]
	}
	if line == 0 || strings.HasPrefix(message, "did not find expected ") {
		line, column = lineColumn(text, readUntilError(text))
	}
	if begins := templateLine(text); begins > 0 {
		return refuse(begins, 1, ReasonSyntax, "could not be parsed: %s%s", message, templateHint(lineAt(text, begins)))
	}
	reason := ReasonSyntax
	switch {
	case strings.Contains(message, "exceeded max depth"):
		reason = ReasonLimit
	case strings.Contains(message, "found a tab"), strings.Contains(message, "found character that cannot start any token"):
		message += "; indent with spaces, and quote a text that starts with @, `, % or a tab"
	case strings.Contains(message, "mapping values are not allowed"), strings.Contains(message, "did not find expected key"),
		strings.Contains(message, "did not find expected '-'"):
		message += "; check the indentation here and in the lines before"
	case strings.Contains(message, "unexpected end of stream"):
		message += "; a quote that starts here is not closed, or the file is cut off"
	case strings.Contains(message, "found incompatible YAML document"):
		line, column = lineColumn(text, max(0, bytes.Index(text, []byte("%YAML"))))
		message += "; leave out the line that begins with %YAML, or write %YAML 1.1"
	}
	return &refusal{line: line, column: column, reason: reason, message: "could not be parsed: " + message}
}

// templateLine returns the first line that begins with {{ or {%, as in a template that was not rendered; 0
// if there is none.
func templateLine(text []byte) int {
	number := 0
	for line := range bytes.Lines(text) {
		number++
		if line = bytes.TrimLeft(line, " \t-"); bytes.HasPrefix(line, []byte("{{")) || bytes.HasPrefix(line, []byte("{%")) {
			return number
		}
	}
	return 0
}

// templateHint returns the advice in a message about a line of a template; "" for other lines.
func templateHint(line []byte) string {
	if bytes.Contains(line, []byte("{{")) || bytes.Contains(line, []byte("{%")) {
		return "; this looks like a template: render it first, as with `helm template`"
	}
	return ""
}

// lineAt returns a line of a text by its number, from 1.
func lineAt(text []byte, number int) []byte {
	for line := range bytes.Lines(text) {
		if number--; number == 0 {
			return line
		}
	}
	return nil
}

const conflictMessage = "this line is a conflict marker of git: the merge is not finished; resolve it, and commit"

// conflictMarker returns the number of the first line with a git conflict marker; 0 if there is none. The text is one that could not be parsed.
func conflictMarker(text []byte) int {
	number := 0
	for line := range bytes.Lines(text) {
		number++
		if bytes.HasPrefix(line, []byte("<<<<<<< ")) || bytes.HasPrefix(line, []byte(">>>>>>> ")) || bytes.HasPrefix(line, []byte("||||||| ")) || string(bytes.TrimRight(line, "\r\n")) == "=======" {
			return number
		}
	}
	return 0
}

// readUntilError returns the offset of the last visible character that the YAML
// library reads before it fails.
func readUntilError(text []byte) int {
	r := &byteReader{text: text}
	decoder := yaml.NewDecoder(r)
	for {
		var doc yaml.Node
		if decoder.Decode(&doc) != nil {
			break
		}
	}
	return max(0, len(bytes.TrimRightFunc(text[:r.read], unicode.IsSpace))-1)
}

// A byteReader is an io.Reader that returns one byte at a time, so that the YAML library reads no further than it needs.
type byteReader struct {
	text []byte
	read int
}

func (r *byteReader) Read(p []byte) (int, error) {
	if r.read == len(r.text) || len(p) == 0 {
		return 0, io.EOF
	}
	p[0] = r.text[r.read]
	r.read++
	return 1, nil
}
