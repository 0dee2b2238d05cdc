// Package history keeps the begin of problems, and the story of this box, over restarts of the program.
//
// Transitions are lines of JSON in a file of the data directory (history.jsonl), in the order in which they
// happened: of problems, of the health of endpoints, of conditions of Services, and of announcements. A transition that the
// kernel has survives the process, also kill -9; nothing is synced, so a power failure may lose the last
// ones. At half a MiB of new lines the file becomes history.old.jsonl, and a new one begins with the open problems.
//
// While the file cannot be written everything is kept in memory, and the next transition writes a new file.
package history
