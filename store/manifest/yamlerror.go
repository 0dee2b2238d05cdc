package manifest

import (
	"bytes"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"gopkg.in/yaml.v3"
)

// yamlLine matches the position in errors of the YAML parser.
var yamlLine = regexp.MustCompile(`^line (\d+): `)

// syntaxError puts an error of the YAML parser into words with a usable place. The
// parser names the line where the construct began that it could not finish, or none;
// for those the place is how far it had to read before it gave up.
func syntaxError(text []byte, err error) *refusal {
	if line := conflictMarker(text); line > 0 {
		return &refusal{line: line, column: 1, reason: ReasonSyntax, message: conflictMessage}
	}
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	line, column := 0, 0
	if m := yamlLine.FindStringSubmatch(message); m != nil {
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
	}
	return &refusal{line: line, column: column, reason: reason, message: "could not be parsed: " + message}
}

// templateLine is the first line that a template has and YAML has not: one that begins with {{ or {%. It
// is 0 when there is none.
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

// templateHint is what to do about a line of a template.
func templateHint(line []byte) string {
	if bytes.Contains(line, []byte("{{")) || bytes.Contains(line, []byte("{%")) {
		return "; this looks like a template: render it first, as with `helm template`"
	}
	return ""
}

// lineAt is a line of a text, from 1.
func lineAt(text []byte, number int) []byte {
	for line := range bytes.Lines(text) {
		if number--; number == 0 {
			return line
		}
	}
	return nil
}

const conflictMessage = "this line is a conflict marker of git: the merge is not finished; resolve it, and commit"

// conflictMarker is the first line that git writes around what it could not merge, in a text that
// is no YAML; 0 when there is none.
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

// readUntilError is the offset of the last visible character that the YAML parser
// reads before it fails.
func readUntilError(text []byte) int {
	r := &byteReader{text: text}
	decoder := yaml.NewDecoder(r)
	for {
		var doc yaml.Node
		if decoder.Decode(&doc) != nil {
			break
		}
	}
	seen := bytes.TrimRightFunc(text[:r.read], unicode.IsSpace)
	return max(0, len(seen)-1)
}

// A byteReader hands out one byte at a time, so that the reader reads no further than
// it needs to.
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
