// Package sourceset reads files of client prefixes, and reads them again when they change.
//
// A file has one prefix or address a line, of either family and in any order. Empty lines are
// left out, and so is what follows # or ;. A file with a line that is neither is refused as a
// whole: what it said before stays in force.
//
// Events of the directory of a file (fsnotify) say when to look; a file that is written in place
// is read once nothing happened to it for a moment. Every 10 seconds its size and times are
// compared too, for events get lost and a symbolic link may be turned elsewhere. A file that did
// not change is not read.
//
// The package must not know what a Service is, and does not log.
//
//	reader := sourceset.NewReader([]sourceset.File{{Name: "office", Path: "/etc/svcctl/office.txt"}})
//	reader.Scan(take)
//	go reader.Run(ctx, take)
package sourceset
