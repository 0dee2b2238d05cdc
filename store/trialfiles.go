package store

import (
	"crypto/sha256"

	"svcctl.io/svcctl/store/manifest"
)

// trialFile has the content of a file before a trial, and after the trial went back the content that is not taken.
type trialFile struct {
	was     bool // it was there
	content []byte
	refused bool // what follows is not taken
	is      bool // it is there
	hash    manifest.Hash
}

// The first byte of a stored trialFile has these bits; the hash follows, if it is there, and the
// content.
const (
	fileWas     = 1
	fileRefused = 2
	fileIs      = 4
)

func (f *trialFile) encode() []byte {
	form := []byte{0}
	if f.was {
		form[0] |= fileWas
	}
	if f.refused {
		form[0] |= fileRefused
	}
	if f.is {
		form[0] |= fileIs
		form = append(form, f.hash[:]...)
	}
	return append(form, f.content...)
}

func decodeTrialFile(value []byte) (f trialFile) {
	if len(value) == 0 {
		return f
	}
	bits, rest := value[0], value[1:]
	f.was, f.refused = bits&fileWas != 0, bits&fileRefused != 0
	if bits&fileIs != 0 && len(rest) >= sha256.Size {
		f.is, f.hash = true, manifest.Hash(rest[:sha256.Size])
		rest = rest[sha256.Size:]
	}
	if f.was {
		f.content = rest
	}
	return f
}

// heldFile is a file that is taken to be as it was before a trial, as long as it is what the trial
// found.
type heldFile struct {
	trialFile
	before *manifest.File // nil: it was not there
}

func (f trialFile) hold(path string) heldFile {
	h := heldFile{trialFile: f}
	if f.was {
		h.before = manifest.Decode(path, f.content, manifest.DefaultLimits())
		h.before.Hash = sha256.Sum256(f.content)
	}
	return h
}
