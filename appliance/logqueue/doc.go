// Package logqueue puts a bounded queue between the writers of the log and its file, so that a log
// without a reader delays no writer: a full pipe, a stuck log driver, a terminal that was paused.
// Lines without room are dropped and counted; the log has their number as soon as it flows again.
//
//	queue := logqueue.New(os.Stderr)
//	log := slog.New(slog.NewTextHandler(queue, nil))
//	queue.OnDrop(func(lines uint64) { log.Warn("log lines were dropped", "lines", lines) })
//	defer queue.Flush(time.Second)
//
// What a crash leaves in the queue is lost. As long as the log is read, that is nothing: lines
// are written as soon as they come.
package logqueue
