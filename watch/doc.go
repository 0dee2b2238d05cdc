// Package watch turns directories of manifests into a stream of complete, settled
// snapshots.
//
// A Snapshot has every file of every directory, each with its last good content: a
// file that cannot be read or parsed now keeps what it said before, also over a
// restart, and the reason is among Snapshot.Problems. A file that did not change is the
// same *manifest.File as in the snapshot before, and within a changed file an unchanged
// document is the same object.
//
// # When a file is read
//
// That a text parses does not show that its writer is done, so a file that is written
// in place is read when its size, its times and its inode were quiet for Config.Settle,
// at the latest Config.SettleCap after its first change. If it then lacks an object that
// it had, it is not believed before Config.SettleCap is over. A file that was moved into
// place, or that came by switching a symbolic link, is complete, and read at once. A
// file that vanishes is gone when it did not come back for Config.Settle, which is why
// an editor that renames the old file away and writes a new one makes one snapshot, not
// two. All links that a ..data switch turns (as ConfigMaps are mounted) are in one
// snapshot.
//
// A file of a megabyte or more that has changed is read beside the loop, together with those
// that settled when it did. Changes of other files do not wait for it; but until it is read no
// object vanishes, for it may have moved there.
//
// # Files
//
// *.yaml, *.yml and *.json, recursively; no dotfiles and no editors' temporary files.
// Symbolic links are followed, but not out of the directory, and not when they are
// absolute; a file or directory that is reachable twice is read once. A path that is no regular
// file (a FIFO, a device) is never opened for reading.
//
// Nothing is read of a work tree while git has its index.lock: see once.go.
//
// # Unavailable is not empty
//
// A directory that is gone, renamed, replaced or unreadable keeps its files, and is
// looked for every second. So does a directory that turns out empty when it is opened
// and had files before: a volume that is not mounted looks just like that. Files that
// vanish while the directory is being watched are believed; to confirm that a directory
// was emptied meanwhile, put an empty file such as none.yaml into it.
//
// Events come from fsnotify; every Config.Rescan the directories are read in full, for
// network file systems send none; local ones every 5 minutes. Without watches (the limits of
// inotify are reached) directories are read every second.
//
// # Parts
//
// tree has the directories and what sends events about them, events gathers those, settling decides
// which changes are over, contents has the content in force, and publisher hands out snapshots. events
// and settling are pure: they get the time. Watcher is the loop between them; a walk reads a
// directory, looks and background do long work beside the loop.
//
// The package does not depend on the use of objects: it does not import store, api or nft.
//
//	w, err := watch.New(watch.Config{Dirs: []string{"/etc/svcctl/manifests"}, LastGood: lastGood})
//	...
//	go w.Run(ctx)
//	for snapshot := range w.Snapshots() {
//		...
//	}
package watch
