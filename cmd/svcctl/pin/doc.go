// Package pin writes the addresses and ports that Services have into the text of their manifests: only
// into fields that the text does not have, and with the rest, comments included, unchanged. Edits are
// insertions at the positions that the YAML library reports; no YAML is re-encoded.
//
// It computes text from text: it reads and writes no files.
//
//	file := pin.Write("web.yaml", text, func(key string) *object.Service { return live[key] })
//	text, err := file.Text()
package pin
