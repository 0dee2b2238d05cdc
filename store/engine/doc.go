// Package engine keeps pairs of keys and values in transactions: in one file of this machine
// ([File], on bbolt), or in memory ([Memory], for dry runs and tests). A transaction compares the
// revision of one key, puts and deletes; it is durable before Commit returns, or nothing of it
// happened. What keys and values mean is decided by package store.
//
//	e, err := engine.OpenFile("/var/lib/svcctl", nil)
//	err = e.Commit(engine.Transaction{CompareKey: "head", Puts: []engine.Pair{{Key: "head", Revision: 1}}})
//	pairs, err := e.Load("object/")
//
// A second process that opens the same directory is refused by a lock (flock(2)). A file is
// checked as a whole, page by page, before it is opened: damage is an error, never less data.
package engine
