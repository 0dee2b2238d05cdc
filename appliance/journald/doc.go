// Package journald writes to the journal of systemd in its native protocol, with fields (systemd.journal-fields(7),
// systemd.io/JOURNAL_NATIVE_PROTOCOL).
//
//	queue := logqueue.New(journald.NewConn(journald.Socket))
//	log := slog.New(journald.NewHandler(queue, slog.LevelInfo))
//
// Writing waits for a journal that is stuck, so that a queue belongs in front of a Conn.
package journald
