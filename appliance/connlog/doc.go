// Package connlog writes a line for each connection that ended: JSON, to a file or to the journal.
//
// Write never waits. Lines that find no room, or that cannot be written, are lost and counted, and Err returns
// the reason. The next line creates a file that was renamed, so that logrotate(8) needs neither a signal nor copytruncate.
package connlog
