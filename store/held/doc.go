// Package held has input that is not taken: the content of files that was rolled back, until a file changes or its content is
// confirmed, and removals of objects that no file declares any more, until the removal is confirmed. Held input has no version of its own:
// it is read and judged with each look at the files.
package held
