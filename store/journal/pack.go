package journal

import (
	"bytes"
	"compress/gzip"
	"io"
)

// packLeast is the length from which on a version in the journal is packed (gzip): a few large
// objects would push all other changes out of it. JSON of an object begins otherwise than gzip.
const packLeast = 32 << 10

// packed is a version as the journal keeps it.
func packed(data []byte) []byte {
	if len(data) < packLeast {
		return data
	}
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed) // the level is one that there is
	_, _ = w.Write(data)                              // memory takes everything
	if w.Close() != nil || out.Len() >= len(data) {
		return data
	}
	return out.Bytes()
}

// unpacked is the JSON of what packed made.
func unpacked(data []byte) ([]byte, error) {
	if len(data) < 2 || data[0] != 0x1f || data[1] != 0x8b { // RFC 1952, 2.3.1
		return data, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}
