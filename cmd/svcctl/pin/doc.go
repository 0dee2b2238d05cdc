// Package pin writes the addresses and ports that Services have into the text of their manifests: only
// into fields that the text does not have, and with all else of it, comments included, as it is. Edits are
// insertions at the places that the YAML library tells, so no YAML is written anew.
//
// It computes text from text: it reads and writes no files.
//
//	file := pin.Write("web.yaml", text, func(key string) *object.Service { return live[key] })
//	text, err := file.Text()
package pin
