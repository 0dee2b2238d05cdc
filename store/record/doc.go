// Package record has the stored form of objects: a Record with its owner and its age, its key in the engine, and its JSON.
//
//	entry, digest, err := r.Encode()
//	r, err := record.Decode(pair)
package record
