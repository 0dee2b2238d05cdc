// Package sourceset reads files of client prefixes, and reads them again when they change.
//
// A file has one prefix or address a line, of either family and in any order. Empty lines are
// left out, and so is what follows # or ;. A file with a line that is neither is refused as a
// whole: what it said before stays in force.
//
// Events of the directory of a file (fsnotify) start a look. Every 10 seconds the size and the times of
// each file are compared too, because events get lost and a symbolic link may be turned elsewhere. A file
// that did not change is not read, and none is read within 0.3 seconds of a change: one that is written in
// place is empty or half until its last write. An empty file replaces prefixes after 10 seconds, in which
// the program that truncated it may wait for its data.
//
// The package does not depend on Services, and does not log.
//
//	reader := sourceset.NewReader([]sourceset.File{{Name: "office", Path: "/etc/svcctl/office.txt"}})
//	reader.Start(take)
//	go reader.Run(ctx, take, changed)
package sourceset
