package rest

import "sync"

// encodingKey names a version of an object in one of its forms.
type encodingKey struct {
	revision         uint64 // of the change
	apiVersion, kind string
	namespace, name  string
	old              bool // what was before the change
	shape            shape
	metaVersion      string
	conditions       string // that it is shown with
}

// maxEncodings bounds how many bytes of objects are kept encoded: what all watchers of
// the same objects are about to send.
const maxEncodings = 8 << 20

// encodings are the changes of late, encoded: however many clients watch an object, each
// of its versions is encoded once.
type encodings struct {
	mu    sync.Mutex
	texts map[encodingKey][]byte
	order []encodingKey // of texts, oldest first
	size  int
}

func newEncodings() *encodings { return &encodings{texts: map[encodingKey][]byte{}} }

// of is the encoded form of what key names. It is made by encode unless it is there; two
// who ask at the same time may both make it. It may not be changed.
func (e *encodings) of(key encodingKey, encode func() ([]byte, error)) ([]byte, error) {
	e.mu.Lock()
	text, ok := e.texts[key]
	e.mu.Unlock()
	if ok {
		return text, nil
	}
	text, err := encode()
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.texts[key]; ok {
		return text, nil
	}
	e.texts[key] = text
	e.order = append(e.order, key)
	for e.size += len(text); e.size > maxEncodings; {
		oldest := e.order[0]
		e.order = e.order[1:]
		e.size -= len(e.texts[oldest])
		delete(e.texts, oldest)
	}
	return text, nil
}
