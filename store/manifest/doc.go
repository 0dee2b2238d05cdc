// Package manifest turns bytes into objects, and objects into bytes, under hard limits.
//
// A file is a sequence of YAML documents or JSON values, each an object or a List of
// objects. Decode never fails: it returns problems as data, each with file,
// line, column, object, field and reason.
//
//   - A file that cannot be taken apart into documents (a syntax error, a breached
//     limit, text that is not UTF-8) is bad as a whole: File.Err is the reason, and it has
//     no Documents.
//   - A document that can be read but is no good object (an unknown field, a wrong
//     type, a missing name) is a Problem of that document alone; every problem of it
//     is reported at once, and its neighbors live.
//   - A document of a kind that is not served here is a warning and is left out.
//
// YAML means here what it means to kubectl, which reads it with YAML 1.1 rules and
// sends JSON: keys and dates are text, 0o10 and 1_000 and 1e3 are numbers, merge keys
// work. Three differences are on purpose. A duplicate key is an error, where kubectl
// keeps the last one silently. A whole number with a leading zero is an error, where
// kubectl reads 010 as eight. An unquoted yes, no, on or off draws a warning; where a
// bool is wanted it is one, as kubectl has it, and where text is wanted it is text,
// where kubectl would make it a bool and the field then refuse it.
//
// Limits are checked before anything typed is built, and the structure of the text is
// counted before the YAML parser sees it, so that a hostile file costs one pass over
// its bytes.
//
// File.Update decodes only the documents whose text changed, and hands out the same
// object.Object pointers for the rest: equal pointers mean equal content, also when
// the lines moved.
//
// The package is pure: no I/O, no clock, no logging. It must not validate values
// (store/object does), must not fill in defaults, and must not import any package of
// this module but store/object.
//
//	file := manifest.Decode("edge.yaml", data, manifest.DefaultLimits())
//	if file.Err != nil {
//		return file.Err // edge.yaml:12:3: could not be parsed: ...
//	}
//	for _, doc := range file.Documents {
//		line, column := doc.Position("spec.ports[0].port")
//		...
//	}
package manifest
