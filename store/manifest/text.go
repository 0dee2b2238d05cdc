package manifest

import (
	"bytes"
	"unicode/utf8"
)

const byteOrderMark = "\xef\xbb\xbf"

// checkText makes sure that data is UTF-8 text, and takes byte order marks off it: that of the file, and those
// of files that were put behind it (YAML 1.2, section 5.2, allows one before each document).
func checkText(data []byte) ([]byte, *refusal) {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return nil, refuse(1, 1, ReasonEncoding, "the file is UTF-16; save it as UTF-8")
	}
	data = bytes.TrimPrefix(data, []byte(byteOrderMark))
	if bytes.Contains(data, []byte("\n"+byteOrderMark)) {
		data = bytes.ReplaceAll(data, []byte("\n"+byteOrderMark), []byte("\n"))
	}
	if !utf8.Valid(data) {
		at := 0
		for at < len(data) {
			r, size := utf8.DecodeRune(data[at:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			at += size
		}
		line, column := lineColumn(data, at)
		return nil, refuse(line, column, ReasonEncoding, "byte 0x%02x is not UTF-8; save the file as UTF-8", data[at])
	}
	return data, nil
}

// lineColumn is the place of an offset, from 1; columns are characters.
func lineColumn(data []byte, offset int) (line, column int) {
	before := data[:offset]
	return bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
}

// What a byte may start, for countStructure.
const (
	plain = iota
	newline
	opening // of a flow collection, or a comma in one
	colon
	dash
	question
	hash
	control // not allowed in YAML
)

// byteClass sorts bytes for countStructure; YAML allows the control characters tab,
// line feed and carriage return only (YAML 1.2 section 5.1).
var byteClass = func() (class [256]uint8) {
	for b := range 0x20 {
		class[b] = control
	}
	class['\t'], class['\r'], class[0x7f] = plain, plain, control
	class['\n'] = newline
	class[','], class['['], class['{'] = opening, opening, opening
	class[':'] = colon
	class['-'], class['?'] = dash, question
	class['#'] = hash
	return class
}()

// What countStructure charges, in nodes. A parsed comment costs as much memory as a
// few nodes; an entry of a flow mapping such as {a,b} makes two nodes of one comma.
const (
	documentCharge = 3 // itself, its root and the root's first child
	flowCharge     = 2
	questionCharge = 2 // "? a:" is a mapping for a key, and nothing for a value
	commentCharge  = 3
)

// countStructure bounds what the YAML parser will build, in one pass and without
// building anything: it refuses text whose documents would have more nodes than the
// limit allows, more documents than the limit, or control characters. The count of a
// document is at least the number of its nodes, and close to it for ordinary text;
// punctuation inside of long texts counts too.
func countStructure(data []byte, limits Limits) *refusal {
	nodes, documents := documentCharge, 1
	start := 0 // of the document
	for i, b := range data {
		switch byteClass[b] {
		case plain:
			continue
		case newline:
			nodes++
			if isMarker(data[i+1:]) {
				documents++
				nodes, start = documentCharge, i+1
			}
		case opening:
			nodes += flowCharge
		case colon:
			if endsToken(data, i+1) || i > 0 && bytes.IndexByte([]byte(`"'}]`), data[i-1]) >= 0 {
				nodes++
			}
		case dash:
			if endsToken(data, i+1) {
				nodes++
			}
		case question:
			nodes += questionCharge
		case hash:
			nodes += commentCharge
		case control:
			line, column := lineColumn(data, i)
			return refuse(line, column, ReasonEncoding, "control character 0x%02x; remove it, or write it as an escape in a quoted text", b)
		}
		if nodes > limits.Nodes {
			line, column := lineColumn(data, start)
			return refuse(line, column, ReasonLimit, "a document of more than %d nodes; split it with --- lines, or write it in JSON, where the items of a List are counted one by one", limits.Nodes)
		}
		if documents > limits.Documents {
			line, column := lineColumn(data, start)
			return refuse(line, column, ReasonLimit, "more than %d documents; split the file", limits.Documents)
		}
	}
	return nil
}

// countDocuments refuses text with more documents than the limit before any is read.
func countDocuments(data []byte, limits Limits) *refusal {
	const shortest = len("---\n")
	documents := 0
	for at := 0; (limits.Documents-documents)*shortest < len(data)-at; at += nextMarker(data[at:]) {
		if documents++; documents > limits.Documents {
			line, column := lineColumn(data, at)
			return refuse(line, column, ReasonLimit, "more than %d documents; split the file", limits.Documents)
		}
	}
	return nil
}

// endsToken reports whether an indicator before offset i stands alone.
func endsToken(data []byte, i int) bool {
	if i >= len(data) {
		return true
	}
	switch data[i] {
	case ' ', '\t', '\r', '\n', ',', '[', ']', '{', '}':
		return true
	}
	return false
}

// isMarker reports whether a line starts with the document marker "---".
func isMarker(line []byte) bool {
	if !bytes.HasPrefix(line, []byte("---")) {
		return false
	}
	return len(line) == 3 || line[3] == ' ' || line[3] == '\t' || line[3] == '\r' || line[3] == '\n'
}

// nextMarker is the offset of the next line after the first that starts with a
// document marker, or len(data).
func nextMarker(data []byte) int {
	for at := 0; ; {
		i := bytes.Index(data[at:], []byte("\n---"))
		if i < 0 {
			return len(data)
		}
		at += i + 1
		if isMarker(data[at:]) {
			return at
		}
	}
}
