package store

// Removals are the objects that a SyncFiles is about to remove, because no file has a
// document for them any more.
type Removals struct {
	// Files has the files that the objects came from, each with the Services ("namespace/name")
	// that are lost with it: those that vanish, and those that stay without an endpoint.
	Files map[string][]string
	// Total counts all present Services, Declared those of them that belong to files.
	Total, Declared int
}

// Decision is whether an object that no file has a document for any more is removed.
type Decision uint8

// The decisions about removals.
const (
	Remove Decision = iota
	Wait            // it stays for a moment
	Keep            // it stays until an operator confirms the removal
)

// A RemovalGuard gives what becomes of the objects of each file. It is asked in every SyncGuarded about the
// objects that it would remove, if any. Those that are not removed stay as they are, and are asked about again
// in the next one.
type RemovalGuard func(Removals) func(file string) Decision

// vanishedError means that the holder of a value vanished from the files, and is held.
type vanishedError struct{ error }

func (e vanishedError) Error() string {
	return e.error.Error() + ", which vanished from the manifests and is held: see `svcctl release`"
}

func (e vanishedError) Unwrap() error { return e.error }
